"""Seconds an update are those of simulations."""

import dataclasses
import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster.protocols import k_async, k_batch_async, k_batch_sync, k_sync

P = 8
TIMES = {
    "exponential": cluster.exponential(2.0),
    "shifted": cluster.shifted_exponential(1.0, 2.0),
    "pareto": cluster.pareto(2.0, 3.0),
    "uniform": cluster.uniform(0.0, 4.0),
    "constant": cluster.constant(3.0),
}


def simulated(times, protocol):
    updates = 12_000
    trace = cluster.simulate(cluster.Cluster(P, times), protocol, updates, seed=1)
    return trace.seconds[-1] / updates


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        *((k_batch_sync(3), name) for name in ("exponential", "pareto", "uniform")),
        # of any times, by the twins: order statistics, and a sum of rates
        (k_sync(3), "pareto"),
        (k_batch_async(3), "shifted"),
        (k_async(3), "exponential"),  # a used task is as good as a new one
        (k_async(1), "uniform"),
    ],
)
def test_an_update_takes_as_long_as_in_a_simulation(scheme, name):
    seconds = scheme.update_seconds(P, TIMES[name])
    assert simulated(TIMES[name], scheme) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize("name", ["shifted", "uniform"])
def test_used_tasks_that_are_sooner_done_put_k_async_between_two_bounds(name):
    times = TIMES[name]
    seconds = simulated(times, k_async(3))
    assert k_batch_async(3).update_seconds(P, times) < seconds
    assert seconds < 0.95 * k_sync(3).update_seconds(P, times)


@pytest.mark.parametrize(("k", "workers"), [(2, 2), (3, 8), (8, 8), (5, 13), (2, 64)])
def test_the_renewal_integral_of_memoryless_times_is_the_closed_form(k, workers):
    exponential = cluster.exponential(2.0)
    on_a_grid = dataclasses.replace(exponential, stages=None)
    result = k_batch_sync(k).update_seconds(workers, on_a_grid)
    closed = k_batch_sync(k).update_seconds(workers, exponential)
    assert result == pytest.approx(closed, rel=1e-4)
    assert closed == 2.0 * k / workers


def test_the_mean_of_few_values_is_a_sum():
    # two gradients of two workers: after 1 s in 1/4 of the cases, 2 s in 1/4, else 3 s
    either = cluster.empirical([1.0, 3.0])
    expected = 1 / 4 + 2 / 4 + 3 / 2
    result = k_batch_sync(2).update_seconds(2, either)
    assert result == pytest.approx(expected, rel=1e-3)
    result = k_batch_sync(3).update_seconds(P, TIMES["constant"])
    assert result == pytest.approx(3.0, rel=1e-3)


def test_schemes_meet_where_they_are_the_same():
    def seconds(scheme):
        return scheme.update_seconds(P, TIMES["uniform"])

    # one gradient an update: the first of all, or whoever is next
    assert seconds(k_batch_sync(1)) == seconds(k_sync(1))
    assert seconds(k_async(1)) == seconds(k_batch_async(1))
    assert seconds(k_async(P)) == seconds(k_sync(P))


@pytest.mark.parametrize("name", ["exponential", "pareto", "constant"])
def test_a_server_that_waits_for_all_workers_is_synchronous(name):
    def trace(protocol):
        return cluster.simulate(cluster.Cluster(P, TIMES[name]), protocol, 50, seed=1)

    asynchronous, synchronous = trace(k_async(P)), trace(k_sync(P))
    assert asynchronous.staleness.max() == 0
    for field in ("seconds", "worker", "update"):
        expected = getattr(synchronous, field)
        np.testing.assert_array_equal(getattr(asynchronous, field), expected)


def test_no_worker_waits_longer_than_for_k_different_workers():
    for times in TIMES.values():
        first = k_sync(1).update_seconds(P, times)
        for k in range(2, P + 1):
            different = k_sync(k).update_seconds(P, times)
            any_of_them = k_batch_sync(k).update_seconds(P, times)
            slack = 1 + 1e-4
            assert first <= any_of_them * slack
            assert any_of_them <= different * slack


def test_full_synchrony_costs_p_harmonic_numbers_a_gradient():
    harmonic = math.fsum(1 / k for k in range(1, P + 1))
    for times, expected in {
        cluster.exponential(2.0): harmonic,
        cluster.shifted_exponential(2.0, 2.0): (1 + harmonic) / 2,
    }.items():
        together = k_sync(P).update_seconds(P, times)
        apart = k_async(1).update_seconds(P, times)
        assert together / apart == pytest.approx(P * expected)


def test_a_tail_too_heavy_for_the_first_worker_takes_for_ever():
    heavy = cluster.pareto(1.0, 0.1)
    assert k_batch_sync(2).update_seconds(P, heavy) == math.inf
    assert k_batch_async(2).update_seconds(P, heavy) == math.inf
