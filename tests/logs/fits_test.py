"""Laws that are fitted to times: the right law wins, or no law fits."""

import math
import warnings

import numpy as np
import pytest
import scipy
from scipy import stats

from delayjax import cluster

SIZE = 20_000
# for each law: its arguments, and the standard errors of its estimates times sqrt(n)
LAWS = {
    "lognormal": (
        {"mean_seconds": 1.0, "cv": 0.5},
        # of s^2 = log(1 + cv^2), whose estimate has the variance 2 s^4 / n
        lambda mean_seconds, cv: {
            "mean_seconds": mean_seconds
            * math.sqrt(math.log1p(cv**2) + math.log1p(cv**2) ** 2 / 2),
            "cv": (1 + cv**2) / (2 * cv) * math.sqrt(2) * math.log1p(cv**2),
        },
    ),
    "gamma": (
        {"mean_seconds": 2.0, "shape": 2.5},
        lambda mean_seconds, shape: {
            "mean_seconds": mean_seconds / math.sqrt(shape),
            "shape": math.sqrt(shape / (shape * scipy.special.polygamma(1, shape) - 1)),
        },
    ),
    # a minimum lies above the shortest time by an exponential distance, of 1/n
    "pareto": (
        {"scale_seconds": 1.0, "shape": 2.5},
        lambda scale_seconds, shape: {
            "scale_seconds": 3 * scale_seconds / shape / math.sqrt(SIZE),
            "shape": shape,
        },
    ),
    "shifted_exponential": (
        {"shift_seconds": 1.0, "mean_seconds": 0.5},
        lambda shift_seconds, mean_seconds: {
            "shift_seconds": 3 * mean_seconds / math.sqrt(SIZE),
            "mean_seconds": mean_seconds,
        },
    ),
}


def drawn(law, arguments, seed, size=SIZE):
    service = getattr(cluster, law)(**arguments)
    return service.sample(np.random.default_rng(seed), size)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("law", LAWS)
def test_the_true_law_comes_first_with_its_arguments(law, seed):
    arguments, errors = LAWS[law]
    best, *others = cluster.fit(drawn(law, arguments, seed))
    assert best.law == law
    assert {each.law for each in others} == set(LAWS) - {law}
    assert best.arguments.keys() == arguments.keys()
    for name, error in errors(**arguments).items():
        gap = abs(best.arguments[name] - arguments[name])
        assert gap < 4 * error / math.sqrt(SIZE), name


def test_a_fit_has_the_service_of_its_law_and_arguments():
    for each in cluster.fit(drawn("gamma", LAWS["gamma"][0], 1)):
        law = getattr(cluster, each.law)(**each.arguments)
        assert isinstance(each.service, cluster.ServiceTime)
        assert each.service.mean == law.mean
        assert each.service.quantile(0.9) == law.quantile(0.9)


def test_the_distances_are_those_of_kolmogorov_and_smirnov_in_their_order():
    times = drawn("lognormal", LAWS["lognormal"][0], 1, 500)
    result = cluster.fit(times)
    for each in result:
        expected = stats.kstest(times, lambda t, of=each.service: 1 - of.survival(t))
        assert each.distance == pytest.approx(expected.statistic, abs=1e-12)
    distances = [each.distance for each in result]
    assert distances == sorted(distances) and distances[0] < distances[-1]


def test_the_unit_of_time_scales_the_seconds_alone():
    times = drawn("gamma", LAWS["gamma"][0], 1, 500)
    for one, other in zip(cluster.fit(times), cluster.fit(1e-3 * times), strict=True):
        assert one.law == other.law
        assert one.distance == pytest.approx(other.distance, abs=1e-9)
        for name, value in one.arguments.items():
            unit = 1e-3 if name.endswith("seconds") else 1.0
            assert other.arguments[name] == pytest.approx(unit * value, rel=1e-6)


def test_a_table_of_times_is_fitted_as_one_vector():
    times = drawn("gamma", LAWS["gamma"][0], 1, 500)
    for one, other in zip(
        cluster.fit(times), cluster.fit(times.reshape(5, 100)), strict=True
    ):
        assert one[:3] == other[:3]


def test_a_warning_says_that_no_law_fits_above_the_distance_of_one_in_a_hundred():
    # copies of the same times have the same distances, and their number counts
    times = np.array([1.0, 1.1, 1.2, 1.5, 2.1, 2.2, 2.3])
    warned, near = [], []
    for copies in range(1, 60):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            best, *_ = cluster.fit(np.tile(times, copies))
        # Kolmogorov's distribution, for many times
        most = stats.kstwo.isf(0.01, 7 * copies)
        assert bool(caught) == (best.distance > most)
        near.append(stats.kstwo.isf(0.05, 7 * copies) < best.distance < most)
        warned += [str(each.message) for each in caught]
        assert all(each.filename == __file__ for each in caught)
    assert 0 < len(warned) < 59 and any(near)
    assert all("None of the laws fits `times`" in each for each in warned)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([1.0, 0.0], "`times` must be finite and positive, got 0.0"),
        ([1.0, math.nan], "`times` must be finite and positive, got nan: leave out"),
        ([1.0, math.inf], "`times` must be finite and positive, got inf: leave out"),
        ([], "`times` must hold times that differ"),
        ([2.0], "`times` must hold times that differ"),
        ([2.0, 2.0 + 1e-15], r"`times` must hold times that differ, got \[2\.0,"),
    ],
)
def test_times_that_have_no_law_are_refused(times, message):
    with pytest.raises(ValueError, match=message):
        cluster.fit(times)
