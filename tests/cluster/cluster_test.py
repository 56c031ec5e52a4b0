"""Machines and links: slow-downs, deaths, messages, and what cannot be simulated."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax._src.cluster import server
from delayjax.cluster import protocols
from tests.cluster import oracle

SEEDS = [1, 2, 3]
UPDATES = 150
INF = math.inf


def times_of(num_workers, seed, tasks=2000):
    return np.random.default_rng(seed).gamma(2.0, 0.5, (num_workers, tasks))


def simulate(times, rule, num_updates=UPDATES, *, seconds=INF, **keywords):
    spec = cluster.Cluster(len(times), oracle.given(times), **keywords)
    return cluster.simulate(spec, rule, num_updates, seed=0, seconds=seconds)


# Slow-downs. A case: windows (factor, start, stop) of each of four workers.

WINDOWS = {
    "from the beginning": [[(4.0, 0.0, INF)], [], [], []],
    "for a while": [[(5.0, 7.3, 21.1)], [(3.0, 2.2, 11.7)], [], [(2.0, 9.9, INF)]],
    "twice": [[(5.0, 3.3, 6.1), (2.5, 14.2, 19.9)], [], [], []],
    "overlapping": [[(5.0, 3.3, 16.1), (2.5, 8.2, 19.9)], [(2.0, 1.1, 9.0)], [], []],
    "shorter than a task": [[(50.0, 3.30, 3.31), (9.0, 3.35, 3.36)], [], [], []],
    "faster": [[(0.25, 5.0, 25.0)], [(0.5, 0.0, INF), (3.0, 4.0, 12.0)], [], []],
    "dead for a while": [[(INF, 5.05, 17.3)], [], [(INF, 9.1, 9.2)], []],
    "dead twice": [[(INF, 5.05, 7.3), (INF, 12.1, 20.9)], [], [], []],
    "dead for good": [[(INF, 5.05, INF)], [], [], []],
    "slow, then dead": [
        [(3.0, 2.0, 30.0), (INF, 8.03, 14.4)],
        [],
        [(2.0, 0.0, INF)],
        [],
    ],
}


def slowdowns(windows):
    return [
        cluster.Slowdown(worker, *window)
        for worker, own in enumerate(windows)
        for window in own
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WINDOWS)
def test_work_is_done_at_the_speed_of_its_moment(name, seed):
    windows, times = WINDOWS[name], times_of(4, seed)
    slowdown = slowdowns(windows)
    trace = simulate(times, protocols.k_async(1), slowdown=slowdown)
    oracle.assert_same(trace, oracle.slowed_asgd(times, windows, UPDATES))
    for k in (1, 3):
        trace = simulate(times, protocols.k_sync(k), 40, slowdown=slowdown)
        oracle.assert_same(trace, oracle.slowed_k_sync(times, windows, k, 40))


@pytest.mark.parametrize("seed", SEEDS)
def test_factors_of_all_workers_are_slowdowns_for_good(seed):
    times, factors = times_of(4, seed), [1.0, 4.0, 0.5, 2.0]
    rules = [protocols.k_async(2), protocols.ssp(1), protocols.ringleader()]
    for rule in rules:
        expected = simulate(times * np.array(factors)[:, None], rule)
        windows = [[(factor, 0.0, INF)] for factor in factors]
        for slowdown in (factors, tuple(factors), slowdowns(windows)):
            trace = simulate(times, rule, slowdown=slowdown)
            oracle.assert_same(trace, oracle.updates_of(expected))


def test_one_slowdown_may_name_several_workers():
    times = times_of(4, 1)
    rule = protocols.k_async(1)
    together = simulate(times, rule, slowdown=[cluster.Slowdown((0, 2), 3.0, 1.0, 9.0)])
    apart = simulate(
        times,
        rule,
        slowdown=[
            cluster.Slowdown(2, 3.0, 1.0, 9.0),
            cluster.Slowdown(0, 3.0, 1.0, 9.0),
        ],
    )
    oracle.assert_same(together, oracle.updates_of(apart))
    assert (together.seconds != simulate(times, rule).seconds).any()


def test_a_dead_worker_s_gradient_is_lost_and_the_next_one_is_fresh():
    # worker 1 dies in its third task and is back at 5: it reads at 5 what the other
    # has made of it
    windows = [[], [(INF, 2.5, 5.25)]]
    trace = simulate(
        np.ones((2, 99)), protocols.k_async(1), 20, slowdown=slowdowns(windows)
    )
    own = trace.worker == 1
    np.testing.assert_allclose(trace.arrived[own][:4], [1.0, 2.0, 6.25, 7.25])
    # until then: 2 updates at each of 1 and 2, one at each of 3, 4 and 5
    assert trace.read_version[own][2] == 7


def test_a_trial_that_death_interrupts_fails_when_its_time_is_over():
    # dead in (0.5, 9): no trial begun before 10 can succeed, and none is an update
    gone = [cluster.Slowdown(0, INF, 0.5, 9.0)]
    times = [np.tile([1.0, 5.0, 1.5], 5000)]
    trace = simulate(times, protocols.mindflayer(1, 2.0), 3, slowdown=gone)
    # the sixth trial takes 1.5 s, the next ones 1 s, and 2 s in vain
    np.testing.assert_allclose(trace.seconds, [11.5, 12.5, 14.5])
    assert list(trace.counts) == [1, 1, 0]
    # it computes half a second, then from 10 on
    np.testing.assert_allclose(trace.busy_seconds, [0.5 + 4.5])


def test_a_coded_task_that_death_interrupts_has_its_load_again():
    gone = [cluster.Slowdown((0, 1), INF, 0.5, 10.0)]
    rule = protocols.gradient_coding(1, 2)
    trace = simulate(np.tile([1.0, 3.0], (2, 50)), rule, 2, slowdown=gone)
    # twice 3 s after the return, then twice 1 s
    np.testing.assert_allclose(trace.seconds, [16.0, 18.0])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_takes_the_time_until_it_is_done_or_for_ever(seed):
    rng = np.random.default_rng(seed)
    begins, lengths = rng.uniform(0, [[9.0], [3.0]], (2, 4))
    windows = list(zip([0.5, 3, INF, 2], begins, begins + lengths, strict=True))
    (speed,) = cluster.Cluster(1, cluster.constant(1.0), slowdowns([windows])).speeds()
    outcomes = set()
    for begin in rng.uniform(0, 12, 300):
        for work in rng.exponential(2.0, 5):
            end, takes, back = speed.finish(begin, work)
            expected, alive_at = oracle.outcome(begin, work, windows)
            if alive_at is None:
                np.testing.assert_allclose([end, takes], [expected, expected - begin])
            else:
                assert end == max(begin, begins[2]) < back == alive_at
                assert takes == INF
            outcomes.add(alive_at is None)
    assert len(outcomes) == 2


# Messages.


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("serial", [False, True])
def test_a_latency_alone_makes_tasks_longer(serial, seed):
    # down and up: with nothing to carry a serial link is never busy
    times = times_of(5, seed)
    link = cluster.Communication(latency_seconds=0.35, serial=serial)
    rules = [protocols.k_async(1), protocols.k_async(2), protocols.hardsync()]
    for rule in [*rules, protocols.ssp(2), protocols.ringmaster(4)]:
        trace = simulate(times, rule, communication=link)
        oracle.assert_same(trace, oracle.updates_of(simulate(times + 0.7, rule)))


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_of_a_parallel_link_take_latency_and_bytes_over_rate(seed):
    times = times_of(5, seed)
    link = cluster.Communication(0.25, message_bytes=300.0, bytes_per_second=2000.0)
    for rule in (
        protocols.k_async(1),
        protocols.k_batch_async(3),
        protocols.hardsync(),
    ):
        trace = simulate(times, rule, communication=link)
        oracle.assert_same(trace, oracle.updates_of(simulate(times + 0.8, rule)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("latency", "occupied"), [(0.0, 0.01), (0.2, 0.1), (0.0, 0.5), (1.0, 2.0)]
)
@pytest.mark.parametrize("num_workers", [1, 2, 6])
def test_a_serial_link_is_a_queue(num_workers, latency, occupied, seed):
    times = times_of(num_workers, seed)
    link = cluster.Communication(latency, 10.0, 10.0 / occupied, serial=True)
    trace = simulate(times, protocols.k_async(1), communication=link)
    oracle.assert_same(trace, oracle.serial_asgd(times, latency, occupied, UPDATES))
    trace = simulate(times, protocols.hardsync(), 50, communication=link)
    oracle.assert_same(trace, oracle.serial_hardsync(times, latency, occupied, 50))


def test_communication_that_costs_nothing_changes_nothing():
    times = times_of(4, 1)
    free = simulate(times, protocols.k_async(1))
    for link in (cluster.Communication(), cluster.Communication(serial=True)):
        trace = simulate(times, protocols.k_async(1), communication=link)
        oracle.assert_same(trace, oracle.updates_of(free))


# The end.


@pytest.mark.parametrize("seed", SEEDS)
def test_the_clock_may_end_a_run(seed):
    times = times_of(4, seed)
    rules = [
        protocols.k_async(1),
        protocols.k_sync(2),
        protocols.ringleader(),
        protocols.mindflayer(1, 5.0),
        protocols.ringmaster(2),
    ]
    for rule in rules:
        whole = simulate(np.tile(times, 6), rule)
        for end in (0.01, 7.7, float(whole.seconds[20])):
            trace = simulate(np.tile(times, 6), rule, seconds=end)
            kept = int((whole.seconds <= end).sum())
            assert trace.num_updates == kept < UPDATES
            oracle.assert_same(trace, oracle.updates_of(whole)[:kept])
        # whichever comes first
        assert simulate(np.tile(times, 6), rule, seconds=1e9).num_updates == UPDATES


# A rule of one's own.


def test_a_protocol_is_a_loop_over_arrivals():
    def mine(server):
        assert (server.num_workers, server.num_updates) == (3, 30)
        assert (server.version, server.now, server.taken) == (0, 0.0, 0)
        server.start_all()
        versions = []
        for arrival in server:
            assert server.now == arrival.arrived and not arrival.failed
            server.take(arrival)
            versions.append(server.version)
            assert server.taken == 1
            server.update(divisor=2.0)
            assert server.taken == 0 and server.version == len(versions)
            server.start(arrival.worker)

    times = times_of(3, 1)
    trace = simulate(times, mine, 30)
    oracle.assert_same(trace, oracle.k_batch_async(times, 1, 30))
    assert (trace.divisor == 2.0).all()


def test_a_worker_that_is_started_again_abandons_its_task():
    def impatient(server):
        server.start_all()
        for arrival in server:
            server.take(arrival)
            server.update()
            server.start_all()

    times = times_of(4, 2)
    trace = simulate(times, impatient)
    oracle.assert_same(trace, oracle.k_sync(times, 1, UPDATES))


def test_a_worker_may_go_on_at_the_version_it_has():
    def stubborn(server):
        server.start_all()
        for arrival in server:
            server.take(arrival)
            server.update()
            server.start(arrival.worker, read_version=arrival.read_version)

    times = times_of(2, 3)
    trace = simulate(times, stubborn)
    assert (trace.read_version == 0).all()
    np.testing.assert_array_equal(trace.staleness[:, 0], np.arange(UPDATES))


def test_a_task_beyond_its_limit_arrives_failed_at_the_limit():
    seen = []

    def limited(server):
        server.start(0, limit=2.0)
        for arrival in server:
            seen.append((arrival.arrived, arrival.failed))
            if not arrival.failed:
                server.take(arrival)
            server.update(divisor=1.0)
            server.start(0, limit=2.0)

    times = [np.tile([1.0, 5.0, 1.5], 50)]
    trace = simulate(times, limited, 6)
    assert seen == [
        *[(1.0, False), (3.0, True), (4.5, False)],
        *[(5.5, False), (7.5, True), (9.0, False)],
    ]
    assert list(trace.counts) == [1, 0, 1, 1, 0, 1]


def test_an_update_without_gradients_needs_a_divisor():
    def empty_rule(server):
        server.start_all()
        for _ in server:
            server.update()

    with pytest.raises(ValueError, match="`divisor` must be given if nothing is taken"):
        simulate(times_of(2, 1), empty_rule)


def test_some_workers_may_never_be_started():
    def half(server):
        server.leave_out((1, 3))
        server.start_all((0, 2))
        for arrival in server:
            server.take(arrival)
            server.update()
            server.start(arrival.worker)

    times = times_of(4, 1)
    trace = simulate(times, half)
    expected = oracle.k_batch_async(times[[0, 2]], 1, UPDATES)
    oracle.assert_same(
        trace, [(s, [(2 * w, read) for w, read in rows]) for s, rows in expected]
    )
    assert (trace.busy_seconds[[1, 3]] == 0).all()


# What can't go on, and what makes no sense.

WAITING = {
    "hardsync": protocols.hardsync(),
    "k_sync": protocols.k_sync(3),
    "k_async": protocols.k_async(3),
    "ssp": protocols.ssp(2),
    "psp": protocols.psp(2, 1),
    "round_robin": protocols.round_robin(),
    "groups": protocols.groups(1),
    "progressive_groups": protocols.progressive_groups(1),
    "bounded_staleness": protocols.bounded_staleness(2, late="wait"),
    "gradient_coding": protocols.gradient_coding(3, 1),
}


def idle_rule(server):
    for _ in server:
        pass


def refusing_rule(server):
    server.start_all()
    for arrival in server:
        server.drop(arrival)
        server.start(arrival.worker)


@pytest.mark.parametrize("name", WAITING)
def test_waiting_for_the_dead_is_an_error_that_names_rule_and_worker(name):
    dead = [cluster.Slowdown(1, INF, 20.0)]
    with pytest.raises(ValueError, match=rf"`{name}\(.*`.*for ever.*workers 1,"):
        simulate(times_of(3, 1), WAITING[name], 10_000, slowdown=dead)


@pytest.mark.parametrize("name", WAITING)
def test_waiting_for_a_task_that_hangs_is_an_error(name):
    spec = cluster.Cluster(3, cluster.infinite_bernoulli(1.0, 0.05))
    with pytest.raises(ValueError, match=rf"`{name}\(.*`.*for ever.*worker"):
        cluster.simulate(spec, WAITING[name], 10_000, seed=1)


def test_asynchrony_survives_the_dead_until_nobody_is_left():
    times = times_of(3, 1)
    trace = simulate(
        times, protocols.k_async(1), slowdown=[cluster.Slowdown((0, 1), INF, 20.0)]
    )
    assert trace.num_updates == UPDATES and set(trace.worker[-30:]) == {2}
    everybody = [cluster.Slowdown((0, 1, 2), INF, 20.0)]
    with pytest.raises(ValueError, match=r"for ever.*workers 0, 1, 2"):
        simulate(times, protocols.k_async(1), 10_000, slowdown=everybody)


def test_a_rule_that_starts_nobody_is_an_error():
    with pytest.raises(ValueError, match=r"`idle_rule`.*for ever.*that do not work"):
        simulate(times_of(2, 1), idle_rule)


@pytest.mark.parametrize("rule", [refusing_rule, protocols.ringleader()])
def test_arrivals_that_lead_to_nothing_are_an_error_and_no_endless_loop(
    rule, monkeypatch
):
    # a million takes seconds
    monkeypatch.setattr(server, "_PATIENCE", 20_000)
    # Ringleader goes on collecting from the others when one is gone
    dead = [cluster.Slowdown(1, INF, 20.0)]
    spec = cluster.Cluster(2, cluster.constant(1.0), slowdown=dead)
    with pytest.raises(ValueError, match=r"`(refusing_rule|ringleader\(\))`.*progress"):
        cluster.simulate(spec, rule, 1000, seed=0)
    # a long run with progress is none
    long = cluster.simulate(spec, protocols.k_async(1), 30_000, seed=0)
    assert long.num_updates == 30_000


def test_mindflayer_whose_time_never_suffices_is_refused():
    spec = cluster.Cluster(3, cluster.constant(1.0))
    with pytest.raises(ValueError, match=r"`allotted_seconds`.*0\.5"):
        cluster.simulate(spec, protocols.mindflayer(2, 0.5), 10, seed=0)


def spec_of(num_workers=4):
    return cluster.Cluster(num_workers, cluster.constant(1.0))


def run(rule, num_workers=4, num_updates=5, **keywords):
    keywords = {"seed": 0} | keywords
    return cluster.simulate(spec_of(num_workers), rule, num_updates, **keywords)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        # the parameter of a protocol that doesn't depend on the cluster
        *[
            (lambda make=make, bad=bad: make(bad), error, rf"`{name}`.* {text}")
            for (name, make), (bad, error, text) in itertools.product(
                {
                    "n": protocols.n_softsync,
                    "k": protocols.k_sync,
                    "k ": protocols.k_batch_sync,
                    "k  ": protocols.k_async,
                    "k   ": protocols.k_batch_async,
                    "num_groups": protocols.groups,
                    "max_groups": protocols.progressive_groups,
                    "bound": protocols.ringmaster,
                    "batch": protocols.rennala,
                }.items(),
                [
                    (0, ValueError, "0"),
                    (-2, ValueError, "-2"),
                    (1.5, TypeError, r"1\.5"),
                    (True, TypeError, "True"),
                    ("2", TypeError, "'2'"),
                    (None, TypeError, "None"),
                ],
            )
            for name in [name.strip()]
        ],
        # at the start: more than there are workers
        *[
            (lambda make=make: run(make(5)), ValueError, rf"`{name}`.* 4.* 5")
            for name, make in [
                ("n", protocols.n_softsync),
                ("k", protocols.k_sync),
                ("k", protocols.k_async),
                ("num_groups", protocols.groups),
                ("max_groups", protocols.progressive_groups),
            ]
        ],
        (lambda: run(protocols.psp(5, 1)), ValueError, r"`sample`.* 4.* 5"),
        (lambda: protocols.psp(-1, 1), ValueError, r"`sample`.* -1"),
        (lambda: protocols.psp(1.5, 1), TypeError, r"`sample`.* 1\.5"),
        (lambda: protocols.psp(1, -1), ValueError, r"`bound`.* -1"),
        (lambda: protocols.ssp(-1), ValueError, r"`bound`.* -1"),
        (lambda: protocols.ssp(1.5), TypeError, r"`bound`.* 1\.5"),
        (lambda: protocols.ssp(math.nan), (TypeError, ValueError), r"`bound`.* nan"),
        (lambda: protocols.groups(2, data="some"), ValueError, r"`data`.* 'some'"),
        (
            lambda: protocols.progressive_groups(2, tolerance=0.0),
            ValueError,
            r"`tolerance`.* 0",
        ),
        (
            lambda: protocols.progressive_groups(2, tolerance=math.nan),
            ValueError,
            r"`tolerance`.* nan",
        ),
        (lambda: protocols.progressive_groups(2, every=0), ValueError, r"`every`.* 0"),
        (
            lambda: protocols.bounded_staleness(-1),
            ValueError,
            r"`bound`.* -1",
        ),
        (
            lambda: protocols.bounded_staleness(1, late="early"),
            ValueError,
            r"`late`.* 'early'",
        ),
        (
            lambda: protocols.bounded_staleness(1, batch=0),
            ValueError,
            r"`batch`.* 0",
        ),
        (lambda: protocols.event_triggered(0.0), ValueError, r"`probability`.* 0"),
        (lambda: protocols.event_triggered(1.5), ValueError, r"`probability`.* 1\.5"),
        (
            lambda: protocols.event_triggered(math.nan),
            ValueError,
            r"`probability`.* nan",
        ),
        (lambda: protocols.mindflayer(-1, 1.0), ValueError, r"`trials`.* -1"),
        (
            lambda: protocols.mindflayer(1.5, 1.0),
            (TypeError, ValueError),
            r"`trials`.* 1\.5",
        ),
        (lambda: protocols.mindflayer(1, 0.0), ValueError, r"`allotted_seconds`.* 0"),
        (lambda: protocols.mindflayer(1, -1.0), ValueError, r"`allotted_seconds`.* -1"),
        (
            lambda: protocols.mindflayer(1, math.nan),
            ValueError,
            r"`allotted_seconds`.* nan",
        ),
        (lambda: run(protocols.mindflayer((1, 2), 1.0)), ValueError, r"\(2,\).*\(4,\)"),
        (
            lambda: run(protocols.mindflayer(1, (1.0, 2.0, 3.0))),
            ValueError,
            r"\(3,\).*\(4,\)",
        ),
        (
            lambda: run(protocols.mindflayer(0, 1.0)),
            ValueError,
            r"`trials`.* 0",
        ),
        (lambda: protocols.gradient_coding(0, 1), ValueError, r"`num_clusters`.* 0"),
        (lambda: protocols.gradient_coding(2, 0), ValueError, r"`load`.* 0"),
        (lambda: protocols.gradient_coding(2, 1.5), TypeError, r"`load`.* 1\.5"),
        (
            lambda: run(protocols.gradient_coding(5, 1)),
            ValueError,
            r"`num_clusters`.* 4.* 5",
        ),
        (lambda: run(protocols.gradient_coding(2, 3)), ValueError, r"`load`.* 2.* 3"),
        # the cluster
        (lambda: spec_of(0), ValueError, r"`workers`.* 0"),
        (lambda: spec_of(-1), ValueError, r"`workers`.* -1"),
        (lambda: spec_of(2.0), TypeError, r"`workers`.* 2\.0"),
        (lambda: spec_of(True), TypeError, r"`workers`.* True"),
        (
            lambda: cluster.Cluster(2, [cluster.constant(1.0)] * 3),
            ValueError,
            r"`service`.* 2, got 3",
        ),
        *[
            (
                lambda bad=bad: cluster.Cluster(2, cluster.constant(1.0), slowdown=bad),
                error,
                rf"`slowdown.* {text}",
            )
            for bad, error, text in [
                ([1.0], ValueError, r"2 .* \(1\.0,\)"),
                ([1.0, 2.0, 3.0], ValueError, r"2 .* \(1\.0, 2\.0, 3\.0\)"),
                ([1.0, 0.0], ValueError, r"positive.* \(1\.0, 0\.0\)"),
                ([1.0, -1.0], ValueError, r"positive.* \(1\.0, -1\.0\)"),
                ([1.0, math.nan], ValueError, r"nan"),
                ([1.0, INF], ValueError, r"inf.*Slowdown"),
                ([cluster.Slowdown(2, 2.0)], ValueError, r"0 \.\. 1, got 2"),
                ([cluster.Slowdown((0, -1), 2.0)], ValueError, r"got -1"),
                ([cluster.Slowdown(0, 2.0), 3.0], TypeError, r"3\.0"),
            ]
        ],
        (lambda: cluster.Slowdown(0, 0.0), ValueError, r"`factor`.* 0"),
        (lambda: cluster.Slowdown(0, -2.0), ValueError, r"`factor`.* -2"),
        (lambda: cluster.Slowdown(0, math.nan), ValueError, r"`factor`.* nan"),
        (
            lambda: cluster.Slowdown(0, 2.0, -1.0),
            ValueError,
            r"`start_seconds`.* -1",
        ),
        (
            lambda: cluster.Slowdown(0, 2.0, 3.0, 3.0),
            ValueError,
            r"`stop_seconds`.* 3",
        ),
        (
            lambda: cluster.Slowdown(0, 2.0, math.nan),
            ValueError,
            r"`start_seconds`.* nan",
        ),
        (
            lambda: cluster.Communication(latency_seconds=-1.0),
            ValueError,
            r"`latency_seconds`.* -1",
        ),
        (
            lambda: cluster.Communication(message_bytes=math.nan),
            ValueError,
            r"`message_bytes`.* nan",
        ),
        (
            lambda: cluster.Communication(bytes_per_second=0.0),
            ValueError,
            r"`bytes_per_second`.* 0",
        ),
        # the run
        (lambda: run(protocols.hardsync(), num_updates=0), ValueError, "`num_updates`"),
        (
            lambda: run(protocols.hardsync(), num_updates=-5),
            ValueError,
            r"`num_updates`.* -5",
        ),
        (
            lambda: run(protocols.hardsync(), num_updates=5.0),
            TypeError,
            r"`num_updates`.* 5\.0",
        ),
        (lambda: run(protocols.hardsync), TypeError, r"protocol|hardsync"),
        (lambda: run(protocols.hardsync(), seconds=0.0), ValueError, r"`seconds`.* 0"),
        (
            lambda: run(protocols.hardsync(), seconds=math.nan),
            ValueError,
            r"`seconds`.* nan",
        ),
        (lambda: run(protocols.hardsync(), seed=-1), ValueError, r"`seed`.* -1"),
        (lambda: run(protocols.hardsync(), seed=0.5), TypeError, r"`seed`.* 0\.5"),
    ],
)
def test_a_bad_argument_is_named_with_its_value(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_message_that_nobody_wants_any_more_does_not_occupy_a_serial_server():
    # two workers, a message takes 1 s, a task 10 s: worker 1 waits for its turn to
    # read and is called off, so worker 0's gradient need not wait for it
    link = cluster.Communication(message_bytes=1.0, bytes_per_second=1.0, serial=True)

    def rule(server):
        server.start(0)
        server.start(1)
        server.start(1)  # its first request is not wanted any more
        for arrival in server:
            server.take(arrival)
            server.update()

    service = [cluster.constant(10.0), cluster.constant(0.5)]
    trace = cluster.simulate(cluster.Cluster(2, service, None, link), rule, 2, seed=0)
    # worker 0 reads in [0, 1]; worker 1 in [1, 2] and not [2, 3]; sends in [2.5, 3.5]
    np.testing.assert_allclose(trace.seconds, [3.5, 12.0])


def test_a_serial_server_is_no_bottleneck_of_work_that_was_called_off():
    # every worker's reads and writes fit on the link, so none starves
    link = cluster.Communication(message_bytes=2.0, bytes_per_second=1.0, serial=True)
    workers = cluster.Cluster(8, cluster.exponential(1.0), None, link)
    restart = protocols.bounded_staleness(1, late="restart")
    trace = cluster.simulate(workers, restart, 300, seed=0)
    assert trace.max_staleness <= 1
    assert trace.seconds[-1] >= 300 * 2 * 2.0  # a gradient is two messages


def test_busy_is_computing_and_not_waiting_for_the_link():
    link = cluster.Communication(message_bytes=1.0, bytes_per_second=1.0, serial=True)
    workers = cluster.Cluster(4, cluster.constant(0.5), None, link)
    trace = cluster.simulate(workers, protocols.k_async(1), 40, seed=0)
    computed = 0.5 * trace.summary().gradients
    # beside what was delivered, at most one task of each worker is under way
    assert (trace.busy_seconds >= computed).all()
    assert (trace.busy_seconds <= computed + 0.5).all()


def test_a_group_without_a_share_of_the_updates_does_none():
    workers = cluster.Cluster(4, cluster.constant(1.0), [4.0, 3.0, 1.0, 1.0])
    rule = protocols.groups(4, data="static")
    trace = cluster.simulate(workers, rule, 2, seed=0)
    assert trace.worker.tolist() == [1, 0]


def test_a_cluster_can_be_hashed():
    laws = [cluster.constant(1.0), cluster.constant(2.0)]
    assert hash(cluster.Cluster(2, laws, [1.0, 2.0])) == hash(
        cluster.Cluster(2, tuple(laws), (1.0, 2.0))
    )


def test_a_worker_named_twice_is_slowed_once():
    once, twice = (
        cluster.Cluster(1, cluster.constant(1.0), [cluster.Slowdown(who, 2.0)])
        for who in (0, (0, 0))
    )
    assert once.speeds() == twice.speeds()


@pytest.mark.parametrize(
    ("start", "name"),
    [({"worker": -1}, "worker"), ({"worker": 0, "read_version": 9}, "read_version")],
)
def test_a_rule_that_starts_what_is_not_there_is_refused(start, name):
    def rule(server):
        server.start(**start)

    with pytest.raises(ValueError, match=f"`{name}`.* in 0"):
        cluster.simulate(cluster.Cluster(1, cluster.constant(1.0)), rule, 1, seed=0)


def test_polls_weaken_a_sampled_barrier_to_about_ssp():
    # Wang et al., arXiv:1709.07772, figures: with a sample drawn anew again and again,
    # pBSP(4) is about as fast as SSP(4); with a sample that is kept it is far slower
    workers = cluster.Cluster(200, cluster.exponential(2.0))

    def steps(rule):
        trace = cluster.simulate(workers, rule, 10**6, seed=0, seconds=200.0)
        return trace.summary().gradients.mean()

    polled = steps(protocols.psp(4, 0, poll_seconds=0.1))
    assert abs(polled / steps(protocols.ssp(4)) - 1) < 0.3
    assert steps(protocols.psp(4, 0)) < 0.6 * polled
    assert steps(protocols.psp(10, 0, poll_seconds=0.1)) < polled


@pytest.mark.parametrize("sample", [6, 7])
@pytest.mark.parametrize("poll_seconds", [INF, 0.3, 1e-6])
def test_a_sample_of_all_others_is_ssp_to_the_last_event(
    sample, poll_seconds, monkeypatch
):
    workers = cluster.Cluster(7, cluster.exponential(1.0))
    theirs = cluster.simulate(workers, protocols.ssp(2), 300, seed=1)
    # nobody polls: what a poll could see is seen without it
    monkeypatch.setattr(cluster.Server, "wake", None)
    rule = protocols.psp(sample, 2, poll_seconds=poll_seconds)
    ours = cluster.simulate(workers, rule, 300, seed=1)
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


LINK = cluster.Communication(0.25, message_bytes=48.0, bytes_per_second=32.0)


@pytest.mark.parametrize("exponent", [0, 1, 3, 10])
def test_an_all_reduce_halves_what_it_sends_and_doubles_it_again(exponent):
    """Phase by phase: half of the model, a quarter, ..., and back."""
    halves = [0.25 + 1.5 / 2**phase for phase in range(1, exponent + 1)]
    seen = LINK.all_reduce_seconds(2**exponent)
    assert math.isclose(seen, 2 * sum(halves), rel_tol=1e-13)


def test_an_all_reduce_of_any_number_lies_between_those_of_powers_of_two():
    seen = [LINK.all_reduce_seconds(workers) for workers in range(4, 9)]
    assert seen == sorted(seen)
    assert math.isclose(seen[1], 2 * 3 * 0.25 + 2 * (4 / 5) * 1.5, rel_tol=1e-13)


@pytest.mark.parametrize("exponent", [0, 1, 3])
def test_a_group_s_sum_is_a_whole_model_for_each_bit(exponent):
    bits = [0.25 + 48.0 / 32.0 for _ in range(exponent)]
    assert LINK.group_seconds(2**exponent) == sum(bits)
