"""Recorded times from the log of a real cluster."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from delayjax._src.ground import checks
from delayjax._src.logs.arrays import MOST_SECONDS, increases, overlaps
from delayjax._src.logs.recorded import Recorded
from delayjax._src.logs.table import Table

_LONG = 100.0  # seconds of a task that are perhaps milliseconds
_WAITS = 500  # times the length of a task: starts in milliseconds, say
_APART = 100  # times that differ by this factor, and none between: two units


def load_recorded(
    path: Path | str,
    *,
    columns: Mapping[str, str | None] | None = None,
    operations: Sequence[str] | None = None,
    start_seconds: float | Literal["first"] | None = None,
    sort: bool = False,
) -> Recorded:
    r"""Reads the times of tasks from the log of a real cluster.

    A log has a row for each task, with the columns

        worker   0, 1, ...; any integers or names, which are sorted
        step     the number of the step, or of the worker's task
        seconds  of the task
        start    when it began, in seconds since the start of the log, or a date and
                 time of ISO 8601 (in UTC, unless it says another zone); may be absent

    or a row for each operation, with the columns `worker`, `step`, `operation`,
    `duration` (in seconds), and perhaps `start`. A task is then all rows of a worker
    and a step that have one of the `operations`: their durations are added, and the
    first start counts. With a column `stage`, which `columns` must name, a worker is a
    replica of several stages, and a task takes as long as the slowest stage of its
    step.

    Without `start` each worker must have all steps. With it a task that is missing is a
    gap (nan). Other columns are ignored. An error names the line of the file, or the
    row of a .parquet.

    Args:
        path: a .csv, .tsv or .jsonl, perhaps with .gz, or a .parquet (which needs
            pyarrow). Columns are separated by the first of , ; tab | and space that is
            in the header.
        columns: {name above: name in the file}, for columns with other names;
            {"start": None} leaves that column out.
        operations: the names of the operations that are computation.
        start_seconds: subtracted from `start`: a number of seconds, by default 0, or
            "first", which puts the first start at 0 s. A clock's time, above 10^8 s,
            needs this option.
        sort: whether to sort the rows by `step`.

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
    if start_seconds not in (None, "first"):
        start_seconds = checks.check_number("start_seconds", start_seconds)
    needed = {} if start_seconds is None else {"start": "start"}
    log = _Log(Path(path), needed | dict(columns or {}), operations, sort)
    log.check_rows()
    seconds = log.seconds()
    starts = log.starts(start_seconds, seconds)
    return Recorded(seconds, starts, log.steps.astype(np.int64))


class _Log(Table):
    """The rows of a file, and their tasks by worker, stage and step."""

    def __init__(self, path: Path, columns: dict, operations: Any, sort: bool):
        super().__init__(path)
        there = {*self.header, *columns}
        several = operations is not None or "operation" in columns
        several |= "operation" in there and "seconds" not in there
        if several and "operation" not in there:
            raise ValueError(
                f"`operations` needs a column 'operation' of {path}, got {self.header}:"
                " leave `operations` out, or name it with columns={'operation': ...}."
            )
        self.amount = "duration" if several else "seconds"
        needed = ("worker", "step", *["operation"] * several, self.amount)
        self.name(columns, needed, ("start",), ("stage",))
        if several:
            self.keep(self._computes(operations))
        if not self.rows.size:
            raise ValueError(
                f"{path} must have a row for each task, got none below {self.header}."
            )
        kinds = {"worker": "worker", self.amount: "seconds", "start": "seconds"}
        for ours in self.names:
            if ours != "operation":
                self.read(ours, kinds.get(ours, ""))
        if sort:
            self.sort("step")
        self.columns.setdefault("stage", np.zeros(len(self.rows)))
        keys = [self.columns[name] for name in ("worker", "stage", "step")]
        each = [np.unique(key, return_inverse=True) for key in keys]
        (self.workers, self.stages, self.steps), self.places = zip(*each, strict=True)
        self.shape = len(self.workers), len(self.stages), len(self.steps)
        # the cells of [worker, stage, step] that have rows, and the first row of each
        cell = np.ravel_multi_index(self.places, self.shape)
        self.cells, self.first, self.cell_of_row = np.unique(cell, True, True)

    def _computes(self, operations: Any) -> np.ndarray:
        """Which rows have one of the operations."""
        operation = np.asarray(self.values("operation")).astype(str)
        known = np.unique(operation).tolist()
        if any(name not in known for name in operations or [None]):
            raise ValueError(
                f"`operations` must list those that are computation, of {known} in"
                f" {self.path}, got {operations!r}."
            )
        return np.isin(operation, list(operations))

    def where(self, row: int) -> str:
        worker, step = (self.values(name)[row] for name in ("worker", "step"))
        return f"{super().where(row)} (worker {worker}, step {step})"

    def check_tasks(self, ours: str, sound: Any, must: str, remedy: str, tasks: Any):
        """Refuses the first row whose task [worker, step] is not sound."""
        rows = self._table(self.first, -1).max(axis=1)[~sound]
        of_rows, values = np.ones(len(self.rows), bool), np.zeros(len(self.rows))
        of_rows[rows], values[rows] = False, tasks[~sound]
        self.check(ours, of_rows, must, remedy, values)

    def check_rows(self) -> None:
        """Refuses rows that cannot be true, out of order, or of one worker alone."""
        seconds = self.columns[self.amount]
        sound = (seconds >= 0) & (seconds <= MOST_SECONDS)
        must = f"be positive and at most {MOST_SECONDS:g} s"
        remedy = (
            "give durations in seconds (no nanoseconds, no clock's times), and leave"
            " out a step that has none for some worker"
        )
        self.check(self.amount, sound, must, remedy)
        remedy = "name another column, or use cluster.empirical(seconds)"
        several = np.full(len(self.rows), len(self.workers) > 1)
        self.check("worker", several, "number two workers or more", remedy)
        worker, stage, step = self.places
        order = np.lexsort((stage, worker))  # keeps the file's order
        key, step = (worker * len(self.stages) + stage)[order], step[order]
        sound = np.ones(order.size, bool)
        sound[order[1:]] = (np.diff(key) > 0) | (np.diff(step) >= 0)
        remedy = "give sort=True, and leave out steps that were done again"
        self.check("step", sound, "not go back for a worker", remedy)
        if self.amount == "seconds":
            sound = np.isin(np.arange(order.size), self.first)
            remedy = "leave out one of the rows"
            self.check("step", sound, "be there once for a worker", remedy)

    def seconds(self) -> np.ndarray:
        """The times of the slowest stage, float64 [W, T]; nan is a gap."""
        each = np.bincount(self.cell_of_row, self.columns[self.amount])
        seconds = self._table(each, np.nan).max(axis=1)
        sound, remedy = ~(seconds <= 0), "leave out this step"
        self.check_tasks(self.amount, sound, "be positive in all", remedy, seconds)
        usual = float(np.nanmedian(seconds))
        rows = [row[~np.isnan(row)] for row in seconds]
        medians = np.array([[np.median(row) if row.size else np.nan] for row in rows])
        for each in (seconds, medians):  # of a task, and of a worker
            times = np.sort(each[~np.isnan(each)])
            gap = np.argmax(times[1:] / times[:-1])
            low, high = times[gap], times[gap + 1]
            if high > _APART * low:
                sound = ~(each <= low if usual > low else each >= high)
                sound = sound | np.isnan(seconds)
                remedy = (
                    f"in seconds there are {low:.4g} s and {high:.4g} s, in"
                    f" milliseconds {low / 1e3:.4g} s and {high / 1e3:.4g} s, and none"
                    " between; give seconds alone, and leave out the step of a task"
                    " that hung"
                )
                must = f"have the unit of the others, of about {usual:.4g}"
                self.check_tasks(self.amount, sound, must, remedy, seconds)
        if usual > _LONG:
            micro = usual > _LONG * 1e3
            unit, factor = ("microseconds", 1e6) if micro else ("milliseconds", 1000)
            warnings.warn(
                f"{self.path}: half of the tasks take over {usual:.4g} s. If these are"
                f" {unit}, divide them by {factor:g}.",
                stacklevel=3,
            )
        return seconds

    def starts(self, start_seconds: Any, seconds: np.ndarray) -> np.ndarray | None:
        """When each task began, float64 [W, T]; None in a log without starts."""
        start = self.columns.get("start")
        if start is None:
            self._check_complete()
            return None
        self.check_unit("start")
        must = f"be at most {MOST_SECONDS:g} s after the start of the log"
        if start_seconds is None and start.min() > MOST_SECONDS:
            remedy = 'for a clock\'s times give start_seconds="first", or a number'
            self.check("start", start <= MOST_SECONDS, must, remedy)
        zero = start.min() if start_seconds == "first" else start_seconds or 0.0
        remedy = f"give a `start_seconds` of at most {start.min():.10g}"
        if start_seconds is None:
            remedy = 'give start_seconds="first"'
        self.check("start", start >= zero, f"not be before {zero:g} s", remedy)
        remedy = "log all starts by one clock"
        self.check("start", start - zero <= MOST_SECONDS, must, remedy)
        begun = np.full(self.cells.size, np.inf)
        np.minimum.at(begun, self.cell_of_row, start - zero)
        table = self._table(begun, np.nan).min(axis=1)
        remedy = "if the clock begins anew at each step, give columns={'start': None}"
        must = "increase with the step"
        self.check_tasks("start", increases(table), must, remedy, table)
        apart = np.diff(table, axis=1) / np.diff(self.steps) / np.nanmedian(seconds)
        apart = apart[~np.isnan(apart)]
        if apart.size and np.median(apart) > _WAITS:
            must = f"be in the unit of `{self.names[self.amount]}`"
            remedy = (
                f"a step is {np.median(apart):.4g} times as long as a task; give"
                " both in seconds"
            )
            self.check("start", np.zeros(len(start), bool), must, remedy)
        must = "not be before the worker's last task has ended"
        remedy = f"give `{self.names[self.amount]}` of one task alone, in its unit"
        self.check_tasks("start", ~overlaps(table, seconds), must, remedy, table)
        return table

    def _check_complete(self) -> None:
        there = np.append(self.cells, -1)
        lacking = np.argmax(there != np.arange(there.size))
        if lacking < math.prod(self.shape):
            worker, stage, step = np.unravel_index(lacking, self.shape)
            of_stage = f" (stage {self.stages[stage]:g})" * ("stage" in self.names)
            name = self.values("worker")[np.argmax(self.places[0] == worker)]
            raise ValueError(
                f"{self.path}: worker {name}{of_stage} must have a row for step"
                f" {self.steps[step]:g}, got none: leave out this step, or log `start`."
            )

    def _table(self, values: np.ndarray, fill: float) -> np.ndarray:
        """Values of the cells that have rows, [worker, stage, step]."""
        table = np.full(math.prod(self.shape), fill, values.dtype)
        table[self.cells] = values
        return table.reshape(self.shape)
