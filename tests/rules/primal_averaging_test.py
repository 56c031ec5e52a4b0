"""Primal averaging against its equations in numpy, and the momenta that it contains."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj

STEPS = 40
SGD = optax.sgd(0.1)
CURVATURE = np.array([0.2, 1.0, 3.0])
START = np.array([1.0, -2.0, 0.5])


def gradient(x, t):
    return CURVATURE * x + np.sin(np.arange(3) + t)


def models(tx, delay=0, share=0.0):
    """The parameters y after each step, and y + (1 - share) e."""
    params = jnp.asarray(START)
    state, ys, xs = tx.init(params), [params], [params]
    for t in range(STEPS):
        late = jnp.asarray(gradient(np.asarray(ys[max(t - delay, 0)]), t), params.dtype)
        updates, state = tx.update(late, state, params)
        params = optax.apply_updates(params, updates)
        ys.append(params)
        gap = optax.tree.get(state, "gap", jnp.zeros(3))
        xs.append(optax.tree.add_scale(params, 1 - share, gap))
    return np.stack(ys), np.stack(xs)


@pytest.mark.parametrize("delay", [0, 3])
def test_adamw_inside_is_the_loop_of_the_published_code(delay):
    """Adam's moments of g at y; decay and step at z; x averages, y interpolates."""
    rate, fade, mu_x, mu_y = 0.1, 0.02, 0.9, 0.7
    x = z = START
    m, v, ys, xs = np.zeros(3), np.zeros(3), [START], [START]
    for t in range(STEPS):
        g = gradient(ys[max(t - delay, 0)], t)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        direction = m / (1 - 0.9 ** (t + 1))
        direction /= np.sqrt(v / (1 - 0.999 ** (t + 1))) + 1e-8
        z = z * (1 - rate * fade) - rate * direction
        x = mu_x * x + (1 - mu_x) * z
        ys.append(mu_y * x + (1 - mu_y) * z)
        xs.append(x)
    with jax.enable_x64(True):
        inner = optax.adamw(rate, weight_decay=fade)
        tx = dj.primal_averaging(inner, decay=mu_x, interpolation=mu_y)
        np.testing.assert_allclose(models(tx, delay, mu_y), (ys, xs), rtol=1e-9)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_inside_is_heavy_ball_or_nesterov(nesterov):
    """mu_y = 1, or mu_x = mu_y = mu: momentum mu and the step (1 - mu) eta."""
    mu, eta = 0.8, 0.2
    with jax.enable_x64(True):
        inner, share = optax.sgd(eta), mu if nesterov else 1.0
        tx = dj.primal_averaging(inner, decay=mu, interpolation=share)
        expected, _ = models(optax.sgd((1 - mu) * eta, mu, nesterov))
        np.testing.assert_allclose(models(tx)[0], expected, rtol=1e-9)


def test_without_decay_it_is_the_inner_optimizer():
    with jax.enable_x64(True):
        tx = dj.primal_averaging(optax.adam(0.1), decay=0.0)
        expected, _ = models(optax.adam(0.1))
        np.testing.assert_allclose(models(tx), (expected, expected), rtol=1e-9)


def test_the_gap_of_16_bit_parameters_is_not_rounded_to_16_bits():
    """e' = mu_x (e - u) with u = -s: s mu_x, then s (mu_x + mu_x^2)."""
    tx = dj.primal_averaging(optax.sgd(1.0), decay=0.9967)
    params, step = jnp.bfloat16(1.0), jnp.bfloat16(2.0**-6)
    state = tx.init(params)
    for expected in (0.9967, 0.9967 + 0.9967**2):
        updates, state = tx.update(step, state, params)
        assert (updates.dtype, state.gap.dtype) == (jnp.bfloat16, jnp.float32)
        assert float(state.gap) == pytest.approx(expected * 2**-6, rel=1e-6)


def test_weight_decay_acts_on_the_fast_model():
    """U = -r z alone: z' = (1 - r) z, and not a share of y."""
    with jax.enable_x64(True):
        inner = optax.chain(
            optax.scale(0.0), optax.add_decayed_weights(0.1), optax.scale(-1.0)
        )
        tx = dj.primal_averaging(inner, decay=0.9, interpolation=0.7)
        ys, xs = models(tx, share=0.7)
        fast = (ys - 0.7 * xs) / 0.3
        powers = 0.9 ** np.arange(STEPS + 1)[:, None]
        np.testing.assert_allclose(fast, START * powers, rtol=1e-9, atol=1e-12)


def test_the_interpolation_is_a_share():
    with pytest.raises(ValueError, match=r"`interpolation` must .*\[0, 1\].* 1\.5"):
        dj.primal_averaging(optax.sgd(0.1), interpolation=1.5)


@pytest.mark.parametrize("inner", [optax.lbfgs(), optax.contrib.sam(SGD, SGD)])
def test_an_optimizer_that_pairs_gradients_with_parameters_is_refused(inner):
    """The gradients are of y, and the parameters are z."""
    with pytest.raises(ValueError, match="`inner` must not hold optax's"):
        dj.primal_averaging(inner, decay=0.9).init(jnp.ones(3))
