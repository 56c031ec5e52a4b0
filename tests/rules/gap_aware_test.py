"""Gap-Aware against a server written from the paper's pseudocode, in numpy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.logistic import STALENESS, STEPS, Logistic, train


def gap_aware_momentum(problem, staleness, learning_rates, *, decay, momentum):
    """Barkai et al.: the division by the gap comes before the momentum."""
    xs, mean_square, velocity = [problem.start], np.zeros(3), np.zeros(3)
    for t in range(STEPS):
        backup = xs[t - staleness[t]]
        g = problem.grad(backup, t - staleness[t])
        mean_square = decay * mean_square + (1 - decay) * g * g
        typical = np.sqrt(mean_square / (1 - decay ** (t + 1)))
        step_size = max(learning_rates[: t + 1]) * typical + 1e-8
        gap = 1 + np.abs(xs[t] - backup) / step_size
        velocity = momentum * velocity + g / gap
        xs.append(xs[t] - learning_rates[t] * velocity)
    return xs[1:]


# neither monotone nor largest at the start; exact in float32, where the largest is kept
RATES = [0.25, 0.5, 0.125, 0.375] + [0.75, 0.5, 0.625] * ((STEPS - 4) // 3)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (0.5, [0.5] * STEPS),
        (lambda step: jnp.asarray(RATES)[step], RATES),
        (
            lambda step: jnp.where(step < 10, 0.5, 0.125),
            [0.5] * 10 + [0.125] * (STEPS - 10),
        ),
    ],
    ids=["constant", "up_and_down", "falling"],
)
def test_gap_aware_momentum_is_the_papers_loop(schedule, rates):
    problem = Logistic(1)
    tx = optax.chain(
        dj.gap_aware(schedule, decay=0.9),
        optax.trace(0.5),
        optax.scale_by_learning_rate(schedule),
    )
    ours = train(problem, tx, dj.delays.from_trace(STALENESS), 6)
    theirs = gap_aware_momentum(problem, STALENESS, rates, decay=0.9, momentum=0.5)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_gap_aware_damps_by_the_typical_steps_moved():
    """At the first step C is the learning rate times |g|: k such steps give 1 + k."""
    grads, moved_steps = jnp.array([2.0, -4.0, 0.5]), jnp.array([1.0, -3.0, 0.0])
    stale_params = jnp.array([1.0, 2.0, 3.0])
    params = stale_params + moved_steps * 0.1 * jnp.abs(grads)
    rule = dj.gap_aware(0.1)
    damped, _ = rule.update(grads, rule.init(params), params, stale_params=stale_params)
    # x_t - x_{t-tau} is a difference of float32 numbers near 1
    np.testing.assert_allclose(damped, grads / (1 + jnp.abs(moved_steps)), rtol=1e-5)
