"""NAdam with an increasing momentum, compared with a loop in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from delayjax import pipelines
from tests.rules.rotated_adam_test import check_layers

CURVATURE = np.array([0.5, 1.0, 2.0])
START = np.array([1.0, -2.0, 0.5])
NOISE = np.random.default_rng(0).normal(size=(100, 3))


def rate(step):
    return 0.02 / (1 + jnp.asarray(step, float) / 50)  # a schedule


def loop(*, b1, b2, eps, lam, psi):
    """The parameters after each of 100 updates, in float64."""

    def mu(t):
        return b1 * (1 - 0.5 * 0.96 ** (t * psi))

    x, m, v, product, xs = START, 0.0, 0.0, 1.0, []
    for t in range(1, 101):
        eta, g = 0.02 / (1 + (t - 1) / 50), CURVATURE * x + NOISE[t - 1]
        product = product * mu(t)
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        root = np.sqrt(v / (1 - b2**t)) + eps
        x = (1 - eta * lam) * x
        x = x - eta * (1 - mu(t)) / (1 - product) * g / root
        x = x - eta * mu(t + 1) / (1 - product * mu(t + 1)) * m / root
        xs.append(x)
    return np.array(xs)


def trained(tx):
    """The parameters after each of 100 updates of a transformation."""

    def step(carry, noise):
        x, state = carry
        updates, state = tx.update(CURVATURE * x + noise, state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    with jax.enable_x64():
        x = jnp.asarray(START)
        return np.asarray(jax.lax.scan(step, (x, tx.init(x)), jnp.asarray(NOISE))[1])


# the momentum of the paper; a faster one; other values of all other numbers
OPTIONS = {
    "published": dict(b1=0.99, b2=0.999, eps=1e-8, lam=0.01, psi=0.004),
    "whole rise": dict(b1=0.99, b2=0.999, eps=1e-8, lam=0.01, psi=2.0),
    "others": dict(b1=0.8, b2=0.9, eps=0.3, lam=2.0, psi=0.0),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_is_the_loop(name):
    kw = dict(OPTIONS[name])
    expected = loop(**kw)
    kw["weight_decay"], kw["momentum_decay"] = kw.pop("lam"), kw.pop("psi")
    np.testing.assert_allclose(trained(pipelines.nadam(rate, **kw)), expected, 1e-10)


def test_the_defaults_are_the_papers_but_for_weight_decay():
    published = OPTIONS["published"] | {"lam": 0.0}
    np.testing.assert_allclose(trained(pipelines.nadam(rate)), loop(**published), 1e-10)


def test_with_a_fast_rise_it_is_optax_nadamw():
    ours = pipelines.nadam(rate, b1=0.9, weight_decay=0.1, momentum_decay=1e6)
    theirs = optax.nadamw(rate, b1=0.9, weight_decay=0.1)
    np.testing.assert_allclose(trained(ours), trained(theirs), 1e-10)


def test_the_look_ahead_rises_as_the_docstring_says():
    """mu is the weight of the mean m = 1 if g = 0; long after the start, p = 0."""

    def share_of_mean(t):
        tx = pipelines.nadam(1.0, b2=0.0, eps=1.0)
        state = tx.init(jnp.zeros(()))._replace(
            step=jnp.int32(t - 2), ramp_product=jnp.float32(0.0), mean=jnp.float32(1.0)
        )
        updates, _ = tx.update(jnp.zeros(()), state)
        return -float(updates) / 0.99  # m has decayed by a hundredth

    assert share_of_mean(2) == pytest.approx(0.495, abs=5e-4)
    assert share_of_mean(2000) == pytest.approx(0.63, abs=5e-3)
    assert share_of_mean(4245) == pytest.approx((0.495 + 0.99) / 2, abs=1e-4)


def test_a_stack_of_layers_is_its_layers():
    check_layers(pipelines.nadam(0.1, weight_decay=0.1, momentum_decay=0.5))


def test_parameters_in_bfloat16_have_moments_and_steps_in_float32():
    """The update is the float32 one, rounded once; bfloat16 would lose 0.01 x."""
    tx = pipelines.nadam(jnp.float32(0.1), weight_decay=jnp.float32(0.01))
    narrow = jnp.asarray(START, jnp.bfloat16)
    grad = (narrow * jnp.bfloat16(1.7)).astype(jnp.bfloat16)

    def twice(dtype):
        x, g = narrow.astype(dtype), grad.astype(dtype)
        state = tx.init(x)
        for _ in range(2):
            updates, state = tx.update(g, state, x)
        return updates, state

    updates, state = twice(jnp.bfloat16)
    exact, of_wide = twice(jnp.float32)
    assert updates.dtype == jnp.bfloat16
    np.testing.assert_array_equal(updates, exact.astype(jnp.bfloat16))
    np.testing.assert_array_equal(state.mean, of_wide.mean)
    np.testing.assert_array_equal(state.mean_square, of_wide.mean_square)


@pytest.mark.parametrize("make", [pipelines.nadam, pipelines.rotated_adam])
def test_a_traced_weight_decay_keeps_updates_in_bfloat16(make):
    """With each of its dtypes, also if it is 0: the update is that with a number.

    In a compiled program that holds the array, too.
    """
    x = jnp.asarray([[3.0, -1.0], [0.5, 2.0]], jnp.bfloat16)

    def first(decay):
        tx = make(0.1, weight_decay=decay, eps=1e-3)
        return tx.update(x / 3, tx.init(x), x)[0]

    for decay in (0.0, 0.5):
        for dtype in (jnp.bfloat16, jnp.float32):
            array = jnp.asarray(decay, dtype)
            held = functools.partial(first, array)
            for update in (jax.jit(first)(array), jax.jit(held)()):
                assert update.dtype == jnp.bfloat16
                np.testing.assert_allclose(update, first(decay), rtol=2**-7)


def test_weight_decay_alone_needs_parameters():
    grads = jnp.ones(2)
    tx = pipelines.nadam(0.1)
    assert tx.update(grads, tx.init(grads))[0].shape == (2,)
    decaying = pipelines.nadam(0.1, weight_decay=0.1)
    with pytest.raises(TypeError, match="`nadam` needs the extra argument `params`"):
        decaying.update(grads, decaying.init(grads))


def test_gradients_that_are_integers_are_refused():
    tx = pipelines.nadam(0.1)
    with pytest.raises(TypeError, match="`updates` must be floating-point gradients"):
        tx.update(jnp.ones(2, int), tx.init(jnp.ones(2)))
