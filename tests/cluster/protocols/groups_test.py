import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.given_times import TASKS, UPDATES, contiguous, simulate, times_of


@pytest.mark.parametrize("g", [2, 3, 6])
def test_static_groups_stop_after_their_share(g):
    times = times_of("straggler", 6, 1)
    trace = simulate(times, protocols.groups(g, data="static"))
    members = contiguous(6, g)
    oracle.assert_same(
        trace, oracle.groups(times, members, UPDATES, [UPDATES // g] * g)
    )


def test_static_shares_that_do_not_divide_differ_by_one():
    trace = simulate(times_of("pareto", 5, 1), protocols.groups(5, data="static"), 13)
    assert trace.num_updates == 13
    assert sorted(trace.summary().gradients) == [2, 2, 3, 3, 3]


def test_a_group_without_a_share_of_the_updates_does_none():
    workers = cluster.Cluster(4, cluster.constant(1.0), [4.0, 3.0, 1.0, 1.0])
    protocol = protocols.groups(4, data="static")
    trace = cluster.simulate(workers, protocol, 2, seed=0)
    assert trace.worker.tolist() == [1, 0]


def group_sizes(p, g):
    return {len(members) for members in contiguous(p, g)}


@pytest.mark.parametrize(("d", "tolerance", "g"), [(3.0, 0.2, 5), (1.0, 0.5, 2)])
def test_progressive_groups_grow_with_the_straggler(d, tolerance, g):
    assert math.ceil((1 + tolerance) / tolerance * d / (1 + d)) == g
    seconds = np.ones(8)
    seconds[7] = 1 + d
    times = np.tile(seconds[:, None], TASKS)
    # no ties between groups
    times *= 1 + 1e-3 * np.random.default_rng(1).random(times.shape)
    trace = simulate(times, protocols.progressive_groups(8, tolerance=tolerance), 60)
    assert (trace.counts[:20] == 8).all()
    assert set(trace.counts[22:40]) <= group_sizes(8, g)
    capped = simulate(
        times, protocols.progressive_groups(2, tolerance=tolerance, every=7), 60
    )
    assert (capped.counts[:7] == 8).all() and (capped.counts[9:] == 4).all()


def test_progressive_groups_compare_the_slowest_with_the_median():
    # d = 2 / 1 - 1, though the fastest takes half a second: ceil(3 * 1/2) groups
    seconds = np.array([0.5, 1, 1, 1, 1, 1, 1, 2])
    times = np.tile(seconds[:, None], TASKS)
    trace = simulate(times, protocols.progressive_groups(8, tolerance=0.5), 30)
    assert (trace.counts[:20] == 8).all() and (trace.counts[20:] == 4).all()


def test_progressive_groups_of_equal_workers_stay_one():
    trace = simulate(np.ones((6, TASKS)), protocols.progressive_groups(6), 100)
    assert (trace.counts == 6).all() and (trace.staleness == 0).all()


def test_progressive_groups_come_back_when_the_straggler_recovers():
    slow = [cluster.Slowdown(5, 4.0, 0.0, 100.0)]
    times = 1 + 1e-3 * np.random.default_rng(1).random((6, TASKS))
    trace = simulate(times, protocols.progressive_groups(6), 500, slowdown=slow)
    assert (trace.counts[:20] == 6).all()
    assert (trace.counts[25:60] < 6).all()
    assert (trace.counts[-50:] == 6).all() and (trace.staleness[-50:] == 0).all()
