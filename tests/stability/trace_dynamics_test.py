"""The growth along a trace equals the roots' growth, and a product of matrices."""

import functools
import math

import numpy as np
import pytest

import delayjax as dj
from delayjax.stability import Dynamics, TraceDynamics
from tests.stability import updates
from tests.support.cases import shortened

LENGTH = 20_000
# an oscillation is cut at some phase: what that adds to a logarithm, over LENGTH
SLACK = 5 / LENGTH

OPTIONS = {
    "plain": {},
    "heavy ball": {"momentum": 0.9},
    "nesterov": {"momentum": 0.7, "nesterov": True},
    "inverse": {"modulation": dj.modulation.inverse},
    "compensated": {"compensation": 0.3},
    "extrapolated": {"extrapolation": 0.5},
    "all": {
        "momentum": 0.5,
        "nesterov": True,
        "modulation": dj.modulation.polynomial(0.5),
        "compensation": 0.6,
        "extrapolation": 1.5,
    },
}


def limit_along(ages, **options):
    return TraceDynamics(ages, **options).step_limit().limit


def radii_at(steps, delay, **options):
    return [Dynamics(delay, **options).spectral_radius(step) for step in steps]


# with one staleness


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("delay", shortened([0, 1, 15], 1))
def test_an_equal_staleness_grows_as_its_largest_root(delay, name):
    options, ages = OPTIONS[name], np.full(LENGTH, delay)
    limit = Dynamics(delay, **options).step_limit()
    steps = limit * np.array([0.3, 0.8, 1.05])
    growth = TraceDynamics(ages, **options).growth(steps)
    np.testing.assert_allclose(
        growth, np.log(radii_at(steps, delay, **options)), atol=SLACK
    )
    result, low, high = TraceDynamics(ages, **options).step_limit()
    assert result == pytest.approx(limit, rel=2e-3)
    # nothing is random
    assert low <= result <= high
    assert low == pytest.approx(high, rel=1e-2)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("delay", [0, 1, 5])
@pytest.mark.parametrize(
    ("beta", "length", "near"), [(0.0, 160, 0.01), (0.9, 160, 0.02), (0.99, 1000, 0.02)]
)
def test_the_shortest_trace_that_is_taken_outlasts_its_momentum(
    beta, length, near, delay, nesterov
):
    options, ages = {"momentum": beta, "nesterov": nesterov}, np.full(length, delay)
    limit = Dynamics(delay, **options).step_limit()
    assert limit_along(ages, **options) == pytest.approx(limit, rel=near)
    # below the limit it dies out, and a transient of the momentum is no growth
    steps = limit * np.array([0.01, 0.1, 0.5] if beta else [0.9])
    growth = TraceDynamics(ages, **options).growth(steps)
    assert (growth < 0).all()
    slack = (4 if beta else 1) / length
    np.testing.assert_allclose(
        growth, np.log(radii_at(steps, delay, **options)), atol=slack
    )


LARGE = np.array([1e3, 1e9, 1e100])


def test_nothing_overflows_or_vanishes_at_any_step():
    fresh = np.zeros(160, int)
    steps = np.array([1 - 1e-9, 1 + 1e-3, 3.0, 1e9, 1e100])
    growth = TraceDynamics(fresh).growth(steps)
    np.testing.assert_allclose(growth, np.log(np.abs(1 - steps)), rtol=1e-6)
    assert TraceDynamics(fresh).growth(1.0) == -math.inf
    # the larger root of z^2 - (1.9 - a) z + 0.9
    growth = TraceDynamics(fresh, momentum=0.9).growth(LARGE)
    np.testing.assert_allclose(growth, np.log(LARGE), rtol=1e-3)
    # it grows once in a turn of 101 updates, of 4500
    growth = TraceDynamics([100] * 5000).growth(LARGE)
    np.testing.assert_allclose(growth, np.log(radii_at(LARGE, 100)), rtol=101 / 4500)


# with any staleness


def grown(ages, step, **options):
    """The logarithm of the growth of the state in an update, by matrices."""
    size = updates.size_of(range(max(ages) + 1), **options)
    unit = np.eye(size)
    matrices = {
        k: np.stack([updates.update(e, k, step, **options) for e in unit], axis=1)
        for k in set(ages)
    }
    state, logs = np.append(np.ones(size - 1), 0.0), []
    for k in ages:
        state = matrices[k] @ state
        logs.append(math.log(np.abs(state).max()))
        state /= np.abs(state).max()
    return np.mean(logs[len(ages) // 10 :])


@pytest.mark.parametrize("seed", range(8))
def test_growth_is_that_of_a_product_of_random_matrices(seed):
    rng = np.random.default_rng(seed)
    ages = rng.integers(rng.choice([1, 4, 12]) + 1, size=1500)
    options = updates.options_of(rng, 12)
    limit = limit_along(ages, **options)
    for step in (0.5 * limit, limit, 2 * limit):
        growth = TraceDynamics(ages, **options).growth(step)
        # a few updates more are left out, and m counts otherwise
        twin = grown(ages.tolist(), step, **options)
        assert growth == pytest.approx(twin, abs=10 / len(ages)), options
    # as a function of the step, it is as rough as that
    steps = limit * np.array([0.9, 1.0, 1.1])
    below, edge, above = TraceDynamics(ages, **options).growth(steps)
    assert below < 0 < above
    assert abs(edge) < 1 / len(ages)


def test_a_table_may_have_unsigned_integers():
    ages = np.random.default_rng(0).integers(0, 9, 400)
    assert limit_along(ages.astype(np.uint8)) == limit_along(ages)


@pytest.mark.parametrize("pattern", [[0, 2], [3, 0, 0, 5], [1, 1, 7]])
def test_a_trace_that_repeats_grows_as_the_root_of_its_period(pattern):
    steps, expected = [0.2, 0.9], []
    for step in steps:
        of_age = [a for _, a in updates.matrices(step, np.full(8, 1 / 8))]
        period = functools.reduce(lambda done, k: of_age[k] @ done, pattern, np.eye(9))
        expected.append(math.log(updates.radius(period)) / len(pattern))
    growth = TraceDynamics(pattern * (LENGTH // len(pattern))).growth(steps)
    np.testing.assert_allclose(growth, expected, atol=SLACK)


def test_what_is_late_in_turn_bears_what_no_law_of_staleness_tells():
    # x_{t+2} = (1 - a)(x_t - a x_{t-2}) has the root -1 at a^2 = 2
    assert limit_along([0, 2] * LENGTH) == pytest.approx(math.sqrt(2), rel=1e-3)
    # eight gradients of one version: x -> (1 - 8 a) x
    limit = limit_along(list(range(8)) * 1000)
    assert limit == pytest.approx(2 / 8, rel=1e-3)
    assert Dynamics(np.full(8, 1 / 8)).step_limit() > 1.8 * limit


def in_a_loop(
    table, step, momentum=0.0, modulation=None, compensation=0.0, extrapolation=0.0
):
    """|x| after each update, in a loop over gradients."""
    x, velocity = [1.0], 0.0
    for t, row in enumerate(table):
        late = [int(k) for k in row if k >= 0]
        read = [max(t - k, 0) for k in late]
        ahead = [x[i] + extrapolation * (x[i] - x[max(i - 1, 0)]) for i in read]
        gradient = np.mean(ahead)
        gradient = (1 - compensation) * gradient + compensation * x[t]
        velocity = momentum * velocity + gradient
        weight = 1.0 if modulation is None else modulation(np.mean(late))
        x.append(x[t] - step * weight * velocity)
    return np.abs(x)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.6, "compensation": 0.4, "extrapolation": 0.5},
        {"modulation": lambda staleness: 1 / (1 + staleness)},
    ],
)
def test_several_gradients_move_by_their_mean(options):
    machine = dj.cluster.Cluster(8, dj.cluster.exponential(1.0))
    fastest = dj.cluster.protocols.k_batch_sync(3)
    late = dj.cluster.protocols.k_async(3)
    for protocol in (late, fastest):
        trace = dj.cluster.simulate(machine, protocol, 1000, seed=1)
        table = trace.staleness.copy()
        table[::7, 1:] = -1  # some updates have fewer gradients
        training = TraceDynamics(table, **options)
        limit = training.step_limit().limit
        for step in (0.97 * limit, 1.03 * limit):
            x = in_a_loop(table, step, **options)
            begin, end = (x[t - 40 : t + 1].max() for t in (100, 1000))
            measured = math.log(end / begin) / 900
            assert training.growth(step) == pytest.approx(measured, abs=3e-3)


def test_several_equal_gradients_are_one():
    ages = np.random.default_rng(1).poisson(4, 2000)
    options = {"momentum": 0.5, "modulation": dj.modulation.inverse}
    one = TraceDynamics(ages, **options)
    steps = one.step_limit().limit * np.array([0.5, 1.0, 2.0])
    growth = one.growth(steps)
    column = TraceDynamics(ages[:, None], **options)
    np.testing.assert_array_equal(column.growth(steps), growth)
    padded = np.stack([ages, np.full(2000, -1), ages], axis=1)
    for table in (np.stack([ages] * 3, axis=1), padded):
        several = TraceDynamics(table, **options)
        np.testing.assert_allclose(several.growth(steps), growth, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(several.step_limit(), one.step_limit(), rtol=1e-6)


@pytest.mark.parametrize("pause", [300, 1500])
def test_a_worker_that_paused_once_is_followed_too(pause):
    ages = np.random.default_rng(1).poisson(3, 3000)
    paused = ages.copy()
    paused[2000] = pause
    usual, limit = limit_along(ages), TraceDynamics(paused).step_limit()
    assert limit.low < usual < limit.high
    assert limit.limit == pytest.approx(usual, rel=0.03)
    step = 0.9 * limit.limit
    x = in_a_loop(paused[:, None], step)
    begin, end = (x[t - 20 : t + 1].max() for t in (300, 3000))
    growth = TraceDynamics(paused).growth(step)
    assert growth == pytest.approx(math.log(end / begin) / 2700, abs=3e-3)


def test_an_old_gradient_brings_back_what_has_long_died_out():
    # 1 - a in each update, but for one that adds -a of 300 updates before
    ages = np.zeros(1000, int)
    ages[600] = 300
    for step in (0.5, 0.6):
        alone = math.log(1 - step)
        total = 900 * alone + math.log(step) - 301 * alone
        assert TraceDynamics(ages).growth(step) == pytest.approx(total / 900, rel=1e-9)


def test_what_was_once_old_makes_nothing_vanish():
    ages = np.zeros(3000, int)
    ages[200] = 200
    growth = TraceDynamics(ages).growth(1 - 1e-9)
    assert growth == pytest.approx(math.log(1e-9), rel=1e-6)


def test_steps_are_followed_apart():
    ages = np.random.default_rng(1).poisson(4, 2000)
    steps = np.array([[0.0, 0.1], [0.2, 1.0]])
    growth = TraceDynamics(ages).growth(steps)
    assert growth.shape == steps.shape
    assert growth[0, 0] == 0.0
    for index in np.ndindex(2, 2):
        one = TraceDynamics(ages).growth(steps[index])
        assert isinstance(one, float)
        assert one == pytest.approx(growth[index], rel=1e-9, abs=1e-12)


# limits


def test_the_interval_holds_the_limit_and_narrows_as_the_root_of_the_trace():
    traces = np.random.default_rng(1).poisson(4, (24, 1600))
    result = np.array([TraceDynamics(ages).step_limit() for ages in traces])
    limit, low, high = TraceDynamics(traces.ravel()).step_limit()
    held = (result[:, 1] <= limit) & (limit <= result[:, 2])
    assert held.mean() > 0.8  # 24 of 95 %: 20 or more in 98 of 100 cases
    assert np.mean(result[:, 0]) == pytest.approx(limit, rel=0.01)
    widths = result[:, 2] - result[:, 1]
    assert (high - low) * math.sqrt(24) == pytest.approx(np.mean(widths), rel=0.6)
    assert np.mean(widths) < 0.2 * limit


@pytest.mark.parametrize(
    ("share", "late", "floor"),
    [(0.1, 50, 1e-3), (0.01, 400, 1e-3), (0.5, 20, 1.0)],
)
def test_the_limit_is_found_where_few_updates_count(share, late, floor):
    # those that count little make the mean age and weight a bad guess of the scale
    rng = np.random.default_rng(1)
    ages = np.where(rng.random(8000) < share, late, 0)
    training = TraceDynamics(ages, modulation=lambda k: float(k > 0) + floor)
    limit = training.step_limit().limit
    assert training.growth(1.02 * limit) > 0
    smaller = limit * np.geomspace(1e-3, 0.98, 50)
    assert (training.growth(smaller) < 0).all()


def test_the_limit_is_found_far_above_the_mean_age():
    # memoryless workers, delays that are drawn anew
    ages = np.random.default_rng(1).geometric(1 / 256, 40_000) - 1
    limit = limit_along(ages)
    assert limit > 10 / ages.mean()
    below, above = TraceDynamics(ages).growth([0.95 * limit, 1.05 * limit])
    assert below < 0 < above
