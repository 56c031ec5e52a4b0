"""Bounded staleness: a server drops, restarts or waits for old gradients."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Literal

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.cluster.server import Server
from delayjax._src.ground import checks, kinds

Bound = int | Callable[[int], int]
"""A bound on staleness, in updates: one number, or a function, version -> bound."""


@remembered
def bounded_staleness(
    bound: Bound,
    *,
    late: Literal["drop", "restart", "wait"] = "drop",
    batch: kinds.PositiveInt = 1,
) -> Protocol:
    """Asynchronous SGD in which no applied gradient is older than `bound`.

    Args:
        bound: the largest staleness, in updates: one number, or a function of the
            version that the gradient is applied to (0 at the first update).
        late: "drop" (Rudra, arXiv:1509.04210): the server drops a gradient that is too
            old, and its worker reads and goes on. "restart": as soon as the
            gradient of a worker would be too old, the worker stops, reads and begins a
            new gradient. "wait": while an update would make a gradient in flight too
            old, the server collects gradients for one update; their workers idle until
            then.
        batch: gradients in an update; with "wait" the least number of gradients.

    Example:
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> bounded = bounded_staleness(4, late="wait")
        >>> simulate(Cluster(16, exponential(1.0)), bounded, 99, seed=0).max_staleness
        4
    """
    largest = _at_version(bound)
    servers = {"drop": _drop, "restart": _restart, "wait": _wait}

    def run(server):
        if late == "wait":  # each worker delivers once
            server.check_workers("batch", batch)
        server.start_all()
        servers[late](server, largest, batch)

    options = f"{_shown(bound)}, late={late!r}, batch={batch}"
    return Protocol(f"bounded_staleness({options})", run)


@remembered
def rennala(batch: int) -> Protocol:
    """Rennala SGD: a batch of gradients at the current version, from fast workers.

        x_{t+1} = x_t - eta (1/S) sum_{l=1..S} g_l(x_t)

    It is `bounded_staleness(0, batch=S)`: gradients at an older version are dropped.
    With S = max(ceil(sigma^2 / eps), 1) no other method reaches a gradient of squared
    norm eps with a better time complexity.

    Args:
        batch: S, gradients in an update; tau = 0.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(2, constant(1.0), slowdown=[1.0, 2.5])
        >>> trace = simulate(cluster, rennala(2), 3, seed=0)
        >>> trace.seconds, trace.summary().dropped
        (array([2., 4., 6.]), 2)

    References:
        Tyurin and Richtarik, Optimal time complexities, NeurIPS 2023, arXiv:2305.12387.
    """
    same = bounded_staleness(0, batch=batch)
    return Protocol(f"rennala({batch})", same.run)


@remembered
def ringmaster(bound: Bound, *, stop: bool = False) -> Protocol:
    """Ringmaster ASGD: a gradient counts if its staleness is below `bound`.

        x_{t+1} = x_t - eta g(x_{t - tau}) if tau < R_t, else the gradient is ignored

    It is `bounded_staleness(R - 1)`. With R = max(1, ceil(sigma^2/eps)) no other method
    has a better time complexity. The adaptive threshold of Ringmaster LMO does not need
    sigma or eps:

        R_t = max(1, floor(sqrt(t)))

    Args:
        bound: R, in updates, at least 1: one number, or a function of t, the version
            that the gradient is applied to (0 at the first update). 1 is SGD on the
            first gradient at each version.
        stop: whether a worker stops as soon as the staleness of its gradient reaches R.

    Example:
        >>> import math
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> workers = Cluster(16, exponential(1.0))
        >>> simulate(workers, ringmaster(4), 99, seed=0).max_staleness
        3
        >>> adaptive = ringmaster(lambda t: max(1, math.isqrt(t)), stop=True)
        >>> simulate(workers, adaptive, 99, seed=0).max_staleness  # R is 9 at the end
        8

    References:
        Maranjyan, Tyurin and Richtarik, Ringmaster ASGD, ICML 2025, arXiv:2501.16168;
        Sadiev, Maranjyan, Ilin and Richtarik, Ringmaster LMO, 2026, arXiv:2605.18174
        (the adaptive threshold, as in its code, which applies R_{t-1} at version t).
    """
    threshold = _at_version(bound, at_least=1)
    late = "restart" if stop else "drop"
    same = bounded_staleness(lambda version: threshold(version) - 1, late=late)
    return Protocol(f"ringmaster({_shown(bound)}, stop={stop})", same.run)


def _at_version(bound: Bound, *, at_least: int = 0) -> Callable[[int], int]:
    """A function, version -> the bound, which checks the bound."""

    def checked(version):
        largest = bound(version) if callable(bound) else bound
        return checks.check_bound("bound", largest, at_least=at_least)

    checked(0)  # an error before any work
    return checked


def _shown(bound: Bound) -> str:
    """A bound in the name of its protocol."""
    return getattr(bound, "__name__", str(bound))


def _drop(server: Server, largest: Callable[[int], int], batch: int) -> None:
    for arrival in server:
        if server.version - arrival.read_version > largest(server.version):
            server.drop(arrival)
        else:
            server.take(arrival)
            if server.taken == batch:
                server.update()
        server.start(arrival.worker)


def _restart(server: Server, largest: Callable[[int], int], batch: int) -> None:
    # (version read, worker, task), the oldest first
    begun = [(0, worker, server.task(worker)) for worker in range(server.num_workers)]

    def start(worker):
        server.start(worker)
        heappush(begun, (server.version, worker, server.task(worker)))

    for arrival in server:
        server.take(arrival)
        if server.taken == batch:
            server.update()
            bound = largest(server.version)
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


def _wait(server: Server, largest: Callable[[int], int], batch: int) -> None:
    started = [0] * server.num_workers  # the version when each worker started
    in_flight = {0: server.num_workers}  # version -> workers that started at it
    oldest = 0
    held = []
    for arrival in server:
        server.take(arrival)
        held.append(arrival.worker)
        in_flight[started[arrival.worker]] -= 1
        while oldest < server.version and not in_flight[oldest]:
            del in_flight[oldest]
            oldest += 1
        following = server.version + 1
        too_old = in_flight[oldest] and following - oldest > largest(following)
        if server.taken >= batch and not too_old:
            server.update()
            in_flight[server.version] = len(held)
            for worker in held:
                started[worker] = server.version
                server.start(worker)
            held = []
