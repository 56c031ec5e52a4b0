import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster.given_times import TASKS, simulate


def test_mindflayer_divides_by_the_expected_successes():
    # p = 1 - exp(-c / Tm) from 10 000 draws: 4 binomial standard errors
    spec = cluster.Cluster(3, cluster.exponential(2.0))
    trials, allotted = (1, 2, 5), (0.5, 1.0, 3.0)
    trace = cluster.simulate(spec, protocols.mindflayer(trials, allotted), 50, seed=1)
    p = -np.expm1(-np.array(allotted) / 2)
    error = 4 * np.sqrt(np.square(trials) @ (p * (1 - p)) / 10_000)
    assert (trace.divisor == trace.divisor[0]).all()
    assert abs(trace.divisor[0] - np.dot(trials, p)) < error
    # unbiased: the number of gradients of an update, divided by B, is 1 on average
    long = cluster.simulate(spec, protocols.mindflayer(trials, allotted), 5000, seed=2)
    spread = np.dot(trials, p * (1 - p)) / 5000
    assert abs(long.counts.mean() - np.dot(trials, p)) < 4 * math.sqrt(spread)


def test_mindflayer_counts_on_the_speed_of_the_moment():
    # worker 0 is normal, slower, dead, faster; p = 1 - exp(-c / (factor Tm))
    phases = {0.0: 1.0, 500.0: 3.0, 1000.0: math.inf, 1500.0: 0.5}
    ends = [*phases, math.inf][1:]
    slow = [
        cluster.Slowdown(0, factor, start, end)
        for (start, factor), end in zip(phases.items(), ends, strict=True)
    ]
    spec = cluster.Cluster(2, cluster.exponential(1.0), slow)
    tries, limit = 2, 0.8
    trace = cluster.simulate(
        spec, protocols.mindflayer(tries, limit), 10**6, seed=1, seconds=2000.0
    )
    ratio = trace.counts / trace.divisor
    for (start, factor), end in zip(phases.items(), ends, strict=True):
        # the rounds that lie in this phase completely
        phase = (trace.seconds > start + 2 * limit) & (trace.seconds <= end)
        p = np.array([-math.expm1(-limit / factor), -math.expm1(-limit)])
        expected, variance = tries * p.sum(), tries * (p * (1 - p)).sum()
        assert phase.sum() > 200
        error = 4 * tries * math.sqrt((p * (1 - p)).sum() / 10_000)
        assert abs(trace.divisor[phase] - expected).max() < error + 1e-12
        # unbiased in each phase
        spread = math.sqrt(variance / phase.sum()) / expected
        assert abs(ratio[phase].mean() - 1) < 4 * spread + error / expected


def test_mindflayer_counts_on_both_speeds_of_a_trial_in_which_they_change():
    # a trial takes 1 s; from 0.5 s on the speed is a quarter: half is done at 0.5, all
    # of it at 2.5; the next trial takes 4 s
    slow = [cluster.Slowdown(0, 4.0, start_seconds=0.5)]
    spec = cluster.Cluster(2, cluster.constant(1.0), slow)
    for limit, first in ((2.5, 2), (2.25, 1)):
        protocol = protocols.mindflayer(1, limit)
        trace = cluster.simulate(spec, protocol, 3, seed=0)
        assert list(trace.counts) == [first, 1, 1]
        np.testing.assert_array_equal(trace.divisor, trace.counts)
        np.testing.assert_allclose(trace.seconds, limit * np.arange(1, 4))


def test_mindflayer_makes_no_update_while_all_are_dead():
    gone = [cluster.Slowdown((0, 1), math.inf, 10.0, 20.0)]
    spec = cluster.Cluster(2, cluster.constant(1.0), gone)
    trace = cluster.simulate(spec, protocols.mindflayer(1, 1.0), 15, seed=0)
    np.testing.assert_allclose(trace.seconds, [*range(1, 11), *range(21, 26)])
    assert (trace.divisor == 2).all() and (trace.counts == 2).all()
    for_good = [cluster.Slowdown((0, 1), math.inf, 10.0)]
    spec = cluster.Cluster(2, cluster.constant(1.0), for_good)
    with pytest.raises(ValueError, match=r"`allotted_seconds` must let some trial"):
        cluster.simulate(spec, protocols.mindflayer(1, 1.0), 15, seed=0)


def test_a_trial_that_takes_all_its_time_succeeds():
    # p = P(T <= c), with T of the slowed worker: the second worker is slower
    spec = cluster.Cluster(2, cluster.constant(1.0), slowdown=(1.0, 2.0))
    for second, successes in ((2.0, 6), (1.5, 3)):
        protocol = protocols.mindflayer(3, (1.0, second))
        trace = cluster.simulate(spec, protocol, 4, seed=0)
        assert (trace.counts == successes).all() and (trace.divisor == successes).all()
        np.testing.assert_allclose(trace.seconds, 3 * second * np.arange(1, 5))


def test_mindflayer_may_come_back_empty_handed():
    times = [np.tile([1.0, 5.0], TASKS)]
    trace = simulate(times, protocols.mindflayer(1, 2.0), 6)
    # after 1 s it succeeds, 2 s later it does not
    assert list(trace.counts) == [1, 0, 1, 0, 1, 0]
    np.testing.assert_allclose(trace.seconds, [1, 3, 4, 6, 7, 9], rtol=1e-12)
    np.testing.assert_allclose(trace.divisor, 0.5)
    assert (trace.staleness == [[0], [-1]] * 3).all()


def test_a_worker_may_have_no_trials_in_mindflayer():
    spec = cluster.Cluster(2, cluster.constant(1.0))
    trace = cluster.simulate(spec, protocols.mindflayer([0, 2], 1.0), 3, seed=0)
    assert (trace.worker == 1).all()
    assert (trace.divisor == 2.0).all()
