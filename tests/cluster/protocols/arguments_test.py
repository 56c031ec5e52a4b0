"""Arguments of protocols that make no sense: refused by their names."""

import math
import re

import pytest

from delayjax import cluster
from delayjax.cluster import protocols

# a bad argument, and the good ones that the call needs
BAD = [
    (protocols.n_softsync, {"n": 0}, ValueError),
    (protocols.k_sync, {"k": 0}, ValueError),
    (protocols.k_sync, {"k": 1.5}, TypeError),
    (protocols.k_batch_sync, {"k": -2}, ValueError),
    (protocols.k_async, {"k": True}, TypeError),
    (protocols.k_batch_async, {"k": "2"}, TypeError),
    (protocols.groups, {"num_groups": 0}, ValueError),
    (protocols.groups, {"data": "some", "num_groups": 2}, ValueError),
    (protocols.progressive_groups, {"max_groups": 0}, ValueError),
    (protocols.progressive_groups, {"tolerance": 0.0, "max_groups": 2}, ValueError),
    (protocols.progressive_groups, {"every": 0, "max_groups": 2}, ValueError),
    (protocols.ringmaster, {"bound": 0}, ValueError),
    (protocols.rennala, {"batch": 0}, ValueError),
    (protocols.psp, {"sample": -1, "bound": 1}, ValueError),
    (protocols.psp, {"bound": -1, "sample": 1}, ValueError),
    (protocols.psp, {"poll_seconds": 0.0, "sample": 1, "bound": 1}, ValueError),
    (protocols.ssp, {"bound": -1}, ValueError),
    (protocols.ssp, {"bound": math.nan}, (TypeError, ValueError)),
    (protocols.bounded_staleness, {"bound": -1}, ValueError),
    (protocols.bounded_staleness, {"late": "early", "bound": 1}, ValueError),
    (protocols.bounded_staleness, {"batch": 0, "bound": 1}, ValueError),
    (protocols.event_triggered, {"probability": 0.0}, ValueError),
    (protocols.event_triggered, {"probability": 1.5}, ValueError),
    (protocols.event_triggered, {"probability": 0.99e-5}, ValueError),
    (protocols.fedbuff, {"buffer": 0, "concurrency": 1}, ValueError),
    (protocols.fedbuff, {"concurrency": 0, "buffer": 1}, ValueError),
    (protocols.mindflayer, {"trials": -1, "allotted_seconds": 1.0}, ValueError),
    (protocols.mindflayer, {"trials": 0, "allotted_seconds": 1.0}, ValueError),
    (protocols.mindflayer, {"trials": 1.5, "allotted_seconds": 1.0}, ValueError),
    (protocols.mindflayer, {"allotted_seconds": 0.0, "trials": 1}, ValueError),
    (protocols.mindflayer, {"allotted_seconds": math.nan, "trials": 1}, ValueError),
    (protocols.gradient_coding, {"num_clusters": 0, "load": 1}, ValueError),
    (protocols.gradient_coding, {"load": 0, "num_clusters": 2}, ValueError),
]


@pytest.mark.parametrize(("make", "arguments", "error"), BAD)
def test_a_bad_argument_is_named_with_its_value(make, arguments, error):
    name, value = next(iter(arguments.items()))
    with pytest.raises(error, match=rf"`{name}` .* {re.escape(repr(value))}"):
        make(**arguments)


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
