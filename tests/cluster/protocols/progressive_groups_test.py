import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster.given_times import TASKS, contiguous, simulate


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
