import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from delayjax import averaging
from tests.averaging.driving import (
    ETA,
    SGD,
    assert_follows,
    path,
    plain_sgd,
    seen_of,
    train,
)
from tests.exchange.driving import WORKERS, executions
from tests.support.cases import shortened

MERGES = {  # name: (merge of the library, the same in numpy)
    "overwriting": (averaging.overwriting, lambda model, begun, mean: mean),
    "corrected": (averaging.corrected, lambda model, begun, mean: mean + model - begun),
    "blended": (
        averaging.blended(0.25),
        lambda model, begun, mean: 0.25 * model + 0.75 * mean,
    ),
}
IN_FLIGHT = [  # merge, delay, period
    ("overwriting", 1, 4),
    ("corrected", 3, 4),
    ("blended", 4, 4),
    ("corrected", 1, 1),
    ("blended", 0, 3),
]
CORRECTED = [(1, 1), (2, 4), (4, 4), (0, 3)]  # delay, period


def delayed_average(inner, merge, delay, period):
    return averaging.delayed_average(
        inner, delay, period=period, merge=MERGES[merge][0]
    )


def late(merge, delay, period):
    """D.9 in numpy; `arriving` has, by step of arrival, (the models, their mean)."""
    arriving = {}

    def mix(t, x, v):
        x, done = x + v, t + 1
        if delay and done in arriving:
            x = MERGES[merge][1](x, *arriving.pop(done))
        if done % period == 0:
            arriving[done + delay] = x, np.tile(x.mean(axis=0), (WORKERS, 1))
        if not delay and done in arriving:
            x = MERGES[merge][1](x, *arriving.pop(done))
        return x

    return path(mix, momentum=0.5)


@functools.cache
def trained(execution):
    """By merge, delay and period, x [T, P, n]; `CORRECTED` cases have no momentum."""
    inner = optax.sgd(ETA, momentum=0.5)
    txs = {str(case): delayed_average(inner, *case) for case in IN_FLIGHT}
    if execution == "simulate":
        txs |= {str(x): delayed_average(SGD, "corrected", *x) for x in CORRECTED}
    return {name: xs for name, (xs, _) in train(execution, txs).items()}


@executions
@pytest.mark.parametrize("case", IN_FLIGHT, ids=str)
def test_models_follow_the_loop_of_averages_in_flight(execution, case):
    assert_follows(trained(execution)[str(case)], late(*case))


@pytest.mark.parametrize(("delay", "period"), CORRECTED)
def test_a_corrected_merge_leaves_the_mean_on_the_path_of_plain_sgd(delay, period):
    """Curvatures are equal, so the mean gradient is the gradient of the mean model."""
    xs = trained("simulate")[str((delay, period))]
    np.testing.assert_allclose(xs.mean(axis=1), plain_sgd(), rtol=1e-11, atol=1e-12)
    if delay:
        assert np.ptp(xs[-1], axis=0).max() > 1e-3


@pytest.mark.parametrize(
    ("delay", "period"), shortened([(1, 4), (3, 4), (2, 2)], (3, 4))
)
def test_overwriting_and_blending_lose_steps_and_correcting_none(delay, period):
    """Steps of one; overwriting loses d of a round, blending (1 - xi) d."""
    lost = {"overwriting": delay, "blended": 0.75 * delay, "corrected": 0}
    txs = {
        merge: delayed_average(optax.sgd(1.0), merge, delay, period) for merge in lost
    }
    rounds = 10
    steps = rounds * period + delay
    seen = seen_of(txs, np.zeros(2), -np.ones((steps, 2)))
    for merge, of_each in lost.items():
        expected = np.full(2, steps - rounds * of_each)
        np.testing.assert_allclose(seen[merge][-1], expected, rtol=1e-12)


def test_a_strongly_typed_share_keeps_the_models_dtype():
    merge = averaging.blended(jnp.float32(0.5))
    tx = averaging.delayed_average(SGD, 1, period=2, merge=merge)

    def step(x):
        state = tx.init(x)
        return state, tx.update(x, state, x)[1]

    mapped = jax.vmap(step, axis_name="workers")
    before, after = jax.eval_shape(mapped, jnp.ones((4, 2), jnp.bfloat16))
    assert before == after


def test_a_merge_that_answers_another_shape_is_refused():
    def both(model, begun, mean):
        return jnp.concatenate([model, mean])

    tx = averaging.delayed_average(SGD, 1, period=1, merge=both)
    with pytest.raises(ValueError, match=r"Incompatible .* for broadcasting"):
        seen_of({"": tx}, np.ones((4, 1)), np.ones((1, 4, 1)))
