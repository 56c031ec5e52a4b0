"""Stability edges: what the library does at the closed forms, at the matrix's rate.

On f = x^2 / 2 an update is linear in the last iterates, so it grows or shrinks as
rho^t, rho the spectral radius of its companion matrix.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj

TAUS = [0, 1, 2, 5, 20]
FACTORS = np.array([0.98, 1.02])


def edge(tau):
    """Papers E.5: x_{t+1} = x_t - a x_{t-tau} is stable for 0 < a < edge(tau)."""
    return 2 * np.sin(np.pi / (2 * (2 * tau + 1)))


def spectral_radius(tau, a, momentum=0.0, share=0.0):
    """Of z^{t+1} - (1 + b) z^t + b z^{t-1} + a ((1 - c) z^{t-tau} + c z^t)."""
    order = max(tau, 1) + 1
    polynomial = np.zeros(order + 1)
    polynomial[0] = 1
    polynomial[1] -= 1 + momentum
    polynomial[2] += momentum
    polynomial[1 + tau] += a * (1 - share)
    polynomial[1] += a * share
    return np.max(np.abs(np.roots(polynomial)))


def rates(make, step_sizes, tau, steps):
    """ln rho for each step size, as the library's run shows it.

    The slope of the logarithm of the norm over windows of 2 (2 tau + 1) steps, a period
    of the slowest root at the edge. `steps` takes that root through a factor of more
    than e^20 and less than e^50: the norm stays inside of float64, and the other roots,
    smaller by a finite share, are forgotten in the first half, which is left out.
    """
    window = 2 * (2 * tau + 1)

    def run(step_size):
        tx = dj.delayed(make(step_size), tau, keep_params=True)

        def step(carry, _):
            x, state = carry
            updates, state = tx.update(x, state, x)
            x = x + updates
            return (x, state), x

        x = jnp.ones((), jnp.float64)
        return jax.lax.scan(step, (x, tx.init(x)), length=steps)[1]

    with jax.enable_x64(True):
        iterates = np.asarray(jax.jit(jax.vmap(run))(jnp.asarray(step_sizes)))
    windows = steps // window
    norms = np.linalg.norm(
        iterates[:, -windows * window :].reshape(-1, windows, window), axis=-1
    )
    late = slice(windows // 2, None)
    return np.polyfit(window * np.arange(windows)[late], np.log(norms[:, late].T), 1)[0]


def assert_edge(measured, radii):
    """Shrinks below the edge, grows above it, at the companion matrix's rate."""
    assert measured[0] < 0 < measured[1]
    # a root that circles with another period ripples the norms a little
    np.testing.assert_allclose(measured, np.log(radii), rtol=0.01)


@pytest.mark.parametrize("tau", TAUS)
def test_delayed_sgd_shrinks_below_the_edge_and_grows_above_it(tau):
    # |ln rho| is near 0.014 / tau two per cent off the edge, 0.04 without a delay
    steps = 1000 * (2 * tau + 1)
    step_sizes = FACTORS * edge(tau)
    assert_edge(
        rates(optax.sgd, step_sizes, tau, steps),
        [spectral_radius(tau, a) for a in step_sizes],
    )


@pytest.mark.parametrize("tau", TAUS[1:])
def test_division_by_staleness_lifts_the_edge_of_the_base_step(tau):
    """Papers E.10: eta / tau is stable for eta lambda < tau edge(tau), 1 to pi / 2."""

    def make(learning_rate):
        law = dj.scale_by_staleness(dj.modulation.inverse)
        return optax.chain(optax.sgd(learning_rate), law)

    step_sizes = FACTORS * tau * edge(tau)
    assert_edge(
        rates(make, step_sizes, tau, 1000 * (2 * tau + 1)),
        [spectral_radius(tau, a / tau) for a in step_sizes],
    )


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_heavy_ball_at_delay_one_is_stable_up_to_one_minus_beta(beta):
    """Papers E.6; without a delay it would be 2 (1 + beta)."""

    def make(learning_rate):
        return optax.sgd(learning_rate, momentum=beta)

    step_sizes = FACTORS * (1 - beta)
    assert_edge(
        rates(make, step_sizes, 1, 30_000),
        [spectral_radius(1, a, momentum=beta) for a in step_sizes],
    )


@pytest.mark.parametrize("tau", [2, 20])
@pytest.mark.parametrize("share", [0.6, 0.75, 1.0])
def test_half_the_curvature_lifts_the_edge_to_that_of_no_delay(share, tau):
    """Papers E.11: for 1/2 <= c <= 1 the edge is 2, at any even delay.

    A user's own rule, g + c lambda (x_t - x_{t-tau}), reads what `delayed` hands on.
    """

    def compensate(updates, state, params, *, stale_params, **extra_args):
        return updates + share * (params - stale_params), state

    rule = optax.GradientTransformationExtraArgs(optax.init_empty_state, compensate)
    step_sizes = FACTORS * 2
    # the root at -1 moves by 0.04 / (1 + 2 tau (1 - c))
    steps = round(800 * (1 + 2 * tau * (1 - share)))
    assert_edge(
        rates(lambda a: optax.chain(rule, optax.sgd(a)), step_sizes, tau, steps),
        [spectral_radius(tau, a, share=share) for a in step_sizes],
    )
