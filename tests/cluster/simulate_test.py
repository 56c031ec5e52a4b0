"""When a simulation ends: after a number of updates, or at a time."""

import numpy as np
import pytest

from delayjax import cluster
from delayjax._src.cluster import server
from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.traces import PROTOCOLS, assert_equal

ENDING = PROTOCOLS | {
    "hardsync": protocols.hardsync(),
    "rennala": protocols.rennala(20),
    "k_batch_async": protocols.k_batch_async(4),
}


@pytest.mark.parametrize("name", ENDING)
def test_the_clock_ends_a_run_after_the_last_update_in_time(name):
    spec = cluster.Cluster(4, cluster.exponential(1.0))

    def run(num_updates, **keywords):
        return cluster.simulate(spec, ENDING[name], num_updates, seed=1, **keywords)

    whole = run(60)
    for end in (np.float32(9.0), 15, float(whole.seconds[20])):
        trace = run(None, seconds=end)
        updates = trace.num_updates
        assert updates > 0
        # the same updates as without a clock, and what comes later is not in the trace
        assert_equal(trace, run(updates))
        assert_equal(trace, run(10_000, seconds=end))
        assert trace.seconds[-1] <= end < run(updates + 1).seconds[-1]
        assert (trace.busy_seconds <= trace.seconds[-1] * (1 + 1e-12)).all()
        first = oracle.updates_of(whole)[:updates]
        assert oracle.updates_of(trace)[:60] == first
    # whichever comes first
    assert_equal(run(60, seconds=1e9), whole)


def test_a_clock_that_stands_still_is_an_error(monkeypatch):
    monkeypatch.setattr(server, "_PATIENCE", 2000)
    asgd = protocols.k_async(1)
    at_once = cluster.Cluster(2, cluster.empirical([0.0]))
    with pytest.raises(ValueError, match=r"`service` lets no time pass.*`k_async\(1"):
        cluster.simulate(at_once, asgd, None, seed=0, seconds=1.0)
    ticking = cluster.Cluster(2, cluster.constant(1e-3))
    trace = cluster.simulate(ticking, asgd, None, seed=0, seconds=2.5)
    assert trace.num_updates == 2 * 2500
