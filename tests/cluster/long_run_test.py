"""Long-run means of staleness are closed forms, whatever the service times.

An update ages every gradient in flight by one: (P - 1) / K without waiting, P / K - 1
where a worker waits for its update.
"""

import math

import pytest

from delayjax import cluster
from delayjax.cluster import protocols

P = 8
AGES = [
    (protocols.hardsync(), 0.0),
    (protocols.fedbuff(1, concurrency=3), 2.0),
    (protocols.fedbuff(2, concurrency=4), 3 / 2),
    (protocols.k_batch_async(6), (P - 1) / 6),
    (protocols.k_async(1), P - 1.0),
    (protocols.k_async(4), P / 4 - 1),
    (protocols.n_softsync(1), (P - 1) / P),
    (protocols.n_softsync(3), (P - 1) / 2),  # K = 8 // 3
    (protocols.n_softsync(n=8), P - 1.0),
    (protocols.k_sync(3), 0.0),
    (protocols.k_batch_sync(3), 0.0),
    (protocols.k_async(2), P / 2 - 1),
    (protocols.k_batch_async(2), (P - 1) / 2),
    (protocols.ssp(0), (P - 1) / 2),  # read together, applied one after another
    (protocols.ssp(math.inf), P - 1.0),
    (protocols.psp(0, 3), P - 1.0),
    (protocols.psp(2, math.inf), P - 1.0),
    (protocols.psp(7, 0), (P - 1) / 2),
    (protocols.psp(7, 0, poll_seconds=1.0), (P - 1) / 2),
    (protocols.psp(0, 0, poll_seconds=1.0), P - 1.0),
    (protocols.round_robin(), P - 1.0),
    (protocols.groups(1), 0.0),
    (protocols.groups(4), 3.0),
    (protocols.groups(8, data="dynamic"), P - 1.0),
    (protocols.rennala(4), 0.0),
    (protocols.mindflayer(2, 5.0), 0.0),
    (protocols.gradient_coding(2, 2, dynamic=True), 0.0),
]
SERVICES = {
    "gamma": cluster.gamma(1.0, 2.0),
    "pareto": cluster.pareto(1.0, 3.0),
    "constant": [cluster.constant(math.sqrt(n)) for n in (2, 3, 5, 7, 11, 13, 17, 19)],
}


@pytest.mark.parametrize(("protocol", "mean"), AGES, ids=repr)
def test_staleness_has_this_mean_whatever_the_service_times(protocol, mean):
    for service in SERVICES.values():
        machine = cluster.Cluster(P, service, slowdown=[1.0, 2.0] * 4)
        trace = cluster.simulate(machine, protocol, 2000, seed=1)
        # what those in flight at the end have aged is missing, and the beginning
        slack = 2 * P * (trace.max_staleness + 1) / len(trace.worker)
        assert trace.summary().mean == pytest.approx(mean, abs=slack)


def test_a_worker_that_uploads_seldom_ages_by_those_that_do():
    machine = cluster.Cluster(P, cluster.gamma(1.0, 2.0))
    trace = cluster.simulate(machine, protocols.event_triggered(0.25), 3000, seed=1)
    ages = trace.update - trace.read_version
    # who uploads is drawn: four standard errors
    slack = 4 * ages.std() / math.sqrt(len(ages))
    assert ages.mean() == pytest.approx(0.25 * (P - 1), abs=slack)
