import math

import pytest

from delayjax.cluster import Cluster, exponential, protocols, simulate

MADE = [
    protocols.bounded_staleness(2, late="restart", batch=3),
    protocols.event_triggered(0.25),
    protocols.fedbuff(2, concurrency=3),
    protocols.gradient_coding(2, 2, dynamic=True),
    protocols.groups(2, data="static"),
    protocols.hardsync(),
    protocols.k_async(3),
    protocols.k_batch_async(3),
    protocols.k_batch_sync(3),
    protocols.k_sync(3),
    protocols.mindflayer((1, 2), 1.5),
    protocols.n_softsync(2),
    protocols.progressive_groups(4, tolerance=0.5, every=7),
    protocols.ia2sgd(),
    protocols.malenia(1.5),
    protocols.psp(2, math.inf, poll_seconds=0.5),
    protocols.rennala(4),
    protocols.ringleader(),
    protocols.ringmaster(3, stop=True),
    protocols.round_robin(),
    protocols.ssp(1),
]


@pytest.mark.parametrize("protocol", MADE, ids=repr)
def test_a_protocol_shows_the_call_that_made_it(protocol):
    copy = eval(repr(protocol), vars(protocols) | {"inf": math.inf})
    assert repr(copy) == repr(protocol) and type(copy) is type(protocol)


def test_every_protocol_shows_its_call():
    names = {repr(protocol).partition("(")[0] for protocol in MADE}
    public = {name for name in vars(protocols) if not name.startswith("_")}
    assert names == public - {"KScheme"}


def test_a_call_with_a_function_is_shown_by_its_name():
    def room(version):
        return 1 + version

    assert repr(protocols.ringmaster(room)) == "ringmaster(room, stop=False)"
    shown = "bounded_staleness(room, late='drop', batch=1)"
    assert repr(protocols.bounded_staleness(room)) == shown


def test_a_call_with_many_numbers_is_shown_in_short():
    assert len(repr(protocols.mindflayer([2] * 10_000, 1.5))) < 60


def test_a_protocol_may_be_a_part_of_another():
    def warmed_up(server):
        protocols.ssp(1)(server)

    cluster = Cluster(3, exponential(1.0))
    whole = simulate(cluster, protocols.ssp(1), 50, seed=0)
    part = simulate(cluster, warmed_up, 50, seed=0)
    assert (whole.seconds == part.seconds).all()
