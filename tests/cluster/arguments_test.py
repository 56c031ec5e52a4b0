"""Arguments of clusters and protocols that cannot be: each is named, with its value."""

import math
import re

import pytest
from scipy import stats

from delayjax import cluster
from delayjax.cluster import protocols

NAN, INF = math.nan, math.inf
ONE, EXPONENTIAL = cluster.constant(1.0), cluster.exponential(1.0)
LINK = cluster.Communication(0.25, message_bytes=48.0, bytes_per_second=32.0)
TWO = cluster.Cluster(2, ONE)


def law(**changes):
    return cluster.StalenessLaw([1.0], **changes)


# (argument, what makes something of it, values that it cannot have)
NUMBERS = [
    ("seconds", cluster.constant, (0.0, -1.0, NAN)),
    ("mean_seconds", cluster.exponential, (0.0, INF)),
    ("mean_seconds", lambda bad: cluster.gamma(bad, 2), (0.0,)),
    ("shape", lambda bad: cluster.gamma(1.0, bad), (0.0,)),
    ("shift_seconds", lambda bad: cluster.shifted_exponential(bad, 1.0), (-0.5,)),
    ("mean_seconds", lambda bad: cluster.shifted_exponential(1.0, bad), (0.0, INF)),
    ("mean_seconds", lambda bad: cluster.lognormal(bad, 0.1), (0.0,)),
    ("cv", lambda bad: cluster.lognormal(1.0, bad), (0.0, -0.1)),
    ("scale_seconds", lambda bad: cluster.pareto(bad, 1.0), (0.0,)),
    ("shape", lambda bad: cluster.pareto(1.0, bad), (0.0, -2.0)),
    ("low_seconds", lambda bad: cluster.uniform(bad, 1.0), (-1.0,)),
    ("high_seconds", lambda bad: cluster.uniform(0.0, bad), (0.0, INF)),
    ("factor", ONE.scaled, (0.0,)),
    ("k", lambda bad: ONE.kth_mean(bad, 8), (0, 9)),
    ("workers", lambda bad: ONE.kth_mean(1, bad), (0,)),
    ("seconds", lambda bad: cluster.infinite_bernoulli(bad, 0.5), (0.0,)),
    (
        "hang_probability",
        lambda bad: cluster.infinite_bernoulli(1.0, bad),
        (1.0, 1.5, NAN),
    ),
    ("slowdown", lambda bad: cluster.markov_stragglers(ONE, bad, 0.1, 0.5), (0.0,)),
    ("enter", lambda bad: cluster.markov_stragglers(ONE, 2.0, bad, 0.5), (-0.1, 1.5)),
    ("leave", lambda bad: cluster.markov_stragglers(ONE, 2.0, 0.1, bad), (-0.1, 1.5)),
    ("seconds", lambda bad: cluster.sleepers(bad, 1.0, 4), (0.0,)),
    ("sleep_seconds", lambda bad: cluster.sleepers(1.0, bad, 4), (0.0,)),
    ("workers", lambda bad: cluster.sleepers(1.0, 1.0, bad), (0,)),
    ("asleep", lambda bad: cluster.sleepers(1.0, 1.0, 4, asleep=bad), (-1,)),
    ("workers", lambda bad: cluster.Cluster(bad, ONE), (0,)),
    ("factor", lambda bad: cluster.Slowdown(0, bad), (0.0, NAN)),
    ("stop_seconds", lambda bad: cluster.Slowdown(0, 2.0, 3.0, bad), (3.0, NAN)),
    ("latency_seconds", cluster.Communication, (-1.0, INF)),
    ("message_bytes", lambda bad: cluster.Communication(0.0, bad), (-1.0, NAN)),
    ("bytes_per_second", lambda bad: cluster.Communication(0.0, 1.0, bad), (0.0, NAN)),
    ("workers", LINK.all_reduce_seconds, (0,)),
    ("fragments", lambda bad: LINK.all_reduce_seconds(2, fragments=bad), (0,)),
    ("fraction", lambda bad: LINK.all_reduce_seconds(2, fraction=bad), (0.0, 1.5)),
    ("size", lambda bad: TWO.draw(0, bad, seed=0), (-1,)),
    ("worker", lambda bad: TWO.draw(bad, 1, seed=0), (-1, 2)),
    ("steps", lambda bad: TWO.step_seconds(bad, seed=0), (-1,)),
    ("period", lambda bad: TWO.exchange_cost(bad, fragments=2), (0, 1, 5)),
    ("delay", lambda bad: TWO.exchange_cost(4, fragments=2, delay=bad), (-1, 2)),
    ("fraction", lambda bad: TWO.exchange_cost(4, fraction=bad), (0.0, 1.5)),
    ("cost", TWO.shortest_period, (0.0, 1.0)),
    ("fragments", lambda bad: TWO.shortest_period(fragments=bad), (0,)),
    ("cost", TWO.shortest_delay, (0.0, 1.0)),
    ("fragments", lambda bad: TWO.shortest_delay(fragments=bad), (0,)),
    ("bound", law().filtered_by_bound, (-1,)),
    ("probability", law().filtered_at_random, (0.0, 1.5)),
    ("workers", lambda bad: cluster.arrival_rate(bad, 1.0), (0,)),
    ("mean_seconds", lambda bad: cluster.arrival_rate(2, bad), (0.0, NAN)),
    (
        "server_seconds",
        lambda bad: cluster.arrival_rate(2, 1.0, server_seconds=bad),
        (-1.0,),
    ),
    ("sent", lambda bad: cluster.arrival_rate(2, 1.0, sent=bad), (0.0, 1.5)),
    ("target", lambda bad: cluster.run_time(bad, 1.0), (0.0,)),
    ("period", cluster.waits_for_all, (0,)),
    (
        "lag",
        lambda bad: cluster.finish_times(
            [[1.0]], cluster.waits_for_neighbors(), lag=bad
        ),
        (-1,),
    ),
    ("period", lambda bad: cluster.wait_avoiding([[1.0]], period=bad), (0,)),
    (
        "slack_seconds",
        lambda bad: cluster.wait_avoiding([[1.0]], slack_seconds=bad),
        (-1.0,),
    ),
    ("num_workers", lambda bad: cluster.visits_to_rounds([0], bad), (0,)),
    ("num_updates", lambda bad: run(protocols.hardsync(), bad), (0,)),
    ("seconds", lambda bad: run(protocols.hardsync(), seconds=bad), (0.0, NAN)),
    ("seed", lambda bad: run(protocols.hardsync(), seed=bad), (-1,)),
    ("n", protocols.n_softsync, (0,)),
    *(
        ("k", scheme, (0, -2))
        for scheme in (
            *(protocols.k_sync, protocols.k_batch_sync),
            *(protocols.k_async, protocols.k_batch_async),
        )
    ),
    ("num_groups", protocols.groups, (0,)),
    ("max_groups", protocols.progressive_groups, (0,)),
    ("tolerance", lambda bad: protocols.progressive_groups(2, tolerance=bad), (0.0,)),
    ("every", lambda bad: protocols.progressive_groups(2, every=bad), (0,)),
    ("bound", protocols.ringmaster, (0,)),
    ("bound", lambda bad: protocols.ringmaster(lambda t: bad), (0,)),
    (
        "bound",
        lambda bad: run(protocols.ringmaster(lambda t: 2 if t < 3 else bad)),
        (0, -2),
    ),
    ("batch", protocols.rennala, (0,)),
    ("sample", lambda bad: protocols.psp(bad, 1), (-1,)),
    ("bound", lambda bad: protocols.psp(1, bad), (-1,)),
    ("poll_seconds", lambda bad: protocols.psp(1, 1, poll_seconds=bad), (0.0,)),
    ("bound", protocols.ssp, (-1,)),
    ("bound", protocols.bounded_staleness, (-1,)),
    ("batch", lambda bad: protocols.bounded_staleness(1, batch=bad), (0,)),
    ("probability", protocols.event_triggered, (0.0, 1.5, 0.99e-5)),
    ("buffer", lambda bad: protocols.fedbuff(bad, concurrency=1), (0,)),
    ("concurrency", lambda bad: protocols.fedbuff(1, concurrency=bad), (0,)),
    ("trials", lambda bad: protocols.mindflayer(bad, 1.0), (-1, 0, 1.5, [-1, 2])),
    ("allotted_seconds", lambda bad: protocols.mindflayer(1, bad), (0.0, NAN)),
    ("num_clusters", lambda bad: protocols.gradient_coding(bad, 1), (0,)),
    ("load", lambda bad: protocols.gradient_coding(2, bad), (0,)),
]


def run(protocol, num_updates=5, *, workers=4, seed=0, seconds=INF):
    spec = cluster.Cluster(workers, ONE)
    return cluster.simulate(spec, protocol, num_updates, seed=seed, seconds=seconds)


@pytest.mark.parametrize(("name", "make", "values"), NUMBERS)
def test_a_number_outside_of_its_interval_is_named_with_its_value(name, make, values):
    for bad in values:
        got = re.escape(str(bad))
        with pytest.raises(ValueError, match=rf"`{name}` must .*got {got}"):
            make(bad)


def slowed(*slowdown):
    return lambda: cluster.Cluster(2, ONE, slowdown=slowdown)


def predicted(service, **options):
    return lambda: cluster.staleness_law(cluster.Cluster(2, service, **options))


VISITS = r"`workers` must be a list of integers in 0 \.\. 1, got "
# what has no value of its own that is wrong; (call, error, message)
OTHERS = [
    (
        lambda: cluster.uniform(2.0, 2.0),
        ValueError,
        r"`high_seconds` must be > `low_seconds`, got 2\.0, 2",
    ),
    (lambda: cluster.empirical([]), ValueError, r"a vector of times, got \[\]"),
    (lambda: cluster.empirical([[1.0]]), ValueError, r"a vector .* got \[\[1.0\]\]"),
    (lambda: cluster.empirical([1.0, -2.0]), ValueError, "non-negative, got -2.0"),
    (lambda: cluster.empirical([1.0, INF]), ValueError, "got inf: leave out"),
    (lambda: cluster.from_scipy(stats.norm()), ValueError, "a minimum of -inf"),
    (
        lambda: cluster.markov_stragglers(ONE, 2.0, 0.0, 0.0),
        ValueError,
        r"`enter`.*`leave`",
    ),
    # some workers would never sleep, or sleepers be drawn that are not there
    *(
        (
            lambda service=service: cluster.Cluster(2, service),
            ValueError,
            r"`service` must have workers=2, got 4",
        )
        for service in (
            cluster.sleepers(1.0, 0.5, 4),
            [cluster.sleepers(1.0, 0.5, 4)] * 2,
        )
    ),
    (lambda: cluster.Cluster(2, [ONE] * 3), ValueError, r"`service`.* 2, got 3"),
    (slowed(1.0), ValueError, r"`slowdown.* 2 .* \(1\.0,\)"),
    (slowed(1.0, 0.0), ValueError, r"`slowdown.* positive.* \(1\.0, 0\.0\)"),
    (slowed(1.0, NAN), ValueError, "`slowdown.* nan"),
    (
        slowed(1.0, INF),
        ValueError,
        r"`slowdown` must hold 2 positive, .* got \(1\.0, inf\)",
    ),
    (slowed(cluster.Slowdown(2, 2.0)), ValueError, r"`slowdown.* 0 \.\. 1, got 2"),
    (slowed(cluster.Slowdown((0, -1), 2.0)), ValueError, "`slowdown.* got -1"),
    (slowed(cluster.Slowdown(0, 2.0), 3.0), TypeError, r"`slowdown.* 3\.0"),
    (
        lambda: cluster.Slowdown(0, 2.0, -1.0),
        ValueError,
        "`start_seconds` must be finite and non-negative, got -1",
    ),
    (
        predicted(EXPONENTIAL, communication=LINK),
        ValueError,
        "`cluster` must have constant speeds, .* and no communication",
    ),
    (
        predicted(EXPONENTIAL, slowdown=[cluster.Slowdown(1, 2.0, 5.0)]),
        ValueError,
        "constant speeds, unlike worker 1",
    ),
    (
        predicted(cluster.infinite_bernoulli(1.0, 0.5)),
        TypeError,
        r"`service` must be a ServiceTime, got infinite_bernoulli",
    ),
    (
        predicted([EXPONENTIAL, cluster.pareto(1.0, 0.9)]),
        ValueError,
        "`service.mean` must be finite .* got inf: .* worker 1",
    ),
    (
        predicted(EXPONENTIAL, slowdown=[1e-6, 1.0]),
        ValueError,
        r"not have times above 5000 times .* got 14.* s and 1e-06 s",
    ),
    *(
        (lambda pmf=pmf: cluster.StalenessLaw(pmf), ValueError, "`pmf` must be the pro")
        for pmf in ([0.5, 0.4], [0.5, INF], [1.5, -0.5], [], [[1.0]])
    ),
    *(
        (lambda pmf=pmf: cluster.StalenessLaw(pmf), TypeError, "`pmf` must hold real")
        for pmf in (["a"], [False, True], [1 + 0j])
    ),
    (
        lambda: cluster.arrival_rate(2, [1.0, INF]),
        ValueError,
        "got inf: leave out workers of infinite mean",
    ),
    (lambda: cluster.run_time(0.1, [1.0, NAN]), ValueError, "`rates` must not be nan"),
    *(
        (
            lambda start=start: cluster.run_time(0.1, [1.0], start=start),
            ValueError,
            "`start` must be finite",
        )
        for start in (INF, NAN)
    ),
    *(
        (
            lambda seconds=seconds: cluster.finish_times(
                seconds, cluster.waits_for_neighbors()
            ),
            ValueError,
            message,
        )
        for seconds, message in (
            ([["soon"]], r"`seconds` must be numbers \[T, P\], .* of <U4"),
            ([1.0], r"`seconds` must be numbers \[T, P\], .* got \(1,\)"),
            ([[INF]], "`seconds` must be finite and non-negative"),
        )
    ),
    (
        lambda: cluster.finish_times([[1.0]], lambda t, workers: [True]),
        ValueError,
        r"`waits` must return bool \[P, P\], got \(1,\)",
    ),
    (
        lambda: cluster.finish_times(
            [[1.0], [1.0]], cluster.waits_for_neighbors(), exchange_seconds=lambda t: -t
        ),
        ValueError,
        r"`exchange_seconds\(1\)` must be finite and non-negative, got -1",
    ),
    (
        lambda: cluster.Cluster(2, ONE, [cluster.Slowdown(0, 2.0, 5.0)]).exchange_cost(
            1
        ),
        ValueError,
        "`slowdown` must last from the first step .* give a factor for each worker",
    ),
    (
        lambda: cluster.Cluster(
            2, cluster.constant(1e-9), communication=LINK
        ).shortest_period(0.05),
        ValueError,
        "`cost` must be larger, got 0.05: more is lost even at 65536 steps apart",
    ),
    (  # the latencies of a slice take 0.5 s
        lambda: cluster.Cluster(
            2, cluster.constant(0.4), communication=LINK
        ).shortest_delay(0.05),
        ValueError,
        "`cost` must be larger, got 0.05: more is lost even at 65536 steps in flight",
    ),
    (
        lambda: cluster.visits_to_rounds([], 2),
        ValueError,
        "`workers` must have a visit",
    ),
    *(
        (
            lambda workers=workers: cluster.visits_to_rounds(workers, 2),
            ValueError,
            VISITS + re.escape(str(workers)),
        )
        for workers in ([0.0, 1.0], [[0], [1]], [0, 2], [-1, 0])
    ),
    (
        lambda: run(protocols.hardsync(), None, seconds=INF),
        ValueError,
        "`num_updates` or `seconds` must be given, got None and inf",
    ),
    # what is no protocol: the call to write
    (
        lambda: run(protocols.hardsync),
        TypeError,
        r"hardsync\(\) takes 0 positional arguments but 1 was given",
    ),
    (
        lambda: run(3),
        TypeError,
        "`protocol` must be a function, got 3",
    ),
    (lambda: protocols.ssp(NAN), (TypeError, ValueError), "`bound` .* nan"),
    (
        lambda: run(protocols.groups(2, data="static"), None, seconds=9.0),
        ValueError,
        "`num_updates` must be given, got None",
    ),
    # what the four workers are too few for
    *(
        (lambda protocol=protocol: run(protocol), ValueError, message)
        for protocol, message in (
            (protocols.n_softsync(5), "`n` .* 4.* 5"),
            (protocols.k_sync(5), "`k` .* 4.* 5"),
            (protocols.groups(5), "`num_groups` .* 4.* 5"),
            (protocols.progressive_groups(5), "`max_groups` .* 4.* 5"),
            (protocols.psp(5, 1), "`sample` .* 4.* 5"),
            (protocols.fedbuff(1, concurrency=5), "`concurrency` .* 4.* 5"),
            (
                protocols.bounded_staleness(1, late="wait", batch=5),
                "`batch` .* 4.* 5",
            ),
            (protocols.gradient_coding(5, 1), "`num_clusters` .* 4.* 5"),
            (protocols.gradient_coding(2, 3), "`load` .* 2.* 3"),
        )
    ),
    # no success at all, from the first trial or for ever after a death
    (
        lambda: run(protocols.mindflayer(2, 0.5)),
        ValueError,
        r"`allotted_seconds` must let some trial succeed, got 0\.5",
    ),
    # seconds of an update that have no formula
    *(
        (
            lambda scheme=scheme: scheme(9).update_seconds(8, EXPONENTIAL),
            ValueError,
            r"`k` must lie in 1 \.\. 8, got 9",
        )
        for scheme in (protocols.k_sync, protocols.k_async, protocols.k_batch_sync)
    ),
    *(
        (
            lambda times=times: protocols.k_async(2).update_seconds(4, times),
            TypeError,
            r"`service_time` must be a ServiceTime, got ",
        )
        for times in (cluster.sleepers(1.0, 1.0, 4), 1.0)
    ),
    (
        lambda: protocols.k_async(3).update_seconds(8, cluster.pareto(2.0, 3.0)),
        ValueError,
        "`service_time` must be memoryless, got .*: simulate",
    ),
    (
        lambda: protocols.k_batch_sync(2).update_seconds(2, cluster.pareto(1.0, 0.6)),
        ValueError,
        "`service_time` must have a lighter tail",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), OTHERS)
def test_what_makes_no_sense_is_refused_with_its_remedy(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_bytes_need_the_rate_of_their_link():
    with pytest.raises(ValueError, match=r"`bytes_per_second` must be given with .*1e"):
        cluster.Communication(message_bytes=1e9)
