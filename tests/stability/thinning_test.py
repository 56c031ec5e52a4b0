"""Thresholds and triggers keep what they keep on simulated clusters."""

import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from delayjax.stability import first_passage, thinning

P = 16
UPDATES = 20_000


def simulated(service, rule, *, slowdown=None):
    machine = cluster.Cluster(P, service, slowdown=slowdown)
    return cluster.simulate(machine, rule, UPDATES, seed=1)


def rate_of(trace):
    return trace.num_updates / trace.seconds[-1]


def share_of(trace):
    refused = len(trace.dropped.version)
    return trace.num_updates / (trace.num_updates + refused)


TIMES = {
    "exponential": (cluster.exponential(1.0), None, (4, 10, 20)),
    "gamma": (cluster.gamma(1.0, 4), None, (8, 15, 20)),
    "lognormal": (cluster.lognormal(1.0, 0.3), None, (8, 15, 20)),
    "a slow worker": (cluster.gamma(1.0, 4), [8.0] + [1.0] * 15, (8, 20)),
}


@pytest.mark.parametrize("name", TIMES)
def test_a_threshold_keeps_the_share_that_a_simulation_keeps(name):
    service, slowdown, bounds = TIMES[name]
    free = simulated(service, protocols.k_async(1), slowdown=slowdown)
    pmf = free.staleness_law().pmf
    for bound in bounds:
        kept = thinning.staleness_threshold(pmf, bound)
        trace = simulated(
            service, protocols.bounded_staleness(bound), slowdown=slowdown
        )
        # drops are not quite independent, of regular times least
        near = 0.055 if name == "lognormal" else 0.03
        assert kept.accepted == pytest.approx(share_of(trace), abs=0.012)
        assert kept.mean == pytest.approx(trace.summary().mean, rel=near)
        rate = kept.accepted * rate_of(free)
        assert rate_of(trace) == pytest.approx(rate, rel=0.03)


@pytest.mark.parametrize("bound", [0, 3, 15, 60])
def test_memoryless_workers_keep_a_share_that_solves_one_equation(bound):
    # thinned by q, a geometric law of mean P - 1 is one of mean (P - 1) q
    ages = np.arange(2000)
    pmf = (1 - 1 / P) ** ages / P
    kept = thinning.staleness_threshold(pmf / pmf.sum(), bound)
    mean = (P - 1) * kept.accepted
    assert kept.accepted == pytest.approx(1 - (mean / (1 + mean)) ** (bound + 1))
    geometric = (mean / (1 + mean)) ** np.arange(bound + 1)
    np.testing.assert_allclose(kept.pmf, geometric / geometric.sum(), rtol=1e-6)


def test_a_threshold_above_all_ages_changes_nothing():
    pmf = np.array([0.2, 0.3, 0.5, 0.0])
    for bound in (2, 3, 99):
        kept = thinning.staleness_threshold(pmf, bound)
        assert kept.accepted == 1.0
        np.testing.assert_allclose(kept.pmf, pmf[:3], rtol=1e-12)


def test_a_lower_threshold_keeps_less_and_fresher():
    pmf = np.full(9, 1 / 9)
    kept = [thinning.staleness_threshold(pmf, bound) for bound in range(9)]
    assert (np.diff([k.accepted for k in kept]) > 0).all()
    assert (np.diff([k.mean for k in kept]) > 0).all()
    assert kept[0].mean == 0.0
    assert kept[-1].accepted == 1.0


@pytest.mark.parametrize("probability", [0.2, 0.5])
@pytest.mark.parametrize("name", ["exponential", "gamma"])
def test_a_trigger_thins_as_a_simulation_of_it(name, probability):
    service, _, _ = TIMES[name]
    pmf = simulated(service, protocols.k_async(1)).staleness_law().pmf
    kept = thinning.event_triggered(pmf, probability)
    rule = protocols.event_triggered(probability)
    trace = simulated(service, rule)
    assert kept.accepted == probability
    assert kept.mean == pytest.approx(probability * (P - 1), rel=0.01)
    assert trace.summary().mean == pytest.approx(kept.mean, rel=0.02)
    nu = first_passage.arrival_rate(P, 1.0, sent=probability)
    assert rate_of(trace) == pytest.approx(nu, rel=0.015)
    seen = trace.staleness_law().pmf
    size = min(len(seen), len(kept.pmf))
    apart = np.abs(np.cumsum(seen[:size]) - np.cumsum(kept.pmf[:size]))
    assert apart.max() < 0.02


def test_a_trigger_that_always_fires_changes_nothing():
    pmf = np.array([0.2, 0.3, 0.5])
    kept = thinning.event_triggered(pmf, 1.0)
    np.testing.assert_allclose(kept.pmf, pmf, rtol=1e-12)
    assert kept.mean == pytest.approx(0.3 + 2 * 0.5)


def test_a_law_of_float32_counts_as_one():
    pmf = np.full(7, 1 / 7, np.float32)
    assert thinning.event_triggered(pmf, 0.5).pmf.sum() == pytest.approx(1, rel=1e-12)
    exact = np.full(7, 1 / 7)
    shares = [
        thinning.staleness_threshold(p, 2).accepted for p in (exact, 0.9999995 * exact)
    ]
    assert shares[0] == pytest.approx(shares[1], rel=1e-12)


@pytest.mark.parametrize(
    ("pmf", "message"),
    [
        ([0.5, 0.4], "`pmf` must hold .* that sum to 1, got 0.9: lengthen"),
        ([0.5, math.inf], "`pmf` must hold finite, .* got inf"),
        ([1.5, -0.5], "`pmf` must hold .* non-negative .* got -0.5"),
        ([math.nan, 1.0], "`pmf` must hold finite, .* got nan"),
        ([], "`pmf` must hold .* that sum to 1, got 0"),
        ([[1.0]], r"`pmf` must be a row of the probabilities.* got shape \(1, 1\)"),
        (1.0, r"`pmf` must be a row of the probabilities.* got shape \(\)"),
    ],
)
def test_what_is_no_law_is_refused(pmf, message):
    with pytest.raises(ValueError, match=message):
        thinning.staleness_threshold(pmf, 1)
    with pytest.raises(ValueError, match=message):
        thinning.event_triggered(pmf, 0.5)


def test_impossible_thresholds_and_triggers_are_refused():
    with pytest.raises(ValueError, match="`bound` must be non-negative, got -1"):
        thinning.staleness_threshold([1.0], -1)
    with pytest.raises(TypeError, match=r"`bound` must be a static integer, got 1\.5"):
        thinning.staleness_threshold([1.0], 1.5)
    with pytest.raises(ValueError, match=r"`probability` must lie in .* got 0"):
        thinning.event_triggered([1.0], 0)
    with pytest.raises(TypeError, match="`probability` must be a number"):
        thinning.event_triggered([1.0], "often")


@pytest.mark.parametrize(
    "keep",
    [
        lambda pmf: thinning.staleness_threshold(pmf, 1),
        lambda pmf: thinning.event_triggered(pmf, 0.5),
    ],
)
@pytest.mark.parametrize(
    ("pmf", "error", "message"),
    [
        (["a"], TypeError, r"`pmf` must be a row of .*got \['a'\]"),
        ([False, True], TypeError, r"`pmf` must be a row of .*got \[False, True\]"),
        ([1 + 0j], TypeError, "`pmf` must be a row of"),
    ],
)
def test_what_is_no_law_is_refused_by_name(keep, pmf, error, message):
    with pytest.raises(error, match=message):
        keep(pmf)
