"""A cluster: its workers, their speeds, and their links to the server."""

import dataclasses
import functools
import math
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from delayjax._src.cluster import services
from delayjax._src.cluster.finish_times import finish_times, waits_for_all
from delayjax._src.cluster.services import Service
from delayjax._src.ground import checks, kinds

# the least numbers of exchanges and of steps that are simulated
_EXCHANGES, _STEPS = 40, 2000
_LONGEST = 100_000  # steps between two exchanges


@kinds.checked
@dataclasses.dataclass(frozen=True)
class Slowdown:
    """Workers that are slower, or dead, for some time.

    Work in [start, stop) takes `factor` times as long, and so does the part of a task
    in this interval. Overlapping slowdowns multiply. With an infinite factor the
    workers are dead: they lose their task at `start`, and at `stop` they read the
    parameters and begin a new task. Messages that were sent before arrive. A task with
    a time limit fails at its limit.

    Attributes:
        workers: a worker or several.
        factor: how many times longer a gradient takes, above 0; below 1 is faster.
        start_seconds: when the slowdown begins.
        stop_seconds: when the slowdown ends; by default never.
    """

    workers: int | Sequence[int]
    factor: kinds.PositiveOrInfFloat
    start_seconds: kinds.NonNegativeFloat = 0.0
    stop_seconds: kinds.PositiveOrInfFloat = math.inf

    def __post_init__(self):
        if self.stop_seconds <= self.start_seconds:
            raise ValueError(
                f"`stop_seconds` must be above {self.start_seconds}, got"
                f" {self.stop_seconds}."
            )


@kinds.checked
@dataclasses.dataclass(frozen=True)
class Communication:
    """The time of a message of parameters or a gradient, latency + bytes / rate.

    Attributes:
        latency_seconds: the latency of a message.
        message_bytes: the size of a message.
        bytes_per_second: the rate of the link; by default infinite.
        serial: whether the server sends or receives one message at a time, in the order
            of requests; each message takes bytes / rate. A worker reads the version at
            the moment when sending begins: at the request, unless another message is
            sent or waits then.
    """

    latency_seconds: kinds.NonNegativeFloat = 0.0
    message_bytes: kinds.NonNegativeFloat = 0.0
    bytes_per_second: kinds.PositiveOrInfFloat = math.inf
    serial: bool = False

    def __post_init__(self):
        if self.message_bytes and self.bytes_per_second == math.inf:
            raise ValueError(
                "`bytes_per_second` must be given with `message_bytes` ="
                f" {self.message_bytes:g}: over an infinite rate bytes take no time."
            )

    @property
    def transfer_seconds(self) -> float:
        """The time for which a message occupies a serial server."""
        return self.message_bytes / self.bytes_per_second

    def all_reduce_seconds(
        self,
        workers: kinds.PositiveInt,
        *,
        fragments: kinds.PositiveInt = 1,
        fraction: kinds.PositiveProbability = 1.0,
    ) -> float:
        """The time of a sum over P workers: reduce-scatter, then all-gather.

            2 ceil(log2 P) latency + 2 (1 - 1 / P) (fraction / F) bytes / rate

        Recursive halving; Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.

        Args:
            workers: P.
            fragments: F, the number of exchanges in which the message is sent; the
                result is the time of one exchange.
            fraction: the fraction of the bytes that a compressor sends, in (0, 1]. For
                `exchange.quantized(b)` it is P b / 64, because each worker sends its
                integers to all others: b / 32 for two workers.

        Example:
            >>> link = Communication(1.0, message_bytes=40.0, bytes_per_second=10.0)
            >>> link.all_reduce_seconds(4)  # 2 * 2 * 1 + 2 * 3 / 4 * 4
            10.0
            >>> link.all_reduce_seconds(4, fragments=3)  # 2 * 2 * 1 + 2 * 3 / 4 * 4 / 3
            6.0
        """
        latencies, models = 2 * (workers - 1).bit_length(), 2 * (1 - 1 / workers)
        transfer = fraction / fragments * self.transfer_seconds
        return latencies * self.latency_seconds + models * transfer


@kinds.checked
@dataclasses.dataclass(frozen=True)
class Cluster:
    """Workers, the time their gradients take, and their links to the server.

    Attributes:
        workers: the number of workers, P.
        service: the seconds that gradients take: a `ServiceTime` or another service,
            one for all workers, or P services.
        slowdown: P factors (4.0 is a worker four times slower), or `Slowdown`s.
        communication: the time of messages; by default they take no time.

    Example:
        >>> from delayjax.cluster import exponential
        >>> Cluster(8, exponential(1.0), slowdown=[1.0] * 7 + [4.0]).workers
        8
    """

    workers: kinds.PositiveInt
    service: Service | Sequence[Service]
    slowdown: Sequence[float] | Sequence[Slowdown] | None = None
    communication: Communication | None = None

    def __post_init__(self):
        # tuples, so that a cluster can be hashed
        if self.slowdown is not None:
            object.__setattr__(self, "slowdown", tuple(self.slowdown))
        each = (self.service,)
        if isinstance(self.service, (Sequence, np.ndarray)):
            each = tuple(self.service)
            object.__setattr__(self, "service", each)
        for one in each:
            if not callable(one):
                raise TypeError(
                    "`service` must be a service time or one for each worker, got"
                    f" {one!r}: write for example cluster.constant(1.0)."
                )
            if isinstance(one, services.Sleepers) and one.workers != self.workers:
                raise ValueError(
                    f"`service` must have workers={self.workers}, got {one.workers}."
                )
        if isinstance(self.service, tuple) and len(each) != self.workers:
            raise ValueError(
                f"`service` must be one service or {self.workers}, got {len(each)}."
            )
        # a service of recorded times has the number of its recorded workers
        rows = {getattr(one, "recorded_workers", self.workers) for one in each}
        for recorded in rows - {self.workers}:
            warnings.warn(
                f"`service` has the times of {recorded} recorded workers, but there are"
                f" {self.workers}: worker w takes the times of worker w % {recorded}."
                " To avoid this warning, give Recorded one row for each worker.",
                stacklevel=4,
            )
        for item in self._slowdowns():
            for worker in np.unique(item.workers).tolist():
                checks.check_bound("slowdown.workers", worker, at_most=self.workers - 1)

    def _slowdowns(self) -> Sequence[Slowdown]:
        """The slowdowns; a factor is a slowdown without an end."""
        items = self.slowdown
        if items is None:
            return ()
        scheduled = [item for item in items if isinstance(item, Slowdown)]
        if len(items) == len(scheduled) > 0:
            return scheduled
        factors = checks.as_reals("slowdown", items)
        right = (factors > 0) & np.isfinite(factors)
        if factors.shape != (self.workers,) or not right.all():
            raise ValueError(
                f"`slowdown` must hold {self.workers} positive, finite factors, or"
                f" cluster.Slowdown objects alone, got {items!r}."
            )
        return [Slowdown(*item) for item in enumerate(factors.tolist())]

    def service_of(self, worker: int) -> Service:
        """The service of a worker, without slowdowns."""
        return self.service if callable(self.service) else self.service[worker]

    def times(self, worker: int, *, seed: int, stream: int = 0) -> Iterator[float]:
        """Seconds of a worker's tasks, without slowdowns; `simulate` uses stream 0."""
        key = (worker, stream) if stream else (worker,)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
        for block in self.service_of(worker)(rng, worker):
            seconds = np.asarray(block, np.float64)
            if seconds.ndim != 1 or not (seconds >= 0.0).all():
                raise ValueError(
                    "`service` must yield vectors of times that are not negative, got"
                    f" {block!r} for worker {worker}."
                )
            yield from seconds.tolist()
        raise ValueError(
            f"`service` has no more times for worker {worker}: yield times forever."
        )

    def draw(
        self,
        worker: int,
        size: kinds.NonNegativeInt,
        *,
        seed: kinds.NonNegativeInt,
        stream: kinds.NonNegativeInt = 0,
    ) -> np.ndarray:
        """The first `times` of a worker, float64 [size]."""
        worker = checks.check_bound("worker", worker, at_most=self.workers - 1)
        times = self.times(worker, seed=seed, stream=stream)
        return np.fromiter(times, np.float64, size)

    def step_seconds(self, steps: kinds.NonNegativeInt, *, seed: int) -> np.ndarray:
        """Seconds of each worker's first steps, with its factor, float64 [steps, P].

        Args:
            steps: the number of steps, T.
            seed: the seed of the service times.

        Raises:
            ValueError: if a slowdown begins or ends: the time of a step then depends on
                when it begins.

        Example:
            >>> from delayjax.cluster import constant
            >>> Cluster(2, constant(1.0), slowdown=[1.0, 4.0]).step_seconds(1, seed=0)
            array([[1., 4.]])
        """
        speeds = self.speeds()
        if any(len(speed.factors) > 1 for speed in speeds):
            raise ValueError(
                "`slowdown` must last from the first step to the last, got"
                f" {self.slowdown}: give a factor for each worker."
            )
        times = [self.draw(worker, steps, seed=seed) for worker in range(self.workers)]
        factors = [speed.factors[0] for speed in speeds]
        return np.stack(times, axis=1) * factors

    def exchange_cost(
        self,
        period: kinds.PositiveInt,
        *,
        delay: kinds.NonNegativeInt = 0,
        fragments: kinds.PositiveInt = 1,
        fraction: float = 1.0,
        seed: kinds.NonNegativeInt = 0,
    ) -> float:
        """The share of the time that workers lose to exchanges of their models.

        Each worker is an island. It takes H local steps in a period; there are F
        exchanges, H / F steps apart. Without a delay all islands wait for each
        exchange. With a delay d, as in `averaging.outer`, one slice of d is sent beside
        each step, and a step ends when it is computed and its slice has arrived: so
        islands wait for one another at every step. If all steps take s seconds,

            cost = F c / (H s + F c),    c = all_reduce_seconds(P, fragments=F)
            cost = 1 - s / max(s, c),    c = all_reduce_seconds(P, fragments=F d)

        without and with a delay. Steps of random length, as in `finish_times`, cost
        more. If islands differ, cost is one minus the time of the slowest island's
        steps over the whole time. The time in which faster islands wait for it is not
        counted: no period changes it. The server's step and the work of a compressor
        take no time.

        Args:
            period: H, in steps; F divides it.
            delay: d, in steps, below H / F. With a delay the cost is the same at each
                H.
            fragments: F, parts of one size; each exchange sends one.
            fraction: the fraction of the bytes that a compressor sends, in (0, 1].
            seed: the seed of the service times.

        Returns:
            A number in [0, 1], from 40 exchanges or 2000 steps, whichever takes longer;
            with a delay from 2000 steps.

        Example:
            >>> from delayjax.cluster import constant
            >>> link = Communication(message_bytes=40.0, bytes_per_second=10.0)
            >>> islands = Cluster(2, constant(1.0), communication=link)
            >>> islands.exchange_cost(12)  # 4 / (12 + 4)
            0.25
            >>> islands.exchange_cost(12, delay=2)  # a slice takes 2 s, a step 1 s
            0.5
            >>> islands.exchange_cost(12, delay=4)  # a slice takes 1 s
            0.0
        """
        apart = checks.check_exchanges(period, fragments, delay)
        link = self.communication or Communication()
        # islands wait for one another after each task: a step with its slice, or all
        # steps between two exchanges
        slices, lag, length = (delay, 1, 1) if delay else (1, 0, apart)
        takes = link.all_reduce_seconds(
            self.workers, fragments=fragments * slices, fraction=fraction
        )
        tasks = max(_EXCHANGES, math.ceil(_STEPS / length))
        seconds = self.step_seconds(tasks * length, seed=seed)
        seconds = seconds.reshape(tasks, length, self.workers).sum(axis=1)
        # the first slice is sent beside the first step
        begun = np.pad(seconds, [(lag, 0), (0, 0)])
        ends = finish_times(begun, waits_for_all(1), lag=lag, exchange_seconds=takes)
        return float(1 - seconds.sum(axis=0).max() / ends[-1].max())

    def shortest_period(
        self,
        cost: kinds.OpenShareFloat = 0.05,
        *,
        fragments: kinds.PositiveInt = 1,
        fraction: float = 1.0,
        seed: int = 0,
    ) -> int:
        """The smallest H, a multiple of F, whose `exchange_cost` is at most `cost`.

        Islands wait for each exchange; `shortest_delay` is for islands that do not
        wait. If all steps take s seconds, with c of `exchange_cost`,

            H >= F c (1 - cost) / (cost s)

        Args:
            cost: the share of the time, in (0, 1).
            fragments: F.
            fraction: the fraction of the bytes that is sent.
            seed: the seed of the service times.

        Returns:
            H, by bisection, as if the cost fell with H. With steps of random length it
            may miss a smaller H within the noise of the simulation.

        Raises:
            ValueError: if exchanges cost more even 65,536 steps apart.

        Example:
            >>> from delayjax.cluster import constant
            >>> link = Communication(message_bytes=40.0, bytes_per_second=10.0)
            >>> Cluster(2, constant(1.0), communication=link).shortest_period(0.25)
            12
        """
        cost_of = functools.partial(
            self.exchange_cost, fragments=fragments, fraction=fraction, seed=seed
        )
        return fragments * _first_within(
            cost, lambda apart: cost_of(fragments * apart), "apart"
        )

    def shortest_delay(
        self,
        cost: kinds.OpenShareFloat = 0.05,
        *,
        fragments: kinds.PositiveInt = 1,
        fraction: float = 1.0,
        seed: int = 0,
    ) -> int:
        """The smallest d > 0 whose `exchange_cost` is at most `cost`.

        The cost is the same at each H, which is at least F (d + 1). If all steps take s
        seconds, it is the first d with

            all_reduce_seconds(P, fragments=F d) <= s / (1 - cost)

        Args:
            cost: the share of the time, in (0, 1).
            fragments: F.
            fraction: the fraction of the bytes that is sent.
            seed: the seed of the service times.

        Returns:
            d, by bisection.

        Raises:
            ValueError: if the latency of a slice, or the wait for the slowest step,
                costs more at every delay.

        Example:
            >>> from delayjax.cluster import constant
            >>> link = Communication(message_bytes=40.0, bytes_per_second=10.0)
            >>> Cluster(2, constant(1.0), communication=link).shortest_delay(0.5)
            2
        """
        cost_of = functools.partial(
            self.exchange_cost, fragments=fragments, fraction=fraction, seed=seed
        )
        return _first_within(
            cost, lambda late: cost_of(fragments * (late + 1), delay=late), "in flight"
        )

    def speeds(self) -> list["Speed"]:
        """How the speed of each worker changes over time."""
        slowdowns: list[list[Slowdown]] = [[] for _ in range(self.workers)]
        for item in self._slowdowns():
            for worker in np.unique(item.workers):
                slowdowns[worker].append(item)
        return [_speed(items) for items in slowdowns]


class TooCostlyError(ValueError):
    """Exchanges cost more than the allowed share, however rare or late they are."""


def _first_within(cost: float, cost_of: Callable[[int], float], how: str) -> int:
    """The first number of steps whose cost is small enough, as if costs fell."""
    shortest = longest = 1
    while cost_of(longest) > cost:
        shortest, longest = longest + 1, 2 * longest
        if longest > _LONGEST:
            raise TooCostlyError(
                f"`cost` must be larger, got {cost}: more is lost even at"
                f" {shortest - 1} steps {how}."
            )
    between = range(shortest, longest)
    return shortest + bisect_left(between, True, key=lambda n: cost_of(n) <= cost)


class Speed(NamedTuple):
    """A worker's speed: `factors[i]` holds in [edges[i], edges[i + 1]).

    Neighboring factors differ, so each inner edge is a change of the speed.
    """

    edges: tuple[float, ...]  # seconds, from 0 to inf
    factors: tuple[float, ...]  # how many times longer work takes; inf is dead

    def finish(self, begin: float, work: float) -> tuple[float, float, float]:
        """The end of a task that begins at `begin` and takes a normal worker `work`.

        Returns the time when the task is done or the worker dies; the seconds that the
        task takes, inf if the worker dies first; and the time when a dead worker is
        back.
        """
        takes = 0.0
        i = bisect_right(self.edges, begin) - 1
        while self.factors[i] < math.inf:
            end = begin + work * self.factors[i]
            if end <= self.edges[i + 1]:
                return end, takes + work * self.factors[i], math.inf
            here = self.edges[i + 1] - begin
            takes, work = takes + here, work - here / self.factors[i]
            i += 1
            begin = self.edges[i]
        return begin, math.inf, self.edges[i + 1]

    def factor_between(self, begin: float, end: float) -> float | None:
        """The factor that holds from `begin` to `end`; None if it changes."""
        i = bisect_right(self.edges, begin) - 1
        return self.factors[i] if end <= self.edges[i + 1] else None


def _speed(slowdowns: list[Slowdown]) -> Speed:
    changes: dict[float, set[int]] = {0.0: set(), math.inf: set()}
    for number, item in enumerate(slowdowns):
        changes.setdefault(item.start_seconds, set()).add(number)
        changes.setdefault(item.stop_seconds, set()).add(number)
    here: set[int] = set()
    edges, factors = [], []
    for now in sorted(changes)[:-1]:
        here ^= changes[now]  # slowdowns that start here, or stop here
        each = (slowdowns[number].factor for number in sorted(here))
        factor = math.prod(each, start=1.0)
        if [factor] != factors[-1:]:
            edges.append(now)
            factors.append(factor)
    return Speed((*edges, math.inf), tuple(factors))
