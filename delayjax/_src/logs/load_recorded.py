"""Recorded times from the log of a real cluster."""

import csv
import importlib
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from delayjax._src.ground import checks
from delayjax._src.logs.arrays import MOST_SECONDS, increases
from delayjax._src.logs.recorded import Recorded

_TASKS = "worker", "step", "seconds"
_OPERATIONS = "worker", "step", "operation", "duration"
_OPTIONAL = "start", "stage"
_EXACT = 2**53  # float64 holds the integers below
_LONG = 100.0  # seconds of a task that are perhaps milliseconds
_APART = 100  # times that differ by this factor, and none between: two units


def load_recorded(
    path: Path | str,
    *,
    columns: Mapping[str, str | None] | None = None,
    operations: Sequence[str] | None = None,
    start_seconds: float | Literal["first"] | None = None,
) -> Recorded:
    r"""Reads the times of tasks from the log of a real cluster.

    A .csv has a row for each task, with the columns

        worker   0, 1, ...; any integers, which are sorted
        step     the number of the step, or of the worker's task
        seconds  of the task
        start    when it began, in seconds since the start of the log; may be absent

    A .parquet has a row for each operation, with the columns `worker`, `step`,
    `operation`, `duration` (in seconds), and perhaps `start`. A task is then all rows
    of a worker and a step that have one of the `operations`: their durations are added,
    and the first start counts. With a column `stage`, which `columns` must name, a
    worker is a replica of several stages, and a task takes as long as the slowest stage
    of its step.

    Without `start` each worker must have all steps. With it a task that is missing is a
    gap (nan). Other columns are ignored. An error names the row, counted from 1 without
    the header and empty rows.

    Args:
        path: a .csv or .parquet file; the latter needs pyarrow.
        columns: {name above: name in the file}, for columns with other names;
            {"start": None} leaves that column out.
        operations: of a .parquet, the names of the operations that are computation.
        start_seconds: subtracted from `start`: a number of seconds, by default 0, or
            "first", which puts the first start at 0 s. A clock's time, above 10^8 s,
            needs this option.

    Returns:
        The times, float64 [W, T], with the numbers of their steps; a million rows take
        some seconds.

    Raises:
        ValueError: for one worker alone, steps that are missing, twice there or out of
            order, times that are not positive, a clock's times, and two units (some
            tasks take over 100 times as long as all others). Where half of the tasks
            take over 100 s a warning asks whether these are milliseconds.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "times.csv"
        >>> _ = path.write_text("rank,step,s\n0,7,1.5\n1,7,2.0\n0,8,1.5\n1,8,4.0\n")
        >>> recorded = load_recorded(path, columns={"worker": "rank", "seconds": "s"})
        >>> recorded.seconds.tolist(), recorded.steps.tolist()
        ([[1.5, 1.5], [2.0, 4.0]], [7, 8])
    """
    named = isinstance(start_seconds, str) and start_seconds == "first"
    if start_seconds is not None and not named:
        start_seconds = checks.check_number("start_seconds", start_seconds)
    needed = {} if start_seconds is None else {"start": "start"}
    log = _Log(Path(path), needed | dict(columns or {}), operations)
    log.check_rows()
    starts = log.starts(start_seconds)
    return Recorded(log.seconds(), starts, log.steps.astype(np.int64))


class _Log:
    """The rows of a file, and their tasks by worker, stage and step."""

    def __init__(self, path: Path, columns: dict, operations: Any):
        self.path, self.columns = path, {}
        if path.suffix == ".csv" and operations is None:
            self._read_csv(columns)
        elif path.suffix == ".parquet":
            self._read_parquet(columns, operations)
        else:
            raise ValueError(
                "`path` must end in .csv, without `operations`, or in .parquet, got"
                f" {str(path)!r} and {operations!r}."
            )
        self.amount = "seconds" if "seconds" in self.names else "duration"
        self.columns.setdefault("stage", np.zeros(len(self.rows)))
        keys = [self.columns[name] for name in ("worker", "stage", "step")]
        found = [np.unique(key, return_inverse=True) for key in keys]
        (self.workers, self.stages, self.steps), self.places = zip(*found, strict=True)
        self.shape = len(self.workers), len(self.stages), len(self.steps)
        # the cells of [worker, stage, step] that have rows, and the first row of each
        cell = np.ravel_multi_index(self.places, self.shape)
        self.cells, self.first, self.cell_of_row = np.unique(cell, True, True)

    def _read_csv(self, columns: dict) -> None:
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            header = [name.strip() for name in next(csv.reader(file), [])]
        self.names = self._names(header, columns, _TASKS)
        places = [header.index(name) for name in self.names.values()]
        form: Any = dict(
            delimiter=",", quotechar='"', comments=None, encoding="utf-8-sig"
        )
        try:
            with warnings.catch_warnings(action="error"):  # of a file without rows
                table = np.loadtxt(
                    self.path, skiprows=1, usecols=places, ndmin=2, **form
                )
        except UserWarning:
            raise ValueError(
                f"{self.path} must have a row for each task, got none below {header}."
            ) from None
        except ValueError as error:
            # NumPy counts short rows from 1, and others from 0
            text = re.sub(
                r"row (\d+),", lambda at: f"row {int(at[1]) + 1},", str(error)
            )
            raise ValueError(
                f"{self.path} must hold numbers: {text} Correct the row, and number"
                " workers 0, 1, ..."
            ) from None
        self.columns |= zip(self.names, table.T, strict=True)
        self.rows = np.arange(1, len(table) + 1)

    def _read_parquet(self, columns: dict, operations: Any) -> None:
        try:
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ImportError(
                f"{self.path} needs pyarrow: pip install pyarrow"
            ) from error
        header = parquet.read_schema(self.path).names
        self.names = self._names(header, columns, _OPERATIONS)
        table = parquet.read_table(self.path, columns=list(self.names.values()))
        held = {
            ours: table.column(name).to_numpy() for ours, name in self.names.items()
        }
        operation = held.pop("operation").astype(str)
        known = np.unique(operation).tolist()
        if any(name not in known for name in operations or [None]):
            raise ValueError(
                f"`operations` must list those that are computation, of {known} in"
                f" {self.path}, got {operations!r}."
            )
        kept = np.isin(operation, list(operations))
        for ours, values in held.items():
            if values.dtype.kind not in "fiu":
                raise ValueError(
                    f"{self.path}: `{self.names[ours]}` must hold numbers, got"
                    f" {values[0]!r}: write seconds, and number workers and steps."
                )
            self.columns[ours] = values[kept].astype(np.float64)
        self.rows = np.flatnonzero(kept) + 1

    def _names(self, header: list, columns: dict, needed: tuple) -> dict[str, str]:
        """Our name of a column -> the file's, of the columns that are read."""
        # a stage counts only where `columns` names it
        names = {name: name for name in needed + ("start",) * ("start" in header)}
        names |= columns
        for ours, name in names.items():
            optional = ours in _OPTIONAL and name is None
            unknown = ours not in (*needed, *_OPTIONAL)
            if unknown or (header.count(name) != 1 and not optional):
                raise ValueError(
                    f"{self.path} must have a column {name!r}, once, got {header}: give"
                    f" `columns` the names for {', '.join((*needed, *_OPTIONAL))}."
                )
        return {ours: name for ours, name in names.items() if name is not None}

    def check(
        self, name: str, sound: Any, must: str, remedy: str, tasks: Any = None
    ) -> None:
        """Refuses the first row that is not sound; or task, of the values `tasks`."""
        if np.all(sound):
            return
        row, values = np.arange(len(self.rows)), self.columns[name]
        if tasks is not None:
            row, values = self._table(self.first, -1).max(axis=1), tasks
        bad = row[~sound].argmin()
        at, got = row[~sound][bad], values[~sound][bad]
        worker, step = self.columns["worker"][at], self.columns["step"][at]
        raise ValueError(
            f"{self.path}, row {self.rows[at]} (worker {worker:g}, step {step:g}):"
            f" `{self.names[name]}` must {must}, got {got:.10g}: {remedy}."
        )

    def check_rows(self) -> None:
        """Refuses rows that cannot be true, out of order, or of one worker alone."""
        for name in ("worker", "stage", "step"):
            key = self.columns[name]
            sound = (key == np.round(key)) & (np.abs(key) < _EXACT)
            self.check(name, sound, "be an integer", "number workers and steps")
        seconds = self.columns[self.amount]
        sound = (seconds >= 0) & (seconds <= MOST_SECONDS)
        must = f"be positive and at most {MOST_SECONDS:g} s"
        remedy = "give durations, no clock's times, and leave out a row without one"
        self.check(self.amount, sound, must, remedy)
        several = np.full(len(self.rows), len(self.workers) > 1)
        remedy = "name another column, or use cluster.empirical(seconds)"
        self.check("worker", several, "number two workers or more", remedy)
        worker, stage, step = self.places
        order = np.lexsort((stage, worker))  # keeps the file's order
        key, step = (worker * len(self.stages) + stage)[order], step[order]
        sound = np.ones(order.size, bool)
        sound[order[1:]] = (np.diff(key) > 0) | (np.diff(step) >= 0)
        remedy = "sort the rows, and leave out steps that were done again"
        self.check("step", sound, "not go back for a worker", remedy)
        if self.amount == "seconds":
            sound = np.isin(np.arange(order.size), self.first)
            self.check("step", sound, "be there once for a worker", "leave out a row")

    def seconds(self) -> np.ndarray:
        """The times of the slowest stage, float64 [W, T]; nan is a gap."""
        each = np.bincount(self.cell_of_row, self.columns[self.amount])
        seconds = self._table(each, np.nan).max(axis=1)
        sound, remedy = ~(seconds <= 0), "leave out this step"
        self.check(self.amount, sound, "be positive in all", remedy, seconds)
        times = np.sort(seconds[~np.isnan(seconds)])
        gap = np.argmax(times[1:] / times[:-1])
        low, high, usual = times[gap], times[gap + 1], np.median(times)
        if high > _APART * low:
            sound = ~(seconds <= low if usual > low else seconds >= high)
            remedy = (
                f"in seconds there are {low:.4g} s and {high:.4g} s, in milliseconds"
                f" {low / 1e3:.4g} s and {high / 1e3:.4g} s, and none between; give"
                " seconds alone, and leave out a task that hung"
            )
            must = f"have the unit of the others, of about {usual:.4g}"
            self.check(self.amount, sound, must, remedy, seconds)
        if usual > _LONG:
            warnings.warn(
                f"{self.path}: half of the tasks take over {usual:.4g} s. If these are"
                " milliseconds, divide them by 1000.",
                stacklevel=3,
            )
        return seconds

    def starts(self, start_seconds: Any) -> np.ndarray | None:
        """When each task began, float64 [W, T]; None in a log without starts."""
        start = self.columns.get("start")
        if start is None:
            self._check_complete()
            return None
        sound = np.isfinite(start)
        if start_seconds is None:
            sound &= start <= MOST_SECONDS
        must = f"be finite, at most {MOST_SECONDS:g} s after the start of the log"
        remedy = 'for a clock\'s times give start_seconds="first", or a number'
        self.check("start", sound, must, remedy)
        zero = start.min() if start_seconds == "first" else start_seconds or 0.0
        must, remedy = f"not be before {zero:g} s", "give another `start_seconds`"
        self.check("start", start >= zero, must, remedy)
        begun = np.full(self.cells.size, np.inf)
        np.minimum.at(begun, self.cell_of_row, start - zero)
        table = self._table(begun, np.nan).min(axis=1)
        remedy = "if the clock begins anew at each step, give columns={'start': None}"
        self.check("start", increases(table), "increase with the step", remedy, table)
        return table

    def _check_complete(self) -> None:
        found = np.append(self.cells, -1)
        lacking = np.argmax(found != np.arange(found.size))
        if lacking < math.prod(self.shape):
            worker, stage, step = np.unravel_index(lacking, self.shape)
            own = f" (stage {self.stages[stage]:g})" * ("stage" in self.names)
            raise ValueError(
                f"{self.path}: worker {self.workers[worker]:g}{own} must have a row for"
                f" step {self.steps[step]:g}, got none: leave out this step, or log"
                " `start`."
            )

    def _table(self, values: np.ndarray, fill: float) -> np.ndarray:
        """Values of the cells that have rows, [worker, stage, step]."""
        table = np.full(math.prod(self.shape), fill, values.dtype)
        table[self.cells] = values
        return table.reshape(self.shape)
