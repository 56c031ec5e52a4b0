"""Arguments of rules that cannot be: each is named, with its value or the remedy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import modulation, step_sizes
from tests.rules.liars import FILTERS, TREE, ZENO

SGD, NAN, INF = optax.sgd(0.1), np.nan, np.inf
COUNTS = {"workers": 3, "attackers": 1}


def zeno(**changes):
    return dj.zeno_plus_plus(SGD, lambda x: x, **ZENO | changes)


def loop(**changes):
    given = {"learning_rate": 0.1, "target": 0.5} | changes
    return dj.closed_loop_momentum(**given)


# (argument, what makes the rule of it, values that it cannot have)
OUTSIDE = (-1.0, NAN, INF)
NUMBERS = [
    ("strength", dj.compensate_delay, OUTSIDE),
    # at decay 1 the mean would never leave 0, and its bias correction be 0 / 0
    ("decay", lambda bad: dj.compensate_delay(1.0, decay=bad), (*OUTSIDE, 1.0)),
    ("learning_rate", dj.gap_aware, OUTSIDE),
    ("decay", lambda bad: dj.gap_aware(0.1, decay=bad), (*OUTSIDE, 1.0)),
    # a gradient of 0 at a gap of 0 would be 0 / (0 / 0)
    ("eps", lambda bad: dj.gap_aware(0.1, eps=bad), (*OUTSIDE, 0.0)),
    ("power", modulation.polynomial, OUTSIDE),
    ("slope", lambda bad: modulation.hinge(bad, 4), OUTSIDE),
    ("knee", lambda bad: modulation.hinge(1.0, bad), OUTSIDE),
    ("rate", modulation.exponential, OUTSIDE),
    ("workers", modulation.capped, (*OUTSIDE, 0)),
    ("learning_rate", lambda bad: modulation.delay_adaptive(bad, 4), OUTSIDE),
    ("concurrency", lambda bad: modulation.delay_adaptive(0.1, bad), OUTSIDE),
    ("bound", lambda bad: modulation.delay_adaptive(0.1, 4, bound=bad), OUTSIDE),
    ("bound", lambda bad: dj.drop_stale(SGD, bad), (-1,)),
    ("budget", lambda bad: step_sizes.adaptive_1(bad, 4), (*OUTSIDE, 0.0)),
    ("budget", lambda bad: step_sizes.adaptive_2(bad, 4), (*OUTSIDE, 0.0)),
    ("max_delay", lambda bad: step_sizes.adaptive_1(0.1, bad), (-1,)),
    ("max_delay", lambda bad: step_sizes.adaptive_2(0.1, bad), (-1,)),
    (
        "share",
        lambda bad: step_sizes.adaptive_1(0.1, 4, share=bad),
        (-1.0, 0.0, 1.0, NAN),
    ),
    ("smoothness", lambda bad: step_sizes.adadelay(bad, 1.0), OUTSIDE),
    ("scale", lambda bad: step_sizes.adadelay(1.0, bad), OUTSIDE),
    ("learning_rate", lambda bad: step_sizes.distance_capped(bad, 1.0), OUTSIDE),
    ("reach", lambda bad: step_sizes.distance_capped(0.1, bad), OUTSIDE),
    ("learning_rate", lambda bad: step_sizes.dasa(bad, 1.0), OUTSIDE),
    ("reach", lambda bad: step_sizes.dasa(0.1, bad), OUTSIDE),
    ("learning_rate", step_sizes.dasgd, OUTSIDE),
    ("scale", step_sizes.harmonic, OUTSIDE),
    ("learning_rate", lambda bad: zeno(learning_rate=bad), (0.0,)),
    ("rho", lambda bad: zeno(rho=bad), (-1.0,)),
    ("eps", lambda bad: zeno(eps=bad), (NAN,)),
    ("refresh_every", lambda bad: zeno(refresh_every=bad), (0,)),
    ("workers", lambda bad: dj.kardam(SGD, workers=bad, attackers=1), (0,)),
    ("attackers", lambda bad: dj.kardam(SGD, workers=3, attackers=bad), (-1,)),
    ("window", lambda bad: dj.kardam(SGD, **COUNTS, window=bad), (0,)),
    ("patience", lambda bad: dj.kardam(SGD, **COUNTS, patience=bad), (0,)),
    ("target", lambda bad: loop(target=bad), (-1.0, 1.0, 1.5, NAN)),
    ("learning_rate", lambda bad: loop(learning_rate=bad), (-0.1,)),
    ("gain", lambda bad: loop(gain=bad), (-0.1,)),
    ("coordinates", lambda bad: loop(coordinates=bad), (0,)),
    ("decay", lambda bad: dj.dana(bad, workers=2), (1.0, -0.1)),
    ("workers", lambda bad: dj.dana(0.9, workers=bad), (0,)),
    ("decay", lambda bad: dj.yellowfin(decay=bad), (1.0,)),
    ("window", lambda bad: dj.yellowfin(window=bad), (0,)),
    ("factor", lambda bad: dj.yellowfin(factor=bad), (0.0,)),
    ("smoothing", lambda bad: dj.yellowfin(smoothing=bad), (1.0,)),
    ("gain", lambda bad: dj.yellowfin(gain=bad), (-1.0,)),
    ("coordinates", lambda bad: dj.yellowfin(coordinates=bad), (0,)),
]


@pytest.mark.parametrize(("name", "make", "values"), NUMBERS)
def test_a_number_outside_of_its_interval_is_named_with_its_value(name, make, values):
    for bad in values:
        with pytest.raises(ValueError, match=rf"`{name}` must be .*, got {bad}"):
            make(bad)


def told(name, params=TREE, **changes):
    """An update of a filter that is told all but what changes."""
    tx, given = FILTERS[name], {"worker": 0, "stale_params": TREE} | changes
    given = {key: value for key, value in given.items() if value is not None}
    return tx.update(TREE, tx.init(TREE), params, **given)


def validated(grad_fn):
    tx = dj.zeno_plus_plus(SGD, grad_fn, **ZENO)
    return tx.update(TREE, tx.init(TREE), TREE)


def attacked():
    tx = dj.attack(optax.scale(-1.0), attackers=[0])
    return tx.update(TREE, tx.init(TREE))


NO_WORKER = r"`worker` handed to `kardam` must be a worker's number, in 0 \.\. 2, got"
NO_LIST = "`attackers` must be a list of workers' num"
OTHER = {"w": jnp.ones(1)}
# (call, error, message)
OTHERS = [
    *(
        (lambda bad=bad: dj.compensate_delay(bad), TypeError, "`strength` must be a nu")
        for bad in ("0.5", [0.5], None, 1j)
    ),
    *(
        (lambda bad=bad: dj.gap_aware(bad), TypeError, "`learning_rate` must be a num")
        for bad in ("0.5", [0.5], None, 1j)
    ),
    *(
        (lambda bad=bad: modulation.polynomial(bad), TypeError, "`power` must be a nu")
        for bad in ("0.5", [0.5], None)
    ),
    (lambda: dj.drop_stale(SGD, 1.5), TypeError, r"`bound` must be .*, got 1.5"),
    (lambda: dj.drop_stale(0.1, 2), TypeError, "`inner` must be an Optax transforma"),
    *(
        (lambda make=make: make(0.1, 1.5), TypeError, r"`max_delay` must be .*, got 1")
        for make in (step_sizes.adaptive_1, step_sizes.adaptive_2)
    ),
    (lambda: told("kardam", worker=None), TypeError, r"`kardam` needs .*`worker`"),
    (
        lambda: told("kardam", stale_params=None),
        TypeError,
        r"`kardam` needs the extra .*`stale_params`",
    ),
    (lambda: told("kardam", None), TypeError, r"`kardam` needs the extra .*`params`"),
    (
        lambda: told("zeno_plus_plus", None),
        TypeError,
        r"`zeno_plus_plus` needs the .*`params`",
    ),
    (
        lambda: told("kardam", OTHER),
        ValueError,
        "`params` handed to `kardam` must be like",
    ),
    (
        lambda: told("kardam", stale_params=OTHER),
        ValueError,
        "`stale_params` handed to `kardam` must be like",
    ),
    *(
        (lambda bad=bad: told("kardam", worker=bad), ValueError, NO_WORKER)
        for bad in (-1, 3, 1.5, np.ones(2, int), True)
    ),
    *(
        (
            lambda w=w, f=f: dj.kardam(SGD, workers=w, attackers=f),
            ValueError,
            rf"`workers` must be more than twice `attackers`, got {w} workers",
        )
        for w, f in ((2, 1), (6, 3), (5, 9))
    ),
    (
        lambda: dj.kardam(SGD, **COUNTS, lipschitz=False, frequency=False),
        ValueError,
        "`lipschitz` and `frequency` must not both",
    ),
    *(
        (
            lambda wrong=wrong: validated(wrong),
            TypeError,
            r"`grad_fn\(params\)` must return gradients",
        )
        for wrong in (lambda x: x["w"], lambda x: {**x, "w": x["b"]})
    ),
    (
        lambda: dj.zeno_plus_plus(SGD, TREE, **ZENO),
        TypeError,
        "`grad_fn` must be a function of the param",
    ),
    (attacked, TypeError, r"`attack` needs .*`worker`.*`each` of `repla"),
    *(
        (
            lambda bad=bad: dj.attack(optax.scale(-1.0), attackers=bad),
            ValueError,
            NO_LIST,
        )
        for bad in ([-1], 1, [True, False], [0.5], [[1]], "12")
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), OTHERS)
def test_an_argument_of_another_kind_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
