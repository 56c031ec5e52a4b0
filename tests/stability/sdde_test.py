"""Variances and paths of delayed equations: closed forms, matrices, and each other."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import linalg

from delayjax import cluster
from delayjax.stability import DelayEquation

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
    result = DelayEquation(times).variance(gain, noise=0.3)
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    searched = dataclasses.replace(times, stages=None)
    result = DelayEquation(searched).variance(gain, noise=0.3)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("gain", [0.05, 0.5, 1.0])
def test_gamma_delays_have_the_variance_of_their_stages(stages, gain):
    matrix = chain(gain, 1.5, stages)
    noise = np.zeros_like(matrix)
    noise[0, 0] = 0.3**2
    expected = linalg.solve_continuous_lyapunov(matrix, -noise)[0, 0]
    times = cluster.gamma(1.5, stages)
    result = DelayEquation(times).variance(gain, noise=0.3)
    np.testing.assert_allclose(result, expected, rtol=1e-7)


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
    result = DelayEquation(times).variance(gain)
    expected = (1 + gain * times.mean) / (2 * gain)
    np.testing.assert_allclose(result, expected, rtol=1e-10 + gain**2)


def test_roots_decide_what_frequencies_do_not_show(monkeypatch):
    times = cluster.empirical([0.5, 1.0, 2.0])
    limit = mean_limit(times)
    monkeypatch.setattr(DelayEquation, "gain_limit", lambda times, workers: math.inf)
    assert DelayEquation(times).variance(0.999 * limit) < math.inf
    for share in (1.001, 1.5, 20.0):
        assert DelayEquation(times).variance(share * limit) == math.inf


@pytest.mark.parametrize(
    "times",
    [
        CONSTANT,
        cluster.gamma(1.0, 3.5),
        cluster.uniform(0.0, 2.0),
        cluster.empirical([0.5, 1.0, 2.0]),
    ],
)
def test_where_the_gain_is_unstable_the_variance_is_infinite(times):
    equation, limit = DelayEquation(times), mean_limit(times)
    shares = (0.5, 0.9, 0.99, 0.999, 1.0, 1.01, 3.0)
    variances = [equation.variance(share * limit) for share in shares]
    assert variances[:4] == sorted(variances[:4])
    assert variances[3] < math.inf
    assert variances[4:] == [math.inf] * 3
    assert equation.variance(0) == math.inf
    assert equation.variance(0.5 * limit, noise=0.0) == 0


# 2000 paths of 400 s have some 10^5 independent squares, sqrt(2 / 10^5) = 0.4 %
def test_paths_of_random_delays_have_the_variance():
    times = cluster.empirical([0.3, 0.7, 2.0])
    gain = 0.4 * mean_limit(times)
    size = {"paths": 2000, "steps": 20_000, "step_seconds": 0.02, "seed": 1}
    paths = DelayEquation(times).paths(gain, **size, every=10)
    expected = DelayEquation(times).variance(gain)
    np.testing.assert_allclose(np.mean(paths[200:] ** 2), expected, rtol=0.01)


def path_of(times, gain, *, step_seconds, steps, start=1.0, every=1):
    """Without noise."""
    size = {"paths": 1, "steps": steps, "step_seconds": step_seconds, "seed": 0}
    options = {"noise": 0.0, "start": start, "every": every}
    return DelayEquation(times).paths(gain, **size, **options)[:, 0]


def by_steps(gain, t):
    """sum_j (-a (t - j + 1))^j / j! over the j below t + 1, for a delay of 1."""
    late = [np.maximum(t - j + 1, 0) for j in range(1, 5)]
    return 1 + sum((-gain * x) ** j / math.factorial(j) for j, x in enumerate(late, 1))


def test_without_noise_a_path_is_that_of_the_method_of_steps():
    x = path_of(CONSTANT, 0.8, step_seconds=0.01, steps=300, start=2.0)
    # the scheme is of second order: (a h)^2 / 24 and the like
    np.testing.assert_allclose(x, 2 * by_steps(0.8, np.arange(301) / 100), atol=1e-4)


def test_the_scheme_without_noise_is_of_second_order():
    coarse, fine = (
        abs(
            path_of(CONSTANT, 1.0, step_seconds=1 / n, steps=3 * n)[-1] - by_steps(1, 3)
        )
        for n in (20, 40)
    )
    np.testing.assert_allclose(math.log2(coarse / fine), 2, atol=0.1)


@pytest.mark.parametrize("stages", [1, 3])
def test_the_path_of_gamma_delays_is_that_of_their_stages(stages):
    expected = [
        (linalg.expm(t * chain(1.0, 1.5, stages)) @ np.ones(stages + 1))[0]
        for t in range(9)
    ]
    for n in (50, 400):
        size = {"step_seconds": 1 / n, "steps": 8 * n, "every": n}
        x = path_of(cluster.gamma(1.5, stages), 1.0, **size)
        np.testing.assert_allclose(x, expected, atol=1.5 / n)


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
    size = {"paths": 40_000, "steps": 8, "step_seconds": 0.5, "seed": 1}
    x = DelayEquation(CONSTANT).paths(0.0, **size, noise=0.3)
    # 40,000 squares: sqrt(2 / 40,000) = 0.7 %, four times
    expected = 0.3**2 * 0.5 * np.arange(9)
    np.testing.assert_allclose((x**2).mean(axis=1), expected, rtol=0.03)


def test_a_path_may_diverge_without_a_warning():
    x = path_of(CONSTANT, 30.0, step_seconds=0.1, steps=4000)
    assert np.isfinite(x[:100]).all()
    assert not np.isfinite(x[-1])
