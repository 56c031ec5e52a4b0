import dataclasses
import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster.given_times import SEEDS, simulate
from tests.support.cases import shortened


@pytest.mark.parametrize("seed", shortened(SEEDS, SEEDS[0]))
@pytest.mark.parametrize(("sample", "bound"), [(1, 0), (2, 1), (4, 0), (4, 2)])
def test_sampled_barriers_let_pass_as_often_as_the_draw_says(sample, bound, seed):
    # A worker with c tasks and L of the P - 1 others lagging it starts when the
    # r-th of these (in the order in which they catch up) has: with probability
    # P(rank <= r) = C(P - 1 - (L - r), b) / C(P - 1, b).
    p, n = 8, 4000
    rng = np.random.default_rng(seed)
    times = 0.3 + rng.exponential(1.0, (p, n))
    trace = simulate(times, protocols.psp(sample, bound), n, seed=seed)
    begun, ends = (
        [column[trace.worker == w] for w in range(p)]
        for column in (trace.begun, trace.arrived)
    )
    excess = variance = passed = passes = spread = 0.0
    for w in range(p):
        for c in range(1, len(ends[w])):
            now = ends[w][c - 1]
            catch_up = []
            for v in set(range(p)) - {w}:
                if c - np.searchsorted(ends[v], now, side="right") > bound:
                    when = c - bound - 1
                    catch_up.append(ends[v][when] if when < len(ends[v]) else math.inf)
            catch_up.sort()
            rank = [i for i, at in enumerate([now, *catch_up]) if at == begun[w][c]]
            assert len(rank) == 1, "it starts at its own or at a catching-up's moment"
            lagging = len(catch_up)
            below = np.array(
                [
                    math.comb(p - 1 - lagging + r, sample) / math.comb(p - 1, sample)
                    for r in range(lagging + 1)
                ]
            )
            chance = np.diff(below, prepend=0.0)
            mean = chance @ np.arange(lagging + 1)
            excess += rank[0] - mean
            variance += chance @ (np.arange(lagging + 1) - mean) ** 2
            passed += rank[0] == 0
            passes += chance[0]
            spread += chance[0] * (1 - chance[0])
    assert variance > 50 and spread > 50
    assert abs(excess) < 4 * math.sqrt(variance)
    assert abs(passed - passes) < 4 * math.sqrt(spread)


def test_polls_weaken_a_sampled_barrier_to_about_ssp():
    # Wang et al., arXiv:1709.07772, figures: with a sample drawn anew again and again,
    # pBSP(4) is about as fast as SSP(4); with a sample that is kept it is far slower
    workers = cluster.Cluster(100, cluster.exponential(2.0))

    def steps(protocol):
        trace = cluster.simulate(workers, protocol, 10**6, seed=0, seconds=60.0)
        return trace.summary().gradients.mean()

    polled = steps(protocols.psp(4, 0, poll_seconds=0.1))
    assert abs(polled / steps(protocols.ssp(4)) - 1) < 0.3
    assert steps(protocols.psp(4, 0)) < 0.6 * polled
    assert steps(protocols.psp(10, 0, poll_seconds=0.1)) < polled


@pytest.mark.parametrize("sample", [6, 7])
@pytest.mark.parametrize("poll_seconds", [math.inf, 0.3])
def test_a_sample_of_all_others_is_ssp_to_the_last_event(
    sample, poll_seconds, monkeypatch
):
    workers = cluster.Cluster(7, cluster.exponential(1.0))
    theirs = cluster.simulate(workers, protocols.ssp(2), 300, seed=1)
    # nobody polls: what a poll could see is seen without it
    monkeypatch.setattr(cluster.Server, "wake", None)
    protocol = protocols.psp(sample, 2, poll_seconds=poll_seconds)
    ours = cluster.simulate(workers, protocol, 300, seed=1)
    for field in dataclasses.fields(cluster.Trace):
        if field.name != "dropped":
            np.testing.assert_array_equal(
                getattr(ours, field.name), getattr(theirs, field.name)
            )


def test_a_sample_of_all_others_costs_what_ssp_costs(monkeypatch):
    # 60 times as long for a hundred workers, when each looked at every other one
    draws = []
    monkeypatch.setattr(
        "random.Random.sample", lambda self, *arguments: draws.append(arguments)
    )
    workers = cluster.Cluster(100, cluster.exponential(1.0))
    cluster.simulate(workers, protocols.psp(100, 0), 500, seed=0)
    assert not draws
