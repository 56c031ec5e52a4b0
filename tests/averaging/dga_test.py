import functools

import numpy as np
import optax
import pytest

from delayjax import averaging
from tests.averaging.driving import (
    ETA,
    STEPS,
    assert_follows,
    gradient,
    path,
    plain_sgd,
    replicas,
    train,
)
from tests.exchange.driving import executions

DELAYS = [1, 3]
delays = pytest.mark.parametrize("delay", DELAYS)


def corrected_gradients(delay, momentum):
    """DGA: a worker's gradient at once; `delay` steps later, the mean replaces it."""
    moves = []

    def mix(t, x, v):
        moves.append(v)
        x = x + v
        return x + moves[t - delay].mean(axis=0) - moves[t - delay] if t >= delay else x

    return path(mix, momentum=momentum)


@functools.cache
def trained(execution):
    """By delay and momentum: x [T, P, n]."""
    txs = {
        f"{delay} {momentum}": averaging.dga(optax.sgd(ETA, momentum=momentum), delay)
        for delay in DELAYS
        for momentum in (0.0, 0.5)
    }
    return {name: xs for name, (xs, _) in train(execution, txs).items()}


@executions
@delays
def test_dga_follows_the_loop_of_its_updates(execution, delay):
    xs = trained(execution)[f"{delay} 0.5"]
    assert_follows(xs, corrected_gradients(delay, momentum=0.5))


@delays
def test_dga_leaves_the_mean_on_the_path_of_plain_sgd(delay):
    xs = trained("simulate")[f"{delay} 0.0"]
    np.testing.assert_allclose(xs.mean(axis=1), plain_sgd(), rtol=1e-11, atol=1e-12)


@delays
def test_models_of_dga_differ_by_their_last_updates_alone(delay):
    xs = trained("simulate")[f"{delay} 0.0"]
    before = np.concatenate([replicas()[None], xs[:-1]])
    moves = np.stack([-ETA * gradient(t, x) for t, x in enumerate(before)])
    deviations = moves - moves.mean(axis=1, keepdims=True)
    for t in (delay, 17, STEPS - 1):
        expected = deviations[t - delay + 1 : t + 1].sum(axis=0)
        spread = xs[t] - xs[t].mean(axis=0)
        np.testing.assert_allclose(spread, expected, rtol=1e-10, atol=1e-12)
