"""The columns of a log, by the names that a reader gives them."""

import importlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from delayjax._src.ground import checks
from delayjax._src.logs import files
from delayjax._src.logs.arrays import MOST_SECONDS

_KINDS = {
    "worker": "worker",
    **dict.fromkeys(("seconds", "duration", "start", "time_s"), "seconds"),
}
"""The kinds of columns, by our names; the other columns hold integers."""

_EXACT = 2**53  # float64 holds the integers below
_SINCE_1970 = 1e11  # seconds until the year 5138: larger numbers have another unit


class Table:
    """The columns of a log, as float64; an error names the row, column and value.

    Attributes:
        path: the path of the file.
        header: the names of all columns.
        names: {our name: name in the file}, for the columns that are read.
        columns: the columns that are read, a DataFrame of float64, by our names.
    """

    endings: Sequence[str] = (".csv", ".tsv", ".jsonl", ".parquet")

    def __init__(self, path: Path):
        self.path, self.names = path, {}
        self.header, self._cells, self._place = files.read(path, self.endings)
        self.columns: Any = self._cells[[]]

    def name(self, columns: Mapping, needed: tuple, used: tuple, extra: tuple) -> None:
        """Finds the needed columns, used columns if present, extra columns if named."""
        known = needed + used + extra
        there = {name: name for name in needed + used if name in self.header}
        names: dict[str, Any] = {**dict.fromkeys(needed), **there, **columns}
        for ours, theirs in names.items():
            if ours not in known:
                raise ValueError(
                    f"`columns` must name some of {', '.join(known)}, got {ours!r}."
                )
            if theirs is None and ours not in needed:
                continue
            if self.header.count(theirs) != 1:
                raise ValueError(
                    f"{self.path} must have a column {theirs or ours!r}, once, got"
                    f" {self.header}: give `columns` the names for {', '.join(known)}."
                )
            self.names[ours] = theirs
        if not len(self.columns):
            raise ValueError(
                f"{self.path} must have rows, got none below {self.header}."
            )

    def keep(self, rows: Any) -> None:
        """Keeps some of the rows, in this order."""
        self._cells, self.columns = self._cells.iloc[rows], self.columns.iloc[rows]

    def sort(self, ours: str) -> None:
        """Sorts the rows by a column that is read; equal rows keep their order."""
        self.keep(np.argsort(self.columns[ours], kind="stable"))

    def values(self, ours: str) -> Any:
        """A column as it is in the file; "" where a row is too short."""
        return self._cells[self.header.index(self.names[ours])]

    def read(self, ours: str) -> None:
        """Reads a column: seconds, integers or workers.

        Seconds may be times of ISO 8601, which become seconds since 1970; workers may
        have names, which are numbered in their order.
        """
        kind, values = _KINDS.get(ours), self.values(ours)
        numbers = _numbers(values, dated=kind == "seconds")
        if kind == "worker" and values.notna().all() and np.isnan(numbers).all():
            names = values.astype(str)
            order = {name: k for k, name in enumerate(sorted({*names}, key=_naturally))}
            if not {"", "None", "nan"} & order.keys():
                numbers = names.map(order).to_numpy(np.float64)
        sound, must = np.isfinite(numbers), "be a finite number of seconds, or a date"
        if kind != "seconds":
            sound = (numbers == np.round(numbers)) & (np.abs(numbers) < _EXACT)
            must = "be an integer" + ", or a name in each row" * (kind == "worker")
        self.columns = self.columns.assign(**{ours: numbers})
        self.check(ours, sound, must, "correct the row", values)

    def check(
        self, ours: str, sound: Any, must: str, remedy: str, values: Any = None
    ) -> None:
        """Refuses the first row that is not sound."""
        if not np.all(sound):
            row = int(np.argmin(sound))
            values = self.columns[ours] if values is None else values
            self.refuse(ours, row, must, remedy, values.iloc[row])

    def refuse(self, ours: str, row: int, must: str, remedy: str, got: Any) -> None:
        got = f"{got:.10g}" if isinstance(got, (int, float, np.number)) else repr(got)
        raise ValueError(
            f"{self.path}, {self.where(row)}: `{self.names[ours]}` must {must}, got"
            f" {got}: {remedy}."
        )

    def where(self, row: int) -> str:
        """The place of a row in the file."""
        return f"{self._place} {self._cells.index[row]}"

    def since_start(self, ours: str, start_seconds: Any) -> Any:
        """A column of times minus `start_seconds`, which times of a clock need."""
        times = self.columns[ours]
        first = times.min()
        if first > _SINCE_1970:
            thousands = min(1 + int(math.log10(first / _SINCE_1970) // 3), 3)
            unit = ("milliseconds", "microseconds", "nanoseconds")[thousands - 1]
            remedy = f"since 1970 these are {unit}: divide them by 1e{3 * thousands}"
            self.check(ours, [False], "be in seconds", remedy)
        if start_seconds is None and first > MOST_SECONDS:
            must = f"begin below {MOST_SECONDS:g} s, three years"
            remedy = 'for a clock\'s times give start_seconds="first", or a number'
            self.check(ours, [False], must, remedy)
        start = first if start_seconds == "first" else start_seconds or 0.0
        remedy = 'give "first" as `start_seconds`'
        self.check(ours, times >= start, f"not be before {start:g} s", remedy)
        return times - start


def checked_start(start_seconds: Any) -> Any:
    """`start_seconds`, if it is None, "first", or a number of seconds."""
    if start_seconds is None:
        return None
    if isinstance(start_seconds, str) and start_seconds == "first":
        return start_seconds
    return checks.check_number("start_seconds", start_seconds)


def _numbers(values: Any, dated: bool) -> np.ndarray:
    """The values as float64; nan where a value is no number."""
    pandas: Any = importlib.import_module("pandas")
    second = pandas.Timedelta(1, "s")
    if dated and values.dtype.kind == "m":
        return (values / second).to_numpy()
    if not dated or values.dtype.kind != "M":
        try:
            # float() would read the name 1_10 as 110
            if any("_" in value for value in values if isinstance(value, str)):
                raise ValueError
            return values.to_numpy(object).astype(np.float64)  # float() of each
        except (TypeError, ValueError):
            numbers = pandas.to_numeric(values, errors="coerce")
        if not dated or numbers.notna().any():
            return numbers.to_numpy(np.float64)
    dates = pandas.to_datetime(values, utc=True, format="ISO8601", errors="coerce")
    return ((dates - pandas.Timestamp(0, tz="UTC")) / second).to_numpy()


def _naturally(name: str) -> list:
    """A key by which host10 comes after host2."""
    parts = re.split(r"(\d+)", name)
    return [int(part) if k % 2 else part for k, part in enumerate(parts)]
