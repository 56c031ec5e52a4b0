"""Protocols that break a promise, each another one."""

import itertools
import random


def deaf(server):
    server.start_all()
    for arrival in server:
        if arrival.worker > 0:
            server.take(arrival)
            server.update()
        server.start(arrival.worker)


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
    for worker in range(server.num_workers):
        server.start(worker, limit=0.1)
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


def stops(server):
    """Starts no worker again, so that all idle."""
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.update()


def backwards(server):
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.now -= 2.0 * (server.version % 2)
        server.update()
        server.start(arrival.worker)


def undecided(server):
    server.start_all()
    for arrival in server:
        if random.random() < 0.5:
            server.take(arrival)
            server.update()
        else:
            server.drop(arrival)
        server.start(arrival.worker)


def moody():
    seen = itertools.count()

    def protocol(server):
        server.start_all()
        for arrival in server:
            (server.drop if next(seen) % 50 == 0 else server.take)(arrival)
            if server.taken:
                server.update()
            server.start(arrival.worker)

    return protocol
