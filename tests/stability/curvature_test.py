"""The largest eigenvalues by products alone equal the whole Hessian's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import linalg

from delayjax import stability
from delayjax._src.stability import curvature
from tests.support.cases import shortened

SEEDS = [1, 2, 3]


def perceptron(params, batch):
    """Mean squared error of a small network."""
    inputs, targets = batch
    hidden = jnp.tanh(inputs @ params["in"] + params["bias"][None])
    return jnp.mean((hidden @ params["out"] - targets) ** 2)


def a_network(seed, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(seed), 5)
    shapes = {"in": (4, 8), "bias": (8,), "out": (8, 2)}
    params = {
        name: jax.random.normal(key, shape, dtype)
        for key, (name, shape) in zip(keys[:3], shapes.items(), strict=True)
    }
    batch = jax.random.normal(keys[3], (64, 4), dtype)
    return params, (batch, jax.random.normal(keys[4], (64, 2), dtype))


def whole_hessian(loss, params, batch):
    point, tree_of = ravel_pytree(params)
    hessian = jax.jit(jax.hessian(lambda x: loss(tree_of(x), batch)))
    return np.asarray(hessian(point), np.float64)


@pytest.mark.parametrize("seed", shortened(SEEDS, SEEDS[0]))
@pytest.mark.parametrize(
    ("wide", "counts", "near"), [(False, [1, 3, 30], 1e-5), (True, [3], 1e-10)]
)
def test_lanczos_finds_the_largest_eigenvalues_of_the_hessian(wide, counts, near, seed):
    with jax.enable_x64(wide):
        params, batch = a_network(seed, jnp.float64 if wide else jnp.float32)
        eigenvalues = np.linalg.eigvalsh(whole_hessian(perceptron, params, batch))[::-1]
        for count in counts:
            result = stability.hessian_eigenvalues(
                perceptron, params, batch, count=count
            )
            assert result.dtype == np.float64
            np.testing.assert_allclose(
                result, eigenvalues[:count], rtol=near, atol=near * eigenvalues[0]
            )


@pytest.mark.parametrize("seed", shortened(SEEDS, SEEDS[0]))
def test_a_preconditioner_divides_the_hessian(seed):
    params, batch = a_network(seed)
    rng = np.random.default_rng(seed)
    divisor = jax.tree.map(lambda x: rng.gamma(2.0, size=x.shape), params)
    hessian = whole_hessian(perceptron, params, batch)
    weights = np.diag(np.asarray(ravel_pytree(divisor)[0], np.float64))
    expected = linalg.eigh(hessian, weights, eigvals_only=True)  # H u = lambda D u
    result = stability.hessian_eigenvalues(
        perceptron, params, batch, count=2, preconditioner=divisor
    )
    np.testing.assert_allclose(result, expected[::-1][:2], rtol=1e-5)
    largest = stability.sharpness(perceptron, params, batch, preconditioner=divisor)
    assert isinstance(largest, float)
    np.testing.assert_allclose(largest, result[0], rtol=1e-6)


def bowl(curvatures):
    return lambda x, _: jnp.sum(curvatures * x**2) / 2


@pytest.mark.parametrize("size", [1, 20, 21])
def test_any_number_of_parameters_will_do(size):
    curvatures = jnp.linspace(-1.0, 3.0, size) if size > 1 else jnp.array([3.0])
    x = jnp.zeros(size)
    # the largest one, and not the largest absolute value
    result = stability.sharpness(bowl(curvatures - 10.0), x, None)
    np.testing.assert_allclose(result, -7.0, rtol=1e-5)
    values = stability.hessian_eigenvalues(bowl(curvatures), x, None, count=size)
    np.testing.assert_allclose(values, curvatures[::-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_the_scale_of_a_loss_costs_no_digits(scale):
    curvatures = scale * jnp.append(jnp.linspace(0.0, 1.0, 400), 1.1)
    result = stability.hessian_eigenvalues(
        bowl(curvatures), jnp.ones(401), None, count=2
    )
    np.testing.assert_allclose(result / scale, [1.1, 1.0], rtol=1e-5)


def test_leaves_of_two_dtypes_are_one_vector():
    with jax.enable_x64(True):
        x = {"narrow": jnp.ones(30, jnp.float32), "wide": jnp.ones(30, jnp.float64)}
        result = stability.sharpness(
            lambda y, _: jnp.sum((y["narrow"] + 2 * y["wide"]) ** 2), x, None
        )
    # of each pair: 2 (1, 2)' (1, 2)
    np.testing.assert_allclose(result, 10.0, rtol=1e-6)


def test_equal_curvatures_and_flat_losses_converge():
    x = jnp.zeros(300)
    equal = stability.hessian_eigenvalues(bowl(jnp.full(300, 2.0)), x, None, count=2)
    np.testing.assert_allclose(equal, 2.0, rtol=1e-6)
    flat = stability.sharpness(lambda x, _: jnp.sum(x), x, None)
    assert flat == 0


def test_narrow_parameters_are_widened():
    x = jnp.zeros(30, jnp.bfloat16)
    # 1.001 is 1 in bfloat16
    curvatures = jnp.linspace(0.0, 1.001, 30)
    result = stability.sharpness(bowl(curvatures), x, None)
    np.testing.assert_allclose(result, 1.001, rtol=1e-5)


def test_what_does_not_converge_says_so(monkeypatch):
    linalg = curvature.scipy.sparse.linalg
    once = functools.partial(linalg.eigsh, maxiter=1)
    monkeypatch.setattr(linalg, "eigsh", once)
    loss = bowl(jnp.linspace(0.0, 1.0, 400))
    with pytest.raises(RuntimeError, match="No convergence"):
        stability.hessian_eigenvalues(loss, jnp.zeros(400), None, count=20)
