import itertools

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols

MACHINES = {
    "exponential": cluster.Cluster(4, cluster.exponential(1.0)),
    "a slow one": cluster.Cluster(4, cluster.exponential(1.0), [1.0, 4.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rounds_hold_all_visits_in_order_and_are_as_long_as_can_be(name, seed):
    trace = cluster.simulate(MACHINES[name], protocols.k_async(1), 60, seed=seed)
    visits = cluster.visits_to_rounds(trace.worker, trace.num_workers)
    queues = [np.argsort(row)[: np.isfinite(row).sum()] for row in visits]
    np.testing.assert_array_equal(np.concatenate(queues), trace.worker)
    for queue, row in zip(queues, visits, strict=True):
        np.testing.assert_array_equal(np.diff(row[queue]), 1)
    for queue, after in itertools.pairwise(queues):
        assert after[0] in queue


@pytest.mark.parametrize("workers", [1, 4, 16, 64])
def test_exponential_times_fill_a_round_as_birthdays_fill_a_year(workers):
    """Draws until one comes twice: sum_k P! / ((P - k)! P^k)."""
    drawn = np.random.default_rng(1).integers(0, workers, 20_000)
    held = np.isfinite(cluster.visits_to_rounds(drawn, workers)).sum(axis=1)
    shares = 1 - np.arange(workers) / workers
    expected = np.cumprod(shares).sum()
    deviation = held.std() / np.sqrt(len(held))
    assert abs(held.mean() - expected) <= 4 * deviation + workers / len(held)
    if workers == 64:
        assert expected == pytest.approx(np.sqrt(np.pi * workers / 2), rel=0.05)
