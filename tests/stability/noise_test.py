"""Stationary variances: closed forms, integrals, matrices, and simulated paths."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import integrate, signal

import delayjax as dj
from delayjax import stability
from delayjax._src.stability import moments
from tests.stability import updates

SEEDS = [1, 2, 3]


def test_without_delay_and_with_a_delay_of_one_the_variance_is_rational():
    for share in (0.1, 0.5, 0.95, 0.9999):
        a = 2 * share
        expected = 1 / (a * (2 - a))
        np.testing.assert_allclose(
            stability.Dynamics(0).stationary_variance(a), expected
        )
        a = share
        expected = (1 + a) / (a * (1 - a) * (2 + a))
        np.testing.assert_allclose(
            stability.Dynamics(1).stationary_variance(a), expected
        )


@pytest.mark.parametrize("tau", [0, 2, 5, 31])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_the_variance_of_a_fixed_delay_is_an_integral(tau, share):
    a = share * stability.Dynamics(tau).step_limit()

    def power(w):
        return 1 / abs(np.exp(1j * w) - 1 + a * np.exp(-1j * w * tau)) ** 2

    whole, _ = integrate.quad(power, 0, np.pi, limit=500, epsabs=0, epsrel=1e-11)
    variance = stability.Dynamics(tau).stationary_variance(a)
    np.testing.assert_allclose(variance, whole / np.pi, rtol=1e-9)


def test_long_delays_vary_as_the_delay_equation_does():
    # (1/2a) (1 + sin(a s))/cos(a s) of a delay s = tau + 1/2, well inside
    for tau in (5, 20, 200):
        a = 0.5 * stability.Dynamics(tau).step_limit()
        late = a * (tau + 0.5)
        expected = (1 + math.sin(late)) / math.cos(late) / (2 * a)
        variance = stability.Dynamics(tau).stationary_variance(a)
        np.testing.assert_allclose(variance, expected, rtol=0.2 / tau)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_variance_of_any_law_solves_the_moment_equation(seed):
    rng = np.random.default_rng(seed)
    for _ in range(15):
        law = updates.a_law(rng, 5)
        options = updates.options_of(rng, 5)
        limit = stability.Dynamics(law, **options).step_limit()
        for share in (0.1, 0.9, 0.999):
            step, noise = share * limit, rng.uniform(0.1, 2)
            variance = stability.Dynamics(law, **options).stationary_variance(
                step, noise=noise
            )
            expected = updates.variance(step, law, noise=noise, **options)
            np.testing.assert_allclose(variance, expected, rtol=1e-6)


def test_where_a_step_is_unstable_the_variance_is_infinite():
    geometric = 0.5 ** np.arange(1, 60)
    geometric /= geometric.sum()
    cases = (
        *((3, {}), (3, {"momentum": 0.9}), (3, {"modulation": dj.modulation.inverse})),
        *((3, {"compensation": 0.3}), (geometric, {}), (geometric, {"momentum": 0.5})),
    )
    for delay, options in cases:
        limit = stability.Dynamics(delay, **options).step_limit()
        variances = [
            stability.Dynamics(delay, **options).stationary_variance(share * limit)
            for share in (0.5, 0.9, 0.99, 0.9999, 1.0001, 1.5, 100.0)
        ]
        assert variances[:4] == sorted(variances[:4])
        assert np.isfinite(variances[:4]).all()
        assert variances[4:] == [math.inf] * 3
        assert variances[3] > 1000 * variances[0] / 5
        # a flat direction wanders off
        assert stability.Dynamics(delay, **options).stationary_variance(0) == math.inf


def test_noise_counts_squared_and_weights_act_on_it():
    one = stability.Dynamics(4).stationary_variance(0.1)
    three = stability.Dynamics(4).stationary_variance(0.1, noise=3.0)
    np.testing.assert_allclose(three, 9 * one, rtol=1e-14)
    # half the weight is half the step, and half the noise
    half = stability.Dynamics(4, modulation=lambda k: 0.5).stationary_variance(0.2)
    np.testing.assert_allclose(half, one / 4, rtol=1e-14)
    assert stability.Dynamics(4).stationary_variance(0.1, noise=0.0) == 0


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5}])
def test_the_variance_is_the_square_of_any_noise(options):
    one = stability.Dynamics(1, **options).stationary_variance(0.1)
    large = stability.Dynamics(1, **options).stationary_variance(0.1, noise=1e150)
    np.testing.assert_allclose(large, 1e300 * one, rtol=1e-12)
    # an unstable step has no variance, whatever the noise
    assert (
        stability.Dynamics(1, **options).stationary_variance(9.0, noise=1e200)
        == math.inf
    )


def test_small_noise_of_small_steps_has_a_variance():
    # s^2 / (2 a), where float64 holds no s^2
    tiny = stability.Dynamics(0).stationary_variance(1e-200, noise=1e-200)
    np.testing.assert_allclose(tiny, 1e-200 / 2, rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_autocovariances_are_means_over_the_circle(seed):
    rng = np.random.default_rng(seed)
    z = np.exp(2j * np.pi * np.arange(20_000) / 20_000)
    for _ in range(10):
        zeros = rng.uniform(-0.98, 0.98, rng.integers(1, 12))
        polynomial = np.poly(zeros)
        weight = 1 / np.abs(np.polyval(polynomial, z)) ** 2
        expected = [(z**lag * weight).mean().real for lag in range(16)]
        found = moments.autocovariances(polynomial, 15)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * expected[0])
        outside = np.poly([*zeros, rng.choice([-1, 1]) * rng.uniform(1.001, 2)])
        assert moments.autocovariances(outside, 15) is None


# The mean square of n updates of a Gaussian x varies by 2 sum_k rho_k^2 / n of itself,
# rho_k its correlation over k updates: four standard errors are 0.6, 0.9, 0.7, 0.9 %.
@pytest.mark.parametrize(
    ("tau", "share", "paths"), [(0, 0.5, 1), (1, 0.95, 8), (4, 0.5, 4), (4, 0.95, 24)]
)
def test_paths_of_a_fixed_delay_have_the_variance(tau, share, paths):
    a = share * stability.Dynamics(tau).step_limit()
    rng = np.random.default_rng(tau)
    # x_t - x_{t-1} + a x_{t-1-tau} = xi_t
    recursion = np.zeros(tau + 2)
    recursion[:2] = 1, -1
    recursion[tau + 1] += a
    squares = [
        np.mean(signal.lfilter([0.3], recursion, rng.normal(size=10**6))[1000:] ** 2)
        for _ in range(paths)
    ]
    expected = stability.Dynamics(tau).stationary_variance(a, noise=0.3)
    np.testing.assert_allclose(np.mean(squares), expected, rtol=0.01)


LAW = [0.3, 0.0, 0.2, 0.0, 0.0, 0.5]


OPTIONS = {
    "SGD": {},
    "heavy ball": {"momentum": 0.6},
    "Nesterov": {"momentum": 0.6, "nesterov": True},
    "heavy ball, modulated": {"momentum": 0.6, "modulation": dj.modulation.inverse},
    "compensated, modulated": {
        "compensation": 0.4,
        "modulation": dj.modulation.polynomial(0.5),
    },
}


def step_of(options):
    return 0.7 * stability.Dynamics(LAW, **options).step_limit()


def optimizer(step, *, momentum=0.0, nesterov=False, modulation=None, compensation=0.0):
    del compensation  # of the gradient
    tx = optax.sgd(step, momentum=momentum, nesterov=nesterov)
    if modulation is None:
        return tx
    return optax.chain(tx, dj.scale_by_staleness(modulation))


@functools.cache
def mean_squares():
    """Of x by `OPTIONS`, all at the same delays and the same noise."""
    paths, steps, burn_in = 2048, 6000, 500
    ages = jnp.arange(len(LAW))
    sizes = {name: step_of(options) for name, options in OPTIONS.items()}
    txs = {name: optimizer(sizes[name], **own) for name, own in OPTIONS.items()}

    # the gradient's noise is drawn as it is used: each update has its own
    def update(carry, key):
        drawing, noising = jax.random.split(key)
        age = jax.random.choice(drawing, ages, (paths,), p=jnp.array(LAW))
        noise, squares = jax.random.normal(noising, (paths,)), {}
        for name, tx in txs.items():
            window, opt_state = carry[name]
            compensation = OPTIONS[name].get("compensation", 0.0)
            stale = jnp.take_along_axis(window, age[None], axis=0)[0]
            mean = (1 - compensation) * stale + compensation * window[0]
            grads = mean + noise / sizes[name]
            updates_, opt_state = jax.vmap(
                lambda g, s, tau, tx=tx: tx.update(g, s, staleness=tau)
            )(grads, opt_state, age)
            fresh = window[0] + updates_
            window = jnp.concatenate([fresh[None], window[:-1]])
            carry = carry | {name: (window, opt_state)}
            squares[name] = jnp.mean(fresh**2)
        return carry, squares

    window = jnp.zeros((len(LAW), paths))
    carry = {name: (window, jax.vmap(tx.init)(window[0])) for name, tx in txs.items()}
    keys = jax.random.split(jax.random.key(1), steps)
    _, squares = jax.jit(lambda keys: jax.lax.scan(update, carry, keys))(keys)
    return {name: own[burn_in:].mean() for name, own in squares.items()}


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIONS)
def test_paths_of_random_delays_have_the_variance(name):
    options = OPTIONS[name]
    expected = stability.Dynamics(LAW, **options).stationary_variance(step_of(options))
    np.testing.assert_allclose(mean_squares()[name], expected, rtol=0.01)
