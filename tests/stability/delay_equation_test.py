"""Rates and limits in wall-clock time: closed forms, and a search by other means."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from delayjax import cluster
from delayjax._src.stability.rightmost import RightmostZeros, meeting_rate
from delayjax.stability import DelayEquation
from tests.support.cases import shortened


def mean_limit(times):
    return DelayEquation(times).gain_limit(workers=math.inf)


def critical_gain(times):
    return DelayEquation(times).critical_gain()


def speedup_limit(times):
    return DelayEquation(times).speedup_limit()


def decay_rate(gain, times):
    return DelayEquation(times).decay_rate(gain)


def roots(gain, times, **options):
    return DelayEquation(times).roots(gain, **options)


def searched(times):
    """The same times, for which no closed form is known."""
    return dataclasses.replace(times, stages=None)


ONE = cluster.constant(1.0)
TIMES = {
    "constant": ONE,
    "constant, searched": searched(cluster.constant(0.5)),
    "gamma 2": cluster.gamma(1.0, 2),
    "gamma 3.3": cluster.gamma(2.0, 3.3),
    "gamma 400": cluster.gamma(1.0, 400),
    "exponential": cluster.exponential(2.0),
    "exponential, searched": searched(cluster.exponential(2.0)),
    "shifted": cluster.shifted_exponential(0.5, 0.5),
    "shifted, nearly constant": cluster.shifted_exponential(0.95, 0.05),
    "shifted, nearly exponential": cluster.shifted_exponential(0.05, 0.95),
    "uniform": cluster.uniform(0.0, 2.0),
    "uniform, narrow": cluster.uniform(0.9, 1.1),
    "measured": cluster.empirical(np.random.default_rng(0).gamma(4.0, 0.25, 12)),
    "measured, a heavy tail": cluster.empirical(
        np.random.default_rng(0).pareto(1.5, 15)
    ),
    "two delays": cluster.empirical([0.0, 2.0]),
    "mostly none": cluster.empirical([0.0, 0.0, 0.0, 1.0]),
}
FINITE = {
    name: times
    for name, times in TIMES.items()
    if not name.startswith(("exponential", "two", "mostly"))
}


@pytest.mark.parametrize("k", [2, 3, 4, 16, 100])
def test_gamma_delays_have_the_closed_forms(k):
    times = cluster.gamma(3.0, k)
    limit = k * math.tan(math.pi / (2 * k)) / math.cos(math.pi / (2 * k)) ** k
    critical = (k / (k + 1)) ** (k + 1)
    np.testing.assert_allclose(3 * mean_limit(times), limit, rtol=1e-10)
    np.testing.assert_allclose(3 * critical_gain(times), critical, rtol=1e-10)
    rate = decay_rate(critical / 3, times)
    np.testing.assert_allclose(3 * rate, k / (k + 1), rtol=1e-7)


@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("gain", [0.1, 2.0, 30.0])
def test_gamma_delays_have_the_roots_of_a_polynomial(k, gain):
    # z (1 + z/k)^k + A, z = s mean
    factor = np.polynomial.Polynomial([1, 1 / k]) ** k
    polynomial = np.polynomial.Polynomial([0, 1]) * factor + 2 * gain
    times = cluster.gamma(2.0, k)
    result = roots(gain, times, number=k + 1)
    between = np.abs(result[:, None] - polynomial.roots() / 2)
    assert len(result) == k + 1
    assert between.min(axis=0).max() < 1e-8
    assert (np.diff(result.real) <= 1e-12).all()


def test_the_tail_of_the_delays_limits_the_rate():
    times = cluster.gamma(1.0, 0.5)
    assert decay_rate(10.0, times) == times.tail_rate == 0.5


@pytest.mark.parametrize("gain", [0.1, 0.367, 0.368, 0.5, 1.6, 10.0])
def test_lambert_s_function_and_the_search_agree(gain):
    for number in (1, 2, 7):
        result = roots(gain, ONE, number=number)
        other = roots(gain, searched(ONE), number=number)
        np.testing.assert_allclose(result, other, rtol=1e-9)
        assert len(result) in (number, number + 1)
        assert result.imag.sum() == 0  # no pair is parted
        np.testing.assert_allclose(result, -gain * np.exp(-result), rtol=1e-10)
        first = special.lambertw(-gain)
        np.testing.assert_allclose(result[0].real, first.real, rtol=1e-12)


@pytest.mark.parametrize("gain", [0.05, 0.3, 0.5, 2.0, 20.0])
def test_roots_are_counted_however_near_the_line(gain):
    roots = special.lambertw(-gain, np.arange(-6, 6))
    zeros = RightmostZeros(gain, ONE, meeting_rate(ONE))
    for root in roots[np.argsort(-roots.real)][:7]:
        for offset in (-0.3, -1e-3, -1e-6, 1e-6, 1e-3, 0.3):
            line = root.real + offset
            result = zeros.number_right_of(line)
            assert result == (roots.real > line).sum()


def everywhere(gain, times, right_of, up_to):
    """Newton's method from a dense grid: what it finds to the right of a line."""
    x, y = np.meshgrid(np.linspace(right_of, gain, 12), np.linspace(0, up_to, 120))
    s = (x + 1j * (y + 1e-3)).ravel()
    with np.errstate(all="ignore"):
        for _ in range(30):
            slope = 1 - gain * times.slope(s)
            s = s - (s + gain * times.transform(s)) / slope
        good = np.abs(s + gain * times.transform(s)) < 1e-9 * (1 + np.abs(s))
    s = s[good & (s.real > right_of)]
    s = np.where(np.abs(s.imag) < 1e-7, s.real + 0j, s)
    kept = []
    for zero in np.concatenate([s, s.conj()]):
        if all(abs(zero - other) > 1e-5 for other in kept):
            kept.append(zero)
    return np.array(kept)


@pytest.mark.parametrize(
    "name", [n for n in TIMES if n not in ("gamma 400", "measured, a heavy tail")]
)
@pytest.mark.parametrize("share", shortened([0.5, 1.5, 6.0], 1.5))
def test_no_root_to_the_right_is_missed(name, share):
    times = TIMES[name]
    gain = share * critical_gain(times)
    result = roots(gain, times)
    line = result[-1].real - 1e-6
    up_to = 1.1 * gain * float(times.transform(line)) + 1
    expected = everywhere(gain, times, line, up_to)
    assert len(result) == len(expected)
    between = np.abs(result[:, None] - expected)
    assert between.min(axis=0).max() < 1e-6


@pytest.mark.parametrize("name", TIMES)
def test_every_root_is_a_root(name):
    times = TIMES[name]
    critical = critical_gain(times)
    near = 1 + np.array([-1e-3, -1e-9, -1e-13, 0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3])
    for share in [0.01, 0.5, *near, 2.0, 20.0]:
        gain = share * critical
        result = roots(gain, times)
        late = gain * times.transform(result)
        np.testing.assert_allclose(result, -late, rtol=1e-9)
        rate = decay_rate(gain, times)
        # a double root is a root to the square root of rounding
        np.testing.assert_allclose(rate, -result[0].real, rtol=1e-5)


@pytest.mark.parametrize("name", FINITE)
def test_the_limit_is_where_the_dominant_root_is_imaginary(name):
    times = FINITE[name]
    limit = mean_limit(times)
    first, second = roots(limit, times, number=2)
    np.testing.assert_allclose(first.real, 0, atol=1e-9 * abs(first))
    assert second == first.conjugate()
    assert first.imag > 0
    assert decay_rate(0.99 * limit, times) > 0
    assert decay_rate(1.01 * limit, times) < 0


# one delay in a thousand makes the mean, and is no more than that to the limit
@pytest.mark.parametrize(("often", "rare"), [(99, 1e5), (999, 1e6), (999, 1e9)])
def test_a_few_delays_that_are_very_long_leave_the_limit(often, rare):
    times = cluster.empirical([1.0] * often + [rare])
    limit = mean_limit(times)
    near = 1 / (often + 1)  # of the share, on either side of pi/2
    assert math.pi / 2 * (1 - 3 * near) < limit < math.pi / 2 * (1 + 3 * near)


@pytest.mark.parametrize("fast", [1e-3, 1e-9])
def test_delays_that_are_mostly_short_have_the_limit_of_the_short_ones(fast):
    times = cluster.empirical([fast] * 9 + [1.0])
    limit = mean_limit(times) * fast
    # cos w = +-1/9 at the first crossings; a = w / (0.9 sin w +- 0.1) between
    assert math.acos(1 / 9) < limit < math.acos(-1 / 9) / 0.79


@pytest.mark.parametrize(
    ("by_scipy", "times"),
    [
        (stats.gamma(4, scale=0.25), cluster.gamma(1.0, 4)),
        (stats.uniform(0.5, 1.0), cluster.uniform(0.5, 1.5)),
    ],
)
def test_times_without_formulas_have_the_rates_and_limits_of_the_same_times(
    by_scipy, times
):
    result, expected = DelayEquation(cluster.from_scipy(by_scipy)), DelayEquation(times)
    for workers, near in ((16, 1e-5), (math.inf, 1e-6)):
        limit = expected.gain_limit(workers=workers)
        assert result.gain_limit(workers=workers) == pytest.approx(limit, rel=near)
    rate = expected.decay_rate(0.5)
    assert result.decay_rate(0.5) == pytest.approx(rate, rel=1e-8)


def test_transforms_without_formulas_are_integrated_for_few_frequencies():
    times, asked = cluster.from_scipy(stats.lognorm(0.2)), []

    def transform(s):
        asked.append(np.size(s))
        return times.transform(s)

    equation = DelayEquation(dataclasses.replace(times, transform=transform))
    limits = [equation.gain_limit(workers=count) for count in (2, 16, 128)]
    assert limits == sorted(limits)
    assert sum(asked) < 1500


@pytest.mark.parametrize(
    "times", [cluster.lognormal(1.0, 0.2), cluster.pareto(1.0, 3.0)]
)
def test_heavy_tails_have_the_limits_of_many_samples(times):
    shares = (np.arange(2000) + 0.5) / 2000
    limit = mean_limit(cluster.empirical(times.quantile(shares)))
    assert mean_limit(times) == pytest.approx(limit, rel=1e-3)


@pytest.mark.parametrize("shape", [1.1, 1.5, 2.0, 2.5, 3.0])
def test_a_tail_has_the_limit_of_its_integral_along_a_turned_path(shape):
    """E exp(-i w T) for T >= 1, along T = 1 - i y, where nothing oscillates."""

    def phi(w):
        def along(part):
            def value(y):
                turned = -1j * (1 - 1j * y) ** (-shape - 1) * np.exp(-w * y)
                return getattr(turned, part)

            return integrate.quad(value, 0, math.inf)[0]

        return shape * np.exp(-1j * w) * (along("real") + 1j * along("imag"))

    w = optimize.brentq(lambda w: phi(w).real, 0.5, 2.0)
    assert mean_limit(cluster.pareto(1.0, shape)) == pytest.approx(
        -w / phi(w).imag, rel=1e-9
    )


@pytest.mark.parametrize("cv", [1.0, 1.6, 3.0])
def test_lognormal_times_have_the_limit_of_their_integral_along_a_turned_path(cv):
    """E exp(-i w T) along T = -i exp(z): the axis of log T, moved by -i pi/2."""
    variance = math.log1p(cv**2)

    def phi(w):
        def along(part):
            def value(z):
                moved = z - 0.5j * math.pi + variance / 2  # log T - E log T, mean 1
                chance = np.exp(-(moved**2) / (2 * variance))
                decay = np.exp(-w * math.exp(z))
                return getattr(chance * decay, part)

            middle = -variance / 2
            ends = middle - 12 * math.sqrt(variance), middle + 12 * math.sqrt(variance)
            return integrate.quad(value, *ends, epsabs=1e-13, limit=200)[0]

        total = along("real") + 1j * along("imag")
        return total / math.sqrt(2 * math.pi * variance)

    w = optimize.brentq(lambda w: phi(w).real, 1.0, 30.0)
    assert mean_limit(cluster.lognormal(1.0, cv)) == pytest.approx(
        -w / phi(w).imag, rel=1e-9
    )


WEIBULL = cluster.from_scipy(stats.weibull_min(0.8)).scaled(3.0)


@pytest.mark.parametrize(
    ("times", "workers"),
    [
        (WEIBULL, 10**6),
        (WEIBULL, math.inf),
        (cluster.lognormal(1.0, 40.0), math.inf),
    ],
)
def test_a_limit_beyond_the_frequencies_of_an_integral_is_not_known(times, workers):
    with pytest.raises(ValueError, match="less widely spread, to find the limit"):
        DelayEquation(times).gain_limit(workers=workers)


def test_a_limit_is_known_up_to_the_frequencies_of_an_integral():
    # a root i w has a gain of at least w
    times = WEIBULL
    limit = DelayEquation(times).gain_limit(workers=2)
    assert limit < times.resolved
    assert integral(limit, times, 2) == pytest.approx(1, rel=2e-3)


@pytest.mark.parametrize("k", [1.001, 1.5, 3.3, 400, 1e6, 1e12])
def test_the_limit_of_stages_is_that_of_the_search(k):
    times = cluster.gamma(2.0, k)
    limit = mean_limit(times)
    if k > 1.1:
        np.testing.assert_allclose(limit, mean_limit(searched(times)), rtol=1e-9)
    assert abs(decay_rate(limit, times)) < 1e-9 * limit
    # |a phi| is w there
    w = k / 2.0 * math.tan(math.pi / (2 * k))
    np.testing.assert_allclose(-limit * times.transform(1j * w), 1j * w, atol=1e-9 * w)


@pytest.mark.parametrize("k", [0.3, 1, 1.5, 3.3, 400])
def test_beyond_critical_gain_stages_decay_as_the_search_finds(k):
    times = cluster.gamma(2.0, k)
    for gain in np.array([1.002, 1.5, 20.0]) * critical_gain(times):
        expected = decay_rate(gain, searched(times))
        np.testing.assert_allclose(decay_rate(gain, times), expected, rtol=1e-9)


@pytest.mark.parametrize("shape", [1e10, 1e12, 1e16])
def test_a_large_shape_has_the_rates_of_a_constant_delay(shape):
    times, near = cluster.gamma(1.0, shape), 20 / shape
    critical = critical_gain(times)
    np.testing.assert_allclose(critical, math.exp(-1), rtol=near + 1e-14)
    for gain in (0.1, 0.3, 1.0, 1.5, 2.0):
        result = decay_rate(gain, times)
        expected = -special.lambertw(-gain).real
        # near the limit the rate is small, and what is lost is not
        np.testing.assert_allclose(result, expected, rtol=1e-11, atol=near)
        first = roots(gain, times, number=1)[0]
        np.testing.assert_allclose(-first.real, expected, rtol=1e-9, atol=near)


@pytest.mark.parametrize("gain", [1e3, 1e4])
def test_large_gains_have_rates_for_all_times(gain):
    # s + a (1 - exp(-2s))/(2s) = 0: s^2 is nearly -a/2 (1 - exp(-2s))
    times = cluster.uniform(0.0, 2.0)
    rate = decay_rate(gain, times)
    first = roots(gain, times, number=1)[0]
    assert rate == -first.real < 0
    np.testing.assert_allclose(first**2, -gain / 2 * (1 - np.exp(-2 * first)))
    stages = cluster.gamma(1.0, 1)
    np.testing.assert_allclose(decay_rate(gain * 1e20, stages), 0.5)


def test_limits_of_other_times_have_closed_forms():
    for seconds in (0.5, 3.0):
        times = cluster.constant(seconds)
        expected = math.pi / 2 / seconds
        np.testing.assert_allclose(mean_limit(times), expected, rtol=1e-12)
        times = cluster.uniform(0.0, 2 * seconds)
        expected = (math.pi / 2) ** 2 / seconds
        np.testing.assert_allclose(mean_limit(times), expected, rtol=1e-10)
    for fixed in (0.05, 0.3, 0.5, 0.9):
        times = cluster.shifted_exponential(fixed, 1 - fixed)

        def phase(y, fixed=fixed):
            return fixed * y + math.atan(y * (1 - fixed)) - math.pi / 2

        y = optimize.brentq(phase, 0, math.pi / 2 / fixed, xtol=1e-15)
        expected = y * math.sqrt(1 + y**2 * (1 - fixed) ** 2)
        np.testing.assert_allclose(mean_limit(times), expected, rtol=1e-10)
    for name in ("exponential", "two delays", "mostly none"):
        assert mean_limit(TIMES[name]) == math.inf
    assert mean_limit(cluster.gamma(1.0, 0.9)) == math.inf


@pytest.mark.parametrize("name", TIMES)
def test_up_to_critical_gain_nothing_oscillates(name):
    times = TIMES[name]
    critical = critical_gain(times)
    for share, real in ((0.3, True), (0.999, True), (1.001, False), (1.3, False)):
        first = roots(share * critical, times, number=1)[0]
        assert (first.imag == 0) == real
        if real:  # r = a E exp(r T)
            rate = decay_rate(share * critical, times)
            later = share * critical * float(times.transform(-rate))
            np.testing.assert_allclose(rate, later, rtol=1e-12)


def test_a_constant_delay_is_fastest_at_critical_gain():
    times = cluster.constant(2.0)
    critical = critical_gain(times)
    np.testing.assert_allclose(critical, math.exp(-1) / 2, rtol=1e-14)
    rates = [decay_rate(x * critical, times) for x in (0.9, 1.0, 1.1)]
    np.testing.assert_allclose(rates[1], 1 / 2, rtol=1e-12)
    assert max(rates) == rates[1]


def test_a_small_delay_speeds_up_below_the_formula_s_gain():
    # -log(cos v) tan v = v, a = -log cos v, of a delay of 1
    v = optimize.brentq(lambda v: -math.log(math.cos(v)) * math.tan(v) - v, 0.5, 1.5)
    limit = speedup_limit(cluster.constant(4.0))
    np.testing.assert_allclose(limit, -math.log(math.cos(v)) / 4, rtol=1e-10)


def test_delays_of_a_large_spread_speed_up_far_beyond_critical_gain():
    times = cluster.gamma(1.0, 0.5)
    limit = speedup_limit(times)
    assert limit > 2 * critical_gain(times)
    np.testing.assert_allclose(decay_rate(limit, times), limit, rtol=1e-9)


@pytest.mark.parametrize("name", TIMES)
def test_delay_is_faster_than_none_up_to_the_speedup_limit(name):
    times = TIMES[name]
    limit = speedup_limit(times)
    assert critical_gain(times) < limit < mean_limit(times)
    for share in (0.01, 0.3, 0.6, 0.9, 0.999):
        assert decay_rate(share * limit, times) > share * limit
    assert decay_rate(1.001 * limit, times) < 1.001 * limit


def test_without_gain_nothing_moves():
    times = cluster.gamma(1.0, 3)
    assert roots(0, times).tolist() == [0]
    assert decay_rate(0.0, times) == 0


@pytest.mark.parametrize("workers", [1, 2, 16, 10**4])
def test_of_memoryless_workers_the_variance_bears_the_root_of_two(workers):
    # phi = 1/(1 + iw T): the integral over w is pi a T, so (a T)^2 < 2 P
    for name in ("exponential", "exponential, searched"):
        times = TIMES[name]
        limit = DelayEquation(times).gain_limit(workers=workers) * times.mean
        assert limit == pytest.approx(math.sqrt(2 * workers), rel=1e-4)


def integral(gain, times, workers):
    """(a^2 E T / 2 pi P) int (1 - |phi|^2) / |iw + a phi|^2 dw, by scipy."""

    def over(w):
        phi = times.transform(1j * w)
        return (1 - abs(phi) ** 2) / abs(1j * w + gain * phi) ** 2

    # twice its half; beyond `far` as 1/w^2
    far = 2000.0 / times.mean
    area = integrate.quad(over, 0, far, limit=5000, epsrel=1e-6)[0] + 1 / far
    return gain**2 * times.mean / (math.pi * workers) * area


@pytest.mark.parametrize("name", ["gamma 2", "gamma 3.3", "shifted", "uniform"])
@pytest.mark.parametrize("workers", [2, 16])
def test_the_integral_is_one_at_the_limit_of_so_many_workers(workers, name):
    times = TIMES[name]
    limit = DelayEquation(times).gain_limit(workers=workers)
    assert limit < mean_limit(times)
    assert integral(limit, times, workers) == pytest.approx(1, rel=2e-3)


@pytest.mark.parametrize("name", FINITE)
def test_more_workers_bear_a_larger_gain_up_to_the_delay_equation_s(name):
    times = FINITE[name]
    several = [1, 4, 64, 10**4, 10**6, math.inf]
    limits = [DelayEquation(times).gain_limit(workers=count) for count in several]
    assert limits == sorted(limits)
    assert limits[-2] == pytest.approx(limits[-1], rel=0.02)
    if name.startswith("constant"):  # nothing is random
        assert limits[0] == pytest.approx(limits[-1], rel=1e-12)
