"""What a cluster did, update by update: simulated, or logged by a real one."""

import csv
import dataclasses
import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from delayjax import base

_CSV = ("update", "time_s", "worker", "read_version")
_MOST_WORKERS = 10_000_000  # of a log that does not say how many there are


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
        seconds: when each update was done, float64 [T].
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
        if not 0 <= start <= stop <= self.num_updates:
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
            >>> trace = simulate(workers, protocols.ringmaster(4), seed=0, seconds=500)
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

        with a row for each gradient that was applied.

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
                writer.writerow(_CSV)
                writer.writerows(
                    zip(
                        self.update.tolist(),
                        self.seconds[self.update].tolist(),
                        self.worker.tolist(),
                        self.read_version.tolist(),
                        strict=True,
                    )
                )
        else:
            raise ValueError(f"`path` must end in .npz or .csv, got {str(path)!r}.")

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


def load_trace(path: Path | str, *, num_workers: int | None = None) -> Trace:
    r"""Reads a trace that `Trace.save` wrote, or the log of a real cluster.

    A log is a .csv with the columns

        update,time_s,worker,read_version

    and a row for each gradient that was applied: the update it was part of (0, 1, 2,
    ...; the rows of one update follow each other), when that was done, in seconds since
    the beginning, whose it was (0, 1, ...) and how many updates had been done when its
    worker read the parameters. Further columns are ignored.

    Args:
        path: a .npz or .csv file.
        num_workers: of a .csv; by default the largest worker in it and one more. A
            .npz knows it.

    Returns:
        The trace. A log does not say when workers computed: `begun`, `arrived` and
        `busy_seconds` are nan, and nothing is dropped.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it cannot be read, naming the row (the first one below the
            header is row 1), the value and what it must be.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.csv"
        >>> rows = "update,time_s,worker,read_version", "0,1.5,0,0", "1,1.75,1,0"
        >>> _ = path.write_text("\n".join(rows))
        >>> load_trace(path).staleness[:, 0]
        array([0, 1], dtype=int32)
    """
    path = Path(path)
    if num_workers is not None:
        base.check_bound("num_workers", num_workers, at_least=1)
    if path.suffix == ".csv":
        return _read_csv(path, num_workers)
    if path.suffix == ".npz":
        trace = _read_npz(path)
        if num_workers not in (None, trace.num_workers):
            raise ValueError(
                f"`num_workers` must be {trace.num_workers}, as in {path}, got"
                f" {num_workers}."
            )
        return trace
    raise ValueError(f"`path` must end in .npz or .csv, got {str(path)!r}.")


def _read_npz(path: Path) -> Trace:
    names = [field.name for field in dataclasses.fields(Trace)]
    try:
        with path.open("rb") as file, np.load(file) as held:
            fields = {name: held[name] for name in names if name != "dropped"}
            dropped = Dropped(*(held[f"dropped_{name}"] for name in Dropped._fields))
    except (KeyError, OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} holds no trace: {error}") from error
    fields["num_workers"] = int(fields["num_workers"])
    return Trace(**fields, dropped=dropped)


def _read_csv(path: Path, num_workers: int | None) -> Trace:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}.") from error
    with io.StringIO(text, newline="") as file:
        reader = csv.DictReader(file, restval="")
        missing = [name for name in _CSV if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(
                f"{path} lacks the columns {', '.join(missing)}: a trace has"
                f" {','.join(_CSV)}."
            )
        seconds, rows = [], []
        for number, record in enumerate(reader, start=1):
            try:
                row = _read_row(record)
                _check_row(row, seconds, num_workers)
            except ValueError as error:
                raise ValueError(f"{path}, row {number}: {error}") from None
            if row.update == len(seconds):
                seconds.append(row.seconds)
            rows.append(row[1:])
    if not rows:
        raise ValueError(f"{path} has no rows: a trace has one for each gradient.")
    update, worker, read_version = np.asarray(rows, np.int32).T
    workers = int(worker.max()) + 1 if num_workers is None else num_workers
    unknown = np.full(len(rows), np.nan)
    none = np.zeros(0, np.int32)
    return Trace(
        num_workers=workers,
        seconds=np.asarray(seconds, np.float64),
        update=update,
        worker=worker,
        read_version=read_version,
        begun=unknown,
        arrived=unknown,
        divisor=np.bincount(update).astype(np.float64),
        dropped=Dropped(none, none, none, np.zeros(0), np.zeros(0)),
        busy_seconds=np.full(workers, np.nan),
    )


class _Row(NamedTuple):
    seconds: float
    update: int
    worker: int
    read_version: int


def _read_row(record: Mapping[str, Any]) -> _Row:
    numbers = []
    for name in ("time_s", "update", "worker", "read_version"):
        kind, words = (float, "a number") if name == "time_s" else (int, "an integer")
        try:
            numbers.append(kind(record[name]))
        except ValueError:
            raise ValueError(
                f"`{name}` must be {words}, got {record[name]!r}."
            ) from None
    return _Row(*numbers)


def _check_row(row: _Row, seconds: list[float], num_workers: int | None) -> None:
    """Checks a row of a log against the updates before it, done at `seconds`."""
    time, update, worker, read_version = row
    if not 0.0 <= time < math.inf:
        raise ValueError(f"`time_s` must be finite and non-negative, got {time}.")
    if update not in _allowed(seconds):
        before = f"after update {len(seconds) - 1}" if seconds else "at the beginning"
        raise ValueError(
            f"`update` {before} must be {' or '.join(map(str, _allowed(seconds)))}, got"
            f" {update}: updates are 0, 1, 2, ... without gaps, in order."
        )
    if update < len(seconds) and time != seconds[-1]:
        raise ValueError(
            f"`time_s` must be {seconds[-1]} in all rows of update {update}, got"
            f" {time}."
        )
    if seconds and time < seconds[-1]:
        raise ValueError(
            f"`time_s` must not go back, got {time} after {seconds[-1]}: sort the rows."
        )
    if not 0 <= read_version <= update:
        raise ValueError(
            f"`read_version` must lie in 0 .. {update}, the versions there were before"
            f" update {update}, got {read_version}."
        )
    last = _MOST_WORKERS - 1 if num_workers is None else num_workers - 1
    if not 0 <= worker <= last:
        raise ValueError(f"`worker` must be one of 0 .. {last}, got {worker}.")


def _allowed(seconds: list[float]) -> list[int]:
    return [len(seconds) - 1, len(seconds)] if seconds else [0]
