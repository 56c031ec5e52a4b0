"""Bounded staleness: what happens to a gradient that is too old."""

from heapq import heappop, heappush
from typing import Literal

from delayjax._src import base
from delayjax._src.cluster.server import Protocol, Server


def bounded_staleness(
    bound: int, *, late: Literal["drop", "restart", "wait"] = "drop", batch: int = 1
) -> Protocol:
    """Asynchronous SGD in which no applied gradient is older than `bound`.

    Args:
        bound: the largest staleness, in updates.
        late: what happens beyond. "drop": a gradient that arrives too old is refused,
            and its worker reads and goes on (the released Rudra server). "restart": a
            worker whose gradient would be too old stops at once, reads and begins anew.
            "wait": the server holds what arrives while an update would make a gradient
            in flight too old, and then applies all of it in one; who is held idles.
        batch: gradients an update, at least where it waits.

    Returns:
        The rule; tau <= bound. Dropped or not, the mean staleness of all arrivals is
        (P - 1) times the share that is accepted (batch 1, "drop").

    Raises:
        TypeError, ValueError: if `bound` is negative, `batch` below 1 or `late`
            unknown.

    Example:
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> cluster = Cluster(16, exponential(1.0))
        >>> [
        ...     simulate(cluster, bounded_staleness(4, late=late), 99, seed=0
        ...     ).max_staleness
        ...     for late in ("drop", "restart", "wait")
        ... ]
        [4, 4, 4]

    References:
        Gupta, Zhang and Wang (Rudra), ICDM 2016, arXiv:1509.04210 (the released code's
        drop); "wait" and "restart" are the other two ways to keep the bound.
    """
    bound = base.check_bound("bound", bound)
    batch = base.check_bound("batch", batch, at_least=1)
    rules = {"drop": _drop, "restart": _restart, "wait": _wait}
    if late not in rules:
        raise ValueError(f'`late` must be "drop", "restart" or "wait", got {late!r}.')

    def rule(server):
        if late == "wait":  # who is held cannot deliver twice
            server.check_workers("batch", batch)
        server.start_all()
        rules[late](server, bound, batch)

    return rule


def ringmaster(bound: int, *, stop: bool = False) -> Protocol:
    """Ringmaster ASGD: a gradient counts if its staleness is below `bound`.

        x_{t+1} = x_t - eta g(x_{t - tau}) if tau < R, else the gradient is ignored

    The worker reads the current parameters either way. R = 1 is SGD on whatever comes
    first, R = inf plain asynchronous SGD; for a time that no method beats,
    R = max(1, ceil(sigma^2 / eps)).

    Args:
        bound: R, in updates.
        stop: whether computations whose staleness reaches R are stopped at once (the
            variant with calculation stops).

    Returns:
        The rule, `bounded_staleness(bound - 1)` by its paper's name.

    Raises:
        TypeError, ValueError: if `bound` is below 1.

    Example:
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> simulate(Cluster(16, exponential(1.0)), ringmaster(4), 99, seed=0
        ...     ).max_staleness
        3

    References:
        Maranjyan, Tyurin and Richtarik, Ringmaster ASGD, ICML 2025, arXiv:2501.16168.
    """
    bound = base.check_bound("bound", bound, at_least=1)
    return bounded_staleness(bound - 1, late="restart" if stop else "drop")


def _drop(server: Server, bound: int, batch: int) -> None:
    for arrival in server:
        if server.version - arrival.read_version > bound:
            server.drop(arrival)
        else:
            server.take(arrival)
            if server.taken == batch:
                server.update()
        server.start(arrival.worker)


def _restart(server: Server, bound: int, batch: int) -> None:
    # (version read, worker, task), the oldest first
    begun = [(0, worker, server.task(worker)) for worker in range(server.num_workers)]

    def start(worker):
        server.start(worker)
        heappush(begun, (server.version, worker, server.task(worker)))

    for arrival in server:
        server.take(arrival)
        if server.taken == batch:
            server.update()
            while begun and server.version - begun[0][0] > bound:
                _, worker, task = heappop(begun)
                if server.task(worker) != task:
                    continue  # it has delivered
                read_version = server.read_version(worker)
                if server.version - read_version > bound:
                    start(worker)
                else:  # it had waited for its turn to read
                    heappush(begun, (read_version, worker, task))
        start(arrival.worker)


def _wait(server: Server, bound: int, batch: int) -> None:
    started = [0] * server.num_workers  # at which version, or a later one, it reads
    in_flight = {0: server.num_workers}  # started at a version
    oldest = 0
    held = []
    for arrival in server:
        server.take(arrival)
        held.append(arrival.worker)
        in_flight[started[arrival.worker]] -= 1
        while oldest < server.version and not in_flight[oldest]:
            del in_flight[oldest]
            oldest += 1
        too_old = in_flight[oldest] and server.version + 1 - oldest > bound
        if server.taken >= batch and not too_old:
            server.update()
            in_flight[server.version] = len(held)
            for worker in held:
                started[worker] = server.version
                server.start(worker)
            held = []
