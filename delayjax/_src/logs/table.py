"""The columns of a file, by the names that a reader gives them."""

import csv
import datetime
import gzip
import importlib
import io
import json
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_TEXT = (".csv", ".tsv", ".jsonl")
_EXACT = 2**53  # float64 holds the integers below
_SINCE_1970 = 1e11  # seconds until the year 5138: larger numbers have another unit


class Table:
    """The columns of a file, as float64; an error names the row, column and value.

    Attributes:
        path: of the file.
        header: the names of all columns.
        rows: the numbers of the rows in the file, int64 [M]: of lines, if it is text.
        names: {our name: the file's}, of the columns that are read.
        columns: {our name: values}, float64 [M].
    """

    endings = ".csv, .tsv, .jsonl (each also with .gz) or .parquet"

    def __init__(self, path: Path):
        self.path, self.names, self.columns = path, {}, {}
        ending = Path(path.name.removesuffix(".gz")).suffix
        if path.suffix == ".parquet":
            try:
                self._parquet: Any = importlib.import_module("pyarrow.parquet")
            except ImportError as error:
                raise ImportError(
                    f"{path} needs pyarrow: pip install pyarrow"
                ) from error
            self.header: list[Any] = self._parquet.read_schema(path).names
            self.rows = 1 + np.arange(self._parquet.read_metadata(path).num_rows)
            return
        if ending not in _TEXT:
            raise ValueError(f"`path` must end in {self.endings}, got {str(path)!r}.")
        self._parquet, data = None, path.read_bytes()
        read = _json_lines if ending == ".jsonl" else _separated
        try:
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            self.header, self._cells = read(data.decode("utf-8-sig"))
        except (csv.Error, EOFError, OSError, ValueError, zlib.error) as error:
            raise ValueError(f"{path} is no {ending}: {error}.") from error
        self.rows = np.array([*self._cells], np.int64)

    def name(self, columns: Mapping, needed: tuple, used: tuple, extra: tuple) -> None:
        """Finds the needed columns, the used ones if there, extra ones if named."""
        known = needed + used + extra
        names = {own: own for own in known[: len(needed + used)] if own in self.header}
        names: dict[str, Any] = dict.fromkeys(needed) | names | dict(columns)
        for ours, theirs in names.items():
            if ours not in known:
                raise ValueError(
                    f"`columns` must name some of {', '.join(known)}, got {ours!r}."
                )
            if theirs is None and ours in used + extra:
                continue
            if self.header.count(theirs) != 1:
                raise ValueError(
                    f"{self.path} must have a column {theirs or ours!r}, once, got"
                    f" {self.header}: give `columns` the names for {', '.join(known)}."
                )
        self.names = {
            own: theirs for own, theirs in names.items() if theirs is not None
        }

    def keep(self, rows: np.ndarray) -> None:
        """Keeps some of the rows, in this order."""
        self.rows = self.rows[rows]
        self.columns = {name: held[rows] for name, held in self.columns.items()}

    def sort(self, ours: str) -> None:
        """Sorts the rows by a column that is read; equal ones keep their order."""
        self.keep(np.argsort(self.columns[ours], kind="stable"))

    def values(self, ours: str) -> Any:
        """A column as it is in the file; "" where a row is too short."""
        name = self.names[ours]
        if self._parquet:
            table = self._parquet.read_table(self.path, columns=[name])
            return table.column(name).to_numpy()[self.rows - 1]
        at, rows = self.header.index(name), map(self._cells.get, self.rows.tolist())
        return [row[at] if at < len(row) else "" for row in rows if row is not None]

    def read(self, ours: str, kind: str) -> None:
        """Reads a column of `kind` "seconds", "integer" or "worker".

        Seconds may be times of ISO 8601, which become seconds since 1970; workers may
        have names, which are numbered in their order.
        """
        values = self.values(ours)
        numbers = _numbers(values, dated=kind == "seconds")
        if kind == "worker" and np.isnan(numbers).all():
            names = [str(value) for value in values]
            order = {name: k for k, name in enumerate(sorted({*names}, key=_naturally))}
            if not {"", "None", "nan"} & order.keys():
                numbers = np.array([order[name] for name in names], np.float64)
        sound, must = np.isfinite(numbers), "be a finite number of seconds, or a date"
        if kind != "seconds":
            sound = (numbers == np.round(numbers)) & (np.abs(numbers) < _EXACT)
            must = "be an integer" + ", or a name in each row" * (kind == "worker")
        self.columns[ours] = numbers
        self.check(ours, sound, must, "correct the row", values)

    def check(
        self, ours: str, sound: Any, must: str, remedy: str, values: Any = None
    ) -> None:
        """Refuses the first row that is not sound."""
        if np.all(sound):
            return
        row = int(np.argmin(sound))
        got = (self.columns[ours] if values is None else values)[row]
        got = f"{got:.10g}" if isinstance(got, (int, float, np.number)) else repr(got)
        raise ValueError(
            f"{self.path}, {self.where(row)}: `{self.names[ours]}` must {must}, got"
            f" {got}: {remedy}."
        )

    def where(self, row: int) -> str:
        """The place of a row in the file."""
        return f"{'row' if self._parquet else 'line'} {self.rows[row]}"

    def check_unit(self, ours: str) -> None:
        """Refuses a clock's times that are not in seconds."""
        times = self.columns[ours]
        low = float(np.nanmin(times))
        if low > _SINCE_1970:
            thousands = min(1 + int(math.log10(low / _SINCE_1970) // 3), 3)
            unit = ("milliseconds", "microseconds", "nanoseconds")[thousands - 1]
            remedy = f"since 1970 these are {unit}: divide them by 1e{3 * thousands}"
            self.check(ours, np.zeros(len(times), bool), "be in seconds", remedy)


def _separated(text: str) -> tuple[list[str], dict[int, list]]:
    """The header, and {line: cells} of the rows that are not empty."""
    first = text.partition("\n")[0]
    separator = next((mark for mark in ",;\t|" if mark in first), " ")
    file = io.StringIO(text, newline="")
    reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
    header = [name.strip() for name in next(reader, [])]
    rows = ((reader.line_num, row) for row in reader)
    return header, {line: row for line, row in rows if "".join(row).strip()}


def _json_lines(text: str) -> tuple[list[str], dict[int, list]]:
    """The same, of an object in each line."""
    held = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            held[number] = json.loads(line)
            if not isinstance(held[number], dict):
                raise ValueError(f"line {number} is no object, but {line.strip()!r}")
    header = list(dict.fromkeys(name for row in held.values() for name in row))
    rows = {at: [row.get(name, "") for name in header] for at, row in held.items()}
    return header, rows


def _numbers(values: Any, dated: bool) -> np.ndarray:
    """As float64; nan where a value is none."""
    kind = values.dtype.kind if isinstance(values, np.ndarray) else ""
    if dated and kind in ("M", "m"):  # a date, or a duration
        return (values - np.array(0, values.dtype)) / np.timedelta64(1, "s")
    if kind in ("f", "i", "u"):
        return values.astype(np.float64)
    return np.array([_number(value, dated) for value in values], np.float64)


def _number(value: Any, dated: bool) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        pass
    try:
        time = datetime.datetime.fromisoformat(value.strip()) if dated else None
    except (AttributeError, ValueError):
        time = None
    if time is None:
        return math.nan
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()


def _naturally(name: str) -> list:
    """A key by which host10 comes after host2."""
    parts = re.split(r"(\d+)", name)
    return [int(part) if k % 2 else part for k, part in enumerate(parts)]
