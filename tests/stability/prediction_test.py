"""The learning rates at which a loss diverges, for real optimizers with delay."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax.stability import (
    Dynamics,
    adam_preconditioner,
    learning_rate_limit,
    predict_step_limit,
    sharpness,
)

# a bowl whose axes are not the coordinates
TURN = jnp.array([[0.8, -0.6], [0.6, 0.8]])
CURVATURES = jnp.array([5.0, 0.5])
AT = {"x": jnp.array([1.0, 2.0])}
LAW = [0.5, 0.0, 0.5]
SECOND = {"x": jnp.array([4.0, 0.25])}


def bowl(params, batch):
    return jnp.sum(CURVATURES * (TURN @ params["x"]) ** 2) / 2 + 0.0 * batch


@pytest.mark.parametrize(
    ("delay", "criterion"), [(4, "mean"), (LAW, "mean"), (LAW, "mean_square")]
)
def test_the_limit_is_the_dynamics_over_the_curvature(delay, criterion):
    dynamics = Dynamics(delay, momentum=0.3, modulation=dj.modulation.inverse)
    result = predict_step_limit(bowl, AT, 0.0, dynamics, criterion=criterion)
    assert result == pytest.approx(dynamics.step_limit(criterion) / 5.0, rel=1e-6)
    curvature = sharpness(bowl, AT, 0.0)
    assert result == learning_rate_limit(curvature, dynamics, criterion=criterion)


def test_what_a_single_run_bears_is_the_default():
    dynamics = Dynamics(LAW)
    result = learning_rate_limit(5.0, dynamics)
    assert result == dynamics.step_limit("mean_square") / 5.0
    assert result < dynamics.step_limit("mean") / 5.0
    predicted = predict_step_limit(bowl, AT, 0.0, dynamics)
    assert predicted == pytest.approx(result, rel=1e-6)


@pytest.mark.parametrize("kind", [np.float16, jnp.float32])
def test_a_limit_is_a_float_whatever_the_curvature_is(kind):
    result = learning_rate_limit(kind(3), Dynamics(4))
    assert type(result) is float
    assert result == Dynamics(4).step_limit() / 3


# Adam


@pytest.mark.parametrize("b1", [0.0, 0.9])
def test_undelayed_adam_has_cohen_s_limit(b1):
    result = learning_rate_limit(1.0, Dynamics(0, momentum=b1)) / (1 - b1)
    assert result == pytest.approx(2 * (1 + b1) / (1 - b1), rel=1e-12)


def growth(optimizer, delay, start, updates):
    """The logarithmic growth of |x| per update under Adam, over the second half.

    Long in training, and with so large a second moment that no gradient counts.
    """
    tx = dj.delayed(optimizer, delay)

    def is_adam(leaf):
        return isinstance(leaf, optax.ScaleByAdamState)

    def late(leaf):
        count = jnp.asarray(2_000_000_000, jnp.int32)
        return leaf._replace(count=count, nu=SECOND) if is_adam(leaf) else leaf

    def update(carry, _):
        params, state = carry
        grads = jax.grad(bowl)(params, 0.0)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), jnp.linalg.norm(params["x"])

    begun = jax.tree.map(late, tx.init(start), is_leaf=is_adam)
    _, sizes = jax.lax.scan(update, (start, begun), length=updates)
    # peaks, over more than a turn of the slowest oscillation
    half, turn = updates // 2, updates // 8
    peaks = jnp.log(sizes[half : half + turn].max()), jnp.log(sizes[-turn:].max())
    return (peaks[1] - peaks[0]) / (updates - half - turn)


@pytest.mark.parametrize(("delay", "nesterov"), [(0, True), (1, False), (6, True)])
def test_adam_grows_from_one_per_cent_past_its_limit_if_its_moment_stands_still(
    delay, nesterov
):
    divisor = adam_preconditioner(SECOND, eps=0.1)
    heavy = Dynamics(delay, momentum=0.8, nesterov=nesterov)
    curvature = sharpness(bowl, AT, 0.0, preconditioner=divisor)
    limit = learning_rate_limit(curvature, heavy) / (1 - 0.8)
    # the eigenvalues of D^-1/2 H D^-1/2 are those of D^-1 H
    hessian = np.asarray(TURN.T @ jnp.diag(CURVATURES) @ TURN)
    largest = np.linalg.eigvals(hessian / np.asarray(divisor["x"])[:, None]).max()
    assert limit == pytest.approx(heavy.step_limit() / (0.2 * largest), rel=1e-5)

    # a change of 1 % in each of the 2 tau + 1 updates of half a turn: floats hold 120
    def measure(rate):
        tiny = jax.tree.map(lambda x: 1e-12 * x, AT)
        tx = optax.adam(rate, b1=0.8, b2=1 - 1e-7, eps=0.1, nesterov=nesterov)
        return growth(tx, delay, tiny, 120 * (2 * delay + 1))

    below, above = jax.jit(jax.vmap(measure))(limit * jnp.array([0.99, 1.01]))
    assert below < 0 < above


def test_adam_trains_far_past_that_limit():
    # a gradient of 1e-4 along x: D is that small there, so is the limit at this point
    def loss(x, _):
        return jnp.sum(x**2) / 2

    point = jnp.array([1e-4, 1.0])
    divisor = adam_preconditioner(jax.grad(loss)(point, None) ** 2)
    curvature = sharpness(loss, point, None, preconditioner=divisor)
    limit = learning_rate_limit(curvature, Dynamics(0, momentum=0.9)) / (1 - 0.9)
    assert limit == pytest.approx(38e-4, rel=1e-3)
    tx = optax.adam(30 * limit)

    def update(_, carry):
        updates, state = tx.update(carry[0], carry[1])
        return optax.apply_updates(carry[0], updates), state

    train = jax.jit(functools.partial(jax.lax.fori_loop, 0, 1000, update))
    assert loss(train((point, tx.init(point)))[0], None) < 1e-3 * loss(point, None)


def test_adam_divides_by_the_root_of_its_state_s_second_moment_without_bias():
    gradient = jax.grad(bowl)(AT, 0.0)
    adam = optax.scale_by_adam(b1=0.0, eps_root=0.25)
    direction, state = adam.update(gradient, adam.init(AT))
    unbiased = jax.tree.map(lambda nu: nu / (1 - 0.999), state.nu)
    divisor = adam_preconditioner(unbiased, eps_root=0.25)
    np.testing.assert_allclose(direction["x"], gradient["x"] / divisor["x"], rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_what_adam_divides_by_is_wide(dtype):
    divisor = adam_preconditioner(jnp.zeros(3, dtype))
    assert divisor.dtype == jnp.float32
    np.testing.assert_allclose(divisor, 1e-8)  # which is 0 in float16
