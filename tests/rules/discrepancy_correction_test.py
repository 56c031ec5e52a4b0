"""Backward weights by the velocity, against a loop in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from delayjax import gradient_params, pipelines, predict_weights
from delayjax.delays import Layers

CURVATURE = {"first": 0.5, "layers": np.array([[0.3], [0.6], [0.9]]), "last": 1.0}
START = {"first": 1.0, "layers": np.array([[-1.0], [0.5], [2.0]]), "last": -2.0}
ASKED = {"first": 7, "layers": Layers((5, 3, 0)), "last": 0}
NUMBERS = {"first": 7.0, "layers": np.array([[5.0], [3.0], [0.0]]), "last": 0.0}
correction = pipelines.discrepancy_correction


def trained(tx, updates):
    """(parameters before each update, where their backward pass is), [T, ...] each."""

    def step(carry, _):
        params, state = carry
        point = pipelines.backward_params(state, params)
        grads = jax.tree.map(lambda c, x: c * x, curvature, point)
        moves, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, moves), state), (params, point)

    curvature, params = jax.tree.map(jnp.float32, (CURVATURE, START))
    return jax.lax.scan(step, (params, tx.init(params)), None, updates)[1]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("decay", [0.0, 0.135])
def test_the_backward_pass_goes_back_along_the_mean_of_the_moves(decay, size):
    """delta = gam delta + (1 - gam)(x_t - x_{t-1}); gradient at x - tau delta."""
    tx = correction(optax.sgd(0.1, 0.5), ASKED, decay=decay, microbatches=size)
    xs, points = trained(tx, 100)
    for name, x in START.items():
        tau = NUMBERS[name] / size
        gamma = np.where(tau > 0, decay ** (1 / np.where(tau > 0, tau, 1)), 0.0)
        delta, velocity = 0.0, 0.0
        for t in range(100):
            point = x - tau * delta
            close = {"rtol": 1e-4, "atol": 1e-5}
            np.testing.assert_allclose(xs[name][t], x, **close)
            np.testing.assert_allclose(points[name][t], point, **close)
            velocity = 0.5 * velocity + CURVATURE[name] * point
            new = x - 0.1 * velocity
            delta = gamma * delta + (1 - gamma) * (new - x)
            x = new


def test_with_equal_moves_the_backward_pass_finds_the_weights_of_the_forward_pass():
    """y_t = x_t - tau m (1 - gam^t) for moves m, which tends to x_{t-tau}."""
    tau, decay = 4, 0.5
    tx = correction(optax.scale(-1.0), tau, decay=decay)
    params = jnp.zeros(2)
    state, xs, points = tx.init(params), [], []
    for _ in range(100):
        xs.append(params)
        points.append(pipelines.backward_params(state, params))
        moves, state = tx.update(jnp.ones(2), state, params)
        params = optax.apply_updates(params, moves)
    for t in range(100):
        wanted = -t + tau * (1 - decay ** (t / tau))
        np.testing.assert_allclose(points[t], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(points[-1], xs[-1 - tau], rtol=1e-6)


@pytest.mark.parametrize("tau", [1, 3, 2.5])
def test_a_move_has_lost_a_factor_of_d_after_tau_updates(tau):
    """After 2 tau updates without a move, delta is D^2 of what it was."""
    tx = correction(optax.scale(-1.0), tau, decay=0.3)
    _, state = tx.update(jnp.ones(()), tx.init(jnp.zeros(())))
    first = state.velocity
    for _ in range(int(2 * tau)):
        _, state = tx.update(jnp.zeros(()), state)
    np.testing.assert_allclose(state.velocity / first, 0.3**2, rtol=1e-5)


def test_without_a_delay_the_backward_pass_is_at_the_parameters():
    tx = correction(optax.sgd(0.1), 0, decay=0.5)
    params = jnp.array([1.0, -2.0])
    state = tx.init(params)
    for _ in range(3):
        moves, state = tx.update(params, state, params)
        params = optax.apply_updates(params, moves)
        np.testing.assert_array_equal(pipelines.backward_params(state, params), params)


def test_without_a_memory_it_is_the_prediction_turned_round():
    """Decay 0: x - tau (x_t - x_{t-1}); prediction: x + tau (x_t - x_{t-1})."""
    rule, ahead = correction(optax.adam(0.1), 3, decay=0), None
    ahead = predict_weights(optax.adam(0.1), 3)
    params = jnp.array([1.0, -2.0])
    states = rule.init(params), ahead.init(params)
    for _ in range(5):
        moves, first = rule.update(params, states[0], params)
        _, second = ahead.update(params, states[1], params)
        states, params = (first, second), optax.apply_updates(params, moves)
        both = pipelines.backward_params(first, params) + gradient_params(
            second, params
        )
        np.testing.assert_allclose(both, 2 * params, rtol=1e-6)


def test_a_slow_mean_of_bfloat16_moves_does_not_stick():
    """In bfloat16 a mean whose share of news is 1/300 would stay at a fraction."""
    tx = correction(optax.scale(-1.0), 1, decay=1 - 1 / 300)
    params = jnp.zeros((), jnp.bfloat16)
    state = tx.init(params)
    for _ in range(1500):
        _, state = jax.jit(tx.update)(jnp.ones((), jnp.bfloat16), state)
    np.testing.assert_allclose(state.velocity, -(1 - np.exp(-5)), rtol=1e-3)
    assert pipelines.backward_params(state, params).dtype == jnp.bfloat16


def test_a_grid_of_its_numbers_is_one_program():
    def end(delay, decay, size):
        tx = correction(optax.sgd(0.1), delay, decay=decay, microbatches=size)
        x = jnp.ones(2)
        state = tx.init(x)
        for _ in range(5):
            moves, state = tx.update(pipelines.backward_params(state, x), state, x)
            x = optax.apply_updates(x, moves)
        return x

    cells = ([0.0, 4.0, 4.0, 4.0], [0.5, 0.5, 0.0, 0.5], [1, 1, 1, 2])
    result = jax.jit(jax.vmap(end))(*map(jnp.asarray, cells))
    expected = [end(*cell) for cell in zip(*cells, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert len(np.unique(np.round(result, 4), axis=0)) == 4


def test_the_state_is_found_inside_of_a_chain_and_must_be_one():
    tx = optax.chain(optax.clip(1.0), correction(optax.sgd(1.0), 2, decay=0.0))
    params = jnp.ones(2)
    _, state = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(pipelines.backward_params(state, params), params + 2.0)
    for count, wrong in ((0, optax.sgd(1.0).init(params)), (2, (state, state))):
        with pytest.raises(ValueError, match=f"got {count}: wrap the whole optimizer"):
            pipelines.backward_params(wrong, params)
