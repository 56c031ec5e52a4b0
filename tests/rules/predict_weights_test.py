"""Weight prediction, compared with a loop in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax.delays import Layers

CURVATURE = np.array([[0.5, 1.0, 2.0], [0.3, 0.6, 0.9]], np.float32)
START = np.array([[1.0, -2.0, 0.5], [0.2, 1.5, -1.0]], np.float32)


def trained(tx, updates, start=START):
    """(parameters after each update, the points of the gradients)."""

    @jax.jit
    def step(params, state):
        point = dj.gradient_params(state, params)
        grads = {"w": CURVATURE * point["w"]}
        moves, state = tx.update(grads, state, params)
        return optax.apply_updates(params, moves), state, point

    params = {"w": jnp.asarray(start)}
    state, seen = tx.init(params), []
    for _ in range(updates):
        params, state, point = step(params, state)
        seen.append((params["w"], point["w"]))
    return map(np.asarray, zip(*seen, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_delayed_momentum_with_prediction_is_a_loop(share):
    """v = 0.6 v + g, with g of three updates ago, at x + 3 p (x_t - x_{t-1})."""
    tau, rate = 3, 0.05
    late = dj.delayed(optax.sgd(rate, 0.6), tau)
    xs, points = trained(dj.predict_weights(late, tau, share=share), 100)
    x, last, velocity = START.astype(np.float64), 0.0, 0.0
    gradients = []
    for t in range(100):
        point = x + share * tau * last
        np.testing.assert_allclose(points[t], point, rtol=1e-4, atol=1e-5)
        gradients.append(CURVATURE * point)
        velocity = 0.6 * velocity + gradients[max(t - tau, 0)]
        last = -rate * velocity
        x = x + last
        np.testing.assert_allclose(xs[t], x, rtol=1e-4, atol=1e-5)


def test_each_layer_looks_ahead_by_its_own_delay():
    delays = Layers((2, 0))
    late = dj.delayed(optax.sgd(0.1), {"w": delays})
    xs, points = trained(dj.predict_weights(late, {"w": delays}), 50)
    x, last, gradients = START.astype(np.float64), np.zeros_like(START), []
    for t in range(50):
        point = x + np.array([[2.0], [0.0]]) * last
        np.testing.assert_allclose(points[t], point, rtol=1e-4, atol=1e-6)
        gradients.append(CURVATURE * point)
        used = np.stack([gradients[max(t - 2, 0)][0], gradients[t][1]])
        last = -0.1 * used
        x = x + last
        np.testing.assert_allclose(xs[t], x, rtol=1e-4, atol=1e-6)


def test_with_a_constant_update_the_prediction_is_exact():
    """A gradient is taken at the x that its update will change, tau updates later."""
    tx = dj.predict_weights(dj.delayed(optax.scale(-1.0), 4), 4)
    params = jnp.zeros(2)
    state, points, xs = tx.init(params), [], []
    for _ in range(12):
        points.append(dj.gradient_params(state, params))
        xs.append(params)
        moves, state = tx.update(jnp.ones(2), state, params)
        params = optax.apply_updates(params, moves)
    for t in range(1, 8):
        np.testing.assert_allclose(points[t], xs[t + 4])


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_edge_of_stability_is_the_edge_of_extrapolated_parameters(momentum):
    """y = x + tau (x_t - x_{t-1}) is an extrapolation by tau in `Dynamics`."""
    tau = 4
    dynamics = dj.stability.Dynamics(tau, momentum=momentum, extrapolation=tau)
    limit = dynamics.step_limit() / CURVATURE.max()
    ends = []
    for rate in (0.97 * limit, 1.03 * limit):
        late = dj.delayed(optax.sgd(rate, momentum), tau)
        xs, _ = trained(dj.predict_weights(late, tau), 1500)
        ends.append(abs(xs[-1, 0, 2]))
    assert ends[0] < abs(START[0, 2]) < ends[1]


def test_the_state_is_found_inside_of_a_chain_and_must_be_one():
    tx = optax.chain(optax.clip(1.0), dj.predict_weights(optax.sgd(1.0), 2))
    params = jnp.ones(2)
    _, state = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(dj.gradient_params(state, params), params - 2.0)
    with pytest.raises(ValueError, match="got 0: wrap the whole optimizer"):
        dj.gradient_params(optax.sgd(1.0).init(params), params)
    two = dj.predict_weights(dj.predict_weights(optax.sgd(1.0), 1), 1).init(params)
    assert isinstance(two, tuple)
    both = (tx.init(params), tx.init(params))
    with pytest.raises(ValueError, match="got 2: wrap the whole optimizer"):
        dj.gradient_params(both, params)


def test_late_updates_are_corrected_by_layer():
    """Inside of `Layers`, the correction of each layer has its own delay."""
    chain = optax.chain(optax.sgd(0.1), dj.correct_late_updates())
    delays = (3, 1)
    whole = dj.delayed(chain, Layers(delays))
    parts = [dj.delayed(chain, delay) for delay in delays]
    params = jnp.asarray(START)
    state, states = whole.init(params), [p.init(params[0]) for p in parts]
    for t in range(20):
        grad = jax.random.normal(jax.random.key(t), START.shape)
        moves, state = whole.update(grad, state, params)
        for layer, tx in enumerate(parts):
            move, states[layer] = tx.update(grad[layer], states[layer], params[layer])
            np.testing.assert_allclose(moves[layer], move, rtol=1e-5, atol=1e-6)
