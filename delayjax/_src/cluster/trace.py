"""What a cluster did, update by update: simulated, or logged by a real one."""

import csv
import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from delayjax._src import base


class Dropped(NamedTuple):
    """Gradients that arrived and were refused."""

    version: np.ndarray  # of the parameters when it was refused, int32 [D]
    worker: np.ndarray  # int32 [D]
    read_version: np.ndarray  # that it was taken at, int32 [D]
    begun: np.ndarray  # seconds, float64 [D]
    arrived: np.ndarray  # seconds, float64 [D]


class Arrivals(NamedTuple):
    """Updates as training needs them: rows of K gradients, the last ones of an update
    with fewer padded.
    """

    staleness: np.ndarray  # updates, int32 [n, K], -1 where there is no gradient
    worker: np.ndarray  # int32 [n, K], likewise
    divisor: np.ndarray  # of the sum of the gradients, float32 [n]


class StalenessLaw(NamedTuple):
    """How stale a gradient is."""

    mean: float  # updates
    variance: float
    pmf: np.ndarray  # probability of staleness 0, 1, ..., float64 [largest + 1]


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


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """Who finished when, which version each gradient saw, and what was dropped.

    Update t makes version t + 1 of the parameters from version t. A gradient of update
    t that was taken at version j has the staleness t - j. Gradients are listed flat, M
    of them, in the order in which they are applied.

    Attributes:
        num_workers: P.
        seconds: when each update was done, float64 [T]; nan in a log without times.
        update: to which each gradient belongs, int32 [M], ascending.
        worker: whose it is, int32 [M].
        read_version: of the parameters that it was taken at, int32 [M].
        begun: seconds when its worker asked for them, float64 [M]; nan in a log.
        arrived: seconds when it reached the server, float64 [M]; nan in a log.
        divisor: what the sum of an update's gradients is divided by, float64 [T]: their
            number, unless the protocol says otherwise.
        dropped: the gradients that were refused.
        busy_seconds: how long each worker computed until the last update, in vain or
            not, float64 [P]; nan in a log.
    """

    num_workers: int
    seconds: np.ndarray
    update: np.ndarray
    worker: np.ndarray
    read_version: np.ndarray
    begun: np.ndarray
    arrived: np.ndarray
    divisor: np.ndarray
    dropped: Dropped
    busy_seconds: np.ndarray

    @property
    def num_updates(self) -> int:
        """T."""
        return len(self.seconds)

    @property
    def counts(self) -> np.ndarray:
        """Gradients of each update, int64 [T]."""
        return np.bincount(self.update, minlength=self.num_updates)

    @property
    def staleness(self) -> np.ndarray:
        """int32 [T, K], K the most gradients of an update; -1 where one has fewer."""
        return self._padded(self.update - self.read_version, 0, self.num_updates)

    @property
    def workers(self) -> np.ndarray:
        """The worker of each gradient, int32 [T, K]; -1 where an update has fewer."""
        return self._padded(self.worker, 0, self.num_updates)

    @property
    def max_staleness(self) -> int:
        """The largest staleness, in updates; 0 without gradients."""
        return int((self.update - self.read_version).max(initial=0))

    @property
    def max_gradients(self) -> int:
        """K, the most gradients of an update."""
        return int(self.counts.max(initial=0))

    def arrivals(self, start: int, stop: int, *, width: int = 0) -> Arrivals:
        """The updates start .. stop - 1, as `replay` takes them.

        Args:
            start: the first update.
            stop: the first that is not wanted.
            width: pad rows to so many gradients, where another trace has more.

        Raises:
            ValueError: if the trace does not hold them.
        """
        start = base.check_bound("start", start)
        stop = base.check_bound("stop", stop)
        width = base.check_bound("width", width)
        if not start <= stop <= self.num_updates:
            raise ValueError(
                f"`start` and `stop` must lie in order in 0 .. {self.num_updates}, the"
                f" updates of the trace, got {start} and {stop}."
            )
        return Arrivals(
            staleness=self._padded(self.update - self.read_version, start, stop, width),
            worker=self._padded(self.worker, start, stop, width),
            divisor=self.divisor[start:stop].astype(np.float32),
        )

    def summary(self) -> Summary:
        """Mean, median, 99th percentile and maximum of staleness, and the rates."""
        staleness = self.update - self.read_version
        gradients = np.bincount(self.worker, minlength=self.num_workers)
        totals = np.bincount(self.worker, staleness, minlength=self.num_workers)
        known = len(staleness) > 0
        end = self.seconds[-1] if self.num_updates else math.nan
        with np.errstate(invalid="ignore", divide="ignore"):
            return Summary(
                mean=float(staleness.mean()) if known else math.nan,
                p50=float(np.median(staleness)) if known else math.nan,
                p99=float(np.percentile(staleness, 99)) if known else math.nan,
                max=self.max_staleness,
                per_worker=totals / gradients,
                gradients=gradients,
                dropped=len(self.dropped.worker),
                updates_per_second=float(np.divide(self.num_updates, end)),
                idle_share=float(
                    1.0 - self.busy_seconds.sum() / (self.num_workers * end)
                ),
            )

    def staleness_law(self, *, burn_in: int = 0, dropped: bool = False) -> StalenessLaw:
        """How stale the gradients were when they were applied.

        Args:
            burn_in: updates at the beginning that are left out.
            dropped: whether to count refused gradients too, as stale as they were when
                they were refused: the law of all arrivals.

        Raises:
            ValueError: if no gradient is left.

        Example:
            >>> from delayjax.cluster import Cluster, exponential, protocols, simulate
            >>> workers = Cluster(8, exponential(1.0))
            >>> rule = protocols.ringmaster(4)
            >>> trace = simulate(workers, rule, None, seed=0, seconds=500.0)
            >>> T, D = trace.num_updates, len(trace.dropped.worker)
            >>> everything = trace.staleness_law(dropped=True)  # (P - 1) T / (T + D)
            >>> round(everything.mean * (T + D) / T, 1), trace.max_staleness
            (7.0, 3)
        """
        version, read_version = self.update, self.read_version
        if dropped:
            version = np.concatenate([version, self.dropped.version])
            read_version = np.concatenate([read_version, self.dropped.read_version])
        kept = version >= base.check_bound("burn_in", burn_in)
        staleness = (version - read_version)[kept]
        if not staleness.size:
            raise ValueError(
                f"`burn_in` must leave gradients, got {burn_in} of {self.num_updates}"
                " updates."
            )
        return law_of(np.bincount(staleness) / staleness.size)

    def save(self, path: Path | str) -> None:
        """Writes the trace: everything to .npz; to .csv the columns

            update,time_s,worker,read_version

        with a row for each gradient that was applied, as `load_trace` reads them; where
        no times are known update,worker,staleness.

        Args:
            path: a file ending in .npz or .csv.

        Raises:
            ValueError: if it ends otherwise, or a .csv could not hold the trace: an
                update without gradients or with a divisor of its own.
        """
        path = Path(path)
        if path.suffix == ".npz":
            fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
            dropped = fields.pop("dropped")._asdict()
            np.savez_compressed(
                path, **fields, **{f"dropped_{k}": v for k, v in dropped.items()}
            )
        elif path.suffix == ".csv":
            plain = np.array_equal(self.divisor, self.counts) and self.counts.all()
            if not plain or not self.num_updates:
                raise ValueError(
                    "A .csv cannot hold this trace, which has no updates, or some"
                    " without gradients or with a divisor of their own: save it as"
                    f" {path.with_suffix('.npz').name}."
                )
            with path.open("w", newline="") as file:
                writer = csv.writer(file)
                columns = self._csv_columns()
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))
        else:
            raise ValueError(f"`path` must end in .npz or .csv, got {str(path)!r}.")

    def _csv_columns(self) -> dict[str, list[float]]:
        columns = {"update": self.update.tolist()}
        if np.isnan(self.seconds).all():  # of a log of ages
            columns["worker"] = self.worker.tolist()
            columns["staleness"] = (self.update - self.read_version).tolist()
        else:
            columns["time_s"] = self.seconds[self.update].tolist()
            columns["worker"] = self.worker.tolist()
            columns["read_version"] = self.read_version.tolist()
        return columns

    def _padded(
        self, values: np.ndarray, start: int, stop: int, width: int = 0
    ) -> np.ndarray:
        first, last = np.searchsorted(self.update, (start, stop))
        rows = self.update[first:last]
        begins = np.searchsorted(rows, np.arange(start, stop))
        width = max(width, self.max_gradients)
        table = np.full((stop - start, width), -1, np.int32)
        columns = np.arange(len(rows)) - begins[rows - start]
        table[rows - start, columns] = values[first:last]
        return table


def law_of(pmf: np.ndarray) -> StalenessLaw:
    """A law of staleness with its moments.

    Args:
        pmf: probability of staleness 0, 1, ...

    Example:
        >>> law = law_of(np.asarray([0.5, 0.0, 0.5]))
        >>> float(law.mean), float(law.variance)
        (1.0, 1.0)
    """
    values = np.arange(len(pmf))
    mean = float(values @ pmf)
    return StalenessLaw(mean, float((values - mean) ** 2 @ pmf), pmf)
