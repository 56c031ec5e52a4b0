"""Step limits: closed forms, independent matrices, and published theory."""

import itertools
import math
import time

import numpy as np
import pytest
from scipy import optimize, stats

import delayjax as dj
from delayjax._src.stability.crossings import crossings
from delayjax.stability import Dynamics
from tests.stability import updates
from tests.support.cases import shortened

SEEDS = [1, 2, 3]
MOMENTA = [0.3, 0.9, 0.99]
seeds = pytest.mark.parametrize("seed", shortened(SEEDS, 1))


def limit_of(delay, **options):
    return Dynamics(delay, **options).step_limit()


def of_the_mean(delay, **options):
    return Dynamics(delay, **options).step_limit("mean")


def fixed_limit(tau):
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1)))


def finite(chances):
    return chances / chances.sum()


def poisson(mean):
    return finite(stats.poisson(mean).pmf(np.arange(12 + 8 * mean)))


def negative_binomial(mean, k):
    law = stats.nbinom(k, k / (k + mean))
    return finite(law.pmf(np.arange(int(law.isf(1e-14)))))


# closed forms


def test_a_fixed_delay_without_momentum_has_the_closed_form():
    delays = [*range(201), 1000]
    expected = list(map(fixed_limit, delays))
    np.testing.assert_allclose(list(map(limit_of, delays)), expected, rtol=1e-15)
    # the points where roots cross the circle, which have no closed form
    crossed = [crossings(Dynamics(tau))[0][0] for tau in delays]
    np.testing.assert_allclose(crossed, expected, atol=1e-10)


def test_a_fixed_delay_may_be_of_any_length():
    begin = time.process_time()
    for tau in (10**6, 10**9, 2**31 - 1):
        limit = limit_of(tau)
        assert limit == pytest.approx(math.pi / (2 * tau + 1), rel=1e-12)
        inside, outside = (
            Dynamics(tau).stationary_variance(share * limit) for share in (0.9, 1.1)
        )
        assert inside < outside == math.inf
    law = np.full(10_002, 1 / 10_002)
    assert of_the_mean(law) == pytest.approx(math.pi**2 / 2 / 10_001, rel=1e-3)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("beta", MOMENTA)
def test_momentum_has_closed_forms_up_to_a_delay_of_one(beta):
    heavy, nesterov = {"momentum": beta}, {"momentum": beta, "nesterov": True}
    lost = 1 - beta**2
    root = math.sqrt(lost**2 + 4 * beta**2 * (1 - beta))
    for tau, options, expected in (
        (0, heavy, 2 * (1 + beta)),
        (1, heavy, 1 - beta),
        (0, nesterov, 2 * (1 + beta) / (1 + 2 * beta)),
        (1, nesterov, (root - lost) / (2 * beta**2)),
    ):
        assert abs(limit_of(tau, **options) - expected) < 1e-10


@pytest.mark.parametrize("beta", MOMENTA)
@pytest.mark.parametrize("tau", [2, 5, 64])
def test_the_heavy_ball_turns_by_the_root_of_its_tangent(tau, beta):
    # tan(w tau) = ((1 - beta)/(1 + beta)) cot(w/2), w in (0, pi / (2 tau))
    w = optimize.brentq(
        lambda w: (
            np.sin(w * tau) * np.sin(w / 2) * (1 + beta)
            - np.cos(w * tau) * np.cos(w / 2) * (1 - beta)
        ),
        *(0, np.pi / (2 * tau)),
        xtol=1e-16,
    )
    expected = math.hypot((1 + beta) * (1 - math.cos(w)), (1 - beta) * math.sin(w))
    np.testing.assert_allclose(limit_of(tau, momentum=beta), expected, rtol=1e-10)


def test_the_heavy_ball_has_two_known_ends():
    # beta -> 1: (1 - beta)/tau; tau -> inf: (1 - beta) pi/(2 tau)
    for tau in (1, 5, 40):
        limit = limit_of(tau, momentum=1 - 1e-8)
        np.testing.assert_allclose(limit, 1e-8 / tau, rtol=1e-6)
    limit = limit_of(20_000, momentum=0.5)
    np.testing.assert_allclose(limit, 0.5 * math.pi / (2 * 20_000), rtol=1e-4)


@pytest.mark.parametrize("beta", MOMENTA)
def test_nesterov_bears_more_than_the_heavy_ball_once_there_is_delay(beta):
    delays = (*range(33), 1000)
    heavy = [limit_of(tau, momentum=beta) for tau in delays]
    nesterov = [limit_of(tau, momentum=beta, nesterov=True) for tau in delays]
    ratios = np.divide(nesterov, heavy)
    assert ratios[0] < 1 < min(ratios[1:])
    assert ratios[-1] < 1.01  # only a little at long delays
    if beta == 0.9:
        assert max(ratios) == ratios[1] > 2.45


@pytest.mark.parametrize("beta", [0.0, *MOMENTA])
@pytest.mark.parametrize("tau", [0, 1, 16])
def test_a_heavy_ball_that_looks_ahead_by_its_momentum_is_nesterov_s(tau, beta):
    # AsyncPP: x_{t+1} = x_t + d_t - a grad(x_{t-tau} + d_{t-tau}), d_t = beta (x_t -
    # x_{t-1})
    ahead = Dynamics(tau, momentum=beta, extrapolation=beta)
    nesterov = Dynamics(tau, momentum=beta, nesterov=True)
    limit = nesterov.step_limit()
    assert ahead.step_limit() == pytest.approx(limit, rel=1e-10)
    assert ahead.critical_step() == pytest.approx(nesterov.critical_step(), rel=1e-6)
    for share in (0.5, 1.1):
        expected = nesterov.spectral_radius(share * limit)
        assert ahead.spectral_radius(share * limit) == pytest.approx(expected, rel=1e-9)


def test_looking_ahead_by_the_whole_delay_makes_plain_sgd_less_stable():
    # z^3 - z^2 + 2 a z - a has a pair of modulus 1 where a^2 + a = 1
    one = limit_of(1, extrapolation=1.0)
    assert one == pytest.approx((math.sqrt(5) - 1) / 2, rel=1e-10)
    for tau in (1, 2, 4, 8, 16):
        assert limit_of(tau, extrapolation=tau) < limit_of(tau)
        assert (limit_of(tau, extrapolation=tau / 4) > limit_of(tau)) == (tau >= 4)
    # fresh: z^2 - (1 - a (1 + e)) z - a e is 0 at z = -1
    for e in (0.5, 3.0):
        expected = min(2 / (1 + 2 * e), 1 / e)
        assert limit_of(0, extrapolation=e) == pytest.approx(expected, rel=1e-10)


def test_division_by_staleness_makes_the_limit_almost_independent_of_it():
    for tau in range(1, 40):
        limit = limit_of(tau, modulation=dj.modulation.inverse)
        np.testing.assert_allclose(limit, tau * fixed_limit(tau), rtol=1e-6)
        assert 1 - 1e-6 < limit < math.pi / 2
        limit = limit_of(tau, modulation=dj.modulation.polynomial(1.0))
        np.testing.assert_allclose(limit, (1 + tau) * fixed_limit(tau), rtol=1e-6)
        assert math.pi / 2 < limit < 2 + 1e-6
    # about (pi/2) tau^-1/2: safe for no step
    limit = limit_of(1000, modulation=dj.modulation.polynomial(0.5))
    np.testing.assert_allclose(limit, math.pi / 2 / math.sqrt(1000), rtol=1e-3)


@pytest.mark.parametrize("c", [0.1, 0.49, 0.5, 0.7, 0.95, 1.0, 1.5, 4.0])
def test_half_a_compensation_makes_every_delay_stable(c):
    one = min(1 / (1 - c) if c < 1 else math.inf, 2 / (2 * c - 1) if c > 0.5 else 9)
    np.testing.assert_allclose(limit_of(1, compensation=c), one, rtol=1e-10)
    if c >= 0.5:
        bound = 2 if c <= 1 else 2 / (2 * c - 1)
        limits = [limit_of(tau, compensation=c) for tau in range(1, 30)]
        assert min(limits) > bound * (1 - 1e-12)
        attained = limits[1::2] if c <= 1 else limits[::2]  # even tau, odd tau
        np.testing.assert_allclose(attained, bound, rtol=1e-10)


def test_less_than_half_a_compensation_helps_by_a_factor():
    for c in (0.0, 0.2, 0.4):
        bound = math.acos(-c / (1 - c)) / (math.sqrt(1 - 2 * c) * 2000.5)
        np.testing.assert_allclose(limit_of(2000, compensation=c), bound, rtol=2e-3)
    limits = [limit_of(9, compensation=c) for c in np.linspace(0, 0.5, 11)]
    assert limits == sorted(limits)


@pytest.mark.parametrize("q", [0.5, 0.75, 0.9])
def test_a_geometric_delay_is_momentum(q):
    # z^2 - (1 + q - a (1 - q)) z + q = 0: the heavy ball with beta = q, step a (1 - q)
    law = finite(q ** np.arange(math.ceil(math.log(1e-17, q))))
    limit = of_the_mean(law)
    np.testing.assert_allclose(limit * (1 - q), limit_of(0, momentum=q), rtol=1e-9)
    np.testing.assert_allclose(limit, 2 * (1 + q) / (1 - q), rtol=1e-9)
    # where the roots are complex their modulus is sqrt(q), at all steps; a tail of
    # 1e-17 that was cut off counts there as 1e-17 q^(-K/2)
    radius = Dynamics(law).spectral_radius(limit / 2)
    np.testing.assert_allclose(radius, math.sqrt(q), rtol=1e-8)


@pytest.mark.parametrize("mean", [1, 2, 7, 30])
def test_two_equal_delays_bear_a_step_of_two_whatever_their_mean(mean):
    law = np.zeros(2 * mean + 1)
    law[0] = law[-1] = 0.5
    np.testing.assert_allclose(of_the_mean(law), 2, rtol=1e-10)


# any law, against matrices


@seeds
def test_the_mean_of_any_law_dies_out_below_the_limit_and_not_above(seed):
    rng = np.random.default_rng(seed)
    for _ in range(30):
        law, options = updates.a_law(rng, 8), updates.options_of(rng, 8)
        limit = of_the_mean(law, **options)
        for share in (*np.linspace(0.03, 0.99, 33), 1 - 1e-6):
            assert updates.mean_radius(share * limit, law, **options) < 1
        assert updates.mean_radius((1 + 1e-6) * limit, law, **options) > 1


@seeds
def test_cells_of_a_map_are_where_the_largest_root_has_modulus_one(seed):
    rng = np.random.default_rng(seed)
    for _ in range(34):  # of 65 x 100 cells
        tau, beta = int(rng.integers(65)), float(rng.integers(100)) / 100
        options = {"momentum": beta, "nesterov": bool(rng.integers(2))}
        limit = limit_of(tau, **options)
        assert updates.mean_radius((1 - 1e-6) * limit, tau, **options) < 1
        assert updates.mean_radius((1 + 1e-6) * limit, tau, **options) > 1


@seeds
def test_the_variance_of_any_law_dies_out_below_the_limit_and_not_above(seed):
    rng = np.random.default_rng(seed)
    for _ in range(15):
        law, options = updates.a_law(rng, 5), updates.options_of(rng, 5)
        limit = limit_of(law, **options)
        assert limit <= of_the_mean(law, **options) * (1 + 1e-12)
        for share in (0.5, 0.9, 1 - 1e-6):
            assert updates.moment_radius(share * limit, law, **options) < 1
        assert updates.moment_radius((1 + 1e-6) * limit, law, **options) > 1


def test_for_a_fixed_delay_both_criteria_are_one():
    options = {"momentum": 0.5, "compensation": 0.2}
    for delay in (0, 3, [0, 0, 1.0]):
        assert limit_of(delay, **options) == of_the_mean(delay, **options)


def test_a_map_is_made_in_a_moment():
    # 0.2 ms a cell; a guard against ten times as much
    begin = time.process_time()
    for tau, beta in itertools.product(range(0, 65, 4), np.arange(0, 1, 0.05)):
        limit_of(tau, momentum=beta)
    assert time.process_time() - begin < 17 * 20 * 2e-3


@pytest.mark.parametrize(
    "law", [1, 3, 6, [0.5, 0.5], [0.5, 0, 0.5], [0, 0.5, 0, 0, 0, 0.5], [0.25] * 4]
)
def test_laws_with_a_symmetry_have_no_false_crossings(law):
    # N is 0 on the circle, and a grid point is on a root
    for c, beta in itertools.product((0, 0.5, 0.75, 1, 1.5), (0, 0.5, 0.9)):
        options = {"compensation": c, "momentum": beta}
        limit = of_the_mean(law, **options)
        for share in (0.3, 0.6, 0.9, 1 - 1e-6):
            assert updates.mean_radius(share * limit, law, **options) < 1
        assert updates.mean_radius((1 + 1e-6) * limit, law, **options) > 1


def on_a_fine_grid(law, c):
    """The least real positive -(z - 1)/N(z) on 400,000 points, to about 1e-4."""
    z = np.exp(1j * np.linspace(0, np.pi, 400_000)[1:])
    response = (1 - c) * np.polyval(law[::-1], 1 / z) + c
    steps = -(z - 1) / response
    crossed = np.flatnonzero(np.diff(np.sign(steps.imag)))
    crossed = crossed[np.abs(steps[crossed].imag) < 0.1]
    result = [*steps.real[crossed], steps.real[-1]]
    return min(step for step in result if step > 0)


def test_a_root_that_barely_leaves_the_circle_is_seen():
    # between two strengths the first crossing appears, at a tangent, and the limit
    # falls from 3.0 to 2.3
    law = [0.16, 0, 0.14, 0.01, 0.07, 0.19, 0.09, 0.33, 0.01]
    low, high = 0.2, 0.4
    while high - low > 1e-7:
        middle = (low + high) / 2
        falls = of_the_mean(law, compensation=middle) > 2.6
        low, high = (low, middle) if falls else (middle, high)
    for distance in (1e-3, 1e-4, 1e-5):
        strengths = [low - distance, high + distance]
        expected = [on_a_fine_grid(law, c) for c in strengths]
        result = [of_the_mean(law, compensation=c) for c in strengths]
        np.testing.assert_allclose(result, expected, rtol=1e-3)
        assert abs(expected[0] - expected[1]) > 0.5


def test_a_variance_that_grows_within_the_stable_steps_is_seen():
    # the gain of the variance rises to 1.002 at 0.68 of the mean's limit, falls to 0.98
    # and rises again
    law, options = [0.79, 0, 0, 0.21], {"momentum": 0.6197, "compensation": 1.7}
    steps = np.linspace(0, of_the_mean(law, **options), 300)[1:-1]
    radii = np.array([updates.moment_radius(step, law, **options) for step in steps])
    stable = radii < 1
    assert np.count_nonzero(np.diff(stable)) == 3
    first = np.argmin(stable)
    assert steps[first - 1] < limit_of(law, **options) < steps[first]


def integral(step, law):
    """(a^2/2 pi) int (1 - |G|^2) / |e^{iw} - 1 + a G|^2 dw, by the midpoint rule."""
    points = 200_000
    z = np.exp(2j * np.pi * (np.arange(points) + 0.5) / points)
    response = np.polyval(law[::-1], 1 / z)
    spread = 1 - np.abs(response) ** 2
    return step**2 * (spread / np.abs(z - 1 + step * response) ** 2).mean()


# mean delay 1: the limit in mean square and of the mean
@pytest.mark.parametrize(
    ("law", "mean_square", "mean"),
    [
        (poisson(1), 0.993, 2.31),
        (negative_binomial(1, 4), 1.022, 3.68),
        (negative_binomial(1, 2), 1.051, 8.00),
        (negative_binomial(1, 1), 1.106, 6.00),  # geometric
    ],
)
def test_the_integral_is_one_at_the_mean_square_limit(law, mean_square, mean):
    limit = limit_of(law)
    np.testing.assert_allclose(integral(limit, law), 1, rtol=1e-9)
    assert integral(0.99 * limit, law) < 1
    assert abs(limit - mean_square) < 5e-4
    assert abs(of_the_mean(law) - mean) < 5e-3


@pytest.mark.parametrize("mean", [3, 8, 16])
def test_spread_delays_bear_more_than_a_fixed_one_of_their_mean(mean):
    laws = [mean, poisson(mean), *(negative_binomial(mean, k) for k in (4, 2, 1))]
    limits = list(map(limit_of, laws))
    assert limits == sorted(limits)
    assert limits[1] > 1.01 * limits[0]


# the fastest step


@pytest.mark.parametrize("tau", [0, 1, 2, 7, 64, 1000])
def test_the_fastest_step_of_a_fixed_delay_is_critical_damping(tau):
    step = Dynamics(tau).critical_step()
    np.testing.assert_allclose(step, (tau / (tau + 1)) ** tau / (tau + 1), rtol=1e-10)
    # a double root: exact to the root of rounding
    assert abs(Dynamics(tau).spectral_radius(step) - tau / (tau + 1)) < 1e-6


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
def test_of_equally_fast_steps_the_smallest_is_critical(beta):
    heavy = Dynamics(0, momentum=beta)
    step = heavy.critical_step()
    np.testing.assert_allclose(step, (1 - math.sqrt(beta)) ** 2, rtol=1e-9)
    radius = heavy.spectral_radius(2 * (1 + beta) / 3)
    np.testing.assert_allclose(radius, math.sqrt(beta), rtol=1e-12)
    # one update of a fresh gradient at the look-ahead point is Newton's step
    newton = Dynamics(0, momentum=beta, nesterov=True).critical_step()
    np.testing.assert_allclose(newton, 1, rtol=1e-9)


@pytest.mark.parametrize("workers", [4, 8, 16])
def test_the_fastest_step_of_memoryless_workers_is_a_heavy_ball_s(workers):
    """A geometric law is momentum q = 1 - 1/P, with a step of a (1 - q)."""
    law = dj.cluster.staleness_law(
        dj.cluster.Cluster(workers, dj.cluster.exponential(1.0))
    )
    q = 1 - 1 / workers
    fastest = Dynamics(law.pmf)
    step = fastest.critical_step()
    np.testing.assert_allclose(step, (1 - math.sqrt(q)) ** 2 / (1 - q), rtol=0.01)
    assert step < fastest.step_limit()
    np.testing.assert_allclose(fastest.spectral_radius(step), math.sqrt(q), rtol=3e-3)


@pytest.mark.parametrize(
    "law", [[0.826, 0.083, 0.068, 0.023], [0.75 * 0.25**k for k in range(6)]]
)
def test_the_fastest_step_is_not_beyond_the_limit(law):
    law = np.divide(law, np.sum(law))
    assert Dynamics(law).critical_step() <= Dynamics(law).step_limit()


@seeds
def test_no_step_is_faster_than_the_critical_one(seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        law, options = updates.a_law(rng, 8), updates.options_of(rng, 8)
        fastest = Dynamics(law, **options).critical_step()
        radius = updates.mean_radius(fastest, law, **options)
        limit = Dynamics(law, **options).step_limit()
        assert fastest <= limit
        for step in np.linspace(0, limit, 60)[1:-1]:
            assert updates.mean_radius(step, law, **options) > radius - 1e-6


def test_a_smooth_minimum_of_the_radius_is_the_critical_step_too():
    # a pair of roots turns back where no roots meet
    law, options = [0, 0.5, 0, 0, 0, 0.5], {"compensation": 0.75, "momentum": 0.9}
    fastest = Dynamics(law, **options).critical_step()
    radius = updates.mean_radius(fastest, law, **options)
    for change in (1e-3, 1e-2):
        for step in (fastest * (1 - change), fastest * (1 + change)):
            # quadratic: about change^2
            larger = updates.mean_radius(step, law, **options) - radius
            assert change**2 < larger < 100 * change**2
