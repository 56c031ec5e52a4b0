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
    plain_sgd,
    replicas,
    train,
)
from tests.exchange.driving import WORKERS, executions


def corrected_gradients(delay, *, momentum=0.0):
    """DGA: own updates at once, the others' `delay` steps later in their place."""
    x, v, xs, made = replicas(), np.zeros((WORKERS, 5)), [], []
    for t in range(STEPS):
        v = momentum * v - ETA * gradient(t, x)
        made.append(v)
        x = x + v
        if t >= delay:
            x = x + made[t - delay].mean(axis=0) - made[t - delay]
        xs.append(x)
    return np.stack(xs)


DELAYS = [1, 3]


@functools.cache
def trained(execution, momentum=None):
    """By delay."""

    def dga(delay):
        return averaging.dga(optax.sgd(ETA, momentum=momentum), delay)

    return train(execution, {f"d = {d}": functools.partial(dga, d) for d in DELAYS})


@executions
@pytest.mark.parametrize("delay", DELAYS)
def test_dga_follows_the_loop_of_its_updates(execution, delay):
    xs, _ = trained(execution, 0.5)[f"d = {delay}"]
    assert_follows(xs, corrected_gradients(delay, momentum=0.5))


@pytest.mark.parametrize("delay", DELAYS)
def test_dga_leaves_the_mean_on_the_path_of_plain_sgd(delay):
    xs, _ = trained("simulate")[f"d = {delay}"]
    np.testing.assert_allclose(xs.mean(axis=1), plain_sgd(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("delay", DELAYS)
def test_models_of_dga_differ_by_their_last_updates_alone(delay):
    xs, _ = trained("simulate")[f"d = {delay}"]
    before = np.concatenate([replicas()[None], xs[:-1]])
    made = np.stack([-ETA * gradient(t, x) for t, x in enumerate(before)])
    own = made - made.mean(axis=1, keepdims=True)
    for t in (delay, 17, STEPS - 1):
        expected = own[t - delay + 1 : t + 1].sum(axis=0)
        apart = xs[t] - xs[t].mean(axis=0)
        np.testing.assert_allclose(apart, expected, rtol=1e-10, atol=1e-12)


def test_a_mean_without_a_delay_is_refused():
    with pytest.raises(ValueError, match="`delay` must be at least 1"):
        averaging.dga(optax.sgd(ETA), 0)
