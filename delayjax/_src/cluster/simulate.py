"""A protocol that runs on a cluster."""

import math
from collections.abc import Callable

from delayjax._src.cluster.cluster import Cluster
from delayjax._src.cluster.server import Server
from delayjax._src.cluster.trace import Trace
from delayjax._src.ground import kinds


@kinds.checked
def simulate(
    cluster: Cluster,
    protocol: Callable[[Server], None],
    num_updates: kinds.PositiveInt | None,
    *,
    seed: kinds.NonNegativeInt,
    seconds: kinds.PositiveOrInfFloat = math.inf,
) -> Trace:
    """Runs a protocol on a cluster: when each gradient arrives, and how stale it is.

    Args:
        cluster: the workers and their times.
        protocol: what the server does with gradients: the result of a function of
            `protocols`, as `protocols.k_async(1)`, or a function of a `Server`.
        num_updates: N; None for as many updates as there are in `seconds`.
        seed: the seed of the service times, which are the same under every protocol:
            worker w draws from `SeedSequence(seed, spawn_key=(w,))`.
        seconds: simulated time; the trace has no update after it. A protocol that waits
            forever ends there.

    Returns:
        The trace of at most N updates, for `replay`. A gradient costs some
        microseconds.

    Raises:
        ValueError: if the protocol waits forever, and `seconds` is not given; the
            message names the workers.

    Example:
        >>> from delayjax.cluster import Cluster, constant, protocols
        >>> trace = simulate(Cluster(3, constant(1.0)), protocols.k_async(1), 7, seed=0)
        >>> trace.seconds, trace.staleness[:, 0]
        (array([1., 1., 1., 2., 2., 2., 3.]), array([0, 1, 2, 2, 2, 2, 2], dtype=int32))
    """
    if num_updates is None and seconds == math.inf:
        raise ValueError("`num_updates` or `seconds` must be given, got None and inf.")
    updates = math.inf if num_updates is None else num_updates
    return served(cluster, protocol, updates, seed=seed, seconds=seconds).trace()


def served(
    cluster: Cluster,
    protocol: Callable[[Server], None],
    num_updates: float,
    *,
    seed: int,
    seconds: float = math.inf,
) -> Server:
    """The server after the last update of a protocol."""
    server = Server(cluster, num_updates, seed, float(seconds), name_of(protocol))
    protocol(server)
    server.check_end()
    return server


def name_of(protocol: Callable[[Server], None]) -> str:
    """A protocol's name for messages: a function's name, or the call that made it."""
    return getattr(protocol, "__name__", repr(protocol))
