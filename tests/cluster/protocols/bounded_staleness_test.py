import pytest

from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.given_times import SEEDS, TIMES, UPDATES, simulate, times_of


@pytest.mark.parametrize("batch", [2, 3, 7])
@pytest.mark.parametrize("bound", [0, 1, 4])
@pytest.mark.parametrize("law", TIMES)
def test_a_server_that_waits_waits_for_its_batch_too(law, bound, batch):
    rule = protocols.bounded_staleness(bound, late="wait", batch=batch)
    for seed in SEEDS:
        times = times_of(law, 7, seed)
        updates, _ = oracle.bounded_staleness(times, bound, "wait", batch, UPDATES)
        oracle.assert_same(simulate(times, rule), updates)
        assert min(len(rows) for _, rows in updates) >= batch
