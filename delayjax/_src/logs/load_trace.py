"""Traces from files: saved traces, and logs of real clusters."""

import dataclasses
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from delayjax._src.cluster.trace import Dropped, Trace
from delayjax._src.ground import kinds
from delayjax._src.logs.table import Table, checked_start

_COLUMNS = ("update", "time_s", "worker", "read_version")


@kinds.checked
def load_trace(
    path: Path | str,
    *,
    columns: Mapping[str, str] | None = None,
    first_update: kinds.NonNegativeInt = 0,
    start_seconds: float | Literal["first"] | None = None,
    sort: bool = False,
    num_workers: kinds.PositiveInt | None = None,
) -> Trace:
    r"""Reads a trace that `Trace.save` wrote, or the log of a real cluster.

    A log has a row for each gradient that was applied, and the columns

        update        the update of the gradient: 0, 1, 2, ... without gaps
        time_s        when the update was done, in seconds since the beginning, or a
                      date and time of ISO 8601 (in UTC, unless it says another zone)
        worker        the worker of the gradient: 0, 1, ..., or a name
        read_version  how many updates had been done when the worker read

    A log of ages has the column `staleness`, update - read_version, in the place of
    `read_version`, and may lack the other columns: without `update` each row is an
    update, without `time_s` the times are nan, without `worker` all gradients are of
    worker 0. Other columns are ignored. Names of workers are numbered in their order
    (host10 comes after host2). An error names the line, the column and the value. A
    repeated row is refused if without it all updates have equally many gradients.

    Args:
        path: a .npz, or a log: a .csv, .tsv or .jsonl, perhaps with .gz, or a .parquet.
            Columns are separated by the first of , ; tab | and space that is in the
            header, and lines that begin with # are comments. A log needs pandas, pip
            install 'delayjax[logs]'.
        columns: {name above: name in the file}, for columns with other names.
        first_update: the number of the log's first update, if the log begins in the
            middle of a run. The trace counts from 0; older versions become version 0.
        start_seconds: subtracted from `time_s`: a number of seconds, by default 0, or
            "first", which puts the first update at 0 s. A clock's time, above 10^8 s,
            needs this option.
        sort: whether to sort the rows by `update`; rows of one update keep their order.
        num_workers: P of a log; by default the largest worker plus 1. Without it,
            numbers count as names, with a warning, if none is 0 or if most numbers up
            to the largest are absent.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.csv"
        >>> _ = path.write_text("age\n0\n1\n2\n1\n")  # nothing but ages
        >>> load_trace(path, columns={"staleness": "age"}).read_version
        array([0, 0, 0, 2], dtype=int32)
    """
    path = Path(path)
    start_seconds = checked_start(start_seconds)
    if path.suffix != ".npz":
        log = _Log(path, columns or {}, sort)
        return log.trace(first_update, start_seconds, num_workers)
    if columns or first_update or start_seconds is not None or sort or num_workers:
        raise ValueError(f"Only a log in text has options, got one for {path}.")
    names = [field.name for field in dataclasses.fields(Trace)]
    apart = "dropped", "held_until"
    try:
        with path.open("rb") as file, np.load(file) as held:
            fields = {name: held[name] for name in names if name not in apart}
            dropped = Dropped(*(held[f"dropped_{name}"] for name in Dropped._fields))
            if "held_until" in held:  # older files have none
                fields["held_until"] = held["held_until"]
    except (EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} holds no trace: {error}") from error
    fields["num_workers"] = int(fields["num_workers"])
    return Trace(**fields, dropped=dropped)


class _Log(Table):
    """The rows of a log, as the columns of a trace."""

    endings = (".npz", *Table.endings)

    def __init__(self, path: Path, columns: Mapping[str, str], sort: bool):
        super().__init__(path)
        ages = "staleness" in {*self.header, *columns}
        ages &= "read_version" not in {*self.header, *columns}
        needed = ("staleness",) if ages else _COLUMNS
        used = _COLUMNS[:3] if ages else ("staleness",)
        self.name(columns, needed, used, ())
        for ours in self.names:
            self.read(ours)
        if sort and "update" not in self.columns:
            raise ValueError(f"{path} has no column `update`, which sort=True needs.")
        if sort:
            self.sort("update")

    def trace(self, first_update: int, start: Any, num_workers: int | None) -> Trace:
        update = self._update(first_update)
        seconds = self._seconds(update, start)
        read_version = self._read_version(update, first_update)
        worker = self._worker(num_workers)
        self._check_repeated(update, worker, read_version)
        workers = int(worker.max()) + 1 if num_workers is None else num_workers
        unknown = np.full(len(update), np.nan)
        return Trace(
            num_workers=workers,
            seconds=seconds,
            update=update.astype(np.int32),
            worker=worker.astype(np.int32),
            read_version=read_version.astype(np.int32),
            begun=unknown,
            arrived=unknown,
            divisor=np.bincount(update).astype(np.float64),
            busy_seconds=np.full(workers, np.nan),
        )

    def _update(self, first_update: int) -> np.ndarray:
        """The update of each gradient, counted from 0, int64 [M]."""
        if "update" not in self.columns:
            return np.arange(len(self.columns))
        update = self.columns["update"].to_numpy()
        change = np.diff(update, prepend=first_update)
        first, must = update[0], f"count without gaps from {first_update}"
        remedy = "number updates 0, 1, 2, ..."
        if first == 1 and first_update == 0:
            remedy = (
                "subtract 1 if the first update of the run has the number 1; give"
                " first_update=1 if the log begins with the second one"
            )
        elif first >= 0:
            remedy = f"give first_update={first:g} if the log begins there"
        sound = (np.arange(len(update)) > 0) | (change == 0)
        self.check("update", sound, must, f"{remedy}; or sort=True")
        remedy = "give sort=True if rows are out of order"
        self.check("update", change >= 0, must, remedy)
        remedy = "add the rows between, or give sort=True if they come later"
        self.check("update", change <= 1, must, remedy)
        return (update - first_update).astype(np.int64)

    def _seconds(self, update: np.ndarray, start: Any) -> np.ndarray:
        """When each update was done, float64 [T]."""
        if "time_s" not in self.columns:
            return np.full(update[-1] + 1, np.nan)
        time = self.since_start("time_s", start).to_numpy()
        change = np.diff(time, prepend=time[0])
        again = np.diff(update, prepend=-1) == 0
        must = "be equal in all rows of an update, and not go back"
        remedy = "log in seconds by one clock when the update was done"
        self.check("time_s", (change == 0) | (~again & (change > 0)), must, remedy)
        return time[~again]

    def _read_version(self, update: np.ndarray, first_update: int) -> np.ndarray:
        """The version that each gradient read, int64 [M]; older versions count as 0."""
        name = "read_version" if "read_version" in self.columns else "staleness"
        read_version = self.columns[name].to_numpy() - first_update
        if name == "staleness":
            read_version = update - self.columns[name].to_numpy()
        elif "staleness" in self.columns:
            sound = self.columns["staleness"] == update - read_version
            remedy = "leave out one of the two columns"
            self.check("staleness", sound, "be update - read_version", remedy)
        must = "be of a version 0, ..., update"
        remedy = "count the updates that were done when the worker read"
        self.check(name, read_version <= update, must, remedy)
        remedy = "give first_update if the log begins in the middle of a run"
        if first_update:
            remedy = "no version is older than the run: count versions from 0"
        self.check(name, read_version >= -first_update, must, remedy)
        if first_update == 1 and (read_version < update).all():
            remedy = "subtract 1 from all updates, and leave out first_update=1"
            must = (
                "be fresh somewhere: updates seem to be counted from 1, versions from 0"
            )
            self.check(name, [False], must, remedy)
        return np.maximum(read_version, 0).astype(np.int64)

    def _worker(self, num_workers: int | None) -> np.ndarray:
        """The worker of each gradient, numbered from 0 on, int64 [M]."""
        worker = np.zeros(len(self.columns), np.int64)
        if "worker" in self.columns:
            worker = self.columns["worker"].to_numpy(np.int64)
        remedy = "number workers 0, 1, 2, ..., or name them"
        self.check("worker", worker >= 0, "be 0 or more", remedy)
        if num_workers is not None:
            remedy = f"give num_workers={worker.max() + 1}"
            must = f"lie in 0 .. {num_workers - 1}"
            self.check("worker", worker < num_workers, must, remedy)
            return worker
        known, renumbered = np.unique(worker, return_inverse=True)
        if known[0] > 0 or 2 * len(known) <= known[-1]:  # of processes, or from 1 on
            worker = renumbered
            warnings.warn(
                f"{self.path}: workers {known[0]}, ..., {known[-1]} are renumbered to 0"
                f" .. {len(known) - 1}, in their order: give num_workers, above"
                f" {known[-1]}, to keep their numbers.",
                stacklevel=5,
            )
        return worker

    def _check_repeated(self, update: np.ndarray, *read: np.ndarray) -> None:
        """Refuses a repeated row, if without it all updates have as many gradients."""
        rows = self.columns.assign(update=update, worker=read[0], read_version=read[1])
        sound = ~rows.duplicated(["update", "worker", "read_version"]).to_numpy()
        once, several = np.bincount(update[sound]), np.ptp(read[0]) > 0
        uneven = np.ptp(np.bincount(update)) > 0
        # a worker may give two gradients at one version to each update
        suspect = uneven or (several and once[0] == 1)
        if "update" in self.names and np.ptp(once) == 0 and suspect:
            usual = "one row" if once[0] == 1 else f"{once[0]} rows"
            remedy = "leave out one of the two rows"
            self.check("update", sound, f"have {usual}, as the others have", remedy)
