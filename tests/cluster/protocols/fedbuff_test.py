import math

import numpy as np
import pytest

from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.given_times import (
    SEEDS,
    TASKS,
    TIMES,
    UPDATES,
    simulate,
    times_of,
)


@pytest.mark.parametrize("buffer", [1, 4])
@pytest.mark.parametrize("concurrency", [1, 3, 6])
def test_fedbuff_is_its_twin_whichever_clients_it_draws(concurrency, buffer):
    protocol = protocols.fedbuff(buffer, concurrency=concurrency)
    for seed, kind in enumerate(TIMES):
        times = times_of(kind, 7, seed)
        trace = simulate(times, protocol, seed=seed)
        # later updates, for the clients that still train at the end
        longer = simulate(times, protocol, 4 * UPDATES, seed=seed)
        starts = longer.worker[np.argsort(longer.begun, kind="stable")]
        twin = oracle.fedbuff(times, starts, concurrency, buffer, UPDATES)
        oracle.assert_same(trace, twin)


@pytest.mark.parametrize("seed", SEEDS)
def test_fedbuff_draws_each_idle_client_alike(seed):
    # the rank of each started client among the P - C + 1 that idle, sorted by number
    p, running, n = 9, 4, 6000
    trace = simulate(
        times_of("exponential", p, seed),
        protocols.fedbuff(2, concurrency=running),
        n // 2,
        seed=seed,
    )
    order = np.argsort(trace.begun, kind="stable")
    starts, ends = trace.worker[order], trace.arrived[order]
    begun, ranks = trace.begun[order], []
    settled = begun < begun[-1] / 2  # whatever trains then has arrived by the end
    for j in np.flatnonzero(settled)[running:]:
        busy = starts[:j][ends[:j] > begun[j]]
        assert len(busy) == running - 1
        idle = np.setdiff1d(np.arange(p), busy)
        ranks.append(np.searchsorted(idle, starts[j]))
        assert idle[ranks[-1]] == starts[j]
    cells = p - running + 1
    # consecutive pairs of ranks are uniform: chi-square at 4 standard deviations
    ranks = np.array(ranks[: len(ranks) // 2 * 2])
    counts = np.bincount(ranks[::2] * cells + ranks[1::2], minlength=cells**2)
    expected = counts.mean()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = cells**2 - 1
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


def test_fedbuff_s_first_clients_are_drawn_as_well_and_the_seed_decides():
    times = np.ones((20, TASKS))
    protocol = protocols.fedbuff(1, concurrency=5)
    first = [tuple(simulate(times, protocol, 5, seed=s).worker) for s in (*SEEDS, 1)]
    assert first[0] == first[3] and len(set(first)) == 3
    assert all(len(set(clients)) == 5 for clients in first)
