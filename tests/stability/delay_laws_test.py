"""Delay laws: their transforms are means over densities, and those of clusters."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

import delayjax as dj
from delayjax.stability import delay_laws

SEEDS = [1, 2, 3]

# law, and the density of the same delays by scipy
DENSITIES = {
    "gamma": (delay_laws.gamma_delay(1.5, 2.5), stats.gamma(2.5, scale=0.6)),
    "gamma, cv above 1": (delay_laws.gamma_delay(0.5, 0.8), stats.gamma(0.8, 0, 0.625)),
    "exponential": (delay_laws.exponential_delay(2.0), stats.expon(scale=2.0)),
    "shifted": (
        delay_laws.shifted_exponential_delay(0.5, 1.5),
        stats.expon(loc=0.5, scale=1.5),
    ),
    "uniform": (delay_laws.uniform_delay(0.5, 3.0), stats.uniform(0.5, 2.5)),
}


def mean_of(function, density):
    """E function(T), complex."""
    low, high = density.support()
    high = min(high, low + 400 * density.mean())
    parts = [
        integrate.quad(
            lambda t, part=part: getattr(function(t), part) * density.pdf(t),
            *(low, high),
            points=[low + density.mean() * x for x in (0.01, 0.1, 1.0, 3.0)][:3],
            limit=1000,
        )[0]
        for part in ("real", "imag")
    ]
    return complex(*parts)


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize("s", [0.0, 0.7, -0.2, 1j, 0.3 - 2j, 1e-3, 30.0 + 1j])
def test_transform_and_slope_are_means_over_the_density(name, s):
    law, density = DENSITIES[name]
    expected = mean_of(lambda t: np.exp(-complex(s) * t), density)
    np.testing.assert_allclose(law.transform(s), expected, rtol=1e-6, atol=1e-9)
    expected = mean_of(lambda t: t * np.exp(-complex(s) * t), density)
    np.testing.assert_allclose(law.slope(s), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", DENSITIES)
def test_mean_and_quantiles_are_those_of_the_density(name):
    law, density = DENSITIES[name]
    np.testing.assert_allclose(law.mean, density.mean(), rtol=1e-12)
    shares = np.linspace(0, 1, 50, endpoint=False)
    np.testing.assert_allclose(law.quantile(shares), density.ppf(shares), rtol=1e-9)


def test_a_constant_and_measured_delays_are_sums():
    s = np.array([[0.5, -1.0 + 2j], [1j, 0.0]])
    law = delay_laws.constant_delay(2)
    np.testing.assert_allclose(law.transform(s), np.exp(-2 * s))
    np.testing.assert_allclose(law.slope(s), 2 * np.exp(-2 * s))
    assert law.quantile(np.array([0.0, 0.9])).tolist() == [2.0, 2.0]
    law = delay_laws.empirical_delay([2.0, 0.0, 1.0, 2.0])
    expected = (1 + np.exp(-s) + 2 * np.exp(-2 * s)) / 4
    np.testing.assert_allclose(law.transform(s), expected)
    np.testing.assert_allclose(law.slope(s), (np.exp(-s) + 4 * np.exp(-2 * s)) / 4)
    assert law.mean == 1.25
    assert law.quantile(np.array([0.2, 0.3, 0.6])).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("seed", SEEDS)
def test_many_samples_and_points_are_summed_in_blocks(seed):
    rng = np.random.default_rng(seed)
    times = rng.gamma(2.0, 0.5, 30_000)
    s = rng.uniform(0, 2, 20) + 1j * rng.uniform(0, 2, 20)
    expected = [np.exp(-z * times).mean() for z in s]
    law = delay_laws.empirical_delay(times)
    np.testing.assert_allclose(law.transform(s), expected, rtol=1e-10)
    assert law.transform(np.zeros(0)).shape == (0,)


@pytest.mark.parametrize("law", [law for law, _ in DENSITIES.values()])
def test_the_tail_rate_is_where_the_transform_ends(law):
    if law.tail_rate == math.inf:
        assert np.isfinite(law.transform(-50.0))
    else:
        near, nearer = law.transform(-law.tail_rate * (1 - np.array([1e-3, 1e-6])))
        assert nearer > 100 * near > 100


@pytest.mark.parametrize("name", DENSITIES)
def test_a_scaled_law_is_that_of_scaled_delays(name):
    law, _ = DENSITIES[name]
    twice = law.scaled(2.0)
    s = np.array([0.1, 0.3 + 1j])
    np.testing.assert_allclose(twice.transform(s), law.transform(2 * s), rtol=1e-14)
    difference = (twice.transform(s - 1e-5) - twice.transform(s + 1e-5)) / 2e-5
    np.testing.assert_allclose(twice.slope(s), difference, rtol=1e-6)
    np.testing.assert_allclose(twice.quantile(0.3), 2 * law.quantile(0.3))
    assert twice.mean == 2 * law.mean
    assert twice.tail_rate == law.tail_rate / 2
    assert twice.stages == law.stages


@pytest.mark.parametrize("shape", [1e12, 1e16])
def test_a_large_shape_is_a_constant_delay(shape):
    law, constant = delay_laws.gamma_delay(1.5, shape), delay_laws.constant_delay(1.5)
    s = np.array([0.0, 1.0, -0.7, 1j, 0.3 - 2j, -0.5 + 1e-3j])
    np.testing.assert_allclose(law.transform(s), constant.transform(s), rtol=1e-11)
    np.testing.assert_allclose(law.slope(s), constant.slope(s), rtol=1e-11)
    np.testing.assert_allclose(law.quantile(0.5), 1.5, rtol=1e-5)


def test_a_large_shape_keeps_its_first_correction():
    # k log(1 + z/k) = z - z^2/2k, of which powers of 1 + z/k lose all but some digits
    z = 0.8 + 0.6j
    expected = np.exp(-z + z**2 / 2e8 - z**3 / 3e16)
    np.testing.assert_allclose(
        delay_laws.gamma_delay(1.0, 1e8).transform(z), expected, rtol=1e-15 * 8
    )


@pytest.mark.parametrize(("low", "high"), [(0.0, 2.0), (0.5, 3.0)])
def test_a_uniform_law_overflows_nowhere(low, high):
    law, width = delay_laws.uniform_delay(low, high), high - low
    for s in (1e2, 1e3 + 5j, 1e6):  # of the longest nothing is left
        first = np.exp(-s * low) / (s * width)
        np.testing.assert_allclose(law.transform(s), first, rtol=1e-12)
        np.testing.assert_allclose(law.slope(s), first * (low + 1 / s), rtol=1e-12)
    for s in (-100.0, -200.0 + 1j):  # of the shortest
        last = -np.exp(-s * high) / (s * width)
        np.testing.assert_allclose(law.transform(s), last, rtol=1e-12)
        np.testing.assert_allclose(law.slope(s), last * (high + 1 / s), rtol=1e-12)


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-3, 0.1, 0.249, 0.251, 0.9])
@pytest.mark.parametrize("angle", [0.0, 0.8, 1.6, 2.4, math.pi])
def test_a_uniform_law_is_exact_at_small_and_large_s(size, angle):
    law, s = delay_laws.uniform_delay(0.5, 2.5), size * np.exp(1j * angle)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    times = 1.5 + nodes
    expected = np.exp(-s * times) @ weights / 2
    np.testing.assert_allclose(law.transform(s), expected, rtol=1e-14)
    expected = (times * np.exp(-s * times)) @ weights / 2
    np.testing.assert_allclose(law.slope(s), expected, rtol=1e-14)


@pytest.mark.parametrize("seed", SEEDS)
def test_arguments_mean_what_they_mean_to_a_cluster(seed):
    pairs = (
        (dj.cluster.constant(2.0), delay_laws.constant_delay(2.0)),
        (dj.cluster.gamma(2.0, 4.0), delay_laws.gamma_delay(2.0, 4.0)),
        (dj.cluster.exponential(2.0), delay_laws.exponential_delay(2.0)),
        (
            dj.cluster.shifted_exponential(0.5, 1.5),
            delay_laws.shifted_exponential_delay(0.5, 1.5),
        ),
        (dj.cluster.empirical([1, 4]), delay_laws.empirical_delay([1, 4])),
    )
    for service, law in pairs:
        cluster = dj.cluster.Cluster(1, service)
        times = cluster.draw(0, 20_000, seed=seed)
        # the mean of 20,000 numbers between 0 and 1, five standard errors
        np.testing.assert_allclose(np.exp(-times).mean(), law.transform(1.0), atol=0.01)
        np.testing.assert_allclose(times.mean(), law.mean, rtol=0.04)


def test_half_an_update_is_a_share_of_the_workers():
    law = delay_laws.constant_delay(3.0)
    # P updates a delay, of which a half is 1/(2P)
    for workers in (1, 2, 16):
        expected = 3.0 - 3.0 / workers / 2
        found = delay_laws.half_update_earlier(law, workers).mean
        np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: delay_laws.constant_delay(0.0), "`seconds` must be .* got 0.0"),
        (lambda: delay_laws.constant_delay(math.inf), "`seconds` must be finite"),
        (lambda: delay_laws.gamma_delay(-1.0, 2), "`mean_seconds` must be .* got -1.0"),
        (lambda: delay_laws.gamma_delay(1.0, 0), "`shape` must be finite and positive"),
        (lambda: delay_laws.exponential_delay(math.nan), "`mean_seconds` must be"),
        (
            lambda: delay_laws.shifted_exponential_delay(-0.5, 1.0),
            "`shift_seconds` must be finite and positive, got -0.5",
        ),
        (
            lambda: delay_laws.shifted_exponential_delay(1.0, math.inf),
            "`mean_seconds` must be finite",
        ),
        (lambda: delay_laws.uniform_delay(-1.0, 1.0), "`low_seconds` must be .* -1.0"),
        (lambda: delay_laws.uniform_delay(0.0, math.inf), "`high_seconds` must be fin"),
        (lambda: delay_laws.uniform_delay(2.0, 2.0), "above .*constant_delay"),
        (lambda: delay_laws.empirical_delay([]), r"at least one delay .* \(0,\)"),
        (lambda: delay_laws.empirical_delay([[1.0]]), r"shape \(1, 1\)"),
        (lambda: delay_laws.empirical_delay([1.0, -2.0]), "non-negative .* got -2.0"),
        (lambda: delay_laws.empirical_delay([1.0, math.inf]), "got inf: leave out"),
        (lambda: delay_laws.empirical_delay([1.0, math.nan]), "got nan"),
        (lambda: delay_laws.empirical_delay([0.0, 0.0]), "a delay above 0"),
        (
            lambda: delay_laws.half_update_earlier(delay_laws.constant_delay(1.0), 0),
            "`workers` must be at least 1, got 0",
        ),
        (lambda: delay_laws.constant_delay(1.0).scaled(0.0), "`factor` must be"),
        (
            lambda: delay_laws.DelayLaw(np.exp, lambda s: math.inf, np.exp),
            "a positive, finite mean at 0, got inf",
        ),
        (
            lambda: delay_laws.DelayLaw(np.exp, lambda s: 1.0, np.exp, tail_rate=0.0),
            "`tail_rate` must be positive, got 0.0",
        ),
    ],
)
def test_bad_laws_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("law", [3.0, 4, "constant", None])
def test_what_is_no_law_is_not_moved(law):
    with pytest.raises(
        TypeError, match=r"`law` must be a law .* constant_delay\(1.0\)"
    ):
        delay_laws.half_update_earlier(law, 4)
