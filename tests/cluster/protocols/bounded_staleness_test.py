import pytest

from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.given_times import TIMES, UPDATES, simulate, times_of


@pytest.mark.parametrize(("bound", "batch"), [(0, 2), (1, 3), (4, 3), (4, 7)])
def test_a_server_that_waits_waits_for_its_batch_too(bound, batch):
    waiting = protocols.bounded_staleness(bound, late="wait", batch=batch)
    for kind in TIMES:
        times = times_of(kind, 7, 1)
        updates, _ = oracle.bounded_staleness(times, bound, "wait", batch, UPDATES)
        oracle.assert_same(simulate(times, waiting), updates)
        assert min(len(rows) for _, rows in updates) >= batch
