"""Stationary variances: closed forms, an integral, and matrices."""

import math

import numpy as np
import pytest
from scipy import integrate

import delayjax as dj
from delayjax.stability import Dynamics
from tests.stability import updates


@pytest.mark.parametrize("tau", [0, 1, 2, 5, 31])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_the_variance_of_a_fixed_delay_is_an_integral(tau, share):
    a = share * Dynamics(tau).step_limit()

    def power(w):
        return 1 / abs(np.exp(1j * w) - 1 + a * np.exp(-1j * w * tau)) ** 2

    whole, _ = integrate.quad(power, 0, np.pi, limit=500, epsabs=0, epsrel=1e-11)
    variance = Dynamics(tau).stationary_variance(a)
    np.testing.assert_allclose(variance, whole / np.pi, rtol=1e-9)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95, 0.9999])
def test_without_delay_and_with_a_delay_of_one_the_variance_is_rational(share):
    a = 2 * share
    result = Dynamics(0).stationary_variance(a)
    np.testing.assert_allclose(result, 1 / (a * (2 - a)))
    a = share
    result = Dynamics(1).stationary_variance(a)
    np.testing.assert_allclose(result, (1 + a) / (a * (1 - a) * (2 + a)))


@pytest.mark.parametrize("tau", [5, 20, 200])
def test_long_delays_vary_as_the_delay_equation_does(tau):
    # (1/2a) (1 + sin(a s))/cos(a s) of a delay s = tau + 1/2, well inside
    a = 0.5 * Dynamics(tau).step_limit()
    late = a * (tau + 0.5)
    expected = (1 + math.sin(late)) / math.cos(late) / (2 * a)
    variance = Dynamics(tau).stationary_variance(a)
    np.testing.assert_allclose(variance, expected, rtol=0.2 / tau)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_variance_of_any_law_solves_the_moment_equation(seed):
    rng = np.random.default_rng(seed)
    for _ in range(15):
        law, options = updates.a_law(rng, 5), updates.options_of(rng, 5)
        limit = Dynamics(law, **options).step_limit()
        for share in (0.1, 0.9, 0.999):
            step, noise = share * limit, rng.uniform(0.1, 2)
            result = Dynamics(law, **options).stationary_variance(step, noise=noise)
            expected = updates.variance(step, law, noise=noise, **options)
            np.testing.assert_allclose(result, expected, rtol=1e-6)


GEOMETRIC = 0.5 ** np.arange(1, 60)


@pytest.mark.parametrize(
    ("delay", "options"),
    [
        (3, {}),
        (3, {"momentum": 0.9}),
        (3, {"modulation": dj.modulation.inverse}),
        (3, {"compensation": 0.3}),
        (GEOMETRIC / GEOMETRIC.sum(), {}),
        (GEOMETRIC / GEOMETRIC.sum(), {"momentum": 0.5}),
    ],
)
def test_where_a_step_is_unstable_the_variance_is_infinite(delay, options):
    training = Dynamics(delay, **options)
    limit = training.step_limit()
    shares = (0.5, 0.9, 0.99, 0.9999, 1.0001, 1.5, 100.0)
    variances = [training.stationary_variance(share * limit) for share in shares]
    assert variances[:4] == sorted(variances[:4])
    assert variances[4:] == [math.inf] * 3
    assert 1000 * variances[0] / 5 < variances[3] < math.inf
    # a flat direction wanders off
    assert training.stationary_variance(0) == math.inf


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5}])
def test_noise_of_any_size_counts_squared(options):
    training = Dynamics(1, **options)
    one = training.stationary_variance(0.1)
    for noise, square in ((0.0, 0.0), (3.0, 9.0), (1e150, 1e300)):
        result = training.stationary_variance(0.1, noise=noise)
        np.testing.assert_allclose(result, square * one, rtol=1e-12)
    # s^2 / (2 a), where float64 holds no s^2
    tiny = Dynamics(0).stationary_variance(1e-200, noise=1e-200)
    np.testing.assert_allclose(tiny, 1e-200 / 2, rtol=1e-12)
    # an unstable step has no variance, whatever the noise
    assert training.stationary_variance(9.0, noise=1e200) == math.inf


def test_half_the_weight_is_half_the_step_and_half_the_noise():
    half = Dynamics(4, modulation=lambda k: 0.5).stationary_variance(0.2)
    one = Dynamics(4).stationary_variance(0.1)
    np.testing.assert_allclose(half, one / 4, rtol=1e-14)
