"""The history of a cluster, update by update: simulated, or logged."""

import csv
import dataclasses
import functools
import math
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from delayjax._src.cluster import slots
from delayjax._src.cluster.staleness import StalenessLaw
from delayjax._src.ground import checks, kinds


class Dropped(NamedTuple):
    """D gradients that the server dropped."""

    version: np.ndarray  # of the server's parameters at that time, int32 [D]
    worker: np.ndarray  # int32 [D]
    read_version: np.ndarray  # of the parameters of the gradient, int32 [D]
    begun: np.ndarray  # seconds, float64 [D]
    arrived: np.ndarray  # seconds, float64 [D]


class Arrivals(NamedTuple):
    """Updates as rows of K gradients, for training."""

    staleness: Any  # updates, int32 [n, K], -1 where there is no gradient
    worker: Any  # int32 [n, K], -1 where there is no gradient
    divisor: Any  # of the sum of the gradients, float32 [n]
    # where the version of each gradient is kept, int32 [n, K]; the place of the newest
    # version where there is no gradient
    slot: Any = None
    written: Any = None  # where the version that the update changes is kept, int32 [n]


class Summary(NamedTuple):
    """A trace in a few numbers. Staleness is in updates."""

    mean: float
    p50: float
    p99: float
    max: int
    per_worker: np.ndarray  # mean staleness, float64 [P]; nan without a gradient
    gradients: np.ndarray  # applied, int64 [P]
    dropped: int
    updates_per_second: float
    idle_share: float  # of the workers' time until the last update; nan for a log


_KINDS = np.int32, np.int32, np.int32, np.float64, np.float64
_NONE = Dropped(*(np.zeros(0, kind) for kind in _KINDS))


@kinds.checked
@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """When each update was done, and the worker and the version of each gradient.

    Update t makes version t + 1 of the parameters from version t. A gradient of update
    t that was taken at version j has the staleness t - j.

    Attributes:
        num_workers: P.
        seconds: when each update was done, float64 [T]; nan in a log without times.
        update: the update of each gradient, int32 [M], ascending.
        worker: the worker of each gradient, int32 [M].
        read_version: the version that each gradient was taken at, int32 [M].
        begun: when its worker asked for that version, float64 [M]; nan in a log.
        arrived: when the gradient reached the server, float64 [M]; nan in a log.
        divisor: the divisor of the sum of an update's gradients, usually their number,
            float64 [T].
        busy_seconds: how long each worker computed until the last update, also for
            abandoned and dropped gradients, float64 [P]; nan in a log.
        dropped: gradients that the server dropped, in arrays [D]: `version` (of the
            server's parameters then), `worker`, `read_version`, `begun`, `arrived`.
        held_until: for each version, the updates done when the last worker released it,
            int32 [T]; T if a worker still holds it after update T - 1. Empty in a log.
    """

    num_workers: int
    seconds: np.ndarray
    update: np.ndarray
    worker: np.ndarray
    read_version: np.ndarray
    begun: np.ndarray
    arrived: np.ndarray
    divisor: np.ndarray
    busy_seconds: np.ndarray
    dropped: Dropped = _NONE
    held_until: np.ndarray = dataclasses.field(
        default_factory=functools.partial(np.zeros, 0, np.int32)
    )

    def __post_init__(self):
        sound = (self.read_version <= self.update) & (self.update < self.num_updates)
        sound &= np.minimum(self.update, self.worker) >= 0
        sound &= self.worker < self.num_workers
        fits = len(self.held_until) in (0, self.num_updates)
        if not (sound.all() and fits) or (np.diff(self.update) < 0).any():
            raise ValueError(
                f"`Trace` must have read_version <= update < {self.num_updates},"
                f" ascending updates from 0 on, workers below {self.num_workers}, and"
                " a `held_until` of each version or none: try cluster.load_trace."
            )

    @property
    def num_updates(self) -> int:
        """The number of updates, T."""
        return len(self.seconds)

    @property
    def counts(self) -> np.ndarray:
        """Gradients of each update, int64 [T]."""
        return np.bincount(self.update, minlength=self.num_updates)

    @property
    def staleness(self) -> np.ndarray:
        """The staleness of each gradient, int32 [T, K]; -1 where there is none."""
        return self._rows(self.update - self.read_version)

    @property
    def workers(self) -> np.ndarray:
        """The worker of each gradient, int32 [T, K]; -1 where there is none."""
        return self._rows(self.worker)

    @property
    def max_staleness(self) -> int:
        """The largest staleness, in updates; 0 without gradients."""
        return int((self.update - self.read_version).max(initial=0))

    @property
    def max_gradients(self) -> int:
        """K, the most gradients of an update."""
        return int(self.counts.max(initial=0))

    @property
    def max_versions(self) -> int:
        """The most versions that `replay` keeps at once, the newest among them.

        At most min(P, `max_staleness` + 1). A version is kept until its last gradient
        has arrived, and as long as a worker holds it. If there are more than
        `max_staleness` + 1 such versions, no version is kept for longer than
        `max_staleness` updates: a protocol that drops late gradients may leave any
        number of old gradients in flight.

        So a run may go on along a longer trace of the same simulation, bit for bit, if
        both traces record the versions that workers hold, or both have the same
        `max_staleness`. A log does not record them, so a run may not go on along a
        log: the reports of updates whose versions are lost have nan.
        """
        return slots.needed(self._last_rows)

    @cached_property
    def _last_rows(self) -> np.ndarray:
        """The last update at which each version is kept, int64 [T]."""
        versions = np.arange(self.num_updates)
        read = versions.copy()
        np.maximum.at(read, self.read_version, self.update)
        if not len(self.held_until):
            return read
        last = np.maximum(read, self.held_until - 1)
        # a gradient that is dropped when it arrives may be as old as the run
        if slots.needed(last) > self.max_staleness + 1:
            last = np.minimum(last, versions + self.max_staleness)
        return last

    @cached_property
    def _slots(self) -> np.ndarray:
        """The slot of each version, int32 [T]."""
        if (self.read_version < 0).any():
            raise ValueError(
                "`read_version` of a `Trace` must be at least 0 in training, got"
                f" {self.read_version.min()}: the first version is 0."
            )
        return slots.of_versions(self._last_rows)

    def arrivals(
        self, start: int, stop: int, *, width: kinds.NonNegativeInt = 0
    ) -> Arrivals:
        """The updates start .. stop - 1, as `replay` takes them.

        Args:
            start: the first update.
            stop: the update after the last one.
            width: pads rows to at least this many gradients.
        """
        start = checks.check_bound("start", start, at_most=self.num_updates)
        stop = checks.check_bound(
            "stop", stop, at_least=start, at_most=self.num_updates
        )
        width = max(width, self.max_gradients)
        rows = functools.partial(self._rows, start=start, stop=stop, width=width)
        written = self._slots[start:stop]
        slot = rows(self._slots[self.read_version])
        return Arrivals(
            staleness=rows(self.update - self.read_version),
            worker=rows(self.worker),
            divisor=self.divisor[start:stop].astype(np.float32),
            slot=np.where(slot < 0, written[:, None], slot),  # of the newest
            written=written,
        )

    def _rows(
        self,
        values: np.ndarray,
        *,
        start: int = 0,
        stop: int | None = None,
        width: int | None = None,
    ) -> np.ndarray:
        """Values of the gradients, a row for each update; -1 where there is none."""
        stop = self.num_updates if stop is None else stop
        width = self.max_gradients if width is None else width
        first, last = np.searchsorted(self.update, (start, stop))
        update = self.update[first:last]
        column = np.arange(first, last) - np.searchsorted(self.update, update)
        table = np.full((stop - start, width), -1, np.int32)
        table[update - start, column] = values[first:last]
        return table

    def summary(self) -> Summary:
        """The staleness, the gradients of each worker, and the rates.

        Returns:
            `mean`, `p50`, `p99`, `max` (of the staleness, in updates), `per_worker`
            (mean staleness, [P]), `gradients` (applied, [P]), `dropped` (the number of
            dropped gradients), `updates_per_second`, `idle_share` (of the workers'
            time; nan for a log).
        """
        staleness = self.update - self.read_version
        # NumPy warns of statistics of an empty array
        known = staleness if len(staleness) else np.array([math.nan])
        gradients = np.bincount(self.worker, minlength=self.num_workers)
        totals = np.bincount(self.worker, staleness, minlength=self.num_workers)
        end = self.seconds[-1] if self.num_updates else math.nan
        with np.errstate(invalid="ignore", divide="ignore"):
            busy_share = self.busy_seconds.sum() / (self.num_workers * end)
            return Summary(
                mean=float(known.mean()),
                p50=float(np.median(known)),
                p99=float(np.percentile(known, 99)),
                max=self.max_staleness,
                per_worker=totals / gradients,
                gradients=gradients,
                dropped=len(self.dropped.worker),
                updates_per_second=float(np.divide(self.num_updates, end)),
                idle_share=float(1.0 - busy_share),
            )

    def staleness_law(
        self, *, burn_in: kinds.NonNegativeInt = 0, dropped: bool = False
    ) -> StalenessLaw:
        """The law of the staleness of the gradients when they were applied.

        Args:
            burn_in: updates at the beginning that are left out.
            dropped: whether dropped gradients count too, with their staleness then.
        """
        version, read_version = self.update, self.read_version
        if dropped:
            version = np.concatenate([version, self.dropped.version])
            read_version = np.concatenate([read_version, self.dropped.read_version])
        kept = version >= burn_in
        staleness = (version - read_version)[kept]
        if not staleness.size:
            raise ValueError(f"`burn_in` must leave some gradient, got {burn_in}.")
        return StalenessLaw(np.bincount(staleness) / staleness.size)

    def save(self, path: Path | str) -> None:
        """Writes the trace to a file that `load_trace` reads.

        A .npz holds everything. A .csv has a row for each applied gradient, with the
        columns update,time_s,worker,read_version, or update,worker,staleness if times
        are unknown; it holds no updates without gradients or with their own divisor.

        Args:
            path: a file ending in .npz or .csv.
        """
        path = Path(path)
        if path.suffix == ".npz":
            names = [field.name for field in dataclasses.fields(self)]
            fields = {name: getattr(self, name) for name in names}
            for name, values in fields.pop("dropped")._asdict().items():
                fields[f"dropped_{name}"] = values
            np.savez_compressed(path, **fields)
        elif path.suffix == ".csv":
            plain = np.array_equal(self.divisor, self.counts) and self.counts.all()
            if not plain or not self.num_updates:
                raise ValueError(
                    "A .csv cannot hold a trace without updates, nor an update without"
                    f" gradients or with its own divisor: save {path.stem}.npz."
                )
            names = ["update", "time_s", "worker", "read_version"]
            if np.isnan(self.seconds).all():
                names = ["update", "worker", "staleness"]
            fields = vars(self) | {"time_s": self.seconds[self.update]}
            fields["staleness"] = self.update - self.read_version
            columns = [fields[name].tolist() for name in names]
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(names)
                writer.writerows(zip(*columns, strict=True))
        else:
            raise ValueError(f"`path` must end in .npz or .csv, got {str(path)!r}.")
