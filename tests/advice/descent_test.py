"""The mean loss along a trace: against closed forms, and against SGD with noise."""

import math

import numpy as np
import pytest

from delayjax._src.advice.descent import Bowl, Descent
from delayjax.cluster import Cluster, constant, exponential, protocols, simulate

BOWL = Bowl(np.array([0.1, 0.3, 1.0]), noise=2.0, target=0.05)


def trace_of(protocol, updates, workers=4):
    return simulate(Cluster(workers, exponential(1.0)), protocol, updates, seed=0)


def fresh_loss(step, updates, workers):
    """Means of P fresh gradients: each coordinate is an AR(1) process."""
    c = BOWL.curvatures
    keeps = (1 - step * c) ** 2
    noise = step**2 * BOWL.variance / workers
    squares = keeps**updates + noise * (1 - keeps**updates) / (1 - keeps)
    return float(c @ squares / 2)


def test_without_delay_the_loss_is_that_of_an_autoregression():
    descent = Descent(trace_of(protocols.hardsync(), 50), BOWL, largest=0.5)
    for updates in (1, 7, 50):
        expected = min(fresh_loss(step, updates, 4) for step in descent.steps)
        assert descent.loss(updates) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "protocol",
    [protocols.k_async(1), protocols.k_batch_async(3), protocols.ssp(1)],
    ids=repr,
)
def test_the_mean_loss_is_the_mean_over_runs_with_noise(protocol):
    updates, step, runs = 60, 0.2, 20_000
    trace = trace_of(protocol, updates)
    rng = np.random.default_rng(1)
    x = [np.ones((runs, 3))]
    for update in range(updates):
        gradients = [
            BOWL.curvatures * x[version]
            + math.sqrt(BOWL.variance) * rng.standard_normal((runs, 3))
            for version in trace.read_version[trace.update == update]
        ]
        x.append(x[-1] - step * sum(gradients) / trace.divisor[update])
    losses = x[-1] ** 2 @ BOWL.curvatures / 2
    descent = Descent(trace, BOWL, largest=step)
    descent.steps = descent.steps[:1]
    error = losses.std() / math.sqrt(runs)
    assert descent.loss(updates) == pytest.approx(losses.mean(), abs=4 * error)


def test_the_arrival_is_the_first_update_at_the_target():
    descent = Descent(trace_of(protocols.k_async(1), 400), BOWL, largest=0.2)
    target = BOWL.target * BOWL.curvatures.sum() / 2
    losses = [descent.loss(updates) for updates in range(401)]
    assert descent.arrival() == next(t for t, f in enumerate(losses) if f <= target)


def test_a_trace_that_ends_before_the_target_has_no_arrival():
    assert Descent(trace_of(protocols.hardsync(), 3), BOWL, 0.01).arrival() is None


def test_the_largest_step_without_delay_ends_at_the_target():
    small = BOWL._replace(target=1e-4)  # for small steps, where the rule is exact
    step, c = small.largest_step(4, limit=2.0), small.curvatures
    floor = step**2 * small.variance / 4 / (1 - (1 - step * c) ** 2) @ c / 2
    assert floor == pytest.approx(small.target * c.sum() / 2, rel=0.01)


def test_without_noise_the_limit_is_the_largest_step():
    assert BOWL._replace(noise=0.0).largest_step(4, limit=0.7) == 0.7


def test_a_step_that_diverges_does_not_hide_the_others():
    bowl = Bowl(np.array([1.0]), noise=0.0, target=0.01)
    trace = simulate(Cluster(2, constant(1.0)), protocols.hardsync(), 2000, seed=0)
    assert Descent(trace, bowl, largest=50.0).loss(2000) < 1e-6


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_with_momentum_it_is_the_mean_over_runs_with_noise_too(momentum):
    updates, step, runs = 60, 0.02, 20_000
    bowl = BOWL._replace(momentum=momentum)
    trace = trace_of(protocols.k_async(1), updates)
    rng = np.random.default_rng(1)
    x, m = [np.ones((runs, 3))], np.zeros((runs, 3))
    for version in trace.read_version:
        noise = math.sqrt(bowl.variance) * rng.standard_normal((runs, 3))
        m = momentum * m + bowl.curvatures * x[version] + noise
        x.append(x[-1] - step * m)
    losses = x[-1] ** 2 @ bowl.curvatures / 2
    descent = Descent(trace, bowl, largest=step)
    descent.steps = descent.steps[:1]
    error = losses.std() / math.sqrt(runs)
    assert descent.loss(updates) == pytest.approx(losses.mean(), abs=4 * error)
