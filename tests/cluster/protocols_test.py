import functools
import math
from collections import Counter

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.support.cases import shortened

SEEDS = [1, 2, 3]
UPDATES = 120
TASKS = 12_000  # MindFlayer draws 10 000 tasks of each worker beforehand

# no two multiples of these meet
STAGGERED = np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0])

TIMES = {
    "constant": lambda rng, p: np.tile(STAGGERED[:p, None], TASKS),
    "exponential": lambda rng, p: rng.exponential(1.0, (p, TASKS)),
    "pareto": lambda rng, p: 1 + rng.pareto(2.5, (p, TASKS)),
    "straggler": lambda rng, p: (
        rng.gamma(4.0, 1 / 4, (p, TASKS))
        * np.where(np.arange(p) == p // 2, 9.0, 1.0)[:, None]
    ),
}


def contiguous(p, n):
    return [[int(w) for w in members] for members in np.array_split(np.arange(p), n)]


@functools.cache
def times_of(law, p, seed):
    return TIMES[law](np.random.default_rng(seed), p)


def simulate(times, rule, num_updates=UPDATES, *, seed=0, **keywords):
    spec = cluster.Cluster(len(times), oracle.given(times), **keywords)
    return cluster.simulate(spec, rule, num_updates, seed=seed)


# name: (the rule for P workers, its twin)
ACCEPTING = {
    "hardsync": (
        lambda p: protocols.hardsync(),
        lambda times, p: oracle.k_sync(times, p, UPDATES),
    ),
    "1-softsync": (
        lambda p: protocols.n_softsync(1),
        lambda times, p: oracle.k_batch_async(times, p, UPDATES),
    ),
    "2-softsync": (
        lambda p: protocols.n_softsync(min(2, p)),
        lambda times, p: oracle.k_batch_async(times, p // min(2, p), UPDATES),
    ),
    "P-softsync": (
        lambda p: protocols.n_softsync(p),
        lambda times, p: oracle.k_batch_async(times, 1, UPDATES),
    ),
    **{
        f"{family}({name})": (
            lambda p, family=family, k=k: getattr(protocols, family)(k(p)),
            lambda times, p, family=family, k=k: getattr(oracle, family)(
                times, k(p), UPDATES
            ),
        )
        for family in ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
        for name, k in {
            "1": lambda p: 1,
            "2": lambda p: min(2, p),
            "P - 1": lambda p: max(1, p - 1),
            "p": lambda p: p,
        }.items()
    },
    **{
        f"ssp({bound})": (
            lambda p, bound=bound: protocols.ssp(bound),
            lambda times, p, bound=bound: oracle.ssp(times, bound, UPDATES),
        )
        for bound in (0, 1, 3, math.inf)
    },
    "psp(0, 1)": (
        lambda p: protocols.psp(0, 1),
        lambda times, p: oracle.ssp(times, math.inf, UPDATES),
    ),
    "psp(P - 1, 2)": (
        lambda p: protocols.psp(p - 1, 2),
        lambda times, p: oracle.ssp(times, 2, UPDATES),
    ),
    "psp(P, 0)": (
        lambda p: protocols.psp(p, 0),
        lambda times, p: oracle.ssp(times, 0, UPDATES),
    ),
    **{
        f"fedbuff({buffer}, concurrency=P)": (  # nothing is left to draw
            lambda p, buffer=buffer: protocols.fedbuff(buffer, concurrency=p),
            lambda times, p, buffer=buffer: oracle.k_batch_async(
                times, buffer, UPDATES
            ),
        )
        for buffer in (1, 3, 10)
    },
    "round_robin": (
        lambda p: protocols.round_robin(),
        lambda times, p: oracle.round_robin(times, UPDATES),
    ),
    **{
        f"groups({name})": (
            lambda p, g=g: protocols.groups(g(p)),
            lambda times, p, g=g: oracle.groups(times, contiguous(p, g(p)), UPDATES),
        )
        for name, g in {
            "1": lambda p: 1,
            "3": lambda p: min(3, p),
            "p": lambda p: p,
        }.items()
    },
    "ringleader": (
        lambda p: protocols.ringleader(),
        lambda times, p: oracle.ringleader(times, UPDATES),
    ),
    "mindflayer(2, 1.5)": (
        lambda p: protocols.mindflayer(2, 1.5),
        lambda times, p: oracle.mindflayer(times, [2] * p, [1.5] * p, UPDATES),
    ),
    "mindflayer(w + 1, 1.5 + w / 4)": (
        lambda p: protocols.mindflayer(
            tuple(range(1, p + 1)), tuple(1.5 + w / 4 for w in range(p))
        ),
        lambda times, p: oracle.mindflayer(
            times, range(1, p + 1), [1.5 + w / 4 for w in range(p)], UPDATES
        ),
    ),
}


def bounded(bound, late, batch=1):
    return lambda times, p: oracle.bounded_staleness(times, bound, late, batch, UPDATES)


# name: (the rule, its twin that returns what was refused too)
REFUSING = {
    **{
        f"bounded_staleness({bound}, {late})": (
            protocols.bounded_staleness(bound, late=late),
            bounded(bound, late),
        )
        for bound in (0, 1, 4, 1000)
        for late in ("drop", "restart", "wait")
    },
    **{
        f"bounded_staleness({bound}, {late}, batch 3)": (
            protocols.bounded_staleness(bound, late=late, batch=3),
            bounded(bound, late, 3),
        )
        for bound in (0, 2)
        for late in ("drop", "restart")
    },
    "ringmaster(1)": (protocols.ringmaster(1), bounded(0, "drop")),
    "ringmaster(5)": (protocols.ringmaster(5), bounded(4, "drop")),
    "ringmaster(3, stop)": (protocols.ringmaster(3, stop=True), bounded(2, "restart")),
    "rennala(1)": (protocols.rennala(1), bounded(0, "drop", 1)),
    "rennala(4)": (protocols.rennala(4), bounded(0, "drop", 4)),
    "rennala(20)": (protocols.rennala(20), bounded(0, "drop", 20)),
}


@pytest.mark.parametrize("p", [1, 2, 7])
@pytest.mark.parametrize("law", TIMES)
@pytest.mark.parametrize("name", ACCEPTING)
def test_a_protocol_is_its_twin(name, law, p):
    rule, twin = ACCEPTING[name]
    for seed in SEEDS:
        times = times_of(law, p, seed)
        trace = simulate(times, rule(p))
        oracle.assert_same(trace, twin(times, p))
        assert trace.summary().dropped == 0


@pytest.mark.parametrize("p", [1, 2, 7])
@pytest.mark.parametrize("law", TIMES)
@pytest.mark.parametrize("name", REFUSING)
def test_a_protocol_that_refuses_is_its_twin(name, law, p):
    rule, twin = REFUSING[name]
    for seed in SEEDS:
        times = times_of(law, p, seed)
        trace = simulate(times, rule)
        updates, dropped = twin(times, p)
        oracle.assert_same(trace, updates)
        kept = trace.dropped
        assert [*zip(kept.version, kept.worker, kept.read_version, strict=True)] == [
            row[:3] for row in dropped
        ]
        np.testing.assert_allclose(
            kept.arrived, [row[3] for row in dropped], rtol=1e-12
        )
        assert trace.summary().dropped == len(dropped)


@pytest.mark.parametrize("buffer", [1, 4])
@pytest.mark.parametrize("concurrency", [1, 3, 6])
@pytest.mark.parametrize("law", TIMES)
def test_fedbuff_is_its_twin_whichever_clients_it_draws(law, concurrency, buffer):
    rule = protocols.fedbuff(buffer, concurrency=concurrency)
    for seed in SEEDS:
        times = times_of(law, 7, seed)
        trace = simulate(times, rule, seed=seed)
        # later updates, for the clients that still train at the end
        longer = simulate(times, rule, 4 * UPDATES, seed=seed)
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
    rule = protocols.fedbuff(1, concurrency=5)
    first = [tuple(simulate(times, rule, 5, seed=s).worker) for s in (*SEEDS, 1)]
    assert first[0] == first[3] and len(set(first)) == 3
    assert all(len(set(clients)) == 5 for clients in first)


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


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2, 2)])
@pytest.mark.parametrize("load", [1, 2])
@pytest.mark.parametrize("law", TIMES)
def test_gradient_coding_waits_for_the_slowest_cluster(law, sizes, load):
    p, clusters = sum(sizes), contiguous(sum(sizes), len(sizes))
    assert [len(members) for members in clusters] == list(sizes)
    times = times_of(law, p, 1)
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
    for name, law in {"persisting": persisting, "fleeting": fleeting}.items():
        spec = cluster.Cluster(20, law)
        # round t takes every worker's t-th task under both: a paired comparison, in
        # blocks much longer than a worker stays slow
        slower, faster = (
            np.diff(cluster.simulate(spec, rule, 1500, seed=seed).seconds, prepend=0.0)
            for rule in (static, dynamic)
        )
        saved = (slower - faster).reshape(30, 50).mean(1)
        score[name] = saved.mean() / (saved.std(ddof=1) / math.sqrt(30))
    assert score["persisting"] > 3
    assert abs(score["fleeting"]) < 3


@pytest.mark.parametrize("g", [2, 3, 6])
@pytest.mark.parametrize("law", TIMES)
def test_static_groups_stop_after_their_share(law, g):
    times = times_of(law, 6, 1)
    trace = simulate(times, protocols.groups(g, data="static"))
    members = contiguous(6, g)
    oracle.assert_same(
        trace, oracle.groups(times, members, UPDATES, [UPDATES // g] * g)
    )


def test_static_shares_that_do_not_divide_differ_by_one():
    trace = simulate(times_of("pareto", 5, 1), protocols.groups(5, data="static"), 13)
    assert trace.num_updates == 13
    assert sorted(trace.summary().gradients) == [2, 2, 3, 3, 3]


# Papers, I12: what coincides at the extremes of a parameter.
SAME = {
    "k_sync(P) = hardsync": (protocols.k_sync(5), protocols.hardsync()),
    "k_async(P) = hardsync": (protocols.k_async(5), protocols.hardsync()),
    "k_async(1) = k_batch_async(1)": (
        protocols.k_async(1),
        protocols.k_batch_async(1),
    ),
    "n_softsync(P) = ASGD": (protocols.n_softsync(5), protocols.k_async(1)),
    "ssp(inf) = ASGD": (protocols.ssp(math.inf), protocols.k_async(1)),
    "fedbuff(1, concurrency=P) = ASGD": (
        protocols.fedbuff(1, concurrency=5),
        protocols.k_async(1),
    ),
    "psp(0) = ASGD": (protocols.psp(0, 0), protocols.k_async(1)),
    "psp(P, 0) = ssp(0)": (protocols.psp(5, 0), protocols.ssp(0)),
    "psp(P, s) = ssp(s)": (protocols.psp(5, 3), protocols.ssp(3)),
    "psp(b, inf) = ASGD": (protocols.psp(2, math.inf), protocols.k_async(1)),
    "groups(1) = hardsync": (protocols.groups(1), protocols.hardsync()),
    "groups(P) = ASGD": (protocols.groups(5), protocols.k_async(1)),
    "progressive_groups(1) = hardsync": (
        protocols.progressive_groups(1),
        protocols.hardsync(),
    ),
    "ringmaster(huge) = ASGD": (protocols.ringmaster(10**9), protocols.k_async(1)),
    "wait(0) = hardsync": (
        protocols.bounded_staleness(0, late="wait"),
        protocols.hardsync(),
    ),
    "ringmaster(1) = rennala(1)": (protocols.ringmaster(1), protocols.rennala(1)),
    "gradient_coding(1, 1) waits as hardsync": (
        protocols.gradient_coding(1, 1),
        protocols.hardsync(),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_protocols_coincide_at_their_extremes(name):
    first, second = (simulate(times_of("straggler", 5, 2), rule) for rule in SAME[name])
    np.testing.assert_allclose(first.seconds, second.seconds, rtol=1e-12)
    one, other = (
        [sorted(rows) for _, rows in oracle.updates_of(trace)]
        for trace in (first, second)
    )
    assert one == other


def test_bulk_synchronous_clocks_are_rounds_of_a_barrier():
    # SSP's updates are single gradients: P of them a round, and the last of a
    # round is a hardsync update's moment
    times = times_of("straggler", 5, 1)
    single = simulate(times, protocols.ssp(0))
    barrier = simulate(times, protocols.hardsync(), UPDATES // 5)
    np.testing.assert_allclose(single.seconds[4::5], barrier.seconds, rtol=1e-12)


@pytest.mark.parametrize("stop", [False, True])
def test_serial_sgd_is_ringmaster_of_one(stop):
    trace = simulate(times_of("exponential", 3, 1), protocols.ringmaster(1, stop=stop))
    assert (trace.staleness == 0).all()


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


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("probability", [0.2, 0.7, 1.0])
def test_event_triggering_thins_the_arrivals(probability, seed):
    p, n = 4, 600
    times = times_of("exponential", p, seed)
    trace = simulate(times, protocols.event_triggered(probability), n, seed=seed)
    dropped = trace.dropped
    seen = sorted(
        (*row, record is trace)
        for record in (trace, dropped)
        for row in zip(record.arrived, record.worker, record.read_version, strict=True)
    )
    # the arrivals are plain ASGD's: P streams that never pause
    stream = sorted(
        (end, w) for w, row in enumerate(times) for end in np.cumsum(row[: len(seen)])
    )[: len(seen)]
    assert [row[1] for row in seen] == [w for _, w in stream]
    np.testing.assert_allclose(
        [row[0] for row in seen], [end for end, _ in stream], rtol=1e-12
    )
    # a worker reads at each arrival, uploaded or not
    version, read, versions = 0, [0] * p, []
    for _, w, read_version, uploaded in seen:
        assert read_version == read[w]
        if not uploaded:
            versions.append(version)
        version += uploaded
        read[w] = version
    assert list(dropped.version) == versions
    mean, deviation = probability * len(seen), probability * (1 - probability)
    assert abs(n - mean) <= 4 * math.sqrt(deviation * len(seen))


def test_mindflayer_divides_by_the_expected_successes():
    # p = 1 - exp(-c / Tm) from 10 000 draws: 4 binomial standard errors
    spec = cluster.Cluster(3, cluster.exponential(2.0))
    trials, allotted = (1, 2, 5), (0.5, 1.0, 3.0)
    trace = cluster.simulate(spec, protocols.mindflayer(trials, allotted), 50, seed=1)
    p = -np.expm1(-np.array(allotted) / 2)
    error = 4 * np.sqrt(np.square(trials) @ (p * (1 - p)) / 10_000)
    assert (trace.divisor == trace.divisor[0]).all()
    assert abs(trace.divisor[0] - np.dot(trials, p)) < error
    # unbiased: the gradients of an update, over B, are one on average
    long = cluster.simulate(spec, protocols.mindflayer(trials, allotted), 5000, seed=2)
    spread = np.dot(trials, p * (1 - p)) / 5000
    assert abs(long.counts.mean() - np.dot(trials, p)) < 4 * math.sqrt(spread)


def test_mindflayer_counts_on_the_speed_of_the_moment():
    # worker 0 is normal, slower, dead, faster; p = 1 - exp(-c / (factor Tm))
    phases = {0.0: 1.0, 500.0: 3.0, 1000.0: math.inf, 1500.0: 0.5}
    ends = [*phases, math.inf][1:]
    slow = [
        cluster.Slowdown(0, factor, start, end)
        for (start, factor), end in zip(phases.items(), ends, strict=True)
    ]
    spec = cluster.Cluster(2, cluster.exponential(1.0), slow)
    tries, limit = 2, 0.8
    trace = cluster.simulate(
        spec, protocols.mindflayer(tries, limit), 10**6, seed=1, seconds=2000.0
    )
    taken = trace.counts / trace.divisor
    for (start, factor), end in zip(phases.items(), ends, strict=True):
        # whole rounds of this phase
        inside = (trace.seconds > start + 2 * limit) & (trace.seconds <= end)
        p = np.array([-math.expm1(-limit / factor), -math.expm1(-limit)])
        expected, variance = tries * p.sum(), tries * (p * (1 - p)).sum()
        assert inside.sum() > 200
        error = 4 * tries * math.sqrt((p * (1 - p)).sum() / 10_000)
        assert abs(trace.divisor[inside] - expected).max() < error + 1e-12
        # unbiased in each
        spread = math.sqrt(variance / inside.sum()) / expected
        assert abs(taken[inside].mean() - 1) < 4 * spread + error / expected


def test_mindflayer_counts_on_both_speeds_of_a_trial_in_which_they_change():
    # a trial of 1 s, from 0.5 s on at a quarter of the speed: half is done at 0.5, the
    # whole at 2.5; the next one takes 4 s
    slow = [cluster.Slowdown(0, 4.0, start_seconds=0.5)]
    spec = cluster.Cluster(2, cluster.constant(1.0), slow)
    for limit, first in ((2.5, 2), (2.25, 1)):
        rule = protocols.mindflayer(1, limit)
        trace = cluster.simulate(spec, rule, 3, seed=0)
        assert list(trace.counts) == [first, 1, 1]
        np.testing.assert_array_equal(trace.divisor, trace.counts)
        np.testing.assert_allclose(trace.seconds, limit * np.arange(1, 4))


def test_mindflayer_makes_no_update_while_all_are_dead():
    gone = [cluster.Slowdown((0, 1), math.inf, 10.0, 20.0)]
    spec = cluster.Cluster(2, cluster.constant(1.0), gone)
    trace = cluster.simulate(spec, protocols.mindflayer(1, 1.0), 15, seed=0)
    np.testing.assert_allclose(trace.seconds, [*range(1, 11), *range(21, 26)])
    assert (trace.divisor == 2).all() and (trace.counts == 2).all()
    for_good = [cluster.Slowdown((0, 1), math.inf, 10.0)]
    spec = cluster.Cluster(2, cluster.constant(1.0), for_good)
    with pytest.raises(ValueError, match=r"`allotted_seconds` must let some trial"):
        cluster.simulate(spec, protocols.mindflayer(1, 1.0), 15, seed=0)


def test_a_trial_that_takes_all_its_time_succeeds():
    # p = P(T <= c), T of the worker as it is: the second one is slower
    spec = cluster.Cluster(2, cluster.constant(1.0), slowdown=(1.0, 2.0))
    for second, successes in ((2.0, 6), (1.5, 3)):
        rule = protocols.mindflayer(3, (1.0, second))
        trace = cluster.simulate(spec, rule, 4, seed=0)
        assert (trace.counts == successes).all() and (trace.divisor == successes).all()
        np.testing.assert_allclose(trace.seconds, 3 * second * np.arange(1, 5))


def test_mindflayer_may_come_back_empty_handed():
    times = [np.tile([1.0, 5.0], TASKS)]
    trace = simulate(times, protocols.mindflayer(1, 2.0), 6)
    # 1 s and success, then 2 s and none
    assert list(trace.counts) == [1, 0, 1, 0, 1, 0]
    np.testing.assert_allclose(trace.seconds, [1, 3, 4, 6, 7, 9], rtol=1e-12)
    np.testing.assert_allclose(trace.divisor, 0.5)
    assert (trace.staleness == [[0], [-1]] * 3).all()


def group_sizes(p, g):
    return {len(members) for members in contiguous(p, g)}


@pytest.mark.parametrize(("d", "tolerance", "g"), [(3.0, 0.2, 5), (1.0, 0.5, 2)])
def test_progressive_groups_grow_with_the_straggler(d, tolerance, g):
    assert math.ceil((1 + tolerance) / tolerance * d / (1 + d)) == g
    seconds = np.ones(8)
    seconds[7] = 1 + d
    times = np.tile(seconds[:, None], TASKS)
    # no ties between groups
    times *= 1 + 1e-3 * np.random.default_rng(1).random(times.shape)
    trace = simulate(times, protocols.progressive_groups(8, tolerance=tolerance), 60)
    assert (trace.counts[:20] == 8).all()
    assert set(trace.counts[22:40]) <= group_sizes(8, g)
    capped = simulate(
        times, protocols.progressive_groups(2, tolerance=tolerance, every=7), 60
    )
    assert (capped.counts[:7] == 8).all() and (capped.counts[9:] == 4).all()


def test_progressive_groups_compare_the_slowest_with_the_median():
    # d = 2 / 1 - 1, though the fastest takes half a second: ceil(3 * 1/2) groups
    seconds = np.array([0.5, 1, 1, 1, 1, 1, 1, 2])
    times = np.tile(seconds[:, None], TASKS)
    trace = simulate(times, protocols.progressive_groups(8, tolerance=0.5), 30)
    assert (trace.counts[:20] == 8).all() and (trace.counts[20:] == 4).all()


def test_progressive_groups_of_equal_workers_stay_one():
    trace = simulate(np.ones((6, TASKS)), protocols.progressive_groups(6), 100)
    assert (trace.counts == 6).all() and (trace.staleness == 0).all()


def test_progressive_groups_come_back_when_the_straggler_recovers():
    slow = [cluster.Slowdown(5, 4.0, 0.0, 100.0)]
    times = 1 + 1e-3 * np.random.default_rng(1).random((6, TASKS))
    trace = simulate(times, protocols.progressive_groups(6), 500, slowdown=slow)
    assert (trace.counts[:20] == 6).all()
    assert (trace.counts[25:60] < 6).all()
    assert (trace.counts[-50:] == 6).all() and (trace.staleness[-50:] == 0).all()


def test_nobody_s_gradient_is_used_twice():
    for rules in (ACCEPTING, REFUSING):
        for name, (rule, _) in rules.items():
            rule = rule(5) if rules is ACCEPTING else rule
            trace = simulate(times_of("exponential", 5, 1), rule)
            seen = Counter(zip(trace.worker, trace.arrived, strict=True))
            assert set(seen.values()) == {1}, name
