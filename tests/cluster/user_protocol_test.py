"""Protocols of a user's own: a call that is wrong is named, and nothing is traced."""

import pytest

from delayjax.cluster import Cluster, constant, protocols, simulate

THREE = Cluster(3, constant(1.0))


def twice(server):
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.take(arrival)
        server.update()
        server.start(arrival.worker)


def taken_and_dropped(server):
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.update()
        server.drop(arrival)
        server.start(arrival.worker)


def made_up(server):
    server.start_all()
    for arrival in server:
        server.take(arrival._replace(worker=0))
        server.update()
        server.start(arrival.worker)


def failed(server):
    for worker in range(3):
        server.start(worker, limit=0.5)
    for arrival in server:
        server.take(arrival)
        server.update()


def only_two(server):
    server.start_all([0, 1])
    for arrival in server:
        server.take(arrival)
        server.update()
        server.start(arrival.worker)


def returns(server):
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.update()
        server.start(arrival.worker)
        if server.version == 5:
            return


def starts_none(server):
    del server


WRONG = {
    twice: r"`take` must receive each gradient once, got Arrival\(worker=0",
    taken_and_dropped: r"`drop` must receive each gradient once, got Arrival\(worker=0",
    made_up: r"`take` must receive each gradient once, got Arrival\(worker=0",
    failed: r"`take` must receive each gradient once, .*failed=True",
    only_two: r"`only_two` must start all workers, but never started 2: .*leave_out",
    returns: r"`returns` must serve until .* returned after update 5 of 20, at 2 s",
    starts_none: r"`protocol` must make updates, got starts_none: none",
}


@pytest.mark.parametrize("protocol", WRONG, ids=lambda p: p.__name__)
def test_a_protocol_that_would_be_trained_on_what_is_wrong_names_the_call(protocol):
    with pytest.raises(ValueError, match=WRONG[protocol]):
        simulate(THREE, protocol, 20, seed=0)


def test_a_protocol_may_leave_workers_out():
    def two(server):
        server.leave_out([2])
        only_two(server)

    trace = simulate(THREE, two, 20, seed=0)
    assert set(trace.worker.tolist()) == {0, 1}


def test_a_protocol_that_returns_early_is_refused_before_a_deadline_too():
    with pytest.raises(ValueError, match=r"`returns` must serve until"):
        simulate(THREE, returns, None, seconds=100.0, seed=0)


@pytest.mark.parametrize("probability", [1e-9, 0.99e-5])
def test_a_gradient_that_is_never_sent_is_refused_at_once(probability):
    with pytest.raises(ValueError, match="`probability` must be at least 1e-05"):
        protocols.event_triggered(probability)
