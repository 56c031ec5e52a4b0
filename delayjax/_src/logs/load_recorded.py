"""Recorded times from the log of a real cluster."""

import importlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from delayjax._src.logs.arrays import MOST_SECONDS, ROUNDING, increases, overlaps
from delayjax._src.logs.recorded import Recorded
from delayjax._src.logs.table import Table, checked_start

_KEYS = ["worker", "stage", "step"]
_LONG = 100.0  # seconds of a task that are perhaps milliseconds
_WAITS = 500  # starts that are this many tasks apart are perhaps in milliseconds
_APART = 100  # a gap of this factor between times means two units


def load_recorded(
    path: Path | str,
    *,
    columns: Mapping[str, str | None] | None = None,
    operations: Sequence[str] | None = None,
    start_seconds: float | Literal["first"] | None = None,
    sort: bool = False,
) -> Recorded:
    r"""Reads the times of tasks from the log of a real cluster.

    A log is a table, a profile, or a report. A table has a row for each task, with the
    columns

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
    gap (nan), and operations of a task must not overlap. Other columns are ignored. An
    error names the line of the file, the row of a .parquet, or the event of a profile.

    A profile is a Chrome trace, {"traceEvents": [...]}: a row for each event of the
    phase "X", with the columns `operation` (its `name`), `start` (`ts`), `duration`
    (`dur`) and `worker` (`pid`), and with the keys of the event and of its `args`;
    `columns` may name one of these keys as the step, as "step_num" of JAX. In the
    profiles of PyTorch's Kineto the worker is the rank of the process, and the step is
    k of the event ProfilerStep#k around it; if the device ran named ranges
    (record_function), only these count. A report is FlagScale's StragglerReport: the
    seconds of each section by rank, a mean of up to five steps.

    Args:
        path: a .csv, .tsv or .jsonl, perhaps with .gz, a .parquet, a profile or report
            in .json or .json.gz, or a folder of these, one for each process or step.
            Columns are separated by the first of , ; tab | and space that is in the
            header, and lines that begin with # are comments. A log needs pandas, pip
            install 'delayjax[logs]'.
        columns: {name above: name in the file}, for columns with other names;
            {"start": None} leaves that column out.
        operations: the names of the operations that are computation.
        start_seconds: subtracted from `start`: a number of seconds, by default 0, or
            "first", which puts the first start at 0 s. A clock's time, above 10^8 s,
            needs this option.
        sort: whether to sort the rows by `step`.

    Returns:
        The times, float64 [W, T], with the numbers of their steps; a million rows of a
        .csv take some seconds.

    Raises:
        ValueError: if the log has only one worker, steps that are missing, repeated or
            out of order, times that are not positive, a clock's times, or two units
            (some tasks take over 100 times as long as all others). If half of the tasks
            take over 100 s, a warning asks whether these are milliseconds.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "times.csv"
        >>> _ = path.write_text("rank,step,s\n0,7,1.5\n1,7,2.0\n0,8,1.5\n1,8,4.0\n")
        >>> recorded = load_recorded(path, columns={"worker": "rank", "seconds": "s"})
        >>> recorded.seconds.tolist(), recorded.steps.tolist()
        ([[1.5, 1.5], [2.0, 4.0]], [7, 8])

    References:
        The Chromium Project, Trace Event Format (complete events). PyTorch, Kineto:
        libkineto/src/output_json.cpp. FlagScale: flagscale/runner/straggler/report.py.
    """
    start_seconds = checked_start(start_seconds)
    needed = {} if start_seconds is None else {"start": "start"}
    columns = needed | dict(columns or {})
    log = _Log(Path(path), columns, operations, start_seconds, sort)
    log.check_rows()
    seconds = log.seconds()
    starts = log.starts(seconds)
    return Recorded(seconds, starts, log.steps.to_numpy(np.int64))


class _Log(Table):
    """The rows of a file, and their tasks by worker, stage and step."""

    endings = (*Table.endings, ".json")

    def __init__(
        self, path: Path, columns: dict, operations: Any, start_seconds: Any, sort: bool
    ):
        super().__init__(path)
        there = {*self.header, *columns}
        several = operations is not None or "operation" in columns
        several |= "operation" in there and "seconds" not in there
        if several and "operation" not in there:
            raise ValueError(
                f"`operations` needs a column 'operation' of {path}, got {self.header}."
            )
        self.amount = "duration" if several else "seconds"
        needed = ("worker", "step", *["operation"] * several, self.amount)
        self.name(columns, needed, ("start",), ("stage",))
        if several:
            self.keep(self._computes(operations))
        for ours in (name for name in self.names if name != "operation"):
            self.read(ours)
        if sort:
            self.sort("step")
        if "start" in self.columns:
            start = self.since_start("start", start_seconds)
            self.columns = self.columns.assign(start=start)
        if "stage" not in self.columns:
            self.columns = self.columns.assign(stage=0.0)
        self.tasks = self._tasks()
        self.workers, self.stages, self.steps = self.tasks.index.levels

    def _tasks(self) -> Any:
        """The tasks of all workers, stages and steps; nan where there is no row."""
        pandas: Any = importlib.import_module("pandas")
        each = {self.amount: "sum", "start": "min", "row": "min"}
        rows = self.columns.assign(row=range(len(self.columns)))
        tasks = rows.groupby(_KEYS).agg({n: each[n] for n in each if n in rows})
        return tasks.reindex(pandas.MultiIndex.from_product(tasks.index.levels))

    def _computes(self, operations: Any) -> np.ndarray:
        """The rows that have one of the operations."""
        operation = self.values("operation").astype(str)
        known = sorted(operation.unique())
        if any(name not in known for name in operations or [None]):
            raise ValueError(
                f"`operations` must be some of {known}, got {operations!r}."
            )
        return np.flatnonzero(operation.isin(list(operations)))

    def where(self, row: int) -> str:
        worker, step = (self.values(name).iloc[row] for name in ("worker", "step"))
        return f"{super().where(row)} (worker {worker}, step {step})"

    def check_tasks(self, ours: str, sound: Any, must: str, remedy: str, tasks: Any):
        """Refuses the first row whose task [worker, step] is not sound."""
        if not np.all(sound):
            rows = np.where(sound, np.inf, self._table("row"))
            task = np.argmin(rows)
            self.refuse(ours, int(rows.flat[task]), must, remedy, tasks.flat[task])

    def check_rows(self) -> None:
        """Refuses impossible values, rows out of order, and logs of one worker."""
        seconds = self.columns[self.amount]
        sound = (seconds >= 0) & (seconds <= MOST_SECONDS)
        must = f"be positive and at most {MOST_SECONDS:g} s"
        remedy = "give durations in seconds, and leave out steps without one"
        self.check(self.amount, sound, must, remedy)
        remedy = "name another column, or use cluster.empirical(seconds)"
        several = np.full(len(seconds), len(self.workers) > 1)
        self.check("worker", several, "number two workers or more", remedy)
        back = self.columns.groupby(_KEYS[:2])["step"].diff() < 0
        remedy = "give sort=True, and leave out steps that were done again"
        self.check("step", ~back, "not go back for a worker", remedy)
        if self.amount == "seconds":
            again = self.columns.duplicated(_KEYS)
            remedy = "leave out one of the rows"
            self.check("step", ~again, "be there once for a worker", remedy)
        elif "start" in self.columns:
            self._check_apart()

    def _check_apart(self) -> None:
        """Refuses an operation within another one: its time would count twice."""
        rows = self.columns.sort_values([*_KEYS, "start"], kind="stable")
        rows["end"] = rows["start"] + 0.99 * rows[self.amount] - ROUNDING
        inside = rows["start"] < rows.groupby(_KEYS)["end"].shift()
        remedy = "leave out of `operations` the operations that contain others"
        sound = ~inside[self.columns.index]
        self.check("start", sound, "not be before the last operation has ended", remedy)

    def seconds(self) -> np.ndarray:
        """The times of the slowest stage, float64 [W, T]; nan is a gap."""
        seconds = self._table(self.amount)
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

    def starts(self, seconds: np.ndarray) -> np.ndarray | None:
        """When each task began, float64 [W, T]; None in a log without starts."""
        if "start" not in self.columns:
            self._check_complete()
            return None
        start = self.columns["start"]
        must = f"be at most {MOST_SECONDS:g} s after the start of the log"
        sound = start <= MOST_SECONDS
        self.check("start", sound, must, "log all starts by one clock")
        table = self._table("start", np.min)
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
            self.check("start", [False], must, remedy)
        must = "not be before the worker's last task has ended"
        remedy = f"give `{self.names[self.amount]}` of one task alone, in its unit"
        self.check_tasks("start", ~overlaps(table, seconds), must, remedy, table)
        return table

    def _check_complete(self) -> None:
        absent = self.tasks[self.amount].isna()
        if absent.any():
            worker, stage, step = absent.idxmax()
            name = self.values("worker").iloc[np.argmax(self.columns.worker == worker)]
            of_stage = f" (stage {stage:g})" * ("stage" in self.names)
            raise ValueError(
                f"{self.path}: worker {name}{of_stage} must have a row for step"
                f" {step:g}, got none: leave out this step, or log `start`."
            )

    def _table(self, name: str, of_stages: Any = np.max) -> np.ndarray:
        """A column of the tasks [W, T]; nan where one of the stages has no row."""
        shape = len(self.workers), len(self.stages), len(self.steps)
        return of_stages(self.tasks[name].to_numpy().reshape(shape), axis=1)
