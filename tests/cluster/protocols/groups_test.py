import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.given_times import UPDATES, contiguous, simulate, times_of


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
