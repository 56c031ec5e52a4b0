"""Arguments of replay that cannot be, each named with its value."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.training.traces import (
    KEY,
    ONE,
    PARAMS,
    SGD,
    TRACES,
    batches_of,
    fresh_key,
    grad_fn,
    only,
    pick,
    shapes_after,
)

# bad input

SINGLE = TRACES["one by one"]


def construct(trace=SINGLE, grad_fn=grad_fn, tx=SGD, **options):
    return dj.replay(trace, grad_fn, tx, **options)


def one_step(grad_fn=grad_fn, width=1, **options):
    """A step with a batch of `width` gradients, where the trace has one."""
    batch = {"features": np.zeros((1, width, 3)), "target": np.zeros((1, width, 2))}
    return shapes_after(construct(grad_fn=grad_fn, **options), SINGLE, batch)


def too_long():
    replay = construct()
    batches = jax.tree.map(lambda x: np.concatenate([x, x]), batches_of(SINGLE))
    return replay.run(replay.init(PARAMS, fresh_key()), batches)


def run_of_two_traces():
    replay = construct([SINGLE, SINGLE])
    return replay.run(replay.init(PARAMS, fresh_key()), batches_of(SINGLE))


def row_of_another_width():
    replay, wide = construct(), TRACES["four"]
    return shapes_after(replay, wide, batches_of(wide))


def arrivals_without_slots():
    rows = SINGLE.arrivals(0, 1)._replace(slot=None, written=None)
    replay, inputs = construct(), pick((rows, batches_of(SINGLE)), 0)
    return jax.eval_shape(replay.step, jax.eval_shape(replay.init, PARAMS, KEY), inputs)


def state_of_a_shallower_trace():
    state = jax.eval_shape(construct(ONE["serial"]).init, PARAMS, KEY)
    inputs = pick((SINGLE.arrivals(0, 1), batches_of(SINGLE)), 0)
    return jax.eval_shape(construct().step, state, inputs)


def norms(updates, params):
    """One number for all of a leaf's coordinates."""
    return jax.tree.map(jnp.linalg.norm, updates)


BAD = {
    "an optimizer that pairs late gradients": (
        lambda: construct(tx=optax.scale_by_lbfgs()).init(PARAMS, KEY),
        ValueError,
        r"`tx` must not hold optax's scale_by_lbfgs: .* Use an optimizer that reads",
    ),
    "a rule of each that pairs late gradients": (
        lambda: construct(each=optax.scale_by_lbfgs()).init(PARAMS, KEY),
        ValueError,
        r"`each` must not hold optax's scale_by_lbfgs: ",
    ),
    "an optimizer that pairs gradients, which may be late in another trace": (
        lambda: construct(
            trace=TRACES["serial"], tx=optax.scale_by_lbfgs(), max_versions=2
        ).init(PARAMS, KEY),
        ValueError,
        r"`tx` must not hold optax's scale_by_lbfgs: ",
    ),
    "a run along two traces": (
        run_of_two_traces,
        ValueError,
        r"`run` follows one trace, got 2: map `step`",
    ),
    "a trace of more versions than are kept": (
        lambda: construct(max_versions=SINGLE.max_versions - 1),
        ValueError,
        rf"`max_versions` must be at least {SINGLE.max_versions}, got 3",
    ),
    "one of several with more versions than are kept": (
        lambda: construct(trace=[TRACES["serial"], SINGLE], max_versions=1),
        ValueError,
        rf"`max_versions` must be at least {SINGLE.max_versions}, got 1",
    ),
    "a spread over more versions than are kept": (
        lambda: construct(max_versions=SINGLE.max_staleness, read_spread=1.0),
        ValueError,
        rf"`max_versions` must be at least {SINGLE.max_staleness + 1}, got",
    ),
    "arrivals without slots": (
        arrivals_without_slots,
        ValueError,
        "`arrivals` must have `slot` and `written`, got None",
    ),
    "a batch of two for one gradient": (
        lambda: one_step(width=2),
        ValueError,
        r"`batches` must have a leading axis of 1, got shape \(2, 3\)",
    ),
    "a row of another trace": (
        row_of_another_width,
        ValueError,
        r"`batches` must have a leading axis of 1, got shape \(4,\) at .* width=1",
    ),
    "a state of a shallower trace": (
        state_of_a_shallower_trace,
        ValueError,
        rf"`state` must keep {SINGLE.max_versions} versions, got .* 1: .*resize",
    ),
    "a rule that answers a number": (
        lambda: one_step(each=only(lambda grads, staleness: 0.5)),
        TypeError,
        r"`accept\(gradients, \.\.\.\)` must be a bool, got float32",
    ),
    "a rule that answers a bool for each leaf": (
        lambda: one_step(each=only(lambda grads, staleness: jnp.ones(3, bool))),
        ValueError,
        r"`accept\(gradients, \.\.\.\)` must be a scalar, got shape \(3,\)",
    ),
    "a rule of each that is no gradient": (
        lambda: one_step(each=optax.stateless(norms)),
        TypeError,
        r"`each` must return gradients like the parameters, got \[\] for \[2\] .*'b'",
    ),
    "a combination that is no gradient": (
        lambda: one_step(
            aggregation=dj.Aggregation(
                lambda params: (), lambda s, *_: s, lambda s, _: (jnp.zeros(()), s)
            )
        ),
        TypeError,
        "`aggregation` must return a direction like the parameters, got",
    ),
    "gradients of another tree": (
        lambda: one_step(grad_fn=lambda p, batch, key: ({}, p["layer"])),
        (TypeError, ValueError),
        r"`grad_fn` must .* like the parameters.* for None at",
    ),
    "more batches than updates": (
        too_long,
        ValueError,
        "`batches` must fit 14 updates, got 28",
    ),
    "tables of no workers": (
        lambda: dj.cluster.protocols.ringleader().aggregation(0),
        ValueError,
        r"`num_workers` .* got 0",
    ),
}


def test_fresh_gradients_may_be_paired():
    """The pairs of L-BFGS are right where no gradient is late."""
    assert TRACES["serial"].max_staleness == 0
    construct(trace=TRACES["serial"], tx=optax.scale_by_lbfgs())


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_named_with_its_value(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()
