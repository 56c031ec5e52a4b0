"""Every protocol against its slow twin, and what coincides at the extremes."""

import math
from collections import Counter

import numpy as np
import pytest

from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.given_times import (
    UPDATES,
    contiguous,
    given_cases,
    simulate,
    times_of,
)


def rows(make, twin, arguments):
    """{name: (the protocol for P workers, its twin)}; an argument may depend on P."""
    return {
        f"{make.__name__}({name})": (
            lambda p, of=of: make(of(p)),
            lambda times, p, of=of: twin(times, of(p), UPDATES),
        )
        for name, of in arguments.items()
    }


def numbers(*values):
    return {str(value): lambda p, value=value: value for value in values}


def softsync(times, n, num_updates):
    return oracle.k_batch_async(times, len(times) // n, num_updates)


def groups(times, n, num_updates):
    return oracle.groups(times, contiguous(len(times), n), num_updates)


ONE, TWO, ALL = {"1": lambda p: 1}, {"2": lambda p: min(2, p)}, {"P": lambda p: p}
KS = ONE | TWO | {"P - 1": lambda p: max(1, p - 1)} | ALL
ACCEPTING = {
    **rows(protocols.k_sync, oracle.k_sync, KS),
    **rows(protocols.k_batch_sync, oracle.k_batch_sync, KS),
    **rows(protocols.k_async, oracle.k_async, KS),
    **rows(protocols.k_batch_async, oracle.k_batch_async, KS),
    **rows(protocols.n_softsync, softsync, ONE | TWO | ALL),
    **rows(protocols.groups, groups, ONE | {"3": lambda p: min(3, p)} | ALL),
    **rows(protocols.ssp, oracle.ssp, numbers(0, 1, 3, math.inf)),
    "hardsync": (
        lambda p: protocols.hardsync(),
        lambda times, p: oracle.k_sync(times, p, UPDATES),
    ),
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
    "fedbuff(3, concurrency=P)": (  # nothing is left to draw
        lambda p: protocols.fedbuff(3, concurrency=p),
        lambda times, p: oracle.k_batch_async(times, 3, UPDATES),
    ),
    "round_robin": (
        lambda p: protocols.round_robin(),
        lambda times, p: oracle.round_robin(times, UPDATES),
    ),
    "ringleader": (
        lambda p: protocols.ringleader(),
        lambda times, p: oracle.ringleader(times, UPDATES),
    ),
    **rows(protocols.malenia, oracle.malenia, numbers(0.4, 1.0, 1.7, 3.0)),
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


def bounded(bound, late, batch=1, *, protocol=None):
    """Of P workers, of whom all wait for no more than P; or another way to call it."""

    def size(p):
        return min(batch, p) if late == "wait" else batch

    return (
        lambda p: (
            protocol or protocols.bounded_staleness(bound, late=late, batch=size(p))
        ),
        lambda times, p: oracle.bounded_staleness(times, bound, late, size(p), UPDATES),
    )


def sqrt_less_one(version):
    """R - 1 of Ringmaster LMO."""
    return max(1, math.isqrt(version)) - 1


def falling(version):
    return max(0, 8 - version // 4)


# name: (the protocol for P workers, its twin that returns what was refused too)
REFUSING = {
    "ia2sgd": (
        lambda p: protocols.ia2sgd(),
        lambda times, p: oracle.ia2sgd(times, UPDATES),
    ),
    **{
        f"bounded_staleness({bound}, {late}, batch {batch})": bounded(
            bound, late, batch
        )
        for late in ("drop", "restart", "wait")
        for bound, batch in ((0, 1), (1, 1), (4, 1), (1000, 1), (0, 3), (2, 3), (4, 7))
    },
    **{
        repr(protocol): bounded(*arguments, protocol=protocol)
        for protocol, arguments in {
            protocols.ringmaster(lambda t: falling(t) + 1): (falling, "drop"),
            **{
                protocols.bounded_staleness(bound, late=late): (bound, late)
                for bound in (sqrt_less_one, falling)
                for late in ("drop", "restart", "wait")
            },
            protocols.ringmaster(1): (0, "drop"),
            protocols.ringmaster(5): (4, "drop"),
            protocols.ringmaster(1, stop=True): (0, "restart"),
            protocols.ringmaster(3, stop=True): (2, "restart"),
            protocols.rennala(1): (0, "drop", 1),
            protocols.rennala(4): (0, "drop", 4),
            protocols.rennala(20): (0, "drop", 20),
        }.items()
    },
}


@pytest.mark.parametrize("name", ACCEPTING)
def test_a_protocol_is_its_twin(name):
    protocol, twin = ACCEPTING[name]
    for p, times in given_cases():
        trace = simulate(times, protocol(p))
        oracle.assert_same(trace, twin(times, p))
        assert trace.summary().dropped == 0
        # nobody's gradient is used twice
        used = Counter(zip(trace.worker, trace.arrived, strict=True))
        assert set(used.values()) == {1}


@pytest.mark.parametrize("name", REFUSING)
def test_a_protocol_that_refuses_is_its_twin(name):
    protocol, twin = REFUSING[name]
    for p, times in given_cases():
        trace = simulate(times, protocol(p))
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


# Papers, I12: what coincides at the extremes of a parameter.
BARRIERS = [
    protocols.k_async(5),
    protocols.groups(1),
    protocols.progressive_groups(1),
    protocols.bounded_staleness(0, late="wait"),
    protocols.gradient_coding(1, 1),
]
ASYNCHRONOUS = [
    protocols.k_batch_async(1),
    protocols.n_softsync(5),
    protocols.ssp(math.inf),
    protocols.fedbuff(1, concurrency=5),
    protocols.psp(2, math.inf),
    protocols.groups(5),
    protocols.ringmaster(10**9),
]


@pytest.mark.parametrize(
    ("protocol", "other"),
    [
        *((protocol, protocols.hardsync()) for protocol in BARRIERS),
        *((protocol, protocols.k_async(1)) for protocol in ASYNCHRONOUS),
    ],
    ids=repr,
)
def test_protocols_coincide_at_their_extremes(protocol, other):
    times = times_of("straggler", 5, 2)
    first, second = simulate(times, protocol), simulate(times, other)
    np.testing.assert_allclose(first.seconds, second.seconds, rtol=1e-12)
    one, other_s = (
        [sorted(rows) for _, rows in oracle.updates_of(trace)]
        for trace in (first, second)
    )
    assert one == other_s
