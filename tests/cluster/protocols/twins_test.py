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

# name: (the protocol for P workers, its twin)
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


# name: (the protocol, its twin that returns what was refused too)
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
    "ringmaster(1, stop)": (protocols.ringmaster(1, stop=True), bounded(0, "restart")),
    "ringmaster(3, stop)": (protocols.ringmaster(3, stop=True), bounded(2, "restart")),
    "rennala(1)": (protocols.rennala(1), bounded(0, "drop", 1)),
    "rennala(4)": (protocols.rennala(4), bounded(0, "drop", 4)),
    "rennala(20)": (protocols.rennala(20), bounded(0, "drop", 20)),
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
        trace = simulate(times, protocol)
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
SAME = {
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
    "gradient_coding(1, 1) waits as hardsync": (
        protocols.gradient_coding(1, 1),
        protocols.hardsync(),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_protocols_coincide_at_their_extremes(name):
    times = times_of("straggler", 5, 2)
    first, second = (simulate(times, protocol) for protocol in SAME[name])
    np.testing.assert_allclose(first.seconds, second.seconds, rtol=1e-12)
    one, other = (
        [sorted(rows) for _, rows in oracle.updates_of(trace)]
        for trace in (first, second)
    )
    assert one == other
