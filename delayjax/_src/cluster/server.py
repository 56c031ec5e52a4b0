"""The event loop of a parameter server and its workers in simulated time."""

import math
import random
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from delayjax._src.cluster.cluster import Cluster, Communication
from delayjax._src.cluster.trace import Dropped, Trace
from delayjax._src.ground import checks

# an event of a worker's task: the server has its gradient; the task has failed; a
# serial server has sent the parameters, or has received the gradient; the gradient
# begins to wait for a serial server; the worker lives again
_ARRIVES, _FAILS, _IS_SENT, _IS_RECEIVED, _DELIVERS, _REVIVES = range(6)
# arrivals without an update after which a protocol is refused: at least this many, or
# this many for each worker
_PATIENCE, _PATIENCE_EACH = 1_000_000, 100
_NEVER = math.inf, math.inf
_DRAWS = 10_000  # to estimate how often a task ends in time


class Arrival(NamedTuple):
    """A gradient that has reached the server."""

    worker: int
    read_version: int  # the version of the parameters at which it was taken
    begun: float  # seconds; when its worker asked for these parameters
    arrived: float  # seconds
    failed: bool  # abandoned at its limit: there is no gradient
    computed: float = 0.0  # seconds of computation, without messages; 0 if decoded


class Server:
    """A parameter server, the argument of a protocol.

    A protocol is a function of the server. It decides what to do with each arrival:

        def asynchronous_sgd(server):
            server.start_all()
            for arrival in server:
                server.take(arrival)
                server.update()
                server.start(arrival.worker)

    The loop ends after the last update. Arrivals come in the order of time; at the same
    time, in the order in which their tasks were started. A worker that is not started
    idles. Take or drop an arrival once: a second time is an error. An arrival has
    `worker`, `read_version` (of its parameters), `begun` and `arrived` (seconds), and
    `failed` (whether its task was abandoned at its limit: there is no gradient). Its
    staleness is `server.version - arrival.read_version`.

    Attributes:
        num_workers: P.
        num_updates: the largest number of updates; inf if only the time limit ends the
            simulation.
        version: updates done so far.
        started: tasks started so far, of all workers.
        now: simulated seconds.
        rng: for a protocol's own draws; a `random.Random`.
    """

    def __init__(
        self, cluster: Cluster, num_updates: float, seed: int, seconds: float, name: str
    ):
        self.num_workers = workers = cluster.workers
        self.num_updates = num_updates
        self.version = 0
        self.started = 0
        self.now = 0.0
        self.rng = random.Random(seed)
        self._name = name
        self._cluster = cluster
        self._seed = seed
        self._deadline = seconds
        self._times = [cluster.times(worker, seed=seed) for worker in range(workers)]
        self._speeds = cluster.speeds()
        link = cluster.communication or Communication()
        self._latency, self._transfer = link.latency_seconds, link.transfer_seconds
        self._serial = link.serial and self._transfer > 0  # otherwise nothing waits
        # messages (task, worker, what) that wait for a serial server
        self._messages: deque[tuple[int, int, int]] = deque()
        self._serves = False
        self._events: list[tuple[float, int, int, int]] = []  # time, task, worker, what
        # of each worker's last task
        self._task = [0] * workers  # its number; 0 if the worker idles
        self._read = [0] * workers
        self._holds = [False] * workers  # whether it holds the version that it read
        self._begun = [0.0] * workers
        self._limit = [math.inf] * workers
        self._work = [1.0] * workers
        self._computes = [_NEVER] * workers  # from, to; without interruption
        self._probabilities: dict[tuple, float] = {}  # see `success_probability`
        self._spent: list[tuple[int, float, float]] = []  # worker, from, to
        self._open: dict[int, Arrival] = {}  # by id: not taken and not dropped yet
        self._must_start = set(range(workers))
        self._taken: list[Arrival] = []
        self._unapplied: list[Arrival] = []  # of an `update` call after the last update
        # for each version, the updates done when the last worker released it
        self._held_until = [0]
        self._applied: list[Arrival] = []
        self._dropped: list[tuple[int, Arrival]] = []
        self._seconds: list[float] = []  # of each update
        self._counts: list[int] = []
        self._divisors: list[float] = []
        self._wasted = 0  # arrivals since the last update

    @property
    def taken(self) -> int:
        """Gradients taken since the last update."""
        return len(self._taken)

    @property
    def done(self) -> bool:
        """Whether the last update has been done, or the time is over."""
        return self.version >= self.num_updates or self.now > self._deadline

    def start(
        self,
        worker: int,
        *,
        read_version: int | None = None,
        limit: float = math.inf,
        work: float = 1.0,
    ) -> None:
        """Lets a worker read the current parameters and begin its next task.

        Args:
            worker: its number. If it computes a task, it abandons that task.
            read_version: the worker goes on at these parameters instead of reading.
            limit: seconds from the start of the computation after which the task
                arrives `failed`, also if the worker died.
            work: the work of the task, in gradients; 2.0 takes twice as long.
        """
        version = self.version if read_version is None else read_version
        if not (0 <= worker < self.num_workers and 0 <= version <= self.version):
            raise ValueError(
                f"`worker` must lie in 0 .. {self.num_workers - 1}, `read_version` in"
                f" 0 .. {self.version}, got {worker} and {version}."
            )
        limit, work = float(limit), float(work)
        if not (limit >= 0 and 0 < work < math.inf):  # a call costs a third of a task
            limit = checks.check_number("limit", limit, "[0, inf]")
            work = checks.check_number("work", work, "(0, inf)")
        self._must_start.discard(worker)
        self._begin(worker)
        self._limit[worker] = limit
        self._work[worker] = work
        self._read[worker] = version
        waits = self._serial and (self._serves or self._has_message())
        self._holds[worker] = read_version is not None or not waits
        if read_version is not None:
            self._compute(worker, self.now)
        elif self._serial:  # if it waits, it reads when its turn has come
            self._messages.append((self.started, worker, _IS_SENT))
        else:
            self._compute(worker, self.now + self._latency + self._transfer)

    def start_all(self, workers: Iterable[int] | None = None) -> None:
        """Starts these workers, by default all, in their order."""
        for worker in range(self.num_workers) if workers is None else workers:
            self.start(worker)

    def leave_out(self, workers: Iterable[int] | None = None) -> None:
        """Allows the protocol not to start these workers (again), by default all."""
        self._must_start -= set(range(self.num_workers) if workers is None else workers)

    def check_workers(self, name: str, value: int) -> int:
        """A protocol's argument, checked to lie in 1 .. P."""
        return checks.check_bound(name, value, at_least=1, at_most=self.num_workers)

    def wake(self, worker: int, seconds: float) -> None:
        """Lets an idle worker arrive `failed` after some time, unless it is started."""
        seconds = checks.check_number("seconds", seconds, "[0, inf]")
        self._begin(worker)
        self._push(self.now + seconds, worker, _FAILS)

    def task(self, worker: int) -> int:
        """The number of the task that a worker computes; 0 if it idles."""
        return self._task[worker]

    def read_version(self, worker: int) -> int:
        """The version that a worker read last."""
        return self._read[worker]

    def is_steady_from(self, seconds: float) -> bool:
        """Whether no worker's speed changes after this time."""
        return all(speed.edges[-2] <= seconds for speed in self._speeds)

    def success_probability(self, worker: int) -> float:
        """P(a worker's last task was done within its `limit`), from 10,000 draws."""
        begin, _ = self._computes[worker]
        limit, work = self._limit[worker], self._work[worker]
        speed = self._speeds[worker]
        factor = speed.factor_between(begin, begin + limit)
        key = worker, factor, limit, work
        if factor is None or key not in self._probabilities:
            draws = self._cluster.draw(worker, _DRAWS, seed=self._seed, stream=1)
            takes = [speed.finish(begin, draw)[1] for draw in (draws * work).tolist()]
            self._probabilities[key] = float(np.mean(np.less_equal(takes, limit)))
        return self._probabilities[key]

    def __iter__(self) -> Iterator[Arrival]:
        return self

    def __next__(self) -> Arrival:
        while not self.done:
            if not self._serves and self._has_message():
                self._serve()
            if not self._events:
                if self._deadline == math.inf:
                    self._report_hang()
                self.now = math.inf  # nothing happens until the time is over
                break
            time, task, worker, what = heappop(self._events)
            self.now = time
            if time > self._deadline:
                break
            if what in (_IS_SENT, _IS_RECEIVED):
                self._serves = False
            if self._task[worker] != task:
                continue  # abandoned meanwhile
            if what == _IS_SENT:
                self._compute(worker, time + self._latency)
            elif what == _DELIVERS:
                self._messages.append((task, worker, _IS_RECEIVED))
            elif what == _REVIVES:
                self.start(worker, limit=self._limit[worker], work=self._work[worker])
            else:
                return self._arrival(worker, what == _FAILS)
        raise StopIteration

    def take(self, arrival: Arrival) -> None:
        """Keeps a gradient for the next `update`. Each is taken or dropped once."""
        self._settle("take", arrival)
        self._taken.append(arrival)

    def drop(self, arrival: Arrival) -> None:
        """Drops a gradient and records it in `Trace.dropped`; starts no worker."""
        self._settle("drop", arrival)
        self._dropped.append((self.version, arrival))

    def decode(self, worker: int, begun: float) -> Arrival:
        """The arrival of a gradient that the server decodes from other gradients."""
        return self._opened(Arrival(worker, self.version, begun, self.now, False))

    def update(self, divisor: float | None = None) -> None:
        """Applies the gradients that were taken: the next version of the parameters.

        Args:
            divisor: the divisor of the sum of the gradients; by default their number.
        """
        if not self._taken and divisor is None:
            raise ValueError("`divisor` must be given if nothing is taken, got None.")
        if divisor is not None:
            divisor = checks.check_number("divisor", divisor, "(0, inf)")
        taken, self._taken = self._taken, []
        if self.done:  # a protocol may call `update` once more
            self._unapplied += taken
            return
        self._applied += taken
        self._seconds.append(self.now)
        self._counts.append(len(taken))
        self._divisors.append(len(taken) if divisor is None else divisor)
        self.version += 1
        self._held_until.append(self.version)
        self._wasted = 0
        endless = self.num_updates == math.inf and self.version % _PATIENCE == 0
        if endless and self._seconds[-_PATIENCE] == self.now:
            raise ValueError(
                f"`service` lets no time pass: `{self._name}` made {_PATIENCE} updates"
                f" at {self.now} s: give a number of updates, or times above 0."
            )

    def trace(self) -> Trace:
        """The trace until the last update."""
        end = self._seconds[-1] if self._seconds else 0.0
        held_until = self._until()
        for worker in range(self.num_workers):
            self._stop(worker, end)
        busy = np.zeros(self.num_workers)
        for worker, begin, stopped in self._spent:
            busy[worker] += max(min(stopped, end) - begin, 0.0)
        dropped = [drop for drop in self._dropped if drop[0] < self.version]
        return Trace(
            num_workers=self.num_workers,
            seconds=np.asarray(self._seconds, np.float64),
            update=np.repeat(np.arange(self.version, dtype=np.int32), self._counts),
            **_columns(self._applied),
            divisor=np.asarray(self._divisors, np.float64),
            dropped=Dropped(
                version=np.asarray([version for version, _ in dropped], np.int32),
                **_columns([arrival for _, arrival in dropped]),
            ),
            busy_seconds=busy,
            held_until=held_until,
        )

    def used_seconds(self) -> float:
        """How long workers computed the gradients that were applied, all together."""
        return math.fsum(arrival.computed for arrival in self._applied)

    def _until(self) -> np.ndarray:
        """`Trace.held_until`. It counts gradients that are not applied yet as held."""
        until = np.asarray(self._held_until, np.int32)
        held = [self._read[w] for w, holds in enumerate(self._holds) if holds]
        arrived = *self._open.values(), *self._taken, *self._unapplied
        until[[*held, *(arrival.read_version for arrival in arrived)]] = self.version
        return until[:-1]  # no update of the trace begins at the newest version

    def check_end(self) -> None:
        """Checks, after a protocol returned, that it served all workers to the end."""
        if not self.done:
            raise ValueError(
                f"`{self._name}` must serve until `for arrival in server` ends, but"
                f" returned after update {self.version}, at {self.now:g} s."
            )
        if self._must_start:
            raise ValueError(
                f"`{self._name}` must start all workers, but never started"
                f" {_shown(self._must_start)}: call server.start_all() or leave_out()."
            )

    def _push(self, time: float, worker: int, what: int) -> None:
        if time < math.inf:
            heappush(self._events, (time, self._task[worker], worker, what))

    def _has_message(self) -> bool:
        """Whether a message waits; forgets the first ones if nobody needs them."""
        while self._messages:
            task, worker, _ = self._messages[0]
            if self._task[worker] == task:
                return True
            self._messages.popleft()
        return False

    def _serve(self) -> None:
        """Lets a serial server handle the first message."""
        _, worker, what = self._messages.popleft()
        if what == _IS_SENT and not self._holds[worker]:
            self._read[worker] = self.version
            self._holds[worker] = True
        self._serves = True
        self._push(self.now + self._transfer, worker, what)

    def _begin(self, worker: int) -> None:
        self._stop(worker, self.now)
        self.started += 1
        self._task[worker] = self.started
        self._begun[worker] = self.now
        self._computes[worker] = _NEVER

    def _compute(self, worker: int, begin: float) -> None:
        seconds = next(self._times[worker]) * self._work[worker]
        end, takes, back = self._speeds[worker].finish(begin, seconds)
        limit = self._limit[worker]
        self._computes[worker] = begin, min(end, begin + limit)
        if limit < takes:
            self._push(begin + limit, worker, _FAILS)
        elif takes == math.inf:
            self._push(back, worker, _REVIVES)
        elif self._serial:
            self._push(end + self._latency, worker, _DELIVERS)
        else:
            self._push(end + self._latency + self._transfer, worker, _ARRIVES)

    def _arrival(self, worker: int, failed: bool) -> Arrival:
        begun = self._begun[worker]
        begin, end = self._computes[worker]
        self._stop(worker, self.now)
        self._wasted += 1
        if self._wasted > max(_PATIENCE, _PATIENCE_EACH * self.num_workers):
            hanging = _shown(self._hanging())
            dead = (
                f", but none of workers {hanging}, which have died" if hanging else ""
            )
            raise ValueError(
                f"`{self._name}` makes no progress: {self._wasted} gradients arrived"
                f" since update {self.version}{dead}: accept more, or give workers more"
                " time."
            )
        read_version = self._read[worker]
        computed = 0.0 if failed else end - begin
        arrival = Arrival(worker, read_version, begun, self.now, failed, computed)
        return arrival if failed else self._opened(arrival)

    def _opened(self, arrival: Arrival) -> Arrival:
        self._open[id(arrival)] = arrival
        return arrival

    def _settle(self, call: str, arrival: Arrival) -> None:
        if self._open.pop(id(arrival), None) is None:
            raise ValueError(
                f"`{call}` must receive each gradient once, got {arrival!r}, which"
                " failed, or was taken or dropped before."
            )

    def _stop(self, worker: int, now: float) -> None:
        """Ends a worker's task, and records how long it computed."""
        if self._task[worker]:
            self._task[worker] = 0
            if self._holds[worker]:
                self._holds[worker] = False
                self._held_until[self._read[worker]] = self.version
            begin, end = self._computes[worker]
            self._spent.append((worker, begin, min(end, now)))

    def _hanging(self) -> list[int]:
        """The workers whose tasks never end."""
        coming = {event[1] for event in self._events}
        coming |= {message[0] for message in self._messages}
        return [w for w, task in enumerate(self._task) if task and task not in coming]

    def _report_hang(self) -> None:
        shown = _shown(self._hanging()) or "that do not work"
        raise WaitsForeverError(
            f"`{self._name}` waits forever for workers {shown}, after update"
            f" {self.version} at {self.now:g} s: use times and slowdowns that end."
        )


class WaitsForeverError(ValueError):
    """A protocol waits for workers that do not end their tasks."""


def _shown(workers: Iterable[int]) -> str:
    """Some workers' numbers, for an error."""
    first = [str(worker) for worker in sorted(workers)[:9]]
    return ", ".join(first[:8] + ["..."] * (len(first) > 8))


def _columns(arrivals: list[Arrival]) -> dict[str, np.ndarray]:
    kinds = dict(worker=np.int32, read_version=np.int32, begun=float, arrived=float)
    return {
        name: np.asarray([getattr(arrival, name) for arrival in arrivals], kind)
        for name, kind in kinds.items()
    }
