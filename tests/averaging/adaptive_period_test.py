import numpy as np
import optax
import pytest

from delayjax import averaging
from tests.averaging.driving import (
    STEPS,
    assert_follows,
    gradient,
    replicas,
    seen_of,
    train,
)
from tests.exchange.driving import WORKERS, mostly_simulated


def rate(step):
    """Exact in float32, in which Optax has it."""
    return 0.125 / (1 + (step >= 25))


def adaptive(*, sampling_steps, period):
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


@mostly_simulated
def test_an_adaptive_period_follows_the_paper_s_loop(execution):
    txs = {
        str(period): averaging.adaptive_period(
            optax.sgd(rate), rate, sampling_steps=12, period=period
        )
        for period in (1, 3)  # at first
    }
    for period, (xs, split) in train(execution, txs).items():
        expected, periods, spreads = adaptive(sampling_steps=12, period=int(period))
        assert_follows(xs, expected, f"H = {period}")
        memory = split.state[1].memory
        assert memory.period == periods[-1]
        np.testing.assert_allclose(memory.disagreement, spreads[-1], rtol=1e-10)
        assert len(set(periods)) > 1


def periods_of(sizes, *, period, sampling_steps):
    """The period after each step, of two workers whose steps differ by so much."""
    tx = averaging.adaptive_period(
        optax.sgd(1.0), 1.0, sampling_steps=sampling_steps, period=period
    )
    noise = np.multiply.outer(sizes, [1.0, -1.0])

    def period_of(x, state):
        return state.memory.period

    seen = seen_of({"": tx}, np.zeros(2), noise, see=period_of)[""]
    one, other = seen.T.tolist()
    assert one == other
    return one


@pytest.mark.parametrize(
    ("factor", "change"), [(0.69, 1), (0.71, 0), (1.29, 0), (1.31, -1)]
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
