"""Growth along a trace is that of the roots, and of a product of matrices."""

import functools
import math

import numpy as np
import pytest

import delayjax as dj
from delayjax.stability.dynamics import Dynamics
from delayjax.stability.lyapunov import trace_growth, trace_step_limit
from tests.stability import updates

LENGTH = 20_000
# an oscillation is cut at some phase: what that adds to a logarithm, over LENGTH
SLACK = 5 / LENGTH

OPTIONS = {
    "plain": {},
    "heavy ball": {"momentum": 0.9},
    "nesterov": {"momentum": 0.7, "nesterov": True},
    "inverse": {"modulation": dj.modulation.inverse},
    "compensated": {"compensation": 0.3},
    "all": {
        "momentum": 0.5,
        "nesterov": True,
        "modulation": dj.modulation.polynomial(0.5),
        "compensation": 0.6,
    },
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("delay", [0, 1, 15])
def test_an_equal_staleness_grows_as_its_largest_root(delay, name):
    options, ages = OPTIONS[name], np.full(LENGTH, delay)
    limit = Dynamics(delay, **options).step_limit()
    steps = limit * np.array([0.3, 0.8, 1.05])
    radii = [Dynamics(delay, **options).spectral_radius(step) for step in steps]
    growth = trace_growth(ages, steps, **options)
    np.testing.assert_allclose(growth, np.log(radii), atol=SLACK)
    assert trace_step_limit(ages, **options) == pytest.approx(limit, rel=2e-3)


def grown(ages, step, **options):
    """The logarithm of the state's growth in an update, matrix by matrix."""
    unit = np.eye(max(ages) + 2)
    matrices = {
        k: np.stack([updates.update(e, k, step, **options) for e in unit], axis=1)
        for k in set(ages)
    }
    state, logs = np.append(np.ones(max(ages) + 1), 0.0), []
    for k in ages:
        state = matrices[k] @ state
        logs.append(math.log(np.abs(state).max()))
        state /= np.abs(state).max()
    return np.mean(logs[len(ages) // 10 :])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("delay", [0, 1, 5])
@pytest.mark.parametrize("beta", [0.9, 0.99])
def test_the_shortest_trace_that_is_taken_outlasts_its_momentum(beta, delay, nesterov):
    options = {"momentum": beta, "nesterov": nesterov}
    updates = max(160, round(10 / (1 - beta)))
    ages = np.full(updates, delay)
    limit = Dynamics(delay, **options).step_limit()
    assert trace_step_limit(ages, **options) == pytest.approx(limit, rel=0.02)
    # below the limit it dies out, and a transient of the momentum is no growth
    steps = limit * np.array([0.01, 0.1, 0.5])
    radii = [Dynamics(delay, **options).spectral_radius(step) for step in steps]
    growth = trace_growth(ages, steps, **options)
    assert (growth < 0).all()
    np.testing.assert_allclose(growth, np.log(radii), atol=4 / updates)
    with pytest.raises(ValueError, match=f"at least {updates} updates.*simulate lon"):
        trace_growth(ages[1:], limit, **options)


@pytest.mark.parametrize("delay", [0, 3])
def test_the_shortest_trace_without_momentum_has_its_root_too(delay):
    limit = Dynamics(delay).step_limit()
    assert trace_step_limit([delay] * 160) == pytest.approx(limit, rel=0.01)
    growth = trace_growth([delay] * 160, 0.9 * limit)
    radius = Dynamics(delay).spectral_radius(0.9 * limit)
    assert growth == pytest.approx(math.log(radius), abs=1 / 160)


@pytest.mark.parametrize("seed", range(12))
def test_growth_is_that_of_a_product_of_random_matrices(seed):
    rng = np.random.default_rng(seed)
    ages = rng.integers(rng.choice([1, 4, 12]) + 1, size=1500)
    options = updates.options_of(rng, 12)
    limit = trace_step_limit(ages, **options)
    for step in (0.5 * limit, limit, 2 * limit):
        growth = trace_growth(ages, step, **options)
        # a few updates more are left out, and m counts otherwise
        twin = grown(ages.tolist(), step, **options)
        assert growth == pytest.approx(twin, abs=10 / len(ages)), options
    # as a function of the step it is as rough as that
    below, at, above = trace_growth(ages, [0.9 * limit, limit, 1.1 * limit], **options)
    assert below < 0 < above
    assert abs(at) < 1 / len(ages)


@pytest.mark.parametrize("pattern", [[0, 2], [3, 0, 0, 5], [1, 1, 7]])
def test_a_trace_that_repeats_grows_as_the_root_of_its_period(pattern):
    steps, expected = [0.2, 0.9], []
    for step in steps:
        of_age = dict(
            enumerate(a for _, a in updates.matrices(step, np.full(8, 1 / 8)))
        )
        period = functools.reduce(lambda done, k: of_age[k] @ done, pattern, np.eye(9))
        expected.append(math.log(updates.radius(period)) / len(pattern))
    growth = trace_growth(pattern * (LENGTH // len(pattern)), steps)
    np.testing.assert_allclose(growth, expected, atol=SLACK)


def test_fresh_and_two_late_in_turn_bear_the_root_of_two():
    # x_{t+2} = (1 - a)(x_t - a x_{t-2}) has the root -1 at a^2 = 2
    limit = trace_step_limit([0, 2] * LENGTH)
    assert limit == pytest.approx(math.sqrt(2), rel=1e-3)


def test_a_batch_in_turn_bears_its_share_which_no_law_of_staleness_tells():
    # eight gradients of one version: x -> (1 - 8 a) x
    limit = trace_step_limit(list(range(8)) * 1000)
    assert limit == pytest.approx(2 / 8, rel=1e-3)
    assert Dynamics(np.full(8, 1 / 8)).step_limit() > 1.8 * limit


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_a_trace_of_workers_is_followed_as_they_read(workers):
    machine = dj.cluster.Cluster(workers, dj.cluster.lognormal(1.0, 0.3))
    trace = dj.cluster.simulate(machine, dj.cluster.protocols.k_async(1), 3000, seed=1)
    step, x = 0.1 / workers, [1.0]
    for read in trace.read_version.tolist():
        x.append(x[-1] - step * x[read])
    begin, end = (max(map(abs, x[t : t + 5 * workers])) for t in (300, 2900))
    found = trace_growth(trace.staleness, step)
    assert found == pytest.approx(math.log(end / begin) / 2600, rel=2e-3)


def test_without_delay_nothing_overflows_or_vanishes():
    # 1 - a, each update
    steps = np.array([1 - 1e-9, 1 + 1e-3, 3.0, 1e9, 1e100])
    growth = trace_growth(np.zeros(160, int), steps)
    np.testing.assert_allclose(growth, np.log(np.abs(1 - steps)), rtol=1e-6)
    assert trace_growth(np.zeros(160, int), 1.0) == -math.inf


def test_a_long_memory_overflows_at_no_step():
    steps = np.array([1e3, 1e9, 1e100])
    growth = trace_growth([100] * 5000, steps)
    radii = [Dynamics(100).spectral_radius(step) for step in steps]
    # it grows once in a turn of 101 updates, of 4500
    np.testing.assert_allclose(growth, np.log(radii), rtol=101 / 4500)


def test_momentum_overflows_at_no_step():
    # the larger root of z^2 - (1.9 - a) z + 0.9
    steps = np.array([1e3, 1e9, 1e100])
    growth = trace_growth(np.zeros(160, int), steps, momentum=0.9)
    np.testing.assert_allclose(growth, np.log(steps), rtol=1e-3)


def test_no_step_grows_in_no_way():
    assert trace_growth([3, 0, 2, 1] * 40, 0.0) == 0.0


def test_steps_are_followed_apart():
    ages = np.random.default_rng(1).poisson(4, 2000)
    steps = np.array([[0.0, 0.1], [0.2, 1.0]])
    growth = trace_growth(ages, steps)
    assert growth.shape == steps.shape
    for index in np.ndindex(2, 2):
        one = trace_growth(ages, steps[index])
        assert isinstance(one, float)
        assert one == pytest.approx(growth[index], rel=1e-9, abs=1e-12)


def test_columns_are_rows():
    ages = np.random.default_rng(1).integers(4, size=400)
    assert trace_growth(ages[:, None], 0.3) == trace_growth(ages, 0.3)


@pytest.mark.parametrize(
    ("share", "late", "floor"),
    [(0.1, 50, 1e-3), (0.01, 400, 1e-3), (0.5, 20, 1.0)],
)
def test_the_limit_is_found_where_few_updates_count(share, late, floor):
    # those that count little make the mean age and weight a bad guess of the scale
    rng = np.random.default_rng(1)
    ages = np.where(rng.random(20_000) < share, late, 0)

    def weight(staleness):
        return float(staleness > 0) + floor

    limit = trace_step_limit(ages, modulation=weight)
    below, above = trace_growth(ages, [0.98 * limit, 1.02 * limit], modulation=weight)
    assert below < 0 < above
    smaller = limit * np.geomspace(1e-3, 0.98, 50)
    assert (trace_growth(ages, smaller, modulation=weight) < 0).all()


def test_the_limit_is_found_far_above_the_mean_age():
    # memoryless workers, delays that are drawn anew
    ages = np.random.default_rng(1).geometric(1 / 256, 100_000) - 1
    limit = trace_step_limit(ages)
    assert limit > 10 / ages.mean()
    below, above = trace_growth(ages, [0.95 * limit, 1.05 * limit])
    assert below < 0 < above


@pytest.mark.parametrize(
    ("staleness", "options", "error", "message"),
    [
        ([0.5] * 20, {}, TypeError, "`staleness` must hold integers, got float64"),
        ([0, -1] * 20, {}, ValueError, "`staleness` must be non-negative, got -1"),
        ([[0, 1]] * 20, {}, ValueError, r"one gradient an update.* shape \(20, 2\)"),
        (3, {}, ValueError, r"one gradient an update.* shape \(\)"),
        (
            [19] * 199,
            {},
            ValueError,
            "at least 200 updates, 10 times .* 19, plus 1, got 199",
        ),
        ([0] * 16, {}, ValueError, "at least 160 updates, 10 times 16 .* got 16"),
        (np.zeros(0, int), {}, ValueError, "at least 160 updates, .* got 0"),
        (
            [0] * 200,
            {"momentum": 0.99},
            ValueError,
            "at least 1000 updates, 10 times .* `momentum` = 0.99, got 200: simulate",
        ),
        ([1] * 200, {"momentum": 1.0}, ValueError, "`momentum` must be in"),
        ([1] * 200, {"modulation": 0.5}, TypeError, "`modulation` must be a function"),
    ],
)
def test_what_is_no_trace_is_refused(staleness, options, error, message):
    with pytest.raises(error, match=message):
        trace_growth(staleness, 0.1, **options)
    with pytest.raises(error, match=message):
        trace_step_limit(staleness, **options)


@pytest.mark.parametrize("step", [-0.1, math.nan, math.inf, [0.1, -0.1]])
def test_impossible_steps_are_refused(step):
    with pytest.raises(ValueError, match="`step` must be finite and non-negative"):
        trace_growth([1] * 200, step)
