"""Errors of rules: each names the argument, with its value or the remedy.

`fuzz_test` tries numbers far outside of the intervals; here are the ends.
"""

import functools

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import modulation, pipelines, step_sizes
from tests.rules.liars import TREE, ZENO

SGD = optax.sgd(0.1)
COUNTS = {"workers": 3, "attackers": 1}


def zeno(grad_fn=lambda x: x, **changes):
    return dj.zeno_plus_plus(SGD, grad_fn, **ZENO | changes)


def loop(**changes):
    given = {"learning_rate": 0.1, "target": 0.5} | changes
    return dj.closed_loop_momentum(**given)


# (argument, a function from the argument to the rule, an invalid value at the end)
ENDS = [
    # at decay 1 the mean would never leave 0, and its bias correction be 0 / 0
    ("decay", lambda bad: dj.compensate_delay(1.0, decay=bad), 1.0),
    ("decay", lambda bad: dj.gap_aware(0.1, decay=bad), 1.0),
    # a gradient of 0 at a gap of 0 would be 0 / (0 / 0)
    ("eps", lambda bad: dj.gap_aware(0.1, eps=bad), 0.0),
    ("workers", modulation.capped, 0),
    ("bound", lambda bad: dj.drop_stale(SGD, bad), -1),
    ("budget", lambda bad: step_sizes.share_of_budget(bad, 4), 0.0),
    ("budget", lambda bad: step_sizes.inverse_within_budget(bad, 4), 0.0),
    ("max_delay", lambda bad: step_sizes.share_of_budget(0.1, bad), -1),
    ("max_delay", lambda bad: step_sizes.inverse_within_budget(0.1, bad), -1),
    ("share", lambda bad: step_sizes.share_of_budget(0.1, 4, share=bad), 0.0),
    ("share", lambda bad: step_sizes.share_of_budget(0.1, 4, share=bad), 1.0),
    ("mixing", dj.fedasync, 0.0),
    ("learning_rate", lambda bad: zeno(learning_rate=bad), 0.0),
    ("refresh_every", lambda bad: zeno(refresh_every=bad), 0),
    ("workers", lambda bad: dj.kardam(SGD, workers=bad, attackers=1), 0),
    ("attackers", lambda bad: dj.kardam(SGD, workers=3, attackers=bad), -1),
    ("window", lambda bad: dj.kardam(SGD, **COUNTS, window=bad), 0),
    ("patience", lambda bad: dj.kardam(SGD, **COUNTS, patience=bad), 0),
    ("period", lambda bad: dj.guided(len, period=bad), 0),
    ("replays", lambda bad: dj.guided(len, replays=bad), 0),
    ("target", lambda bad: loop(target=bad), -1.0),
    ("target", lambda bad: loop(target=bad), 1.0),
    ("coordinates", lambda bad: loop(coordinates=bad), 0),
    ("decay", lambda bad: dj.dana(bad, workers=2), 1.0),
    ("workers", lambda bad: dj.dana(0.9, workers=bad), 0),
    ("decay", lambda bad: dj.yellowfin(decay=bad), 1.0),
    ("window", lambda bad: dj.yellowfin(window=bad), 0),
    ("factor", lambda bad: dj.yellowfin(factor=bad), 0.0),
    ("smoothing", lambda bad: dj.yellowfin(smoothing=bad), 1.0),
    ("coordinates", lambda bad: dj.yellowfin(coordinates=bad), 0),
]


@pytest.mark.parametrize(("name", "make", "bad"), ENDS)
def test_a_number_next_to_its_interval_is_named_with_its_value(name, make, bad):
    with pytest.raises(ValueError, match=rf"`{name}` must be .*, got {bad}"):
        make(bad)


CORRECTED = functools.partial(pipelines.discrepancy_correction, SGD, delay=2, decay=0.5)
RESCHEDULED = functools.partial(
    pipelines.reschedule_by_delay, delay=2, annealing_steps=9
)
PREDICTED = functools.partial(dj.predict_weights, SGD, horizon=1)
ADAMS = [
    functools.partial(make, learning_rate=0.1)
    for make in (pipelines.nadam, pipelines.rotated_adam)
]
SHARE, POSITIVE = r"in \[0, 1\)", "finite and positive"
FROM_0 = "finite and non-negative"
# (rule, argument, an invalid value at the end, what it must be)
INTERVALS = [
    *((adam, "learning_rate", -0.1, FROM_0) for adam in ADAMS),
    *((adam, "weight_decay", -1.0, FROM_0) for adam in ADAMS),
    *((adam, "b1", 1.0, SHARE) for adam in ADAMS),
    *((adam, "b2", 1.0, SHARE) for adam in ADAMS),
    *((adam, "eps", 0.0, POSITIVE) for adam in ADAMS),
    (ADAMS[0], "momentum_decay", -1.0, FROM_0),
    (ADAMS[1], "refresh_every", 0, "at least 1"),
    (CORRECTED, "delay", -1, FROM_0),
    (CORRECTED, "decay", 1.0, SHARE),
    (CORRECTED, "microbatches", 0, POSITIVE),
    (RESCHEDULED, "delay", -1, FROM_0),
    (RESCHEDULED, "annealing_steps", 0, POSITIVE),
    (RESCHEDULED, "microbatches", 0, POSITIVE),
    (PREDICTED, "horizon", -1, FROM_0),
    (PREDICTED, "share", -0.5, FROM_0),
]


@pytest.mark.parametrize(("make", "name", "bad", "must"), INTERVALS)
def test_a_number_next_to_its_interval_is_named_with_both(make, name, bad, must):
    with pytest.raises(ValueError, match=f"`{name}` must be {must}, got {bad}"):
        make(**{name: bad})


@pytest.mark.parametrize(
    ("make", "name"),
    [(CORRECTED, "delay"), (RESCHEDULED, "delay"), (PREDICTED, "horizon")],
)
def test_a_delay_of_each_leaf_or_layer_must_fit_the_parameters(make, name):
    params = {"w": jnp.ones((2, 3))}
    with pytest.raises(ValueError, match=f"`{name}` must be one value or a prefix"):
        make(**{name: {"v": 1}}).init(params)
    message = r"3 delays along axis 0, but a leaf has shape \[2, 3\]"
    with pytest.raises(ValueError, match=message):
        make(**{name: dj.delays.Layers((1, 2, 3))}).init(params)


# the extra arguments of `update`

RULES = {
    "compensate_delay": dj.compensate_delay(1.0),
    "gap_aware": dj.gap_aware(0.1),
    "closed_loop_momentum": loop(),
    "yellowfin": dj.yellowfin(closed_loop=True),
    "distance_capped": step_sizes.distance_capped(0.1, 1.0),
    "dasa": step_sizes.dasa(0.1, 1.0),
    "dasgd": step_sizes.dasgd(0.1, project=lambda x: x),
    "share_of_budget": step_sizes.share_of_budget(0.7, 7),
    "inverse_within_budget": step_sizes.inverse_within_budget(0.7, 7),
    "correct_late_updates": dj.correct_late_updates(),
    "scale_by_staleness": dj.scale_by_staleness(modulation.inverse),
    "drop_stale": dj.drop_stale(SGD, 2),
    "fedasync": dj.fedasync(0.5),
    "guided": dj.guided(lambda x: x["b"], period=2),
    "kardam": dj.kardam(SGD, **COUNTS),
    "zeno_plus_plus": zeno(),
    "dana": dj.dana(0.9, workers=2),
}


def step(rule, gradients=TREE, **changes):
    """An update of a rule, by its name, with all arguments but the changed ones."""
    rule = RULES.get(rule, rule)
    given = {"params": TREE, "stale_params": TREE, "staleness": 1, "worker": 0}
    given = given | {"value": 1.0} | changes
    given = {key: value for key, value in given.items() if value is not None}
    params = given.pop("params", None)
    return rule.update(gradients, rule.init(TREE), params, **given)


AROUND = r"`delayed\(optax.chain\(...\), delay\)`"
KEEP = "keep_params=True"
CALL = r"`update\(grads, state, params"
# (rule, the argument that it needs, the remedy)
NEEDED = [
    *(
        (name, "stale_params", KEEP)
        for name in ("compensate_delay", "gap_aware", "distance_capped", "dasa")
    ),
    *(
        (name, "params", CALL)
        for name in ("compensate_delay", "gap_aware", "distance_capped", "dasa")
    ),
    *(
        (name, needed, KEEP)
        for name in ("closed_loop_momentum", "yellowfin")
        for needed in ("staleness", "stale_params")
    ),
    *(
        (name, "staleness", AROUND)
        for name in (
            "share_of_budget",
            "inverse_within_budget",
            "scale_by_staleness",
            "drop_stale",
        )
    ),
    ("correct_late_updates", "staleness", ""),
    ("fedasync", "staleness", "replay"),
    ("dasgd", "params", CALL),
    ("guided", "params", CALL),
    ("kardam", "worker", ""),
    ("kardam", "params", ""),
    ("zeno_plus_plus", "params", ""),
]


@pytest.mark.parametrize(("name", "needed", "remedy"), NEEDED)
def test_what_a_rule_needs_is_named_with_the_remedy(name, needed, remedy):
    step(name)
    needs = f"`{name}` needs the extra argument `{needed}`, but received none: "
    message = f"{needs}.*{remedy}.*or pass `{needed}=` to `update`"
    with pytest.raises(TypeError, match=message):
        step(name, **{needed: None})


def test_the_open_loop_of_yellowfin_needs_gradients_alone():
    rule = dj.yellowfin()
    rule.update(TREE, rule.init(TREE))


@pytest.mark.parametrize("name", ["compensate_delay", "scale_by_staleness"])
def test_a_history_beside_a_rule_hands_it_nothing(name):
    tx = optax.chain(dj.delayed(optax.identity(), 1), RULES[name], SGD)
    with pytest.raises(TypeError, match=rf"`{name}`.*delayed\(optax.chain"):
        tx.update(TREE, tx.init(TREE), TREE)


OTHER = {"w": jnp.ones(1)}
TREES = [
    ("compensate_delay", ("params", "stale_params")),
    ("gap_aware", ("params", "stale_params")),
    ("kardam", ("params", "stale_params")),
    ("closed_loop_momentum", ("stale_params",)),
    ("distance_capped", ("stale_params",)),
    ("dasa", ("stale_params",)),
]


@pytest.mark.parametrize(("name", "arguments"), TREES)
def test_another_tree_of_parameters_is_named(name, arguments):
    for argument in arguments:
        message = f"`{argument}` handed to `{name}` must be like the gradients, got"
        with pytest.raises(TypeError, match=message):
            step(name, **{argument: OTHER})


ONE_STALENESS = [
    "share_of_budget",
    "inverse_within_budget",
    "scale_by_staleness",
    "drop_stale",
]


@pytest.mark.parametrize("name", ONE_STALENESS)
@pytest.mark.parametrize("bad", [-1, True])
def test_a_staleness_that_is_no_number_of_steps_is_named(name, bad):
    with pytest.raises(ValueError, match=rf"`staleness` handed to `{name}`.*{bad}"):
        step(name, staleness=bad)


@pytest.mark.parametrize(
    "name", ["share_of_budget", "inverse_within_budget", "closed_loop_momentum"]
)
def test_a_tree_of_staleness_says_what_to_write(name):
    with pytest.raises(TypeError, match=rf"`{name}`.*optax\.partition"):
        step(name, staleness={"w": 1, "b": 2})


INTEGERS = {**TREE, "b": jnp.int32(1)}
NO_WORKER = r"`worker` handed to `kardam` must be a worker's number, in 0 \.\. 2, got"
NO_LIST = r"`attackers` must be a list of integers in 0 \.\. 2147483647, got"
OF_TWO = dj.dana(0.9, workers=2).init(TREE)
# (call, error, message)
OTHERS = [
    *(
        (
            lambda name=name: step(name, INTEGERS),
            TypeError,
            r"`updates` must be floating-point gradients, got int32 at",
        )
        for name in ("compensate_delay", "gap_aware", "guided")
    ),
    (
        lambda: step("scale_by_staleness", staleness={"v": 1}),
        ValueError,
        r"`staleness` must be one value or a prefix of the tree, got \{'v': .*'b', 'w'",
    ),
    *(
        (lambda bad=bad: step("kardam", worker=bad), ValueError, NO_WORKER)
        for bad in (-1, 3, 1.5, np.ones(2, int), True)
    ),
    *(
        (
            lambda w=w, f=f: dj.kardam(SGD, workers=w, attackers=f),
            ValueError,
            rf"`workers` must be above twice `attackers`, {f}, got {w}",
        )
        for w, f in ((2, 1), (6, 3), (5, 9))
    ),
    *(
        (
            lambda wrong=wrong: step(zeno(wrong)),
            TypeError,
            r"`grad_fn\(params\)` must return gradients",
        )
        for wrong in (lambda x: x["w"], lambda x: {**x, "w": x["b"]})
    ),
    (lambda: zeno(TREE), TypeError, "`grad_fn` must be a function, got {'w'"),
    *(
        (
            lambda bad=bad: dj.attack(optax.scale(-1.0), attackers=bad),
            ValueError,
            NO_LIST,
        )
        for bad in ([-1], 1, [True, False], [0.5], [[1]], "12")
    ),
    (
        lambda: dj.refusing(SGD, lambda g, m, p, **_: (True, g, m), axis_name=3),
        TypeError,
        r"`axis_name` .* 3",
    ),
    (
        lambda: step("guided", value=jnp.ones(2)),
        ValueError,
        "`value` must be a scalar, the loss, got \\(2,\\)",
    ),
    (
        lambda: step(dj.guided(lambda x: x["w"])),
        ValueError,
        r"`loss_fn\(params\)` must be a scalar, got shape \(2,\)",
    ),
    (
        lambda: step("guided", {"w": TREE["w"]}),
        ValueError,
        "`updates` must have the structure",
    ),
    *(
        (lambda bad=bad: step("dana", worker=bad), (TypeError, ValueError), "`worker`")
        for bad in (1.0, jnp.ones(2, jnp.int32))
    ),
    (
        lambda: dj.dana(0.9, workers=3).update(TREE, OF_TWO, worker=0),
        ValueError,
        "`workers` is 3, but the state has 2",
    ),
    (
        lambda: step(step_sizes.dasgd(0.1, project=lambda x: x["w"])),
        TypeError,
        r"`project` must return what it receives, got None for float32\[\] at \['b'\]",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), OTHERS)
def test_an_argument_of_another_kind_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
