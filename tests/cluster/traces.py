"""Traces of every shape, simulated and by hand."""

import dataclasses

import numpy as np

from delayjax import cluster
from delayjax.cluster import protocols

# traces of every shape: one gradient an update, several, different numbers, none
PROTOCOLS = {
    "ASGD": protocols.k_async(1),
    "2-softsync": protocols.n_softsync(2),
    "ringleader": protocols.ringleader(),
    "waiting": protocols.bounded_staleness(3, late="wait"),
    "dropping": protocols.ringmaster(3),
    "mindflayer": protocols.mindflayer(1, 0.2),
    "groups": protocols.groups(2),
    "triggered": protocols.event_triggered(0.4),
    "coded": protocols.gradient_coding(2, 2),
}
# of which a .csv can hold
LOGGABLE = [name for name in PROTOCOLS if name != "mindflayer"]


def simulate(name, *, seed=1, num_updates=60):
    spec = cluster.Cluster(5, cluster.exponential(1.0), slowdown=(1, 1, 1, 1, 4))
    return cluster.simulate(spec, PROTOCOLS[name], num_updates, seed=seed)


def by_hand(num_workers, updates, *, divisor=None):
    """The trace of [(seconds, [(worker, read_version), ...]), ...]."""
    flat = [(t, *row) for t, (_, rows) in enumerate(updates) for row in rows]
    update, worker, read = np.array(flat, np.int32).reshape(-1, 3).T
    unknown = np.full(len(flat), np.nan)
    counts = np.array([len(rows) for _, rows in updates], float)
    return cluster.Trace(
        num_workers=num_workers,
        seconds=np.array([seconds for seconds, _ in updates], np.float64),
        update=update,
        worker=worker,
        read_version=read,
        begun=unknown,
        arrived=unknown,
        divisor=counts if divisor is None else np.array(divisor, np.float64),
        busy_seconds=np.full(num_workers, np.nan),
    )


def assert_equal(one, other):
    for field in dataclasses.fields(cluster.Trace):
        if field.name == "dropped":
            continue
        left, right = getattr(one, field.name), getattr(other, field.name)
        np.testing.assert_array_equal(left, right, err_msg=field.name)
        assert np.asarray(left).dtype == np.asarray(right).dtype, field.name
    for left, right in zip(one.dropped, other.dropped, strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype
