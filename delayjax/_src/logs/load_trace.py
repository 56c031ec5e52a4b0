"""Traces from files: saved traces, and logs of real clusters."""

import csv
import dataclasses
import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from delayjax._src.cluster.trace import Dropped, Trace
from delayjax._src.ground import checks

_FULL = ("update", "time_s", "worker", "read_version")
_COLUMNS = (*_FULL, "staleness")
_MOST_WORKERS = 10_000_000  # of a log without a number of workers
_MOST_SECONDS = 1e8  # three years: later times are a clock's
_EXACT = 2**53  # float64 holds the integers below


def load_trace(
    path: Path | str,
    *,
    columns: Mapping[str, str] | None = None,
    first_update: int = 0,
    start_seconds: float | Literal["first"] | None = None,
    sort: bool = False,
    num_workers: int | None = None,
) -> Trace:
    r"""Reads a trace that `Trace.save` wrote, or the log of a real cluster.

    A log is a .csv with a row for each gradient that was applied, and the columns

        update        the update of the gradient: 0, 1, 2, ... without gaps
        time_s        when the update was done, in seconds since the beginning
        worker        the worker of the gradient: 0, 1, ...
        read_version  how many updates had been done when the worker read

    A log of ages has the column `staleness`, update - read_version, in the place of
    `read_version`, and may lack the others: without `update` each row is an update,
    without `time_s` the times are nan, without `worker` all gradients are worker 0's.
    Other columns are ignored. An error names the line, the column and the value.

    Args:
        path: a .npz or .csv file.
        columns: {name above: name in the file}, for columns with other names.
        first_update: the number of the log's first update, if the log begins in the
            middle of a run. The trace counts from 0; older versions become version 0.
        start_seconds: subtracted from `time_s`: a number of seconds, by default 0, or
            "first", which puts the first update at 0 s. A clock's time, above 10^8 s,
            needs this option.
        sort: whether to sort the rows by `update`; rows of one update keep their order.
        num_workers: P of a .csv; by default the largest worker plus 1.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.csv"
        >>> _ = path.write_text("age\n0\n1\n2\n1\n")  # nothing but ages
        >>> load_trace(path, columns={"staleness": "age"}).read_version
        array([0, 0, 0, 2], dtype=int32)
    """
    path = Path(path)
    if num_workers is not None:
        num_workers = checks.check_bound("num_workers", num_workers, at_least=1)
    first_update = checks.check_bound("first_update", first_update)
    if start_seconds not in (None, "first"):
        start_seconds = checks.check_number("start_seconds", start_seconds)
    if path.suffix == ".csv":
        log = _Log(path, columns or {}, sort)
        return log.trace(first_update, start_seconds, num_workers)
    if path.suffix != ".npz":
        raise ValueError(f"`path` must end in .npz or .csv, got {str(path)!r}.")
    if columns or first_update or start_seconds is not None or sort or num_workers:
        raise ValueError(
            f"All arguments but `path` are options of a .csv, got one for {path}."
        )
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


class _Log:
    """The numbers of a .csv; an error names their line and column."""

    def __init__(self, path: Path, columns: Mapping[str, str], sort: bool):
        self.path = path
        try:
            text = path.read_text(encoding="utf-8-sig")
            reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader if "".join(row).strip()]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path} is no .csv: {error}.") from error
        self.names = _names(path, header, columns)  # our name -> the file's
        if not rows:
            raise ValueError(f"{path} has no rows: a trace has one for each gradient.")
        self.lines = np.array([line for line, _ in rows])
        self.columns = {}  # our name -> the numbers, int64 or float64 [M]
        for ours, theirs in self.names.items():
            place = header.index(theirs)
            texts = [row[place] if place < len(row) else "" for _, row in rows]
            self.columns[ours] = self._numbers(ours, texts)
        if sort:
            if "update" not in self.columns:
                raise ValueError(
                    f"{path} has no column `update` by which sort=True may sort: name"
                    " it with `columns`, or leave out sort=True."
                )
            order = np.argsort(self.columns["update"], kind="stable")
            self.lines = self.lines[order]
            self.columns = {name: held[order] for name, held in self.columns.items()}

    def _numbers(self, ours: str, texts: list[str]) -> np.ndarray:
        numbers = np.array([_number(text) for text in texts])
        wrong, must = ~np.isfinite(numbers), "be a finite number of seconds"
        if ours != "time_s":
            wrong |= (numbers != np.round(numbers)) | (np.abs(numbers) >= _EXACT)
            must = "be an integer"
        remedy = "correct the row, or leave it out; workers are 0, 1, 2, ..."
        self._check(ours, wrong, must, remedy, texts)
        return numbers if ours == "time_s" else numbers.astype(np.int64)

    def trace(self, first_update: int, start: Any, num_workers: int | None) -> Trace:
        update = self._update(first_update)
        seconds = self._seconds(update, start)
        read_version = self._read_version(update, first_update)
        worker = self.columns.get("worker", np.zeros_like(update))
        most = _MOST_WORKERS if num_workers is None else num_workers
        must, remedy = f"lie in 0 .. {most - 1}", "number workers 0, 1, 2, ..."
        self._check("worker", (worker < 0) | (worker >= most), must, remedy)
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
        """Counted from 0, int64 [M]."""
        if "update" not in self.columns:
            return np.arange(len(self.lines))
        update = self.columns["update"]
        change = np.diff(update, prepend=first_update)
        wrong = (change < 0) | (change > 1)
        wrong[0] = change[0] != 0
        remedy = (
            f"give first_update={max(update[0], 0)} if the log begins there, and"
            " sort=True if rows are out of order"
        )
        self._check("update", wrong, f"count without gaps from {first_update}", remedy)
        return update - first_update

    def _seconds(self, update: np.ndarray, start: Any) -> np.ndarray:
        """When each update was done, float64 [T]."""
        if "time_s" not in self.columns:
            return np.full(update[-1] + 1, np.nan)
        time = self.columns["time_s"]
        if start is None:
            must = f"begin below {_MOST_SECONDS:g} s, three years after the beginning"
            remedy = (
                "for a clock's time give start_seconds=\"first\", or the clock's time"
                " at the beginning; else give start_seconds=0.0"
            )
            self._check("time_s", time[:1] > _MOST_SECONDS, must, remedy)
        start = time[0] if start == "first" else start or 0.0
        must = f"not be before the beginning at {start:g} s"
        self._check("time_s", time < start, must, "give another start_seconds")
        change = np.diff(time, prepend=time[0])
        again = np.diff(update, prepend=-1) == 0
        must = "be equal in all rows of an update, and not go back"
        remedy = "log the time at which the update was done, by one clock"
        self._check("time_s", (change < 0) | (again & (change > 0)), must, remedy)
        return (time - start)[~again]

    def _read_version(self, update: np.ndarray, first_update: int) -> np.ndarray:
        """Counted from 0; versions before the log are its first one. int64 [M]."""
        staleness, name = self.columns.get("staleness"), "read_version"
        if name in self.columns:
            read_version = self.columns[name] - first_update
            if staleness is not None:
                differs = staleness != update - read_version
                remedy = "leave out one of the two columns"
                self._check("staleness", differs, "be update - read_version", remedy)
        else:
            name, read_version = "staleness", update - self.columns["staleness"]
        impossible = (read_version > update) | (read_version < -first_update)
        remedy = "give first_update if the log begins in the middle of a run"
        self._check(name, impossible, "be of a version 0, ..., update", remedy)
        return np.maximum(read_version, 0)

    def _check(
        self, ours: str, wrong: np.ndarray, must: str, remedy: str, texts: Sequence = ()
    ) -> None:
        """Refuses the first row that is wrong."""
        if wrong.any():
            row = int(np.argmax(wrong))
            got = repr(texts[row]) if texts else self.columns[ours][row]
            raise ValueError(
                f"{self.path}, line {self.lines[row]}: `{self.names[ours]}` must"
                f" {must}, got {got}: {remedy}."
            )


def _names(path: Path, header: list[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Our name -> the name in the file, of the columns that are there."""
    has = f"{path} has the columns {', '.join(map(repr, header)) or 'of an empty file'}"
    for ours, theirs in columns.items():
        if ours not in _COLUMNS or theirs not in header:
            raise ValueError(
                f"{has}, and a trace {', '.join(_COLUMNS)}, but `columns` names"
                f" {theirs!r} as {ours!r}."
            )
    names = {ours: columns.get(ours, ours) for ours in _COLUMNS}
    names = {ours: theirs for ours, theirs in names.items() if theirs in header}
    for theirs in names.values():
        if header.count(theirs) > 1:
            raise ValueError(f"{has}, {theirs!r} twice: rename one of them.")
    lacking = [ours for ours in _FULL if ours not in names]
    if lacking and ("staleness" not in names or "read_version" in names):
        raise ValueError(
            f"{has}, and lacks {', '.join(lacking)}: a trace has {','.join(_FULL)}, or"
            " staleness in the place of read_version, separated by commas. Name them"
            " with columns={'" + lacking[0] + "': ...}."
        )
    return names


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
