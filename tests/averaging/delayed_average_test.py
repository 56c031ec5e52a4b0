import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from delayjax import averaging
from tests.averaging.driving import (
    ETA,
    STEPS,
    assert_follows,
    gradient,
    plain_sgd,
    replicas,
    train,
)
from tests.exchange.driving import WORKERS, executions


def sgd():
    return optax.sgd(ETA)


def blended(share):
    return lambda own, begun, mean: share * own + (1 - share) * mean


def late(merge, *, delay, period, momentum=0.0):
    """D.9, with a dictionary of when an average arrives: (its models, their mean)."""
    x, v, xs, arriving = replicas(), np.zeros((WORKERS, 5)), [], {}
    for t in range(STEPS):
        v = momentum * v - ETA * gradient(t, x)
        x = x + v
        done = t + 1
        if delay and done in arriving:
            x = merge(x, *arriving.pop(done))
        if done % period == 0:
            arriving[done + delay] = x, np.tile(x.mean(axis=0), (WORKERS, 1))
        if not delay and done in arriving:
            x = merge(x, *arriving.pop(done))
        xs.append(x)
    return np.stack(xs)


MERGES = {
    "overwriting": (averaging.overwriting, lambda own, begun, mean: mean),
    "corrected": (averaging.corrected, lambda own, begun, mean: mean + own - begun),
    "blended": (averaging.blended(0.25), blended(0.25)),
}


IN_FLIGHT = [  # merge, delay, period
    ("overwriting", 1, 4),
    ("corrected", 3, 4),
    ("blended", 4, 4),
    ("corrected", 1, 1),
    ("blended", 0, 3),
]


@functools.cache
def trained(execution):
    def delayed_average(merge, delay, period):
        inner = optax.sgd(ETA, momentum=0.5)
        return averaging.delayed_average(
            inner, delay, period=period, merge=MERGES[merge][0]
        )

    makes = {str(x): functools.partial(delayed_average, *x) for x in IN_FLIGHT}
    return train(execution, makes)


@executions
@pytest.mark.parametrize(("merge", "delay", "period"), IN_FLIGHT)
def test_models_follow_the_loop_of_averages_in_flight(execution, merge, delay, period):
    xs, _ = trained(execution)[str((merge, delay, period))]
    theirs = MERGES[merge][1]
    assert_follows(xs, late(theirs, delay=delay, period=period, momentum=0.5))


CORRECTED = [(1, 1), (2, 4), (4, 4), (0, 3)]  # delay, period


@functools.cache
def without_momentum():
    """Models [T, P, n] of corrected merges."""

    def corrected(delay, period):
        return averaging.delayed_average(sgd(), delay, period=period)

    makes = {str(x): functools.partial(corrected, *x) for x in CORRECTED}
    return {name: xs for name, (xs, _) in train("simulate", makes).items()}


@pytest.mark.parametrize(("delay", "period"), CORRECTED)
def test_a_corrected_merge_leaves_the_mean_on_the_path_of_plain_sgd(delay, period):
    """All curvatures are the same: the mean gradient is that of the mean model."""
    xs = without_momentum()[str((delay, period))]
    np.testing.assert_allclose(xs.mean(axis=1), plain_sgd(), rtol=1e-11, atol=1e-12)
    if delay:
        assert np.ptp(xs[-1], axis=0).max() > 1e-3


def steps_left(merge, *, delay, period, rounds=10):
    """How far a worker comes whose every local step is 1, all workers alike."""
    tx = averaging.delayed_average(optax.sgd(1.0), delay, period=period, merge=merge)

    def run(x):
        def step(carry, _):
            x, state = carry
            updates, state = tx.update(-jnp.ones(()), state, x)
            return (x + updates, state), None

        steps = rounds * period + delay
        return jax.lax.scan(step, (x, tx.init(x)), length=steps)[0][0]

    return float(jax.vmap(run, axis_name="workers")(jnp.zeros(2))[0])


@pytest.mark.parametrize(("delay", "period"), [(1, 4), (3, 4), (2, 2)])
def test_overwriting_and_blending_lose_steps_and_correcting_none(delay, period):
    """d of each round's, (1 - xi) d of them, none."""
    rounds = 10
    for merge, lost in (
        (averaging.overwriting, delay),
        (averaging.blended(0.25), 0.75 * delay),
        (averaging.corrected, 0),
    ):
        seen = steps_left(merge, delay=delay, period=period, rounds=rounds)
        expected = rounds * period + delay - rounds * lost
        np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_a_strongly_typed_share_keeps_the_models_dtype():
    merge = averaging.blended(jnp.float32(0.5))
    tx = averaging.delayed_average(sgd(), 1, period=2, merge=merge)

    def step(x):
        state = tx.init(x)
        return state, tx.update(x, state, x)[1]

    over = jax.vmap(step, axis_name="workers")
    before, after = jax.eval_shape(over, jnp.ones((4, 2), jnp.bfloat16))
    assert before == after


def test_a_merge_that_answers_another_shape_is_refused():
    def both(own, begun, mean):
        return jnp.concatenate([own, mean])

    tx = averaging.delayed_average(sgd(), 1, period=1, merge=both)
    with pytest.raises(ValueError, match=r"Incompatible .* for broadcasting"):
        jax.vmap(lambda x: tx.update(x, tx.init(x), x)[0], axis_name="workers")(
            jnp.ones((4, 1))
        )


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: averaging.delayed_average(sgd(), 3, period=2),
            ValueError,
            "`delay` must be at most `period`, 2, got 3",
        ),
        (
            lambda: averaging.delayed_average(sgd(), -1, period=2),
            ValueError,
            "`delay` must be non-negative, got -1",
        ),
        (
            lambda: averaging.delayed_average(sgd(), 0, period=0),
            ValueError,
            "`period` must be at least 1, got 0",
        ),
        (lambda: averaging.blended(1.0), ValueError, r"`share` must be in \[0, 1.0\)"),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
