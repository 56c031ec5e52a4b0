"""The contract of a protocol: what a server must do with each gradient."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from delayjax._src.cluster import server as servers
from delayjax._src.cluster import service_time
from delayjax._src.cluster.cluster import Cluster, Communication
from delayjax._src.cluster.simulate import name_of
from delayjax._src.cluster.trace import Trace
from delayjax._src.ground import checks, kinds
from delayjax._src.testing.report import (
    BrokenError,
    Report,
    UncheckedError,
    report_on,
    said,
)

SEEDS = 1, 2, 3

REMEDIES = {
    "it serves to the end": "loop `for arrival in server:` until it ends by itself, and"
    " call server.update() now and then.",
    "all workers are started": "call server.start_all() before the loop and"
    " server.start(arrival.worker) in it, or server.leave_out(workers).",
    "each gradient is taken once": "call server.take(arrival) or server.drop(arrival)"
    " once for each arrival that has not failed.",
    "time does not run back": "leave server.now alone.",
    "staleness is counted right": "read server.version and arrival.read_version, and"
    " change neither.",
    "the same seed, the same trace": "draw from server.rng, and make what changes"
    " inside of the protocol: what is outside of it lives on in the next simulation.",
}


@kinds.checked
def check_protocol(
    make: Callable[[], Any],
    *,
    workers: kinds.PositiveInt = 6,
    updates: kinds.PositiveInt = 60,
) -> Report:
    """Checks the contract of a protocol, on several clusters and seeds.

    | promise | what is compared |
    |---|---|
    | it serves to the end | all updates are made, and nothing waits forever |
    | all workers are started | and again within `patience` updates after each gradient,
      unless they are left out |
    | each gradient is taken once | each arrival is taken or dropped, before its worker
      brings the next one and within `patience` updates |
    | time does not run back | arrivals and updates come in order |
    | staleness is counted right | versions in the trace, and counted beside it |
    | the same seed, the same trace | simulated twice, and made anew |

    The clusters: workers of different constant speed, exponential times, and Pareto
    times over a slow serial link. `patience` is a third of the updates, or two updates
    for each worker if these are more; a fault that begins later is not found.

    Args:
        make: a function without arguments that makes the protocol, as
            `lambda: protocols.k_sync(2)`, or `lambda: mine` for a function of the
            server.
        workers: P.
        updates: the updates of each simulation.

    Returns:
        A report. `report.require()` raises an `AssertionError` with what fails. It
        costs less than a second.

    Example:
        >>> def deaf(server):
        ...     server.start_all()
        ...     for arrival in server:
        ...         if arrival.worker > 0:
        ...             server.take(arrival)
        ...             server.update()
        ...         server.start(arrival.worker)
        >>> print(check_protocol(lambda: deaf).failures[0].reason[:62])
        the gradient of worker 0 that arrived at 1.41 s was neither ta
    """
    try:
        protocol = make()
    except TypeError as error:
        raise TypeError(
            f"`make` must be a function without arguments, got {make!r}: write"
            " check_protocol(lambda: protocol)."
        ) from error
    checks.check_function("make()", protocol)
    contract = _Contract(make, workers, updates)
    promises = {
        "it serves to the end": contract.it_serves_to_the_end,
        "all workers are started": contract.all_workers_are_started,
        "each gradient is taken once": contract.each_gradient_is_taken_once,
        "time does not run back": contract.time_does_not_run_back,
        "staleness is counted right": contract.staleness_is_counted_right,
        "the same seed, the same trace": contract.the_same_seed_the_same_trace,
    }
    return report_on(name_of(protocol), promises, REMEDIES)


class _Watched(servers.Server):
    """A server that notes what its protocol does."""

    def __init__(self, cluster: Cluster, updates: int, seed: int, name: str):
        super().__init__(cluster, updates, seed, math.inf, name)
        self.left_out: set[int] = set()
        # a worker's last arrival, and the version then
        self.idle: dict[int, tuple[servers.Arrival, int]] = {}
        # kept, so that no id comes twice, with the version when each was handed out
        self.arrivals: list[tuple[servers.Arrival, int]] = []
        self.is_settled_wrongly = False  # twice, or not handed out
        self.stale: list[int] = []  # of each gradient applied, counted here
        self._read_at = [0] * self.num_workers  # by the worker's task
        self._read_by: dict[int, int] = {}  # by an arrival's id

    def _arrival(self, worker: int, failed: bool) -> servers.Arrival:
        arrival = super()._arrival(worker, failed)
        self.idle[worker] = arrival, self.version
        return self._handed_out(arrival, self._read_at[worker])

    def decode(self, worker: int, begun: float) -> servers.Arrival:
        return self._handed_out(super().decode(worker, begun), self.version)

    def _handed_out(self, arrival: servers.Arrival, read: int) -> servers.Arrival:
        self.arrivals.append((arrival, self.version))
        self._read_by[id(arrival)] = read
        return arrival

    def start(self, worker: int, **options: Any) -> None:
        super().start(worker, **options)
        self.idle.pop(worker, None)
        version = options.get("read_version")
        self._read_at[worker] = self.version if version is None else version

    def wake(self, worker: int, seconds: float) -> None:
        super().wake(worker, seconds)
        self.idle.pop(worker, None)

    def leave_out(self, workers: Any = None) -> None:
        self.left_out.update(range(self.num_workers) if workers is None else workers)
        super().leave_out(self.left_out)

    def _settle(self, call: str, arrival: servers.Arrival) -> None:
        self.is_settled_wrongly |= not self.is_open(arrival)
        super()._settle(call, arrival)

    def update(self, divisor: float | None = None) -> None:
        taken, version = self._taken, self.version
        super().update(divisor)
        if self.version > version:
            self.stale += [version - self._read_by[id(arrival)] for arrival in taken]

    def is_open(self, arrival: servers.Arrival) -> bool:
        """Whether a gradient was neither taken nor dropped."""
        return id(arrival) in self._open

    def is_long_ago(self, version: int) -> bool:
        """Whether more than `patience` updates were made after a version."""
        patience = max(self.num_updates / 3, 2 * self.num_workers)
        return self.version - version > patience

    def left_idle(self) -> servers.Arrival | None:
        """The last gradient, settled or failed, of a worker that is not started again.

        A protocol may let a worker wait for others for some updates.
        """
        for worker, (arrival, version) in self.idle.items():
            is_idle = worker not in self.left_out and not self.is_open(arrival)
            if is_idle and self.is_long_ago(version):
                return arrival
        return None

    def lost(self) -> servers.Arrival | None:
        """A gradient that its protocol forgot.

        It was not taken or dropped before its worker delivered the next gradient; or,
        if its worker delivers no other, within `patience` updates. A protocol may hold
        a gradient for some updates.
        """
        last: dict[int, servers.Arrival] = {}
        for arrival, version in self.arrivals:
            before = last.get(arrival.worker)
            if before and self.is_open(before):
                return before
            last[arrival.worker] = arrival
            if self.is_open(arrival) and self.is_long_ago(version):
                return arrival
        return None


class _Run:
    """One simulation, or the error that ended it."""

    def __init__(self, protocol: Any, cluster: Cluster, updates: int, seed: int):
        self.seen = _Watched(cluster, updates, seed, name_of(protocol))
        self.trace: Trace | None = None
        self.error: Exception | None = None
        try:
            protocol(self.seen)
            self.seen.check_end()
            self.trace = self.seen.trace()
        except Exception as error:  # whatever a stranger's code may raise
            self.error = error
        self.never_started = self.seen._must_start if self.seen.done else set()


class _Contract:
    """The promises of a protocol, on several clusters and seeds."""

    def __init__(self, make: Callable[[], Any], workers: int, updates: int):
        self.make = make
        speeds = np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0]).tolist()
        link = Communication(0.01, 1.0, 50.0, serial=True)
        self.clusters = {
            "constant times": Cluster(
                workers,
                [service_time.constant(speeds[w % 6] + w // 6) for w in range(workers)],
            ),
            "exponential times": Cluster(workers, service_time.exponential(1.0)),
            "a slow link": Cluster(
                workers, service_time.pareto(1.0, 2.5), communication=link
            ),
        }
        self.updates = updates
        self.runs = {
            (where, seed): _Run(make(), cluster, updates, seed)
            for where, cluster in self.clusters.items()
            for seed in SEEDS
        }

    def sound(self) -> list[tuple[str, Trace, _Watched]]:
        """The simulations that ended without an error."""
        ended = [
            (where, run.trace, run.seen)
            for (where, _), run in self.runs.items()
            if run.trace is not None
        ]
        if len(ended) < len(self.runs):
            raise UncheckedError("the simulation stops before its end")
        return ended

    def it_serves_to_the_end(self) -> None:
        for run in self.runs.values():
            known = run.seen.is_settled_wrongly or run.never_started
            if run.error is not None and not known:
                raise run.error

    def all_workers_are_started(self) -> None:
        for run in self.runs.values():
            if run.never_started:
                missing = ", ".join(map(str, sorted(run.never_started)))
                raise BrokenError(f"the workers {missing} are never started.")
            if last := run.seen.left_idle():
                raise BrokenError(
                    f"worker {last.worker} is not started again after its gradient that"
                    f" arrived at {last.arrived:.3g} s."
                )

    def each_gradient_is_taken_once(self) -> None:
        for run in self.runs.values():
            if run.error is not None and run.seen.is_settled_wrongly:
                raise BrokenError(said(run.error))
            if lost := run.seen.lost():
                raise BrokenError(
                    f"the gradient of worker {lost.worker} that arrived at"
                    f" {lost.arrived:.3g} s was neither taken nor dropped."
                )

    def time_does_not_run_back(self) -> None:
        for where, trace, seen in self.sound():
            arrived = [arrival.arrived for arrival, _ in seen.arrivals]
            for what, times in {"updates": trace.seconds, "arrivals": arrived}.items():
                if (np.diff(times) < 0).any():
                    raise BrokenError(f"the times of {what} fall, with {where}.")
            if (trace.begun > trace.arrived).any():
                raise BrokenError(f"a gradient arrives before it begins, with {where}.")

    def staleness_is_counted_right(self) -> None:
        for where, trace, seen in self.sound():
            ages = trace.update - trace.read_version  # a `Trace` refuses negative ones
            if where != "a slow link":  # where a worker reads when its turn has come
                for recorded, counted in zip(ages, seen.stale, strict=True):
                    if recorded != counted:
                        raise BrokenError(
                            f"a gradient of staleness {counted} is recorded with"
                            f" {recorded}, with {where}."
                        )

    def the_same_seed_the_same_trace(self) -> None:
        self.sound()
        protocol = self.make()
        for (where, seed), run in self.runs.items():
            for name, other in {
                "made anew": self.make(),
                "used again": protocol,
            }.items():
                again = _Run(other, self.clusters[where], self.updates, seed).trace
                if again is None or not _is_same(run.trace, again):
                    raise BrokenError(
                        f"seed {seed} gives another trace if the protocol is {name},"
                        f" with {where}."
                    )


def _is_same(one: Trace | None, other: Trace) -> bool:
    names = "seconds", "update", "worker", "read_version", "arrived", "divisor"
    return one is not None and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in names
    )
