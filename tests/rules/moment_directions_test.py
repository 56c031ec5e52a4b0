"""Prediction by the optimizer's moments, against loops in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import pipelines
from delayjax.delays import Layers

CURVATURE = {"first": 0.5, "layers": np.array([[0.3], [0.6], [0.9]]), "last": 1.0}
START = {"first": 1.0, "layers": np.array([[-1.0], [0.5], [2.0]]), "last": -2.0}
ASKED = {"first": 4, "layers": Layers((3, 3, 1)), "last": 0}
NUMBERS = {"first": 4, "layers": np.array([[3], [3], [1]]), "last": 0}
CLOSE = {"rtol": 1e-3, "atol": 1e-5}


def falling(step):
    """A learning rate, by the updates done."""
    return 0.05 / (1 + 0.1 * step)


def trained(inner, direction, updates=100):
    """(parameters before each update, where their gradient is taken), [T, ...] each."""
    tx = dj.predict_weights(dj.delayed(inner, ASKED), ASKED, direction=direction)

    def step(carry, _):
        params, state = carry
        point = dj.gradient_params(state, params)
        grads = jax.tree.map(lambda c, x: c * x, curvature, point)
        moves, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, moves), state), (params, point)

    curvature, params = jax.tree.map(jnp.float32, (CURVATURE, START))
    return jax.lax.scan(step, (params, tx.init(params)), None, updates)[1]


def late(gradients, tau):
    """The gradient of tau updates ago, or the first, of each layer."""
    row = np.broadcast_to(tau, np.shape(gradients[-1]))
    past = np.stack([np.asarray(g) for g in gradients])
    age = np.maximum(len(gradients) - 1 - row, 0)
    return np.take_along_axis(past, age[None], 0)[0]


def test_sgd_is_predicted_by_the_momentum_of_the_next_update():
    """b = 0.8 b + g; forward at x - tau eta (0.8 b + g), as if g came again."""
    inner = optax.sgd(falling, 0.8)
    xs, points = trained(inner, pipelines.sgd_direction(falling, 0.8))
    for name, x in START.items():
        tau, b, expected, gradients = NUMBERS[name], 0.0, 0.0, []
        for t in range(100):
            point = x + tau * expected
            np.testing.assert_allclose(xs[name][t], x, **CLOSE)
            np.testing.assert_allclose(points[name][t], point, **CLOSE)
            gradients.append(CURVATURE[name] * point)
            g = late(gradients, tau)
            b = 0.8 * b + g
            x = x - falling(t) * b
            expected = -falling(t + 1) * (0.8 * b + g)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_is_predicted_by_its_moments_without_weight_decay(weight_decay):
    """u = mhat / (sqrt(vhat) + 1e-8) with the corrections of the last update."""
    b1, b2 = 0.8, 0.99
    inner = optax.adamw(falling, b1, b2, weight_decay=weight_decay)
    xs, points = trained(inner, pipelines.adam_direction(falling, b1=b1, b2=b2))
    for name, x in START.items():
        tau, m, v, expected, gradients = NUMBERS[name], 0.0, 0.0, 0.0, []
        for t in range(100):
            point = x + tau * expected
            np.testing.assert_allclose(xs[name][t], x, **CLOSE)
            np.testing.assert_allclose(points[name][t], point, **CLOSE)
            gradients.append(CURVATURE[name] * point)
            g = late(gradients, tau)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            u = m / (1 - b1 ** (t + 1)) / (np.sqrt(v / (1 - b2 ** (t + 1))) + 1e-8)
            x = x - falling(t) * (u + weight_decay * x)
            expected = -falling(t + 1) * u


def test_adam_at_a_constant_rate_is_predicted_as_by_its_last_update():
    xs, points = trained(optax.adam(0.01), pipelines.adam_direction(0.01))
    same_xs, same_points = trained(optax.adam(0.01), None)
    for got, wanted in ((xs, same_xs), (points, same_points)):
        for name in START:
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-4, atol=1e-6)


def test_numbers_and_moments_may_have_any_dtypes():
    """Of arrays in a grid, at bfloat16 moments, with strict promotion."""
    moments = {"a": jnp.ones(3), "b": jnp.ones(2, jnp.bfloat16)}
    adam = optax.ScaleByAdamState(jnp.int32(2), moments, moments)
    one, half = jnp.float32(1.0), jnp.float32(0.5)
    with jax.numpy_dtype_promotion("strict"):
        by_sgd = pipelines.sgd_direction(one, half)
        by_adam = pipelines.adam_direction(one, b1=half, b2=half)
        trace = optax.TraceState(moments)
        result = by_sgd(trace, trace, 2), by_adam(adam, adam, jnp.int32(2))
    for moved, wanted in zip(result, (-1.0, -math.sqrt(4 / 3)), strict=True):
        for leaf in jax.tree.leaves(moved):  # 0.5 b + b - 0.5 b; mhat = vhat = 4/3
            np.testing.assert_allclose(leaf, wanted, rtol=1e-6)
            assert leaf.dtype == jnp.float32


def test_a_direction_of_one_s_own_is_the_expected_update():
    def once_more(before, after, step):
        return jax.tree.map(lambda x: jnp.full_like(x, 10.0 * step), after[0].trace)

    tx = dj.predict_weights(optax.sgd(0.1, 0.9), 2, direction=once_more)
    params = {"w": jnp.zeros(3)}
    _, state = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(dj.gradient_params(state, params)["w"], 2 * 10.0)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (
            lambda: begun(optax.sgd(0.1), pipelines.sgd_direction(0.1, 0.5)),
            "`inner` .* `optax.trace` .*, got 0: leave out `direction`, for the last u",
        ),
        (
            lambda: begun(optax.sgd(0.1, 0.5), pipelines.adam_direction(0.1)),
            "must hold one `optax.scale_by_adam` for this `direction`, got 0: leave",
        ),
        (
            lambda: begun(
                optax.partition(
                    {"a": optax.adam(0.1), "b": optax.adam(0.2)}, {"w": "a", "v": "b"}
                ),
                pipelines.adam_direction(0.1),
            ),
            "must hold one `optax.scale_by_adam` for this `direction`, got 2",
        ),
        (
            lambda: begun(
                optax.masked(optax.adam(0.1), {"w": True, "v": False}),
                pipelines.adam_direction(0.1),
            ),
            r"`direction` must return a tree like .*, got None for \[2\] at \['v'\]",
        ),
        (
            lambda: begun(optax.sgd(0.1), lambda *_: [jnp.zeros(2), jnp.zeros(2)]),
            r"`direction` must return a tree like .*, got None for \[2\] at \['v'\]",
        ),
        (lambda: pipelines.sgd_direction(-0.1, 0.5), "`learning_rate` must be finite"),
        (lambda: pipelines.adam_direction(-0.1), "`learning_rate` must be finite"),
        (lambda: pipelines.sgd_direction(0.1, 1.0), r"`momentum` must be in \[0, 1"),
        (lambda: pipelines.adam_direction(0.1, b1=1.0), r"`b1` must be in \[0, 1"),
        (lambda: pipelines.adam_direction(0.1, b2=1.0), r"`b2` must be in \[0, 1"),
    ],
)
def test_bad_arguments_are_refused(make, word):
    with pytest.raises((ValueError, TypeError), match=word):
        make()


def begun(inner, direction):
    tx = dj.predict_weights(inner, 1, direction=direction)
    return tx.init({"w": jnp.zeros(2), "v": jnp.zeros(2)})


def test_a_direction_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="`direction` must be a function, got 'adam'"):
        dj.predict_weights(optax.adam(0.1), 1, direction="adam")
