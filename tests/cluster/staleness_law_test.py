"""The predicted staleness: closed forms, an integral, and long simulations."""

import math

import numpy as np
import pytest
from scipy import stats

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster import renewal
from tests.support.cases import shortened

EXPONENTIAL = cluster.exponential(1.0)
REGULAR = {
    "gamma 16": cluster.gamma(2.0, 16),
    "gamma 4": cluster.gamma(1.0, 4),
    "lognormal": cluster.lognormal(3.0, 0.05),
    "shifted": cluster.shifted_exponential(0.5, 0.5),
    "uniform": cluster.uniform(0.0, 2.0),
}


in_step = pytest.mark.filterwarnings("ignore:`cluster` has workers whose times repeat")


def distance(one, other):
    """The total variation distance."""
    size = max(len(one), len(other))
    padded = [np.pad(pmf, (0, size - len(pmf))) for pmf in (one, other)]
    return np.abs(padded[0] - padded[1]).sum() / 2


@pytest.mark.parametrize("workers", [1, 2, 16, 300])
def test_memoryless_workers_have_a_geometric_law(workers):
    pmf = cluster.staleness_law(cluster.Cluster(workers, EXPONENTIAL)).pmf
    k = np.arange(max(len(pmf), 30 * workers))
    geometric = (1 - 1 / workers) ** k / workers
    assert distance(pmf, geometric) < 1e-4


def test_memoryless_workers_of_different_speed_have_geometric_laws():
    # all other workers together are memoryless, with the rate nu - nu_i
    slowdown = np.array([1.0, 1.0, 2.0, 5.0])
    spec = cluster.Cluster(4, EXPONENTIAL, slowdown=slowdown)
    pmf, shares = cluster.staleness_law(spec).pmf, 1 / slowdown / (1 / slowdown).sum()
    k = np.arange(300)[:, None]
    assert distance(pmf, (shares * shares * (1 - shares) ** k).sum(axis=1)) < 1e-4


@pytest.mark.parametrize("workers", [1, 2, 5, 64])
def test_constant_times_are_p_less_one_updates_late(workers):
    law = cluster.staleness_law(cluster.Cluster(workers, cluster.constant(3.0)))
    np.testing.assert_allclose(law.pmf, np.eye(workers)[-1], atol=1e-9)


@in_step
def test_constant_times_of_different_speed_count_whole_periods():
    # a worker of period s comes floor(t/s) times in t, or once more
    seconds = np.array([1.0, 2.2, 3.7])
    spec = cluster.Cluster(3, cluster.constant(1.0), slowdown=seconds)
    expected = np.zeros(12)
    for worker in range(3):
        pmf = np.ones(1)
        for other in set(range(3)) - {worker}:
            count, rest = divmod(seconds[worker] / seconds[other], 1)
            pmf = np.convolve(pmf, np.append(np.zeros(int(count)), [1 - rest, rest]))
        expected[: len(pmf)] += pmf / seconds[worker] / (1 / seconds).sum()
    assert distance(cluster.staleness_law(spec).pmf, expected) < 0.005
    each = [cluster.constant(s) for s in seconds]
    listed = cluster.staleness_law(cluster.Cluster(3, each)).pmf
    assert distance(cluster.staleness_law(spec).pmf, listed) < 1e-9


@in_step
@pytest.mark.parametrize(
    "times", [cluster.empirical([0.7, 1.3111]), cluster.constant(1.0)]
)
def test_rounding_to_the_grid_leaves_the_mean(times):
    # of times between two points of the grid
    spec = cluster.Cluster(200, times, slowdown=[1.0] * 100 + [1.0016] * 100)
    assert cluster.staleness_law(spec).mean == pytest.approx(199, rel=1e-8)


@pytest.mark.parametrize("workers", [2, 16])
@pytest.mark.parametrize("name", REGULAR)
def test_equal_workers_have_the_law_of_the_oracle(name, workers):
    times = REGULAR[name]
    law = cluster.staleness_law(cluster.Cluster(workers, times))
    oracle = renewal.staleness(lambda t: times.survival(t * times.mean), workers)
    assert distance(law.pmf, oracle) < 3e-4


SPECS = {
    "many regular": cluster.Cluster(16, cluster.lognormal(1.0, 0.05)),
    "uniform": cluster.Cluster(8, cluster.uniform(0.5, 1.5)),
    "of different speed": cluster.Cluster(
        4, cluster.gamma(1.0, 4), slowdown=[1.0, 1.0, 2.0, 4.0]
    ),
    "of different kinds": cluster.Cluster(
        3, [EXPONENTIAL, cluster.lognormal(3.0, 0.3), cluster.pareto(1.0, 3.0)]
    ),
    "measured": cluster.Cluster(
        4, cluster.empirical(np.random.default_rng(0).gamma(4.0, 0.25, 100))
    ),
    "one of a grid": cluster.Cluster(
        2, [cluster.gamma(1.0, 4), cluster.empirical([0.5, 1.0])]
    ),
    "scipy's": cluster.Cluster(4, cluster.from_scipy(stats.weibull_min(1.5))),
}


@pytest.mark.parametrize("name", shortened(SPECS, "uniform"))
def test_long_simulations_have_the_law_to_half_a_per_cent(name):
    law = cluster.staleness_law(SPECS[name])
    measured = [
        cluster.simulate(SPECS[name], protocols.k_async(1), 100_000, seed=seed)
        .staleness_law(burn_in=2000)
        .pmf
        for seed in (1, 2)
    ]
    size = max(map(len, measured))
    mean = np.mean([np.pad(pmf, (0, size - len(pmf))) for pmf in measured], axis=0)
    assert distance(law.pmf, mean) < 0.005


@pytest.mark.parametrize("name", SPECS)
def test_the_mean_is_p_less_one_whatever_the_times(name):
    law = cluster.staleness_law(SPECS[name])
    assert law.mean == pytest.approx(SPECS[name].workers - 1, rel=2e-3)
    values = np.arange(len(law.pmf))
    assert math.isclose(law.pmf.sum(), 1.0, rel_tol=1e-9)
    assert law.mean == pytest.approx(values @ law.pmf, rel=1e-9)
    assert law.variance == pytest.approx((values - law.mean) ** 2 @ law.pmf, rel=1e-9)


TWICE = [1.0, 2.0, 2.0]
IN_STEP = {
    "unequal constants": cluster.Cluster(3, cluster.constant(1.0), slowdown=TWICE),
    "two constants beside others": cluster.Cluster(
        3, [EXPONENTIAL, cluster.constant(1.0), cluster.constant(1.0)]
    ),
    "few times": cluster.Cluster(4, cluster.empirical([1.0, 2.0])),
    "a frequent time": cluster.Cluster(
        2, cluster.empirical([1.0] * 3 + [*range(2, 39)])
    ),
}


@pytest.mark.parametrize("name", IN_STEP)
def test_workers_whose_times_repeat_are_said_to_stay_in_step(name):
    with pytest.warns(UserWarning, match="shape may be far off: simulate it"):
        law = cluster.staleness_law(IN_STEP[name])
    assert law.mean == pytest.approx(IN_STEP[name].workers - 1, rel=2e-3)


@in_step
def test_workers_in_step_keep_the_mean_and_not_the_law():
    """Workers 0, 1 and 2 take 1, 2 and 2 s, and deliver in the order 0, 1, 2, 0.

    Every 2 s are the same: so tau is 0 (worker 0 has delivered just before), 3, 3, 2.
    """
    spec = IN_STEP["unequal constants"]
    trace = cluster.simulate(spec, protocols.k_async(1), 4000, seed=0)
    counted = trace.staleness_law(burn_in=4)
    np.testing.assert_allclose(counted.pmf, [1 / 4, 0, 1 / 4, 2 / 4])
    law = cluster.staleness_law(spec)
    assert law.mean == pytest.approx(counted.mean, rel=2e-3)
    assert distance(law.pmf, counted.pmf) > 0.2
