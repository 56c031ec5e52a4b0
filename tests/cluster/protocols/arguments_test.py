"""Arguments of protocols that make no sense: refused by their names."""

import math

import pytest

from delayjax import cluster
from delayjax.cluster import protocols


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: protocols.n_softsync(0), ValueError, "`n` .* 0"),
        (lambda: protocols.k_sync(0), ValueError, "`k` .* 0"),
        (lambda: protocols.k_sync(1.5), TypeError, r"`k` .* 1\.5"),
        (lambda: protocols.k_batch_sync(-2), ValueError, "`k` .* -2"),
        (lambda: protocols.k_async(True), TypeError, "`k` .* True"),
        (lambda: protocols.k_batch_async("2"), TypeError, "`k` .* '2'"),
        (lambda: protocols.groups(0), ValueError, "`num_groups` .* 0"),
        (lambda: protocols.groups(2, data="some"), ValueError, "`data` .* 'some'"),
        (lambda: protocols.progressive_groups(0), ValueError, "`max_groups` .* 0"),
        (
            lambda: protocols.progressive_groups(2, tolerance=0.0),
            ValueError,
            "`tolerance` .* 0",
        ),
        (lambda: protocols.progressive_groups(2, every=0), ValueError, "`every` .* 0"),
        (lambda: protocols.ringmaster(0), ValueError, "`bound` .* 0"),
        (lambda: protocols.rennala(0), ValueError, "`batch` .* 0"),
        (lambda: protocols.psp(-1, 1), ValueError, "`sample` .* -1"),
        (lambda: protocols.psp(1, -1), ValueError, "`bound` .* -1"),
        (
            lambda: protocols.psp(1, 1, poll_seconds=0.0),
            ValueError,
            "`poll_seconds` .* 0",
        ),
        (lambda: protocols.ssp(-1), ValueError, "`bound` .* -1"),
        (lambda: protocols.ssp(math.nan), (TypeError, ValueError), "`bound` .* nan"),
        (lambda: protocols.bounded_staleness(-1), ValueError, "`bound` .* -1"),
        (
            lambda: protocols.bounded_staleness(1, late="early"),
            ValueError,
            "`late` .* 'early'",
        ),
        (
            lambda: protocols.bounded_staleness(1, batch=0),
            ValueError,
            "`batch` .* 0",
        ),
        (lambda: protocols.event_triggered(0.0), ValueError, "`probability` .* 0"),
        (lambda: protocols.event_triggered(1.5), ValueError, r"`probability` .* 1\.5"),
        (
            lambda: protocols.event_triggered(0.99e-5),
            ValueError,
            "`probability` must be at least 1e-05",
        ),
        (lambda: protocols.fedbuff(0, concurrency=1), ValueError, "`buffer` .* 0"),
        (lambda: protocols.fedbuff(1, concurrency=0), ValueError, "`concurrency` .* 0"),
        (lambda: protocols.mindflayer(-1, 1.0), ValueError, "`trials` .* -1"),
        (lambda: protocols.mindflayer(0, 1.0), ValueError, "`trials` .* 0"),
        (lambda: protocols.mindflayer(1.5, 1.0), ValueError, r"`trials` .* 1\.5"),
        (lambda: protocols.mindflayer(1, 0.0), ValueError, "`allotted_seconds` .* 0"),
        (
            lambda: protocols.mindflayer(1, math.nan),
            ValueError,
            "`allotted_seconds` .* nan",
        ),
        (lambda: protocols.gradient_coding(0, 1), ValueError, "`num_clusters` .* 0"),
        (lambda: protocols.gradient_coding(2, 0), ValueError, "`load` .* 0"),
    ],
)
def test_a_bad_argument_is_named_with_its_value(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
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
        (protocols.mindflayer((1, 2), 1.0), r"\(2,\).*\(4,\)"),
        (protocols.mindflayer(1, (1.0, 2.0, 3.0)), r"\(3,\).*\(4,\)"),
    ],
    ids=repr,
)
def test_what_the_workers_are_too_few_for_is_refused_at_the_start(protocol, message):
    four = cluster.Cluster(4, cluster.constant(1.0))
    with pytest.raises(ValueError, match=message):
        cluster.simulate(four, protocol, 5, seed=0)
