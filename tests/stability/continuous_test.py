"""Rates in wall-clock time: closed forms, other solvers, and simulated clusters."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy import integrate, optimize, special

import delayjax as dj
from delayjax.stability import continuous, dampings, delay_laws, rightmost

mean_limit = functools.partial(dampings.damping_limit, workers=math.inf)


def searched(law):
    """The same law, of which no closed form is known."""
    return dataclasses.replace(law, stages=None)


LAWS = {
    "constant": delay_laws.constant_delay(1.0),
    "constant, searched": searched(delay_laws.constant_delay(0.5)),
    "gamma 2": delay_laws.gamma_delay(1.0, 2),
    "gamma 3.3": delay_laws.gamma_delay(2.0, 3.3),
    "gamma 400": delay_laws.gamma_delay(1.0, 400),
    "exponential": delay_laws.exponential_delay(2.0),
    "exponential, searched": searched(delay_laws.exponential_delay(2.0)),
    "shifted": delay_laws.shifted_exponential_delay(0.5, 0.5),
    "shifted, nearly constant": delay_laws.shifted_exponential_delay(0.95, 0.05),
    "shifted, nearly exponential": delay_laws.shifted_exponential_delay(0.05, 0.95),
    "uniform": delay_laws.uniform_delay(0.0, 2.0),
    "uniform, narrow": delay_laws.uniform_delay(0.9, 1.1),
    "measured": delay_laws.empirical_delay(
        np.random.default_rng(0).gamma(4.0, 0.25, 12)
    ),
    "measured, a heavy tail": delay_laws.empirical_delay(
        np.random.default_rng(0).pareto(1.5, 15)
    ),
    "two delays": delay_laws.empirical_delay([0.0, 2.0]),
    "mostly none": delay_laws.empirical_delay([0.0, 0.0, 0.0, 1.0]),
}
FINITE = {
    name: law
    for name, law in LAWS.items()
    if not name.startswith(("exponential", "two", "mostly"))
}


@pytest.mark.parametrize("k", [2, 3, 4, 16, 100])
def test_gamma_delays_have_the_closed_forms(k):
    law = delay_laws.gamma_delay(3.0, k)
    limit = k * math.tan(math.pi / (2 * k)) / math.cos(math.pi / (2 * k)) ** k
    critical = (k / (k + 1)) ** (k + 1)
    np.testing.assert_allclose(3 * mean_limit(law), limit, rtol=1e-10)
    np.testing.assert_allclose(3 * dampings.critical_damping(law), critical, rtol=1e-10)
    rate = continuous.decay_rate(critical / 3, law)
    np.testing.assert_allclose(3 * rate, k / (k + 1), rtol=1e-7)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("damping", [0.1, 0.5, 2.0, 30.0])
def test_gamma_delays_have_the_roots_of_a_polynomial(k, damping):
    # z (1 + z/k)^k + A, z = s mean
    factor = np.polynomial.Polynomial([1, 1 / k]) ** k
    polynomial = np.polynomial.Polynomial([0, 1]) * factor + 2 * damping
    law = delay_laws.gamma_delay(2.0, k)
    found = continuous.characteristic_roots(damping, law, number=k + 1)
    between = np.abs(found[:, None] - polynomial.roots() / 2)
    assert len(found) == k + 1
    assert between.min(axis=0).max() < 1e-8
    assert (np.diff(found.real) <= 1e-12).all()


@pytest.mark.parametrize("shape", [0.5, 2.5])
@pytest.mark.parametrize("damping", [0.05, 0.15, 0.25, 0.45])
def test_gamma_delays_of_half_integer_shape_are_a_polynomial_in_a_root(shape, damping):
    # (u - 1) u^k + A/k = 0 in v = sqrt(u), Re v > 0 for the branch that is meant
    order = round(2 * shape)
    polynomial = np.zeros(order + 3)
    polynomial[0], polynomial[2], polynomial[-1] = 1, -1, damping / shape
    v = np.roots(polynomial)
    expected = shape * (v[v.real > 1e-9] ** 2 - 1)
    law = delay_laws.gamma_delay(1.0, shape)
    found = continuous.decay_rate(damping, law)
    np.testing.assert_allclose(found, -expected.real.max(), rtol=1e-9)
    near = expected[expected.real > -0.998 * shape]
    found = continuous.characteristic_roots(damping, law)
    between = np.abs(found[:, None] - near)
    assert len(found) == len(near)
    assert between.min(axis=0).max() < 1e-8


def test_the_tail_of_the_delays_limits_the_rate():
    law = delay_laws.gamma_delay(1.0, 0.5)
    assert continuous.decay_rate(10.0, law) == law.tail_rate == 0.5


@pytest.mark.parametrize("damping", [0.1, 0.3, 0.367, 0.368, 0.5, 1.5, 1.6, 10.0])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 7])
def test_lambert_s_function_and_the_search_agree(damping, number):
    law = delay_laws.constant_delay(1.0)
    found = continuous.characteristic_roots(damping, law, number=number)
    other = continuous.characteristic_roots(damping, searched(law), number=number)
    np.testing.assert_allclose(found, other, rtol=1e-9)
    assert len(found) in (number, number + 1)
    np.testing.assert_allclose(found, -damping * np.exp(-found), rtol=1e-10)
    first = special.lambertw(-damping)
    np.testing.assert_allclose(found[0].real, first.real, rtol=1e-12)
    assert found.imag.sum() == 0  # no pair is parted


@pytest.mark.parametrize("damping", [0.05, 0.3, 0.5, 2.0, 20.0])
def test_roots_are_counted_however_near_the_line(damping):
    law = delay_laws.constant_delay(1.0)
    roots = special.lambertw(-damping, np.arange(-6, 6))
    unit = rightmost.meeting_rate(law)
    for root in roots[np.argsort(-roots.real)][:7]:
        for offset in (-0.3, -1e-3, -1e-6, 1e-6, 1e-3, 0.3):
            line = root.real + offset
            found = rightmost.number_right_of(line, damping, law, unit=unit)
            assert found == (roots.real > line).sum()


def everywhere(damping, law, right_of, up_to):
    """Newton's method from a dense grid: what it finds to the right of a line."""
    x, y = np.meshgrid(np.linspace(right_of, damping, 20), np.linspace(0, up_to, 200))
    s = (x + 1j * (y + 1e-3)).ravel()
    with np.errstate(all="ignore"):
        for _ in range(50):
            slope = 1 - damping * law.slope(s)
            s = s - (s + damping * law.transform(s)) / slope
        good = np.abs(s + damping * law.transform(s)) < 1e-9 * (1 + np.abs(s))
    s = s[good & (s.real > right_of)]
    s = np.where(np.abs(s.imag) < 1e-7, s.real + 0j, s)
    kept = []
    for zero in np.concatenate([s, s.conj()]):
        if all(abs(zero - other) > 1e-5 for other in kept):
            kept.append(zero)
    return np.array(kept)


@pytest.mark.parametrize(
    "name", [n for n in LAWS if n not in ("gamma 400", "measured, a heavy tail")]
)
@pytest.mark.parametrize("share", [0.5, 1.5, 6.0])
def test_no_root_to_the_right_is_missed(name, share):
    law = LAWS[name]
    damping = share * dampings.critical_damping(law)
    found = continuous.characteristic_roots(damping, law)
    line = found[-1].real - 1e-6
    up_to = 1.1 * damping * float(law.transform(line)) + 1
    expected = everywhere(damping, law, line, up_to)
    assert len(found) == len(expected)
    between = np.abs(found[:, None] - expected)
    assert between.min(axis=0).max() < 1e-6


@pytest.mark.parametrize("name", LAWS)
def test_every_root_is_a_root(name):
    law = LAWS[name]
    critical = dampings.critical_damping(law)
    near = 1 + np.array([-1e-3, -1e-9, -1e-13, 0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3])
    for share in [0.01, 0.5, *near, 2.0, 20.0]:
        damping = share * critical
        found = continuous.characteristic_roots(damping, law)
        late = damping * law.transform(found)
        np.testing.assert_allclose(found, -late, rtol=1e-9)
        rate = continuous.decay_rate(damping, law)
        # a double root is a root to the square root of rounding
        np.testing.assert_allclose(rate, -found[0].real, rtol=1e-5)


@pytest.mark.parametrize("name", FINITE)
def test_the_limit_is_where_the_dominant_root_is_imaginary(name):
    law = FINITE[name]
    limit = mean_limit(law)
    first, second = continuous.characteristic_roots(limit, law, number=2)
    np.testing.assert_allclose(first.real, 0, atol=1e-9 * abs(first))
    assert second == first.conjugate()
    assert first.imag > 0
    assert continuous.decay_rate(0.99 * limit, law) > 0
    assert continuous.decay_rate(1.01 * limit, law) < 0


# one delay in a thousand makes the mean, and is no more than that to the limit
@pytest.mark.parametrize(("often", "rare"), [(99, 1e5), (999, 1e6), (999, 1e9)])
def test_a_few_delays_that_are_very_long_leave_the_limit(often, rare):
    law = delay_laws.empirical_delay([1.0] * often + [rare])
    limit = mean_limit(law)
    near = 1 / (often + 1)  # of the share, on either side of pi/2
    assert math.pi / 2 * (1 - 3 * near) < limit < math.pi / 2 * (1 + 3 * near)


@pytest.mark.parametrize("fast", [1e-3, 1e-6, 1e-9])
def test_delays_that_are_mostly_short_have_the_limit_of_the_short_ones(fast):
    law = delay_laws.empirical_delay([fast] * 9 + [1.0])
    limit = mean_limit(law) * fast
    # cos w = +-1/9 at the first crossings; a = w / (0.9 sin w +- 0.1) between
    assert math.acos(1 / 9) < limit < math.acos(-1 / 9) / 0.79


@pytest.mark.parametrize("k", [1.001, 1.5, 3.3, 400, 1e6, 1e12])
def test_the_limit_of_stages_is_that_of_the_search(k):
    law = delay_laws.gamma_delay(2.0, k)
    limit = mean_limit(law)
    if k > 1.1:
        np.testing.assert_allclose(limit, mean_limit(searched(law)), rtol=1e-9)
    assert abs(continuous.decay_rate(limit, law)) < 1e-9 * limit
    # |a phi| is w there
    w = k / 2.0 * math.tan(math.pi / (2 * k))
    np.testing.assert_allclose(-limit * law.transform(1j * w), 1j * w, atol=1e-9 * w)


@pytest.mark.parametrize("k", [0.3, 0.5, 1, 1.5, 2, 3.3, 7, 400])
@pytest.mark.parametrize("share", [1.002, 1.05, 1.5, 4.0, 20.0])
def test_beyond_critical_damping_stages_decay_as_the_search_finds(k, share):
    law = delay_laws.gamma_delay(2.0, k)
    damping = share * dampings.critical_damping(law)
    expected = continuous.decay_rate(damping, searched(law))
    found = continuous.decay_rate(damping, law)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("shape", [1e10, 1e12, 1e16])
def test_a_large_shape_has_the_rates_of_a_constant_delay(shape):
    law, near = delay_laws.gamma_delay(1.0, shape), 20 / shape
    critical = dampings.critical_damping(law)
    np.testing.assert_allclose(critical, math.exp(-1), rtol=near + 1e-14)
    for damping in (0.1, 0.3, 1.0, 1.5, 2.0):
        found = continuous.decay_rate(damping, law)
        expected = -special.lambertw(-damping).real
        # near the limit the rate is small, and what is lost is not
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=near)
        first = continuous.characteristic_roots(damping, law, number=1)[0]
        np.testing.assert_allclose(-first.real, expected, rtol=1e-9, atol=near)


@pytest.mark.parametrize("damping", [1e3, 1e4])
def test_large_dampings_have_rates_for_all_laws(damping):
    # s + a (1 - exp(-2s))/(2s) = 0: s^2 is nearly -a/2 (1 - exp(-2s))
    law = delay_laws.uniform_delay(0.0, 2.0)
    rate = continuous.decay_rate(damping, law)
    first = continuous.characteristic_roots(damping, law, number=1)[0]
    assert rate == -first.real < 0
    np.testing.assert_allclose(first**2, -damping / 2 * (1 - np.exp(-2 * first)))
    stages = delay_laws.gamma_delay(1.0, 1)
    np.testing.assert_allclose(continuous.decay_rate(damping * 1e20, stages), 0.5)


def test_limits_of_other_laws_have_closed_forms():
    for seconds in (0.5, 3.0):
        law = delay_laws.constant_delay(seconds)
        expected = math.pi / 2 / seconds
        np.testing.assert_allclose(mean_limit(law), expected, rtol=1e-12)
        law = delay_laws.uniform_delay(0.0, 2 * seconds)
        expected = (math.pi / 2) ** 2 / seconds
        np.testing.assert_allclose(mean_limit(law), expected, rtol=1e-10)
    for fixed in (0.05, 0.3, 0.5, 0.9):
        law = delay_laws.shifted_exponential_delay(fixed, 1 - fixed)

        def phase(y, fixed=fixed):
            return fixed * y + math.atan(y * (1 - fixed)) - math.pi / 2

        y = optimize.brentq(phase, 0, math.pi / 2 / fixed, xtol=1e-15)
        expected = y * math.sqrt(1 + y**2 * (1 - fixed) ** 2)
        np.testing.assert_allclose(mean_limit(law), expected, rtol=1e-10)
    for name in ("exponential", "two delays", "mostly none"):
        assert mean_limit(LAWS[name]) == math.inf
    assert mean_limit(delay_laws.gamma_delay(1.0, 0.9)) == math.inf


@pytest.mark.parametrize("name", LAWS)
def test_up_to_critical_damping_nothing_oscillates(name):
    law = LAWS[name]
    critical = dampings.critical_damping(law)
    for share, real in ((0.3, True), (0.999, True), (1.001, False), (1.3, False)):
        first = continuous.characteristic_roots(share * critical, law, number=1)[0]
        assert (first.imag == 0) == real
        if real:  # r = a E exp(r T)
            rate = continuous.decay_rate(share * critical, law)
            later = share * critical * float(law.transform(-rate))
            np.testing.assert_allclose(rate, later, rtol=1e-12)


def test_a_constant_delay_is_fastest_at_critical_damping():
    law = delay_laws.constant_delay(2.0)
    critical = dampings.critical_damping(law)
    np.testing.assert_allclose(critical, math.exp(-1) / 2, rtol=1e-14)
    rates = [continuous.decay_rate(x * critical, law) for x in (0.9, 1.0, 1.1)]
    np.testing.assert_allclose(rates[1], 1 / 2, rtol=1e-12)
    assert max(rates) == rates[1]


def test_a_small_delay_speeds_up_below_the_formula_s_damping():
    # -log(cos v) tan v = v, a = -log cos v, of a delay of 1
    v = optimize.brentq(lambda v: -math.log(math.cos(v)) * math.tan(v) - v, 0.5, 1.5)
    limit = continuous.speedup_limit(delay_laws.constant_delay(4.0))
    np.testing.assert_allclose(limit, -math.log(math.cos(v)) / 4, rtol=1e-10)


def test_delays_of_a_large_spread_speed_up_far_beyond_critical_damping():
    law = delay_laws.gamma_delay(1.0, 0.5)
    limit = continuous.speedup_limit(law)
    assert limit > 2 * dampings.critical_damping(law)
    np.testing.assert_allclose(continuous.decay_rate(limit, law), limit, rtol=1e-9)


@pytest.mark.parametrize("name", LAWS)
def test_delay_is_faster_than_none_up_to_the_speedup_limit(name):
    law = LAWS[name]
    limit = continuous.speedup_limit(law)
    assert dampings.critical_damping(law) < limit < mean_limit(law)
    for share in (0.01, 0.3, 0.6, 0.9, 0.999):
        assert continuous.decay_rate(share * limit, law) > share * limit
    assert continuous.decay_rate(1.001 * limit, law) < 1.001 * limit


def test_without_damping_nothing_moves():
    law = delay_laws.gamma_delay(1.0, 3)
    assert continuous.characteristic_roots(0, law).tolist() == [0]
    assert continuous.decay_rate(0.0, law) == 0


@pytest.mark.parametrize("name", LAWS)
def test_seconds_are_a_unit(name):
    law, minutes = LAWS[name], LAWS[name].scaled(1 / 60)
    for share in (0.5, 2.0):
        damping = share * dampings.critical_damping(law)
        np.testing.assert_allclose(
            continuous.decay_rate(60 * damping, minutes),
            60 * continuous.decay_rate(damping, law),
            rtol=1e-9,
        )
    limits = [mean_limit(x) for x in (law, minutes)]
    np.testing.assert_allclose(limits[1], 60 * limits[0], rtol=1e-9)


@pytest.mark.parametrize("damping", [0.2, 1.0, 1.4])
def test_a_solver_of_delay_equations_finds_the_rate(damping):
    ddeint = pytest.importorskip("ddeint")
    times = np.linspace(0, 16, 1601)
    path = ddeint.ddeint(lambda x, t: -damping * x(t - 1.0), lambda t: 1.0, times)
    rate = rate_of(path[600:, 0], every=40) / 0.01
    law = delay_laws.constant_delay(1.0)
    np.testing.assert_allclose(continuous.decay_rate(damping, law), rate, rtol=0.01)


def rate_of(path, *, every):
    """Decay a point of what is a sum of two modes, y_n = c y_{n-1} + d y_{n-2}."""
    y = path[::every]
    before = np.stack([y[1:-1], y[:-2]], axis=1)
    # later points are smaller, and count less than they should
    weight = 1 / np.sqrt(np.abs(before).max(axis=1))
    c, d = np.linalg.lstsq(before * weight[:, None], y[2:] * weight, rcond=None)[0]
    return -np.log(np.abs(np.roots([1, -c, -d])).max()) / every


WORKERS = 16


@pytest.fixture(scope="module", params=["constant", "gamma"])
def trained(request):
    """The law, and the staleness of the updates of clusters with it [n, runs]."""
    service, law, runs = {
        "constant": (dj.cluster.constant(2.0), delay_laws.constant_delay(2.0), 1),
        "gamma": (dj.cluster.gamma(2.0, 4.0), delay_laws.gamma_delay(2.0, 4.0), 400),
    }[request.param]
    cluster = dj.cluster.Cluster(WORKERS, service)
    asynchronous = dj.cluster.protocols.k_batch_async(1)
    traces = [
        dj.cluster.simulate(cluster, asynchronous, 8 * WORKERS, seed=seed)
        for seed in range(runs)
    ]
    return law, np.stack([trace.staleness[:, 0] for trace in traces], axis=1)


# the mean over 400 runs is exact to some tenths of a per cent; a cluster's mean over 8
# turns of its workers
@pytest.mark.parametrize("damping", [0.2, 0.3, 0.7, 1.0, 1.4])
def test_a_simulated_cluster_decays_at_the_rate_half_an_update_earlier(
    trained, damping
):
    law, staleness = trained
    step = damping / WORKERS  # eta lambda, of one update
    runs = np.arange(staleness.shape[1])
    x = np.ones((len(staleness) + 1, len(runs)))
    for t, tau in enumerate(staleness):
        x[t + 1] = x[t] - step * x[t - tau, runs]
    path = x.mean(axis=1)[3 * WORKERS :]
    updates_per_second = WORKERS / law.mean
    measured = rate_of(path, every=4) * updates_per_second
    earlier = delay_laws.half_update_earlier(law, WORKERS)
    rate = continuous.decay_rate(step * updates_per_second, earlier)
    np.testing.assert_allclose(rate, measured, rtol=0.02)
    if damping > 0.5:  # which it needs
        rate = continuous.decay_rate(step * updates_per_second, law)
        assert rate < 0.96 * measured


LAW = delay_laws.constant_delay(1.0)


@pytest.mark.parametrize("workers", [1, 2, 16, 10**4])
def test_of_memoryless_workers_the_variance_bears_the_root_of_two(workers):
    # phi = 1/(1 + iw T): the integral over w is pi a T, so (a T)^2 < 2 P
    for name in ("exponential", "exponential, searched"):
        law = LAWS[name]
        limit = dampings.damping_limit(law, workers=workers) * law.mean
        assert limit == pytest.approx(math.sqrt(2 * workers), rel=1e-4)


def integral(damping, law, workers):
    """(a^2 E T / 2 pi P) int (1 - |phi|^2) / |iw + a phi|^2 dw, by scipy."""

    def over(w):
        phi = law.transform(1j * w)
        return (1 - abs(phi) ** 2) / abs(1j * w + damping * phi) ** 2

    # twice its half; beyond `far` as 1/w^2
    far = 2000.0 / law.mean
    area = integrate.quad(over, 0, far, limit=5000, epsrel=1e-6)[0] + 1 / far
    return damping**2 * law.mean / (math.pi * workers) * area


@pytest.mark.parametrize("name", ["gamma 2", "gamma 3.3", "shifted", "uniform"])
@pytest.mark.parametrize("workers", [2, 16])
def test_the_integral_is_one_at_the_limit_of_so_many_workers(workers, name):
    law = LAWS[name]
    limit = dampings.damping_limit(law, workers=workers)
    assert limit < mean_limit(law)
    assert integral(limit, law, workers) == pytest.approx(1, rel=2e-3)


@pytest.mark.parametrize("name", FINITE)
def test_more_workers_bear_a_larger_damping_up_to_the_delay_equation_s(name):
    law = FINITE[name]
    several = [1, 4, 64, 10**4, 10**6, math.inf]
    limits = [dampings.damping_limit(law, workers=count) for count in several]
    assert limits == sorted(limits)
    assert limits[-2] == pytest.approx(limits[-1], rel=0.02)
    if name.startswith("constant"):  # nothing is random
        assert limits[0] == pytest.approx(limits[-1], rel=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: continuous.decay_rate(-0.5, LAW),
            ValueError,
            "`damping` must be finite and non-negative, got -0.5. It is eta lambda nu",
        ),
        (
            lambda: continuous.decay_rate(0.1, 4),
            TypeError,
            r"got 4: for a delay in updates, -log\(Dynamics\(delay\)\.spectral",
        ),
        (
            lambda: continuous.decay_rate(
                0.5, delay_laws.empirical_delay([1e-9] * 999 + [1e6])
            ),
            ValueError,
            "`damping` 0.5 by the longest delays of `law` .* leave out the longest",
        ),
        (
            lambda: continuous.characteristic_roots(math.inf, LAW),
            ValueError,
            "`damping` must be finite and non-negative, got inf",
        ),
        (
            lambda: continuous.characteristic_roots("1", LAW),
            TypeError,
            "`damping` must be a number, got '1'",
        ),
        (
            lambda: continuous.characteristic_roots(1.0, LAW, number=0),
            ValueError,
            "`number` must be at least 1, got 0",
        ),
        (
            lambda: dampings.damping_limit(LAW, workers=0),
            ValueError,
            "`workers` must be at least 1, got 0",
        ),
        (
            lambda: dampings.damping_limit(LAW, workers=2.5),
            TypeError,
            "`workers` must be a static integer, got 2.5",
        ),
        *(
            (lambda f=f: f(1.0), TypeError, r"`law` must be .* constant_delay.* 1.0")
            for f in (
                lambda law: dampings.damping_limit(law, workers=4),
                dampings.critical_damping,
                continuous.speedup_limit,
                lambda law: continuous.decay_rate(0.5, law),
                lambda law: continuous.characteristic_roots(0.5, law),
            )
        ),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
