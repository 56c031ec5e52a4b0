"""Roots: those of independent matrices, of Vieta, and of Lambert's function."""

import time

import numpy as np
import pytest
from scipy import optimize, special, stats

from delayjax.stability import Dynamics
from tests.stability import updates


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_roots_are_the_eigenvalues_of_the_mean_update(seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        law, options = updates.a_law(rng, 11), updates.options_of(rng, 11)
        step = rng.uniform(0, 3)
        roots = Dynamics(law, **options).roots(step)
        eigenvalues = np.linalg.eigvals(updates.mean(step, law, **options))
        # each root is one, and the others are 0
        far = np.abs(roots[:, None] - eigenvalues)
        pairs = optimize.linear_sum_assignment(far)
        assert far[pairs].max() < 1e-6
        rest = np.delete(eigenvalues, pairs[1])
        # beta is hidden where there is none, and 0 may be manifold: inexact in QR
        assert np.abs(rest).max(initial=0) < 1e-2
        assert (np.diff(np.abs(roots)) <= 0).all(), "the largest comes first"
        assert Dynamics(law, **options).spectral_radius(step) == np.abs(roots[0])


@pytest.mark.parametrize("tau", [0, 1, 5, 64, 300, 1000])
@pytest.mark.parametrize("share", [0.1, 0.9, 1.1])
def test_a_fixed_delay_has_one_root_more_than_updates(tau, share):
    a = share * Dynamics(tau).step_limit()
    z = Dynamics(tau).roots(a)
    assert len(z) == tau + 1
    # z^{tau+1} - z^tau + a and its derivative
    value, slope = z**tau * (z - 1) + a, z ** (tau - 1) * ((tau + 1) * z - tau)
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
    Dynamics(1000).roots(0.001)
    Dynamics(1000, momentum=0.9).step_limit()
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("tau", [4, 32, 256])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_dominant_root_is_lambert_s(tau, share):
    # z = exp(s / (tau + 1/2)) with s e^s = -a (tau + 1/2): E.2 of the delay equation
    a, late = share * Dynamics(tau).step_limit(), tau + 0.5
    expected = np.exp(special.lambertw(-a * late).real / late)
    radius = Dynamics(tau).spectral_radius(a)
    np.testing.assert_allclose(radius, expected, rtol=0.05 / tau**2)


def test_roots_outside_of_the_circle_are_found():
    np.testing.assert_allclose(Dynamics(0).roots(1e6), [1 - 1e6])
    for tau, a in ((3, 1e4), (200, 50.0)):
        z = Dynamics(tau).roots(a)
        np.testing.assert_allclose(z**tau * (z - 1), -a, rtol=1e-9)
    law = [0.5, *np.zeros(400), 0.5]  # one root at about 1 - a/2: 1e400 in a power
    z = Dynamics(law).roots(60.0)
    np.testing.assert_allclose(z[0], -29, rtol=1e-12)
    assert np.abs(z[1:]).max() < 1.1


def test_laws_with_a_thin_tail_are_no_trouble():
    law = stats.poisson(4).pmf(np.arange(150))
    assert 0 < law[-1] < 1e-150
    step = 0.5 * Dynamics(law).step_limit("mean")
    z = Dynamics(law).roots(step)
    # only what is not lost in rounding beside the largest: |z| > 0.2
    z = z[np.abs(z) > 0.2]
    terms = law * z[:, None] ** -np.arange(150.0)
    value = z - 1 + step * terms.sum(axis=1)
    assert (np.abs(value) < 1e-12 * (1 + np.abs(terms).sum(axis=1))).all()
    # few delays count: the same without those beyond 30
    expected = updates.mean_radius(step, law[:30] / law[:30].sum())
    np.testing.assert_allclose(Dynamics(law).spectral_radius(step), expected)


def test_a_mode_may_die_at_once_or_never():
    assert Dynamics(0).spectral_radius(1.0) == 0
    assert Dynamics(0).roots(1.0).size == 0
    assert Dynamics(7).spectral_radius(0) == 1
    np.testing.assert_allclose(Dynamics(7, momentum=0.5).roots(0), [1, 0.5])
