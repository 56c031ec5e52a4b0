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
    replicas,
    train,
)
from tests.exchange.driving import WORKERS, executions


def rate(step):
    """Exact in float32, in which Optax has it."""
    return 0.125 / (1 + (step >= 25))


def sgd():
    return optax.sgd(ETA)


def adaptive(rate, *, sampling_steps, period):
    """D.8; also each period at its average, and each V."""
    x, xs, waited, ratios, periods, spreads = replicas(), [], 0, [], [], []
    for t in range(STEPS):
        eta = rate(t)
        x, waited = x - eta * gradient(t, x), waited + 1
        if waited == period:
            middle = x.mean(axis=0)
            spread = np.mean(np.sum((x - middle) ** 2, axis=1))
            if t < sampling_steps:
                ratios.append(spread / eta)
            elif spread < 0.7 * eta * np.mean(ratios):
                period += 1
            elif spread > 1.3 * eta * np.mean(ratios):
                period = max(1, period - 1)
            x, waited = np.tile(middle, (WORKERS, 1)), 0
            periods.append(period)
            spreads.append(spread)
        xs.append(x)
    return np.stack(xs), periods, spreads


ADAPTIVE = [1, 3]  # periods at first


def adaptive_period(period):
    return averaging.adaptive_period(
        optax.sgd(rate), rate, sampling_steps=12, period=period
    )


@functools.cache
def trained(execution):
    return train(
        execution,
        {f"H = {h}": functools.partial(adaptive_period, h) for h in ADAPTIVE},
    )


@executions
@pytest.mark.parametrize("period", ADAPTIVE)
def test_an_adaptive_period_follows_the_paper_s_loop(execution, period):
    xs, split = trained(execution)[f"H = {period}"]
    expected, periods, spreads = adaptive(rate, sampling_steps=12, period=period)
    assert_follows(xs, expected)
    state = split.state[1]
    assert state.memory.period == periods[-1]
    np.testing.assert_allclose(state.memory.disagreement, spreads[-1], rtol=1e-10)
    assert len(set(periods)) > 1


def periods_of(sizes, *, period, sampling_steps):
    """The period after each step, of two workers whose steps differ by so much."""
    tx = averaging.adaptive_period(
        optax.sgd(1.0), 1.0, sampling_steps=sampling_steps, period=period
    )

    def run(sign):
        def step(carry, size):
            x, state = carry
            updates, state = tx.update(sign * size, state, x)
            return (x + updates, state), state.memory.period

        zero = jnp.zeros(())
        return jax.lax.scan(step, (zero, tx.init(zero)), jnp.asarray(sizes))[1]

    both = jax.vmap(run, axis_name="workers")(jnp.asarray([1.0, -1.0]))
    np.testing.assert_array_equal(*both)
    return both[0].tolist()


@pytest.mark.parametrize(
    ("factor", "change"), [(0.69, 1), (0.71, 0), (1.0, 0), (1.29, 0), (1.31, -1)]
)
def test_the_period_moves_where_the_spread_leaves_its_band(factor, change):
    # the steps of two workers add up to a spread of size^2
    sizes = [0.5, 0.5, *[0.5 * np.sqrt(factor)] * 2]
    assert periods_of(sizes, period=2, sampling_steps=2) == [2, 2, 2, 2 + change]


def test_the_period_stays_while_it_is_sampled_and_never_falls_below_one():
    assert periods_of([1.0, 0.1, 5.0, 0.1], period=1, sampling_steps=4) == [1] * 4
    assert periods_of([1.0, 9.0, 9.0, 9.0], period=1, sampling_steps=1) == [1] * 4
    assert periods_of([1.0, 1.0, 0.5], period=1, sampling_steps=2) == [1, 1, 2]


def test_a_run_without_a_sample_keeps_its_period():
    """The first average comes after the sampling: there is nothing to compare with."""
    assert periods_of([1.0] * 6, period=3, sampling_steps=1) == [3] * 6


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: averaging.adaptive_period(sgd(), 0.0, sampling_steps=1),
            ValueError,
            "`learning_rate` must be finite and positive",
        ),
        (
            lambda: averaging.adaptive_period(sgd(), 0.1, sampling_steps=0),
            ValueError,
            "`sampling_steps` must be at least 1, got 0",
        ),
        (
            lambda: averaging.adaptive_period(sgd(), 0.1, sampling_steps=1, period=0),
            ValueError,
            "`period` must be at least 1, got 0",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
