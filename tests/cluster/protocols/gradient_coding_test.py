import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.given_times import (
    SEEDS,
    UPDATES,
    contiguous,
    simulate,
    times_of,
)
from tests.support.cases import shortened


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2, 2)])
@pytest.mark.parametrize("load", [1, 2])
def test_gradient_coding_waits_for_the_slowest_cluster(sizes, load):
    p, clusters = sum(sizes), contiguous(sum(sizes), len(sizes))
    assert [len(members) for members in clusters] == list(sizes)
    times = times_of("straggler", p, 1)
    trace = simulate(times, protocols.gradient_coding(len(sizes), load))
    rounds = [
        oracle.gradient_coding_round(times[:, t], clusters, load)
        for t in range(UPDATES)
    ]
    np.testing.assert_allclose(trace.seconds, np.cumsum(rounds), rtol=1e-12)
    # every part of the data counts, once and undelayed
    assert (trace.counts == p).all() and (trace.divisor == p).all()
    assert (trace.staleness == 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_dynamic_clusters_deal_the_last_stragglers_out_evenly(seed):
    # P = 4, two clusters of two, load 2: a cluster is done with its first worker
    times = times_of("pareto", 4, seed)
    trace = simulate(times, protocols.gradient_coding(2, 2, dynamic=True))
    deals = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    lengths = np.diff(trace.seconds, prepend=0.0)
    late, choices = None, 0
    for t, length in enumerate(lengths):
        seconds = 2 * times[:, t]
        fair = [
            clusters
            for clusters in deals
            if late is None
            or max(sum(w in late for w in members) for members in clusters)
            <= math.ceil(len(late) / 2)
        ]
        fits = [
            clusters
            for clusters in fair
            if math.isclose(
                oracle.gradient_coding_round(times[:, t], clusters, 2),
                length,
                rel_tol=1e-9,
            )
        ]
        assert fits, f"no fair deal explains update {t}"
        choices += len(fair) < len(deals)
        late = set(np.flatnonzero(seconds > length * (1 + 1e-9)))
    assert choices > UPDATES / 4


@pytest.mark.parametrize("seed", shortened(SEEDS, SEEDS[0]))
def test_dynamic_clusters_help_where_stragglers_persist(seed):
    # papers B.14: faster than static with correlated stragglers, as fast without
    static = protocols.gradient_coding(5, 3)
    dynamic = protocols.gradient_coding(5, 3, dynamic=True)
    base = cluster.shifted_exponential(1.0, 0.1)
    persisting = cluster.markov_stragglers(base, 5.0, 0.02, 0.08)
    fleeting = cluster.markov_stragglers(base, 5.0, 0.2, 0.8)
    score = {}
    for name, service in {"persisting": persisting, "fleeting": fleeting}.items():
        spec = cluster.Cluster(20, service)
        # round t takes every worker's t-th task under both: a paired comparison, in
        # blocks much longer than a worker stays slow
        slower, faster = (
            np.diff(
                cluster.simulate(spec, protocol, 1500, seed=seed).seconds, prepend=0.0
            )
            for protocol in (static, dynamic)
        )
        saved = (slower - faster).reshape(30, 50).mean(1)
        score[name] = saved.mean() / (saved.std(ddof=1) / math.sqrt(30))
    assert score["persisting"] > 3
    assert abs(score["fleeting"]) < 3
