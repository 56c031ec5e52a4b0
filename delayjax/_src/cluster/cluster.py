"""What a cluster is: workers, their speeds, and their links to the server."""

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from delayjax._src import base
from delayjax._src.cluster import ranges, services
from delayjax._src.cluster.services import Service


@dataclasses.dataclass(frozen=True)
class Slowdown:
    """Workers that are slower, or dead, for some time.

    Work done in [start, stop) takes `factor` times as long. If a task crosses an edge,
    each part has its own speed. Overlapping slowdowns multiply. With an infinite factor
    the workers are dead: they lose their task at `start`, and read and begin anew at
    `stop`. Messages under way arrive. A task with a time limit fails at its limit.

    Attributes:
        workers: a worker or several.
        factor: how many times longer a gradient takes, above 0; below 1 is faster.
        start_seconds: when the slowdown begins.
        stop_seconds: when the slowdown ends; by default never.
    """

    workers: int | Sequence[int]
    factor: float
    start_seconds: float = 0.0
    stop_seconds: float = math.inf

    def __post_init__(self):
        if not self.factor > 0:
            raise ValueError(
                f"`factor` must be positive, got {self.factor}: inf is a dead worker."
            )
        if not 0 <= self.start_seconds < self.stop_seconds:
            raise ValueError(
                "`stop_seconds` must be above `start_seconds`, and this non-negative,"
                f" got {self.stop_seconds} and {self.start_seconds}."
            )


@dataclasses.dataclass(frozen=True)
class Communication:
    """The time of a message between a worker and the server, latency + bytes / rate.

    A message carries the parameters or a gradient; its worker does nothing else.

    Attributes:
        latency_seconds: of a message.
        message_bytes: of a message.
        bytes_per_second: the rate of the link; by default infinite.
        serial: whether the server sends or receives one message at a time, in the order
            of requests, in bytes / rate each; by default it serves all at once. A
            worker reads the version at the moment when sending begins.
    """

    latency_seconds: float = 0.0
    message_bytes: float = 0.0
    bytes_per_second: float = math.inf
    serial: bool = False

    def __post_init__(self):
        base.check_number("latency_seconds", self.latency_seconds)
        base.check_number("message_bytes", self.message_bytes)
        if self.bytes_per_second != math.inf:
            base.check_number("bytes_per_second", self.bytes_per_second, positive=True)

    @property
    def transfer_seconds(self) -> float:
        """The time for which a message occupies a serial server."""
        return self.message_bytes / self.bytes_per_second

    def all_reduce_seconds(self, workers: int) -> float:
        """The time of a sum over P workers: reduce-scatter, then all-gather.

            2 ceil(log2 P) latency + 2 (1 - 1 / P) bytes / rate

        Args:
            workers: P, each with such a link.

        Example:
            >>> link = Communication(1.0, message_bytes=40.0, bytes_per_second=10.0)
            >>> link.all_reduce_seconds(4)  # 2 * 2 * 1 + 2 * 3 / 4 * 4
            10.0

        References:
            Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005 (recursive halving).
        """
        workers = base.check_bound("workers", workers, at_least=1)
        latencies, models = 2 * (workers - 1).bit_length(), 2 * (1 - 1 / workers)
        return latencies * self.latency_seconds + models * self.transfer_seconds

    def group_seconds(self, group_size: int) -> float:
        """The time of a sum over a group of `averaging.wagma`: log2 S models in turn.

            log2(S) (latency + bytes / rate)

        Args:
            group_size: S, a power of two.
        """
        size = base.check_bound("group_size", group_size, at_least=1)
        if size & (size - 1):
            raise ValueError(f"`group_size` must be a power of two, got {size}.")
        return (size.bit_length() - 1) * (self.latency_seconds + self.transfer_seconds)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Workers, the time their gradients take, and their links to the server.

    Attributes:
        workers: how many, P.
        service: the seconds that gradients take: a `ServiceTime` or another service,
            one for all workers or P.
        slowdown: P factors (4.0 is a worker four times slower), or `Slowdown`s.
        communication: the time of messages; by default they take none.

    Example:
        >>> from delayjax.cluster import exponential
        >>> Cluster(8, exponential(1.0), slowdown=[1.0] * 7 + [4.0]).workers
        8
    """

    workers: int
    service: Service | Sequence[Service]
    slowdown: Sequence[float] | Sequence[Slowdown] | None = None
    communication: Communication | None = None

    def __post_init__(self):
        base.check_bound("workers", self.workers, at_least=1)
        # tuples, so that a cluster can be hashed
        if not callable(self.service):
            object.__setattr__(self, "service", tuple(self.service))
        if self.slowdown is not None:
            object.__setattr__(self, "slowdown", tuple(self.slowdown))
        self._check_service()
        self._check_slowdown()

    def _check_service(self) -> None:
        each = self.service if isinstance(self.service, tuple) else (self.service,)
        for own in each:
            if isinstance(own, services.Sleepers) and own.workers != self.workers:
                raise ValueError(
                    f"`service` has sleepers among {own.workers} workers, but there are"
                    f" {self.workers}: use sleepers(..., workers={self.workers})."
                )
        if isinstance(self.service, tuple) and len(each) != self.workers:
            raise ValueError(
                f"`service` must be one service or {self.workers}, got {len(each)}."
            )

    def _check_slowdown(self) -> None:
        for item in self._scheduled:
            for worker in np.unique(item.workers).tolist():
                ranges.check_integer("slowdown.workers", worker, 0, self.workers - 1)
        factors = self._factors
        right = (factors > 0) & np.isfinite(factors)
        if factors.shape != (self.workers,) or not right.all():
            raise ValueError(
                f"`slowdown` must hold {self.workers} positive, finite factors, or"
                f" cluster.Slowdown objects alone, got {self.slowdown!r}: a dead worker"
                " is cluster.Slowdown(worker, math.inf)."
            )

    @property
    def _scheduled(self) -> list[Slowdown]:
        items = self.slowdown or ()
        return [item for item in items if isinstance(item, Slowdown)]

    @property
    def _factors(self) -> np.ndarray:
        items = self.slowdown
        if items is None or 0 < len(items) == len(self._scheduled):
            return np.ones(self.workers)
        return base.as_reals("slowdown", items)

    def service_of(self, worker: int) -> Service:
        """The service of a worker, without slowdowns."""
        return self.service if callable(self.service) else self.service[worker]

    def times(self, worker: int, *, seed: int, stream: int = 0) -> Iterator[float]:
        """The seconds of a worker's tasks in their order, without slowdowns.

        Stream 0 has the times in `simulate` with this seed; others are independent.
        """
        key = (worker, stream) if stream else (worker,)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
        for block in self.service_of(worker)(rng, worker):
            seconds = np.asarray(block, np.float64)
            if seconds.ndim != 1 or not (seconds >= 0.0).all():
                raise ValueError(
                    "`service` must yield vectors of times that are not negative, for"
                    f" worker {worker} it yielded {block!r}."
                )
            yield from seconds.tolist()
        # without an error the simulation would end here
        raise ValueError(
            f"`service` has no more times for worker {worker}: yield times for ever."
        )

    def draw(self, worker: int, size: int, *, seed: int, stream: int = 0) -> np.ndarray:
        """The first `times` of a worker, float64 [size]."""
        worker = ranges.check_integer("worker", worker, 0, self.workers - 1)
        size = base.check_bound("size", size)
        seed = base.check_bound("seed", seed)
        stream = base.check_bound("stream", stream)
        times = self.times(worker, seed=seed, stream=stream)
        return np.fromiter(times, np.float64, size)

    def speeds(self) -> list["Speed"]:
        """How the speed of each worker changes over time."""
        own: list[list[Slowdown]] = [[] for _ in range(self.workers)]
        for item in self._scheduled:
            for worker in np.unique(item.workers):
                own[worker].append(item)
        return [
            _speed(items, factor)
            for items, factor in zip(own, self._factors.tolist(), strict=True)
        ]


class Speed(NamedTuple):
    """A worker's speed: `factors[i]` holds in [edges[i], edges[i + 1])."""

    edges: tuple[float, ...]  # seconds, from 0 to inf
    factors: tuple[float, ...]  # how many times longer work takes; inf is dead

    def finish(self, begin: float, work: float) -> tuple[float, float | None]:
        """When a task is done that begins at `begin` and takes a normal worker `work`.

        Returns the time, inf if never, and None; if the worker dies first, the time
        when it is back and the time of its death.
        """
        i = bisect_right(self.edges, begin) - 1
        while self.factors[i] < math.inf:
            end = begin + work * self.factors[i]
            if end <= self.edges[i + 1]:
                return end, None
            work -= (self.edges[i + 1] - begin) / self.factors[i]
            i += 1
            begin = self.edges[i]
        return self.edges[i + 1], begin

    def is_done_within(self, limit: float, begin: float, work: ArrayLike) -> np.ndarray:
        """Whether tasks that begin at `begin` are done `limit` seconds later.

        `work` is as in `finish`, of any shape; false if the worker dies before.
        """
        left, work = limit, np.asarray(work)
        done = np.zeros(work.shape, bool)
        i = bisect_right(self.edges, begin) - 1
        while self.factors[i] < math.inf:
            here = self.edges[i + 1] - begin
            done = done | (work * self.factors[i] <= min(here, left))
            if left <= here:
                break
            left, work = left - here, work - here / self.factors[i]
            i += 1
            begin = self.edges[i]
        return done

    def factor_between(self, begin: float, end: float) -> float | None:
        """The factor that holds from `begin` to `end`; None if it changes."""
        i = bisect_right(self.edges, begin) - 1
        return self.factors[i] if end <= self.edges[i + 1] else None


def _speed(slowdowns: Sequence[Slowdown], factor: float) -> Speed:
    """The speed of a worker with a constant factor and these slowdowns."""
    times = [(item.start_seconds, item.stop_seconds) for item in slowdowns]
    edges = sorted({0.0, math.inf}.union(*times))
    factors = (
        math.prod(
            (
                item.factor
                for item in slowdowns
                if item.start_seconds <= start < item.stop_seconds
            ),
            start=factor,
        )
        for start in edges[:-1]
    )
    return Speed(tuple(edges), tuple(factors))
