"""Roots: those of independent matrices, of Vieta, and of Lambert's function."""

import math
import time

import numpy as np
import pytest
from scipy import optimize, special, stats

from delayjax import stability
from tests.stability import updates

SEEDS = [1, 2, 3]


def fixed(z, tau, a):
    """z^{tau+1} - z^tau + a and its derivative."""
    return z**tau * (z - 1) + a, z ** (tau - 1) * ((tau + 1) * z - tau)


@pytest.mark.parametrize("seed", SEEDS)
def test_roots_are_the_eigenvalues_of_the_mean_update(seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        law = updates.a_law(rng, 11)
        options = updates.options_of(rng, 11)
        step = rng.uniform(0, 3)
        roots = stability.Dynamics(law, **options).roots(step)
        mean = sum(p * a for p, a in updates.matrices(step, law, **options))
        eigenvalues = np.linalg.eigvals(mean)
        # each root is one, and the others are 0
        far = np.abs(roots[:, None] - eigenvalues)
        pairs = optimize.linear_sum_assignment(far)
        assert far[pairs].max() < 1e-6
        rest = np.delete(eigenvalues, pairs[1])
        # beta is hidden where there is none, and 0 may be manifold: inexact in QR
        assert np.abs(rest).max(initial=0) < 1e-2
        assert (np.diff(np.abs(roots)) <= 0).all(), "the largest comes first"
        radius = stability.Dynamics(law, **options).spectral_radius(step)
        assert radius == np.abs(roots[0])


@pytest.mark.parametrize("tau", [0, 1, 5, 64, 300, 1000])
@pytest.mark.parametrize("share", [0.1, 0.9, 1.1])
def test_a_fixed_delay_has_one_root_more_than_updates(tau, share):
    a = share * stability.Dynamics(tau).step_limit()
    z = stability.Dynamics(tau).roots(a)
    assert len(z) == tau + 1
    value, slope = fixed(z, tau, a)
    # the distance to the exact root is about |value / slope|
    assert np.abs(value / slope).max() < 1e-11
    between = np.abs(z[:, None] - z) + np.eye(tau + 1)
    assert between.min() > 0.1 / (tau + 1), "a root was found twice"
    # Vieta: without delay z = 1 - a
    np.testing.assert_allclose(z.sum(), 1 - a if tau == 0 else 1, atol=1e-9)
    np.testing.assert_allclose(np.abs(z).prod(), a if tau else abs(1 - a), rtol=1e-8)
    assert (np.abs(z[0]) > 1) == (share > 1)


def test_long_delays_take_less_than_a_second():
    begin = time.process_time()
    stability.Dynamics(1000).roots(0.001)
    stability.Dynamics(1000, momentum=0.9).step_limit()
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("tau", [4, 32, 256])
def test_the_dominant_root_is_lambert_s(tau):
    # z = exp(s / (tau + 1/2)) with s e^s = -a (tau + 1/2): E.2 of the delay equation
    late = tau + 0.5
    for share in (0.5, 0.9):
        a = share * stability.Dynamics(tau).step_limit()
        expected = np.exp(special.lambertw(-a * late).real / late)
        radius = stability.Dynamics(tau).spectral_radius(a)
        np.testing.assert_allclose(radius, expected, rtol=0.05 / tau**2)


def test_roots_outside_of_the_circle_are_found():
    np.testing.assert_allclose(stability.Dynamics(0).roots(1e6), [1 - 1e6])
    for tau, a in ((3, 1e4), (200, 50.0)):
        z = stability.Dynamics(tau).roots(a)
        np.testing.assert_allclose(z**tau * (z - 1), -a, rtol=1e-9)
    law = [0.5, *np.zeros(400), 0.5]  # one root at about 1 - a/2: 1e400 in a power
    z = stability.Dynamics(law).roots(60.0)
    np.testing.assert_allclose(z[0], -29, rtol=1e-12)
    assert np.abs(z[1:]).max() < 1.1


def test_laws_with_a_thin_tail_are_no_trouble():
    law = stats.poisson(4).pmf(np.arange(150))
    assert 0 < law[-1] < 1e-150
    step = 0.5 * stability.Dynamics(law).step_limit("mean")
    z = stability.Dynamics(law).roots(step)
    # only what is not lost in rounding beside the largest: |z| > 0.2
    z = z[np.abs(z) > 0.2]
    terms = law * z[:, None] ** -np.arange(150.0)
    value = z - 1 + step * terms.sum(axis=1)
    assert (np.abs(value) < 1e-12 * (1 + np.abs(terms).sum(axis=1))).all()
    # few delays count: the same without those beyond 30
    short = law[:30] / law[:30].sum()
    expected = updates.mean_radius(step, short)
    np.testing.assert_allclose(stability.Dynamics(law).spectral_radius(step), expected)


def test_a_mode_may_die_at_once_or_never():
    assert stability.Dynamics(0).spectral_radius(1.0) == 0
    assert stability.Dynamics(0).roots(1.0).size == 0
    assert stability.Dynamics(7).spectral_radius(0) == 1
    np.testing.assert_allclose(stability.Dynamics(7, momentum=0.5).roots(0), [1, 0.5])


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5}, {"compensation": 0.3}])
def test_an_error_shrinks_by_the_spectral_radius(options):
    law, step, many = [0.2, 0, 0.8], 0.3, 400
    states = [np.ones(4)]
    chances = updates.law(law)
    for _ in range(many):
        moved = [
            updates.update(states[-1], k, step, **options) for k in range(len(chances))
        ]
        states.append(chances @ np.array(moved))
    sizes = np.log(np.linalg.norm(states, axis=1))
    rate = (sizes[-1] - sizes[many // 2]) / (many // 2)
    # a turn of the mode adds to the logarithm what does not grow with time
    radius = stability.Dynamics(law, **options).spectral_radius(step)
    assert abs(rate - math.log(radius)) < 2 / many
