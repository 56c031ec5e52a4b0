import itertools

import numpy as np
import pytest

import delayjax as dj
from delayjax import cluster
from tests.exchange.driving import (
    WORKERS,
)

VISITS = 60
SLOWDOWNS = {"exponential": [1.0, 1.0, 1.0, 1.0], "a slow one": [1.0, 4.0, 1.0, 1.0]}


def cluster_of(slowdown):
    service = dj.cluster.exponential(1.0)
    return dj.cluster.Cluster(WORKERS, service, slowdown=SLOWDOWNS[slowdown])


def traced(slowdown, *, visits=VISITS, seed=1):
    protocol = dj.cluster.protocols.k_async(1)
    return dj.cluster.simulate(cluster_of(slowdown), protocol, visits, seed=seed)


@pytest.mark.parametrize("slowdown", SLOWDOWNS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rounds_hold_all_visits_in_order_and_are_as_long_as_can_be(slowdown, seed):
    trace = traced(slowdown, seed=seed)
    visits = cluster.visits_to_rounds(trace.worker, trace.num_workers)
    queues = [np.argsort(row)[: np.isfinite(row).sum()] for row in visits]
    np.testing.assert_array_equal(np.concatenate(queues), trace.worker)
    for queue, row in zip(queues, visits, strict=True):
        np.testing.assert_array_equal(np.diff(row[queue]), 1)
    for queue, after in itertools.pairwise(queues):
        assert after[0] in queue


def test_equal_workers_make_full_rounds():
    five = dj.cluster.Cluster(5, dj.cluster.constant(2.0))
    trace = dj.cluster.simulate(five, dj.cluster.protocols.k_async(1), 30, seed=0)
    visits = cluster.visits_to_rounds(trace.worker, 5)
    np.testing.assert_array_equal(np.sort(visits), np.arange(30).reshape(6, 5))


@pytest.mark.parametrize("workers", [1, 4, 16, 64])
def test_exponential_times_fill_a_round_as_birthdays_fill_a_year(workers):
    """Draws until one comes twice: sum_k P! / ((P - k)! P^k)."""
    drawn = np.random.default_rng(1).integers(0, workers, 40_000)
    held = np.isfinite(cluster.visits_to_rounds(drawn, workers)).sum(axis=1)
    shares = 1 - np.arange(workers) / workers
    expected = np.cumprod(shares).sum()
    deviation = held.std() / np.sqrt(len(held))
    assert abs(held.mean() - expected) <= 4 * deviation + workers / len(held)
    if workers == 64:
        assert expected == pytest.approx(np.sqrt(np.pi * workers / 2), rel=0.05)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: cluster.visits_to_rounds([0.0, 1.0], 2),
            ValueError,
            r"`workers` must be a vector of integers in 0 .. 1, got \[0.0, 1.0\]",
        ),
        (
            lambda: cluster.visits_to_rounds([[0], [1]], 2),
            ValueError,
            r"`workers` must be a vector of integers in 0 .. 1, got \[\[0\], \[1\]\]",
        ),
        (
            lambda: cluster.visits_to_rounds([], 2),
            ValueError,
            r"`workers` must be a vector of integers in 0 .. 1, got \[\]",
        ),
        (
            lambda: cluster.visits_to_rounds([0, 2], 2),
            ValueError,
            r"`workers` must be .* in 0 .. 1, got \[0, 2\]",
        ),
        (
            lambda: cluster.visits_to_rounds([-1, 0], 2),
            ValueError,
            r"`workers` must be .* in 0 .. 1, got \[-1, 0\]",
        ),
        (
            lambda: cluster.visits_to_rounds([0], 0),
            ValueError,
            "`num_workers` must be at least 1, got 0",
        ),
        (
            lambda: cluster.visits_to_rounds([[0], [1, 0]], 2),
            TypeError,
            "`workers` must have rows of one length",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
