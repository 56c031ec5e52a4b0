"""The law of staleness on a cluster, and after bounds and triggers."""

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.support.cases import shortened

P = 16
UPDATES = 10_000


def simulated(service, protocol, *, slowdown=None):
    machine = cluster.Cluster(P, service, slowdown=slowdown)
    return cluster.simulate(machine, protocol, UPDATES, seed=1)


def rate_of(trace):
    return trace.num_updates / trace.seconds[-1]


def share_of(trace):
    refused = len(trace.dropped.version)
    return trace.num_updates / (trace.num_updates + refused)


TIMES = {
    "exponential": (cluster.exponential(1.0), None, (4, 20)),
    "gamma": (cluster.gamma(1.0, 4), None, (8, 15)),
    "lognormal": (cluster.lognormal(1.0, 0.3), None, (8, 15)),
    "a slow worker": (cluster.gamma(1.0, 4), [8.0] + [1.0] * 15, (8, 20)),
}


@pytest.mark.parametrize("name", TIMES)
def test_a_threshold_keeps_the_share_that_a_simulation_keeps(name):
    service, slowdown, bounds = TIMES[name]
    free = simulated(service, protocols.k_async(1), slowdown=slowdown)
    for bound in bounds:
        kept = free.staleness_law().filtered_by_bound(bound)
        trace = simulated(
            service, protocols.bounded_staleness(bound), slowdown=slowdown
        )
        # drops are not quite independent, least of all with regular times
        near = 0.055 if name == "lognormal" else 0.03
        assert kept.accepted == pytest.approx(share_of(trace), abs=0.012)
        assert kept.law.mean == pytest.approx(trace.summary().mean, rel=near)
        rate = kept.accepted * rate_of(free)
        assert rate_of(trace) == pytest.approx(rate, rel=0.03)


@pytest.mark.parametrize("bound", [0, 3, 15, 60])
def test_memoryless_workers_keep_a_share_that_solves_one_equation(bound):
    # thinned by q, a geometric law of mean P - 1 is one of mean (P - 1) q
    ages = np.arange(2000)
    pmf = (1 - 1 / P) ** ages / P
    kept = cluster.StalenessLaw(pmf / pmf.sum()).filtered_by_bound(bound)
    mean = (P - 1) * kept.accepted
    assert kept.accepted == pytest.approx(1 - (mean / (1 + mean)) ** (bound + 1))
    geometric = (mean / (1 + mean)) ** np.arange(bound + 1)
    np.testing.assert_allclose(kept.law.pmf, geometric / geometric.sum(), rtol=1e-6)


def test_a_lower_threshold_keeps_less_and_fresher():
    law = cluster.StalenessLaw(np.full(9, 1 / 9))
    kept = [law.filtered_by_bound(bound) for bound in range(9)]
    assert (np.diff([k.accepted for k in kept]) > 0).all()
    assert (np.diff([k.law.mean for k in kept]) > 0).all()
    assert kept[0].law.mean == 0.0
    assert kept[-1].accepted == 1.0


@pytest.mark.parametrize("probability", shortened([0.2, 0.5], 0.5))
@pytest.mark.parametrize("name", ["exponential", "gamma"])
def test_a_trigger_thins_as_a_simulation_of_it(name, probability):
    service, _, _ = TIMES[name]
    law = simulated(service, protocols.k_async(1)).staleness_law()
    kept = law.filtered_at_random(probability)
    protocol = protocols.event_triggered(probability)
    trace = simulated(service, protocol)
    assert kept.accepted == probability
    assert kept.law.mean == pytest.approx(probability * (P - 1), rel=0.01)
    assert trace.summary().mean == pytest.approx(kept.law.mean, rel=0.02)
    nu = cluster.arrival_rate(P, 1.0, sent=probability)
    assert rate_of(trace) == pytest.approx(nu, rel=0.015)
    seen = trace.staleness_law().pmf
    size = min(len(seen), len(kept.law.pmf))
    gaps = np.abs(np.cumsum(seen[:size]) - np.cumsum(kept.law.pmf[:size]))
    assert gaps.max() < 0.02


def test_what_refuses_nothing_changes_nothing():
    pmf = np.array([0.2, 0.3, 0.5, 0.0])
    law = cluster.StalenessLaw(pmf)
    for kept in (
        *(law.filtered_by_bound(bound) for bound in (2, 3, 99)),
        law.filtered_at_random(1.0),
    ):
        assert kept.accepted == 1.0
        np.testing.assert_allclose(kept.law.pmf[:3], pmf[:3], rtol=1e-12)
        assert kept.law.mean == pytest.approx(0.3 + 2 * 0.5)


def test_a_law_of_float32_counts_as_one():
    law = cluster.StalenessLaw(np.full(7, 1 / 7, np.float32))
    assert law.pmf.dtype == np.float64
    for pmf in (law.pmf, law.filtered_at_random(0.5).law.pmf):
        assert pmf.sum() == pytest.approx(1, rel=1e-12)
    exact = np.full(7, 1 / 7)
    shares = [
        cluster.StalenessLaw(pmf).filtered_by_bound(2).accepted
        for pmf in (exact, 0.9999995 * exact)
    ]
    assert shares[0] == pytest.approx(shares[1], rel=1e-12)


def test_a_law_has_the_moments_of_its_draws():
    rng = np.random.default_rng(1)
    draws = rng.poisson(3.0, 5000)
    law = cluster.StalenessLaw(np.bincount(draws) / draws.size)
    assert law.mean == pytest.approx(draws.mean(), rel=1e-12)
    assert law.variance == pytest.approx(draws.var(), rel=1e-12)
