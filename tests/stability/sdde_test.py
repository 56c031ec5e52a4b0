"""Paths and variances of delayed equations: closed forms, matrices, other solvers."""

import dataclasses
import math

import numpy as np
import pytest
from ddeint import ddeint
from scipy import linalg

from delayjax import cluster
from delayjax.stability import DelayEquation
from tests.support.cases import shortened

CONSTANT = cluster.constant(1.0)


def mean_limit(times):
    return DelayEquation(times).gain_limit(workers=math.inf)


def kuchler_mensch(gain, seconds, noise):
    late = gain * seconds
    return noise**2 / (2 * gain) * (1 + math.sin(late)) / math.cos(late)


def chain(gain, mean, stages):
    """x' = -a y_k, y_1' = (x - y_1) k/mean, ...: gamma delays as stages."""
    rate = stages / mean
    matrix = np.zeros((stages + 1, stages + 1))
    matrix[0, -1] = -gain
    for stage in range(1, stages + 1):
        matrix[stage, stage - 1 : stage + 1] = rate, -rate
    return matrix


@pytest.mark.parametrize("seconds", [0.5, 2.0])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95, 0.999])
def test_a_constant_delay_has_the_closed_form_and_its_integral(seconds, share):
    times = cluster.constant(seconds)
    gain = share * math.pi / 2 / seconds
    expected = kuchler_mensch(gain, seconds, 0.3)
    found = DelayEquation(times).variance(gain, noise=0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    searched = dataclasses.replace(times, stages=None)
    found = DelayEquation(searched).variance(gain, noise=0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("gain", [0.05, 0.5, 1.0])
def test_gamma_delays_have_the_variance_of_their_stages(stages, gain):
    matrix = chain(gain, 1.5, stages)
    noise = np.zeros_like(matrix)
    noise[0, 0] = 0.3**2
    expected = linalg.solve_continuous_lyapunov(matrix, -noise)[0, 0]
    times = cluster.gamma(1.5, stages)
    found = DelayEquation(times).variance(gain, noise=0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize("gain", [1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e9])
def test_memoryless_delays_have_a_closed_form_at_any_gain(gain):
    times = cluster.exponential(2.0)
    expected = (1 + gain * 2.0) / (2 * gain)
    np.testing.assert_allclose(DelayEquation(times).variance(gain), expected, rtol=1e-9)


@pytest.mark.parametrize("gain", [1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize(
    "times",
    [cluster.uniform(0.0, 2.0), cluster.empirical([0.5, 1.5])],
)
def test_a_small_gain_adds_half_the_mean_delay(times, gain):
    # (1 + a mean) / 2a up to the order of a, as with a constant delay
    found = DelayEquation(times).variance(gain)
    expected = (1 + gain * times.mean) / (2 * gain)
    np.testing.assert_allclose(found, expected, rtol=1e-10 + gain**2)


@pytest.mark.parametrize("rare", [1e5, 1e6])
def test_beyond_the_limit_of_most_delays_the_variance_is_infinite(rare):
    times = cluster.empirical([1.0] * round(rare / 1000 - 1) + [rare])
    for gain in (1.7, 3.0, 5.0):
        assert DelayEquation(times).variance(gain) == math.inf


def test_roots_decide_what_frequencies_do_not_show(monkeypatch):
    times = cluster.empirical([0.5, 1.0, 2.0])
    limit = mean_limit(times)
    monkeypatch.setattr(DelayEquation, "gain_limit", lambda times, workers: math.inf)
    assert DelayEquation(times).variance(0.999 * limit) < math.inf
    for share in (1.001, 1.5, 20.0):
        assert DelayEquation(times).variance(share * limit) == math.inf


def test_times_that_cannot_be_integrated_are_refused():
    times = cluster.empirical([1.0] * 99 + [1e5])
    with pytest.raises(ValueError, match="`service_time` must have times less widely"):
        DelayEquation(times).variance(1.0)


def test_where_the_gain_is_unstable_the_variance_is_infinite():
    laws = (
        CONSTANT,
        cluster.gamma(1.0, 3.5),
        cluster.uniform(0.0, 2.0),
        cluster.empirical([0.5, 1.0, 2.0]),
    )
    for times in laws:
        limit = mean_limit(times)
        shares = (0.5, 0.9, 0.99, 0.999, 1.0, 1.01, 3.0)
        variances = [DelayEquation(times).variance(share * limit) for share in shares]
        assert variances[:4] == sorted(variances[:4])
        assert np.isfinite(variances[:4]).all()
        assert variances[4:] == [math.inf] * 3
        assert DelayEquation(times).variance(0) == math.inf
    assert DelayEquation(CONSTANT).variance(1.0, noise=0.0) == 0


# the slowest mode of share 0.7 forgets in 2.7 s: 2000 paths of 400 s have some 10^5
# independent squares, sqrt(2 / 10^5) = 0.4 %
@pytest.mark.parametrize("share", shortened([0.3, 0.7], 0.7))
def test_paths_of_a_constant_delay_have_the_variance(share):
    gain = share * math.pi / 2
    found = variance_of_paths(gain, CONSTANT, noise=0.5)
    expected = kuchler_mensch(gain, 1.0, 0.5)
    np.testing.assert_allclose(found, expected, rtol=0.01)


@pytest.mark.parametrize(
    "times",
    [
        cluster.gamma(1.0, 4),
        cluster.empirical([0.3, 0.7, 2.0]),
    ],
)
def test_paths_of_random_delays_have_the_variance(times):
    gain = 0.4 * mean_limit(times)
    found = variance_of_paths(gain, times, noise=1.0)
    expected = DelayEquation(times).variance(gain)
    np.testing.assert_allclose(found, expected, rtol=0.01)


def variance_of_paths(gain, times, *, noise):
    paths = DelayEquation(times).paths(
        gain,
        paths=2000,
        steps=20_000,
        step_seconds=0.02,
        seed=1,
        noise=noise,
        every=10,
    )
    return np.mean(paths[200:] ** 2)


def test_without_noise_a_path_is_that_of_the_method_of_steps():
    x = DelayEquation(CONSTANT).paths(
        0.8,
        **{"paths": 2, "steps": 300, "step_seconds": 0.01, "seed": 0},
        noise=0.0,
        start=2.0,
    )
    t = np.arange(301) / 100
    # sum_j (-a (t - j + 1))^j / j! over the j below t + 1
    expected = sum(
        2.0 * (-0.8 * np.maximum(t - j + 1, 0)) ** j / math.factorial(j)
        for j in range(1, 5)
    )
    expected += 2.0
    # the scheme is of second order: (a h)^2 / 24 and the like
    np.testing.assert_allclose(x[:, 0], expected, atol=1e-4)
    np.testing.assert_array_equal(x[:, 0], x[:, 1])


def test_the_scheme_without_noise_is_of_second_order():
    def error(steps):
        x = DelayEquation(CONSTANT).paths(
            1.0,
            **{"paths": 1, "steps": 3 * steps, "step_seconds": 1 / steps, "seed": 0},
            noise=0.0,
            start=1.0,
        )
        exact = sum(
            (-1.0) ** j * (3.0 - j + 1) ** j / math.factorial(j) for j in range(4)
        )
        return abs(x[-1, 0] - exact)

    order = math.log2(error(20) / error(40))
    np.testing.assert_allclose(order, 2, atol=0.1)


def test_a_solver_of_delay_equations_finds_the_path():
    grid = np.linspace(0, 6, 601)
    expected = ddeint(lambda x, t: -1.2 * x(t - 0.75), lambda t: 1.0, grid)
    x = DelayEquation(cluster.constant(0.75)).paths(
        1.2,
        **{"paths": 1, "steps": 600, "step_seconds": 0.01, "seed": 0},
        noise=0.0,
        start=1.0,
    )
    np.testing.assert_allclose(x, expected, atol=2e-3)


@pytest.mark.parametrize("stages", [1, 3])
def test_the_path_of_gamma_delays_is_that_of_their_stages(stages):
    expected = [
        (linalg.expm(t * chain(1.0, 1.5, stages)) @ np.ones(stages + 1))[0]
        for t in range(9)
    ]
    for each_second in (50, 400):
        x = DelayEquation(cluster.gamma(1.5, stages)).paths(
            1.0,
            **{"paths": 1, "steps": 8 * each_second, "seed": 0},
            step_seconds=1 / each_second,
            noise=0.0,
            start=1.0,
            every=each_second,
        )
        np.testing.assert_allclose(x[:, 0], expected, atol=1.5 / each_second)


def test_a_ring_holds_all_that_is_kept():
    times = cluster.empirical([0.0, 0.004, 0.9, 1.0])
    options = {"paths": 3, "steps": 103, "step_seconds": 0.01, "start": 1.0}
    all_of_them = DelayEquation(times).paths(0.5, seed=1, **options)
    assert all_of_them.shape == (104, 3)
    assert all_of_them.dtype == np.float64
    some = DelayEquation(times).paths(0.5, seed=1, every=10, **options)
    np.testing.assert_array_equal(some, all_of_them[::10])
    others = DelayEquation(times).paths(0.5, seed=2, **options)
    assert (others[1:] != all_of_them[1:]).all()
    assert len(np.unique(all_of_them[1:])) == 3 * 103


def test_noise_without_gain_is_brownian():
    x = DelayEquation(CONSTANT).paths(
        0.0,
        **{"paths": 40_000, "steps": 8, "step_seconds": 0.5, "seed": 1},
        noise=0.3,
    )
    # 40,000 squares: sqrt(2 / 40,000) = 0.7 %, four times
    expected = 0.3**2 * 0.5 * np.arange(9)
    np.testing.assert_allclose((x**2).mean(axis=1), expected, rtol=0.03)


OPTIONS = {"paths": 1, "steps": 1, "step_seconds": 0.1, "seed": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": -1.0}, "`noise` must be finite and non-negative, got -1.0"),
        ({"step_seconds": 0.0}, "`step_seconds` must be finite and positive, got 0.0"),
        ({"paths": 0}, "`paths` must be at least 1, got 0"),
        ({"steps": 0}, "`steps` must be at least 1, got 0"),
        ({"every": 0}, "`every` must be at least 1, got 0"),
        ({"seed": -1}, "`seed` must be non-negative, got -1"),
        ({"step_seconds": 3.0}, "`step_seconds` must be .* got 3.0: .* at most 0.1"),
    ],
)
def test_bad_paths_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DelayEquation(CONSTANT).paths(1.0, **{**OPTIONS, **options})


@pytest.mark.parametrize("times", [CONSTANT, cluster.exponential(1.0)])
def test_steps_of_a_tenth_of_the_mean_delay_are_not_refused(times):
    DelayEquation(times).paths(1.0, **OPTIONS)
    DelayEquation(times.scaled(0.3)).paths(1.0, **{**OPTIONS, "step_seconds": 0.03})


def test_a_path_may_diverge_without_a_warning():
    options = {**OPTIONS, "steps": 4000, "start": -1.0}
    x = DelayEquation(CONSTANT).paths(30.0, **options)
    assert np.isfinite(x[:100]).all()
    assert not np.isfinite(x[-1]).any()


def test_bad_equations_are_refused():
    with pytest.raises(ValueError, match=r"`gain` must be .* got -1.0"):
        DelayEquation(CONSTANT).paths(-1.0, **OPTIONS)
    with pytest.raises(ValueError, match=r"`gain` must be .* got -1.0"):
        DelayEquation(CONSTANT).variance(-1.0)
    with pytest.raises(ValueError, match=r"`noise` must be .* got nan"):
        DelayEquation(CONSTANT).variance(1.0, noise=math.nan)
