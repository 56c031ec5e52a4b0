"""Seconds an update are those of simulations."""

import dataclasses
import math

import pytest

from delayjax import cluster, stability
from delayjax.cluster import protocols
from delayjax.stability import service_times, update_times

P = 8
LAWS = {
    "exponential": (service_times.exponential(2.0), cluster.exponential(2.0)),
    "shifted": (
        service_times.shifted_exponential(1.0, 2.0),
        cluster.shifted_exponential(1.0, 2.0),
    ),
    "pareto": (service_times.pareto(2.0, 3.0), cluster.pareto(2.0, 3.0)),
    "uniform": (
        service_times.uniform(0.0, 4.0),
        cluster.independent(lambda rng, size: rng.uniform(0.0, 4.0, size)),
    ),
    "constant": (service_times.empirical([3.0]), cluster.constant(3.0)),
}


def simulated(service, rule):
    updates = 12_000
    trace = cluster.simulate(cluster.Cluster(P, service), rule, updates, seed=1)
    return trace.seconds[-1] / updates


@pytest.mark.parametrize("k", [3, 8])
@pytest.mark.parametrize("name", LAWS)
def test_an_update_takes_as_long_as_in_a_simulation(name, k):
    times, service = LAWS[name]
    for scheme in ("k_batch_sync", "k_batch_async"):
        seconds = getattr(update_times, f"{scheme}_seconds")(k, P, times)
        rule = getattr(protocols, scheme)(k)
        assert simulated(service, rule) == pytest.approx(seconds, rel=0.01), scheme


@pytest.mark.parametrize(
    ("name", "k"),
    [("exponential", 3), *((name, k) for name in LAWS for k in (1, P))],
)
def test_k_async_takes_as_long_as_in_a_simulation(name, k):
    times, service = LAWS[name]
    seconds = update_times.k_async_seconds(k, P, times)
    found = simulated(service, protocols.k_async(k))
    assert found == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize("name", ["shifted", "uniform"])
def test_used_tasks_that_are_sooner_done_put_k_async_between_two_bounds(name):
    times, service = LAWS[name]
    seconds = simulated(service, protocols.k_async(3))
    assert update_times.k_batch_async_seconds(3, P, times) < seconds
    assert seconds < update_times.k_sync_seconds(3, P, times)


@pytest.mark.parametrize(("k", "workers"), [(2, 2), (3, 8), (8, 8), (5, 13), (2, 64)])
def test_the_renewal_integral_of_memoryless_times_is_the_closed_form(k, workers):
    exponential = service_times.exponential(2.0)
    on_a_grid = dataclasses.replace(exponential, memoryless=False)
    found = update_times.k_batch_sync_seconds(k, workers, on_a_grid)
    closed = update_times.k_batch_sync_seconds(k, workers, exponential)
    assert found == pytest.approx(closed, rel=1e-4)


def test_schemes_meet_where_they_are_the_same():
    times, _ = LAWS["uniform"]
    # one gradient an update: the first of all, or whoever is next
    assert update_times.k_batch_sync_seconds(
        1, P, times
    ) == update_times.k_sync_seconds(1, P, times)
    assert update_times.k_async_seconds(1, P, times) == (
        update_times.k_batch_async_seconds(1, P, times)
    )
    assert update_times.k_async_seconds(P, P, times) == update_times.k_sync_seconds(
        P, P, times
    )


def test_nobody_waits_longer_than_for_k_different_workers():
    for times, _ in LAWS.values():
        for k in range(2, P + 1):
            different = update_times.k_sync_seconds(k, P, times)
            any_of_them = update_times.k_batch_sync_seconds(k, P, times)
            first = update_times.k_sync_seconds(1, P, times)
            slack = 1 + 1e-4
            assert first <= any_of_them * slack
            assert any_of_them <= different * slack


def test_full_synchrony_costs_p_harmonic_numbers_a_gradient():
    times = service_times.exponential(2.0)
    together = update_times.k_sync_seconds(P, P, times)
    alone = update_times.k_async_seconds(1, P, times)
    harmonic = math.fsum(1 / k for k in range(1, P + 1))
    assert together / alone == pytest.approx(P * harmonic)


def test_a_tail_too_heavy_for_the_first_worker_takes_for_ever():
    heavy = service_times.pareto(1.0, 0.1)
    assert update_times.k_batch_sync_seconds(2, P, heavy) == math.inf
    assert update_times.k_batch_async_seconds(2, P, heavy) == math.inf


@pytest.mark.parametrize("scheme", ["k_sync", "k_async", "k_batch_sync"])
@pytest.mark.parametrize(("k", "rule"), [(0, "at least 1"), (9, "lie in 1 .. 8")])
def test_more_gradients_than_workers_are_refused(scheme, k, rule):
    function = getattr(update_times, f"{scheme}_seconds")
    with pytest.raises(ValueError, match=f"`k` must .*{rule}.* got {k}"):
        function(k, P, LAWS["exponential"][0])
    with pytest.raises(ValueError, match="`workers` must be at least 1, got 0"):
        function(1, 0, LAWS["exponential"][0])


@pytest.mark.parametrize(
    "scheme", ["k_sync", "k_async", "k_batch_sync", "k_batch_async"]
)
@pytest.mark.parametrize(
    "times", [cluster.exponential(1.0), stability.exponential_delay(1.0), 1.0]
)
def test_laws_of_another_kind_are_refused(scheme, times):
    function = getattr(update_times, f"{scheme}_seconds")
    message = r"`times` must be of stability.service_times, .*exponential\(1.0\), got"
    with pytest.raises(TypeError, match=message):
        function(2, 4, times)


def test_what_has_no_closed_form_is_refused_with_bounds_to_take():
    with pytest.raises(ValueError, match=r"`times` must be memoryless .* as bounds"):
        update_times.k_async_seconds(3, P, LAWS["pareto"][0])
    with pytest.raises(ValueError, match="`times` must not have so heavy a tail"):
        update_times.k_batch_sync_seconds(2, 2, service_times.pareto(1.0, 0.6))
