"""Compensation against servers written from the papers' pseudocode, in numpy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.logistic import STALENESS, STEPS, Logistic, train


def dc_asgd_server(problem, *, workers, learning_rate, strength):
    """Zheng et al., algorithms 1 and 2: a backup for each worker, round robin."""
    x, iterates = problem.start, []
    backups, versions = [x] * workers, [0] * workers
    for t in range(STEPS):
        i = t % workers
        g = problem.grad(backups[i], versions[i])
        x = x - learning_rate * (g + strength * g * g * (x - backups[i]))
        backups[i], versions[i] = x, t + 1
        iterates.append(x)
    return iterates


def dc_asgd_adaptive(problem, staleness, *, learning_rate, strength, decay):
    """Zheng et al., section 5: the strength divided by a root mean square."""
    xs, mean_square = [problem.start], np.zeros(3)
    for t in range(STEPS):
        backup = xs[t - staleness[t]]
        g = problem.grad(backup, t - staleness[t])
        mean_square = decay * mean_square + (1 - decay) * g * g
        strengths = strength / np.sqrt(mean_square + 1e-7)
        xs.append(xs[t] - learning_rate * (g + strengths * g * g * (xs[t] - backup)))
    return xs[1:]


def dc_asgd(problem, staleness, *, learning_rate, strength):
    """The update of algorithm 2 along a list of staleness."""
    xs = [problem.start]
    for t in range(STEPS):
        backup = xs[t - staleness[t]]
        g = problem.grad(backup, t - staleness[t])
        xs.append(xs[t] - learning_rate * (g + strength * g * g * (xs[t] - backup)))
    return xs[1:]


@pytest.mark.parametrize(("workers", "seed"), [(1, 1), (4, 2), (7, 3)])
def test_constant_delay_is_the_papers_round_robin_server(workers, seed):
    problem = Logistic(seed)
    tx = optax.chain(dj.compensate_delay(2.0), optax.sgd(0.5))
    ours = train(problem, tx, workers - 1, workers - 1)
    theirs = dc_asgd_server(problem, workers=workers, learning_rate=0.5, strength=2.0)
    # float64, and the problem contracts: rounding stays near 1e-16
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strength", [0.0, 0.04, 3.0])
def test_varying_delay_uses_each_gradients_own_snapshot(strength):
    problem = Logistic(1)
    tx = optax.chain(dj.compensate_delay(strength), optax.sgd(0.5))
    ours = train(problem, tx, dj.delays.from_trace(STALENESS), 6)
    theirs = dc_asgd(problem, STALENESS, learning_rate=0.5, strength=strength)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.6, 0.95])
def test_adaptive_form_is_the_papers_loop(decay):
    problem = Logistic(2)
    rule = dj.compensate_delay(0.5, adaptive=True, decay=decay)
    tx = optax.chain(rule, optax.sgd(0.25))
    ours = train(problem, tx, dj.delays.from_trace(STALENESS), 6)
    theirs = dc_asgd_adaptive(
        problem, STALENESS, learning_rate=0.25, strength=0.5, decay=decay
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_compensated_gradient_is_the_fresh_one_where_g_squared_is_the_curvature():
    """On f = h x^2 / 2 the fresh gradient is g + h (x_t - x_{t-tau}); lam g^2 = h."""
    curvature = jnp.array([0.25, 1.0, 4.0, 4.0])
    strength = 0.5
    stale_params = jnp.array([1.0, -1.0, 1.0, -1.0]) / jnp.sqrt(strength * curvature)
    params = stale_params + jnp.array([0.5, 0.25, -0.125, 0.0])
    rule = dj.compensate_delay(strength)
    stale = curvature * stale_params
    compensated, _ = rule.update(
        stale, rule.init(params), params, stale_params=stale_params
    )
    np.testing.assert_allclose(compensated, curvature * params, rtol=1e-6)


@pytest.mark.parametrize(
    "rule",
    [
        dj.compensate_delay(2.0),
        dj.compensate_delay(2.0, adaptive=True),
        dj.gap_aware(0.1),
    ],
    ids=["constant", "adaptive", "gap_aware"],
)
def test_parameters_that_did_not_move_leave_the_gradient_bitwise(rule):
    params = jnp.array([0.3, -1.7, 0.0, 2.9])
    state = rule.init(params)
    for grads in (jnp.array([0.7, -3.1, 1e-20, 0.0]), jnp.array([0.0, 5.3, -0.1, 7.0])):
        compensated, state = rule.update(grads, state, params, stale_params=params)
        np.testing.assert_array_equal(compensated, grads)


RULES = {
    "compensate_delay": dj.compensate_delay(1.0),
    "gap_aware": dj.gap_aware(0.1),
}


@pytest.mark.parametrize("masks_extra_args", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_a_masked_rule_reads_its_part_of_the_stale_parameters(name, masks_extra_args):
    params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    rule = optax.masked(
        RULES[name],
        {"w": True, "b": False},
        mask_compatible_extra_args=masks_extra_args,
    )
    tx = dj.delayed(optax.chain(rule, optax.sgd(0.1)), 1, keep_params=True)
    state, x = tx.init(params), params
    for _ in range(3):
        updates, state = tx.update(params, state, x)
        x = optax.apply_updates(x, updates)
    np.testing.assert_allclose(x["b"], 0.7, rtol=1e-6)  # three steps of plain SGD
    assert np.all(np.abs(x["w"] - 0.7) > 1e-3)
