"""Protocols of a user's own: what a server does, and which calls it refuses."""

import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax._src.cluster import server
from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.given_times import UPDATES, simulate, times_of
from tests.cluster.wrong import (
    failed,
    made_up,
    only_two,
    returns,
    starts_none,
    taken_and_dropped,
    twice,
)

INF = math.inf
# a message takes a second
LINK = cluster.Communication(message_bytes=1.0, bytes_per_second=1.0, serial=True)


# A protocol of one's own.


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

    times = times_of("exponential", 3, 1)
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

    times = times_of("exponential", 4, 2)
    trace = simulate(times, impatient)
    oracle.assert_same(trace, oracle.k_sync(times, 1, UPDATES))


def test_a_worker_may_go_on_at_the_version_it_has():
    def stubborn(server):
        server.start_all()
        for arrival in server:
            server.take(arrival)
            server.update()
            server.start(arrival.worker, read_version=arrival.read_version)

    times = times_of("exponential", 2, 3)
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


def test_some_workers_may_never_be_started():
    def half(server):
        server.leave_out((1, 3))
        server.start_all((0, 2))
        for arrival in server:
            server.take(arrival)
            server.update()
            server.start(arrival.worker)

    times = times_of("exponential", 4, 1)
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


def idle(server):
    for _ in server:
        pass


def refusing(server):
    server.start_all()
    for arrival in server:
        server.drop(arrival)
        server.start(arrival.worker)


@pytest.mark.parametrize("name", WAITING)
def test_waiting_for_ever_is_an_error_that_names_protocol_and_worker(name):
    dead = cluster.Cluster(3, cluster.constant(1.0), [cluster.Slowdown(1, INF, 20.0)])
    with pytest.raises(ValueError, match=rf"`{name}\(.*`.*forever.*workers 1,"):
        cluster.simulate(dead, WAITING[name], 10_000, seed=0)
    hangs = cluster.Cluster(3, cluster.infinite_bernoulli(1.0, 0.05))
    with pytest.raises(ValueError, match=rf"`{name}\(.*`.*forever.*worker"):
        cluster.simulate(hangs, WAITING[name], 10_000, seed=1)


def test_asynchrony_survives_the_dead_until_nobody_is_left():
    times = times_of("exponential", 3, 1)
    trace = simulate(
        times, protocols.k_async(1), slowdown=[cluster.Slowdown((0, 1), INF, 20.0)]
    )
    assert trace.num_updates == UPDATES and set(trace.worker[-30:]) == {2}
    everybody = [cluster.Slowdown((0, 1, 2), INF, 20.0)]
    for name, protocol in {
        r"k_async\(1\)": protocols.k_async(1),
        r"ringmaster\(3, stop=False\)": protocols.ringmaster(3),
        r"rennala\(3\)": protocols.rennala(3),
    }.items():
        with pytest.raises(
            ValueError, match=f"`{name}` waits forever for workers 0, 1, 2"
        ):
            simulate(times, protocol, 10_000, slowdown=everybody)


def test_the_error_of_a_protocol_without_progress_names_dead_workers(monkeypatch):
    monkeypatch.setattr("delayjax._src.cluster.server._PATIENCE", 1000)
    dies = cluster.Slowdown(2, math.inf, start_seconds=1.5)
    four = cluster.Cluster(4, cluster.constant(1.0), slowdown=[dies])
    said = "since update 3, but none of workers 2, which have died: accept more"
    with pytest.raises(ValueError, match=said):
        cluster.simulate(four, cluster.protocols.ringleader(), 20, seed=0)


@pytest.mark.parametrize("protocol", [refusing, protocols.ringleader()])
def test_arrivals_that_lead_to_nothing_are_an_error_and_no_endless_loop(
    protocol, monkeypatch
):
    # a million takes seconds
    monkeypatch.setattr(server, "_PATIENCE", 5000)
    # Ringleader goes on collecting from the others when one is gone
    dead = [cluster.Slowdown(1, INF, 20.0)]
    spec = cluster.Cluster(2, cluster.constant(1.0), slowdown=dead)
    with pytest.raises(ValueError, match=r"`(refusing|ringleader\(\))`.*progress"):
        cluster.simulate(spec, protocol, 1000, seed=0)
    # a long run with progress is none
    long = cluster.simulate(spec, protocols.k_async(1), 7500, seed=0)
    assert long.num_updates == 7500


def test_a_message_that_nobody_wants_any_more_does_not_occupy_a_serial_server():
    # tasks of 10 s: worker 1 waits for its turn to read and is called off, so
    # worker 0's gradient need not wait for it
    def protocol(server):
        server.start(0)
        server.start(1)
        server.start(1)  # its first request is not wanted any more
        for arrival in server:
            server.take(arrival)
            server.update()

    service = [cluster.constant(10.0), cluster.constant(0.5)]
    trace = cluster.simulate(
        cluster.Cluster(2, service, None, LINK), protocol, 2, seed=0
    )
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
    workers = cluster.Cluster(4, cluster.constant(0.5), None, LINK)
    trace = cluster.simulate(workers, protocols.k_async(1), 40, seed=0)
    computed = 0.5 * trace.summary().gradients
    # beside what was delivered, at most one task of each worker is under way
    assert (trace.busy_seconds >= computed).all()
    assert (trace.busy_seconds <= computed + 0.5).all()


THREE = cluster.Cluster(3, cluster.constant(1.0))


def starts_nobody_there(server):
    server.start(-1)


def starts_in_the_future(server):
    server.start(0, read_version=9)


def empty(server):
    server.start_all()
    for _ in server:
        server.update()


WRONG = {
    twice: r"`take` must receive each gradient once, got Arrival\(worker=0",
    taken_and_dropped: r"`drop` must receive each gradient once, got Arrival\(worker=0",
    made_up: r"`take` must receive each gradient once, got Arrival\(worker=0",
    failed: r"`take` must receive each gradient once, .*failed=True",
    only_two: r"`only_two` must start all workers, but never started 2: .*leave_out",
    returns: r"`returns` must serve until .* returned after update 5, at 2 s",
    starts_nobody_there: r"`worker` must lie in 0 \.\. 2",
    starts_in_the_future: r"`read_version` in 0 \.\. 0, got 0 and 9",
    empty: "`divisor` must be given if nothing is taken",
    idle: "`idle` waits forever for workers that do not work",
    starts_none: r"`starts_none` must serve until .* returned after update 0, at 0 s",
}


@pytest.mark.parametrize("protocol", WRONG, ids=lambda p: p.__name__)
def test_a_protocol_that_would_be_trained_on_what_is_wrong_names_the_call(protocol):
    with pytest.raises(ValueError, match=WRONG[protocol]):
        cluster.simulate(THREE, protocol, 20, seed=0)


def test_a_protocol_that_returns_early_is_refused_before_a_deadline_too():
    with pytest.raises(ValueError, match=r"`returns` must serve until"):
        cluster.simulate(THREE, returns, None, seconds=100.0, seed=0)
