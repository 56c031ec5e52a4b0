"""The parts of a service time agree: its sampler, shares, transform and order."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from delayjax import cluster

P = 8
KS = (1, 3, 8)
DRAWS = 40_000
SAMPLES = [0.5, 1.0, 1.0, 2.5]

# the same times in scipy
DENSITIES = {
    "exponential": (cluster.exponential(2.0), stats.expon(scale=2.0)),
    "shifted": (
        cluster.shifted_exponential(0.5, 1.5),
        stats.expon(loc=0.5, scale=1.5),
    ),
    "gamma": (cluster.gamma(1.5, 2.5), stats.gamma(2.5, scale=0.6)),
    "gamma, cv above 1": (cluster.gamma(0.5, 0.8), stats.gamma(0.8, 0, 0.625)),
    "uniform": (cluster.uniform(0.5, 3.0), stats.uniform(0.5, 2.5)),
    "lognormal": (
        cluster.lognormal(2.0, 0.5),
        stats.lognorm(math.sqrt(math.log(1.25)), scale=2.0 / math.sqrt(1.25)),
    ),
    "pareto": (cluster.pareto(2.0, 3.0), stats.pareto(3.0, scale=2.0)),
    "scipy's": (
        cluster.from_scipy(stats.weibull_min(1.5, scale=2.0)),
        stats.weibull_min(1.5, scale=2.0),
    ),
}
TIMES = {
    **{name: times for name, (times, _) in DENSITIES.items()},
    "constant": cluster.constant(3.0),
    "empirical": cluster.empirical(SAMPLES),
    "scipy's gamma": cluster.from_scipy(stats.gamma(4.0, scale=0.5)),
    "scaled": cluster.gamma(1.0, 4.0).scaled(3.0),
}


def drawn(times, size, seed=1):
    return times.sample(np.random.default_rng(seed), size)


@pytest.fixture(params=TIMES)
def times(request):
    return TIMES[request.param]


# the parts of one object agree


def test_samples_have_the_mean_the_survival_and_the_transform(times):
    seconds = cluster.Cluster(1, times).draw(0, DRAWS, seed=1)
    error = 5 * seconds.std() / math.sqrt(DRAWS)
    assert seconds.mean() == pytest.approx(times.mean, abs=error + 1e-12)
    near = 5 * 0.5 / math.sqrt(DRAWS)  # the error of shares
    for share in (0.1, 0.5, 0.9):
        t = 1.001 * float(times.quantile(share))
        assert np.mean(seconds > t) == pytest.approx(times.survival(t), abs=near)
    for s in (1 / times.mean, 1j / times.mean, (0.3 + 2j) / times.mean):
        result = np.exp(-s * seconds).mean()
        assert abs(result - times.transform(s)) < 2 * near
    # and they are independent
    for lag in (1, 2, 7):
        longer = seconds > times.mean
        both = (longer[lag:] & longer[:-lag]).mean()
        assert both == pytest.approx(longer.mean() ** 2, abs=2 * near)


def test_quantiles_are_where_the_survival_falls_below(times):
    shares = np.linspace(0.05, 0.95, 7)
    seconds = times.quantile(shares)
    assert (times.survival(seconds * (1 + 1e-9)) <= 1 - shares + 1e-9).all()
    assert (times.survival(seconds * (1 - 1e-9)) >= 1 - shares - 1e-9).all()


def test_the_transform_at_zero_is_one_and_its_slope_the_mean(times):
    assert times.transform(0.0) == pytest.approx(1, rel=1e-12)
    assert times.slope(0.0) == pytest.approx(times.mean, rel=1e-12)
    s = np.array([[0.4, 0.2 + 1j], [1j, 2.0]])
    upwards = times.transform(s + 1e-5j) - times.transform(s - 1e-5j)
    difference = 1j * upwards / 2e-5
    np.testing.assert_allclose(times.slope(s), difference, rtol=1e-6)
    assert times.transform(np.zeros(0)).shape == (0,)


S = np.array([0.01j, 1j, -3j, 30j, 0.5 + 100j, 2 + 5j, 50 + 1j, 0.3])


@pytest.mark.parametrize("cv", [0.02, 0.5, 1.6, 20.0])
def test_lognormal_times_drawn_by_their_length_are_longer_by_a_factor(cv):
    # T exp(-z^2/2) is a normal density again, moved by the variance of log T
    times = cluster.lognormal(2.0, cv)
    longer = 2.0 * times.transform((1 + cv**2) * S)
    np.testing.assert_allclose(times.slope(S), longer, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("shape", [0.5, 1.1, 2.0, 10.0])
def test_pareto_times_obey_integration_by_parts(shape):
    times = cluster.pareto(2.0, shape)
    expected = np.exp(-2.0 * S) - S * times.slope(S) / shape
    np.testing.assert_allclose(times.transform(S), expected, rtol=1e-11, atol=3e-14)


@pytest.mark.parametrize("times", [cluster.lognormal(1.0, 0.5), cluster.pareto(1.0, 3)])
def test_a_heavy_tail_has_no_transform_to_the_left_of_the_axis(times):
    for s in (-1e-3, -1e-3 + 1j, -5.0):
        assert np.isinf(times.transform(s))
        assert np.isinf(times.slope(s))


@pytest.mark.parametrize("shape", [1, 2, 3])
def test_pareto_times_have_an_exponential_integral(shape):
    # E_{n+1}(z) = (exp(-z) - z E_n(z)) / n, and the transform is n E_{n+1}(s scale)
    z = S[np.abs(S) < 10]
    value = special.exp1(z)
    for n in range(1, shape + 1):
        value = (np.exp(-z) - z * value) / n
    result = cluster.pareto(0.5, shape).transform(2 * z)
    np.testing.assert_allclose(result, shape * value, rtol=1e-9)


def test_the_kth_of_p_is_the_integral_of_its_survival(times):
    corners = sorted({0.0, *SAMPLES, 2.0, 3.0, 30.0, 400.0, 1e4})
    for k in KS:
        # fewer than K of P have ended: the number is binomial
        pieces = [
            integrate.quad(
                lambda t, k=k: stats.binom.cdf(k - 1, P, 1 - times.survival(t)),
                *(low, high),
                limit=200,
            )[0]
            for low, high in itertools.pairwise(corners)
        ]
        # Pareto's last is beyond t with 8 (2/t)^3
        tail = 8 * 2**3 / (2 * 1e4**2) if times is TIMES["pareto"] and k == P else 0.0
        expected = math.fsum(pieces) + tail
        assert times.kth_mean(k, P) == pytest.approx(expected, rel=1e-6)


def test_all_of_p_together_take_p_means(times):
    means = [times.kth_mean(k, P) for k in range(1, P + 1)]
    assert means == sorted(means)
    assert math.fsum(means) == pytest.approx(P * times.mean, rel=1e-10)
    assert times.kth_mean(1, 1) == pytest.approx(times.mean, rel=1e-10)


def test_a_scaled_time_is_that_of_scaled_tasks(times):
    twice, s = times.scaled(2.0), np.array([0.1, 0.3 + 1j])
    np.testing.assert_array_equal(drawn(twice, 9), 2 * drawn(times, 9))
    np.testing.assert_allclose(twice.transform(s), times.transform(2 * s), rtol=1e-14)
    np.testing.assert_allclose(twice.slope(s), 2 * times.slope(2 * s), rtol=1e-14)
    np.testing.assert_allclose(twice.quantile(0.3), 2 * times.quantile(0.3))
    assert twice.survival(1.3) == times.survival(0.65)
    assert twice.kth_mean(3, P) == 2 * times.kth_mean(3, P)
    assert (twice.mean, twice.tail_rate) == (2 * times.mean, times.tail_rate / 2)
    assert twice.stages == times.stages


# compared with the densities of scipy


def points_of(density):
    """Seconds and probabilities: Gauss points on panels, closer near the beginning."""
    low, high = density.support()
    panels = np.concatenate([[0], np.geomspace(1e-12, 1, 60), np.arange(2, 401)])
    edges = np.unique(np.minimum(low + density.mean() * panels, high))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    seconds = (edges[:-1, None] + half * (1 + nodes)).ravel()
    return seconds, (half * weights).ravel() * density.pdf(seconds)


@pytest.mark.parametrize("name", DENSITIES)
def test_transform_and_slope_are_means_over_the_density(name):
    times, density = DENSITIES[name]
    seconds, chances = points_of(density)
    heavy = name == "pareto"
    for s in (0.7, -0.2, 1j, 0.3 - 2j, 1e-3, 30.0 + 1j):
        if np.real(s) < 0 and not times.tail_rate:
            continue
        near = {"rtol": 1e-6, "atol": 1e-5 if heavy else 1e-9}
        decay = np.exp(-s * seconds)
        np.testing.assert_allclose(times.transform(s), decay @ chances, **near)
        near["atol"] = 3e-5 if heavy else 1e-9
        np.testing.assert_allclose(times.slope(s), seconds * decay @ chances, **near)


@pytest.mark.parametrize("name", DENSITIES)
def test_mean_survival_and_quantiles_are_those_of_the_density(name):
    times, density = DENSITIES[name]
    assert times.mean == pytest.approx(density.mean(), rel=1e-12)
    shares = np.linspace(0, 1, 50, endpoint=False)
    np.testing.assert_allclose(times.quantile(shares), density.ppf(shares), rtol=1e-9)
    seconds = np.linspace(0, 10, 41)
    np.testing.assert_allclose(
        times.survival(seconds), density.sf(seconds), rtol=1e-9, atol=1e-15
    )


@pytest.mark.parametrize(
    ("name", "by_scipy"),
    [
        ("exponential", stats.expon(scale=2.0)),
        ("gamma", stats.gamma(2.5, scale=0.6)),
        ("gamma, cv above 1", stats.gamma(0.8, scale=0.625)),
        # no exponential bounds these times
        ("lognormal", stats.lognorm(0.3)),
        ("pareto", stats.pareto(3.0)),
        ("uniform", stats.uniform(1.0, 2.0)),
    ],
)
def test_of_scipy_s_times_the_tail_is_told_to_four_per_cent(name, by_scipy):
    rate = TIMES[name].tail_rate
    result = cluster.from_scipy(by_scipy).tail_rate
    assert result == rate if rate in (0, math.inf) else 0.96 * rate < result < rate
    assert cluster.from_scipy(stats.weibull_min(1.2)).tail_rate == math.inf
    assert cluster.from_scipy(stats.weibull_min(0.8)).tail_rate == 0


@pytest.mark.parametrize("name", TIMES)
def test_the_tail_rate_is_where_the_transform_ends(name):
    times = TIMES[name]
    if times.tail_rate == math.inf:
        assert np.isfinite(times.transform(-5.0 / times.mean))
    elif times.tail_rate > 0 and "scipy" not in name:
        near, nearer = times.transform(-times.tail_rate * (1 - np.array([1e-3, 1e-6])))
        assert nearer > 100 * near > 100


# closed forms


def test_a_constant_and_measured_times_are_sums():
    s = np.array([[0.5, -1.0 + 2j], [1j, 0.0]])
    times = cluster.constant(2)
    np.testing.assert_allclose(times.transform(s), np.exp(-2 * s))
    np.testing.assert_allclose(times.slope(s), 2 * np.exp(-2 * s))
    assert times.quantile(np.array([0.0, 0.9])).tolist() == [2.0, 2.0]
    assert times.survival(np.array([1.9, 2.0])).tolist() == [1.0, 0.0]
    times = cluster.empirical([2.0, 0.0, 1.0, 2.0])
    expected = (1 + np.exp(-s) + 2 * np.exp(-2 * s)) / 4
    np.testing.assert_allclose(times.transform(s), expected)
    np.testing.assert_allclose(times.slope(s), (np.exp(-s) + 4 * np.exp(-2 * s)) / 4)
    assert times.mean == 1.25
    assert times.quantile(np.array([0.2, 0.3, 0.6])).tolist() == [0.0, 1.0, 2.0]
    assert times.survival(np.array([0.0, 1.0, 2.0])).tolist() == [0.75, 0.5, 0.0]


def test_many_samples_and_points_are_summed_in_blocks():
    rng = np.random.default_rng(1)
    seconds = rng.gamma(2.0, 0.5, 30_000)
    s = rng.uniform(0, 2, 20) + 1j * rng.uniform(0, 2, 20)
    expected = [np.exp(-z * seconds).mean() for z in s]
    result = cluster.empirical(seconds).transform(s)
    np.testing.assert_allclose(result, expected, rtol=1e-10)


@pytest.mark.parametrize("shape", [1e12, 1e16])
def test_a_large_shape_is_a_constant_time(shape):
    times, constant = cluster.gamma(1.5, shape), cluster.constant(1.5)
    s = np.array([0.0, 1.0, -0.7, 1j, 0.3 - 2j, -0.5 + 1e-3j])
    np.testing.assert_allclose(times.transform(s), constant.transform(s), rtol=1e-11)
    np.testing.assert_allclose(times.slope(s), constant.slope(s), rtol=1e-11)
    np.testing.assert_allclose(times.quantile(0.5), 1.5, rtol=1e-5)


def test_a_large_shape_keeps_its_first_correction():
    # k log(1 + z/k) = z - z^2/2k, of which powers of 1 + z/k lose all but some digits
    z = 0.8 + 0.6j
    expected = np.exp(-z + z**2 / 2e8 - z**3 / 3e16)
    result = cluster.gamma(1.0, 1e8).transform(z)
    np.testing.assert_allclose(result, expected, rtol=1e-15 * 8)


@pytest.mark.parametrize(("low", "high"), [(0.0, 2.0), (0.5, 3.0)])
def test_uniform_times_overflow_nowhere(low, high):
    times, width = cluster.uniform(low, high), high - low
    for s in (1e2, 1e3 + 5j, 1e6):  # the longest times have no weight
        first = np.exp(-s * low) / (s * width)
        np.testing.assert_allclose(times.transform(s), first, rtol=1e-12)
        np.testing.assert_allclose(times.slope(s), first * (low + 1 / s), rtol=1e-12)
    for s in (-100.0, -200.0 + 1j):  # here the shortest ones have none
        last = -np.exp(-s * high) / (s * width)
        np.testing.assert_allclose(times.transform(s), last, rtol=1e-12)
        np.testing.assert_allclose(times.slope(s), last * (high + 1 / s), rtol=1e-12)


def test_uniform_times_are_exact_at_small_and_large_s():
    times = cluster.uniform(0.5, 2.5)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    seconds = 1.5 + nodes
    sizes, angles = (0.0, 1e-9, 1e-3, 0.1, 0.249, 0.251, 0.9), (0.0, 0.8, 1.6, 2.4, 3.1)
    for size, angle in itertools.product(sizes, angles):
        s = size * np.exp(1j * angle)
        expected = np.exp(-s * seconds) @ weights / 2
        np.testing.assert_allclose(times.transform(s), expected, rtol=1e-14)
        expected = (seconds * np.exp(-s * seconds)) @ weights / 2
        np.testing.assert_allclose(times.slope(s), expected, rtol=1e-14)


def test_formulas_of_the_kth_are_the_papers():
    last_three = 1 / 6 + 1 / 7 + 1 / 8
    assert cluster.exponential(2.0).kth_mean(3, 8) == pytest.approx(2 * last_three)
    shifted = cluster.shifted_exponential(1.0, 2.0)
    assert shifted.kth_mean(3, 8) == pytest.approx(1 + 2 * last_three)
    # the first of eight is Pareto with eight times the exponent, and each further one
    # longer than the last by 3 i / (3 i - 1), i = 7, 6
    assert cluster.pareto(2.0, 3.0).kth_mean(3, 8) == pytest.approx(
        2 * 24 / 23 * 21 / 20 * 18 / 17
    )
    assert cluster.uniform(0.0, 2 * 5.0).kth_mean(3, 8) == 2 * 5.0 * 3 / 9
    assert [cluster.empirical([3.0]).kth_mean(k, P) for k in KS] == [3.0] * 3


@pytest.mark.parametrize(("k", "workers"), [(8, 8), (1, 1000), (600, 1000)])
def test_the_integral_over_shares_is_the_closed_form(k, workers):
    for times, by_scipy in (
        (cluster.exponential(1.0), stats.expon()),
        (cluster.pareto(1.0, 1.2), stats.pareto(1.2)),
        (cluster.uniform(1.0, 3.0), stats.uniform(1.0, 2.0)),
    ):
        result = cluster.from_scipy(by_scipy).kth_mean(k, workers)
        assert result == pytest.approx(times.kth_mean(k, workers), rel=1e-9)


def test_the_last_of_heavy_tails_may_take_for_ever():
    # E T_{K:P} of P(T > t) = t^-1/2 needs P - K + 1 > 2
    for heavy in (cluster.pareto(1.0, 0.5), cluster.from_scipy(stats.pareto(0.5))):
        assert heavy.mean == math.inf
        finite = [heavy.kth_mean(k, P) < math.inf for k in (6, 7, 8)]
        assert finite == [True, False, False]
