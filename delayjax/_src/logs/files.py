"""The cells of a log, whatever kind of file holds it; pandas reads most kinds."""

import csv
import gzip
import importlib
import io
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from delayjax._src.logs import events

_EVENTS = (".json", ".json.gz")


class Cells(NamedTuple):
    """All cells of a log, as they are in the file."""

    header: list[Any]  # the names of the columns
    rows: Any  # a DataFrame with columns 0, 1, ...; its index numbers rows in the file
    place: str  # what the index numbers: "line", "row" or "event"


def read(path: Path, endings: Sequence[str]) -> Cells:
    """Reads a file with one of these endings; with .json also a folder of files."""
    folder = ".json" in endings and path.is_dir()
    ending = ".json" if folder else Path(path.name.removesuffix(".gz")).suffix
    if ending not in endings or path.name.endswith((".npz.gz", ".parquet.gz")):
        raise ValueError(
            f"`path` must end in {', '.join(endings[:-1])} or {endings[-1]} (text also"
            f" in .gz), got {str(path)!r}."
        )
    pandas = _import("pandas", path)
    if ending == ".parquet":
        _import("pyarrow", path)
        rows = pandas.read_parquet(path)
        named = rows.index.names != [None]  # an index may be a column of the log
        return _numbered(rows.reset_index(drop=not named), "row")
    if ending == ".json":
        files = [path]
        if folder:
            every = sorted(path.iterdir())
            files = [file for file in every if file.name.endswith(_EVENTS)]
        rows = [row for file in files for row in _text(file, events.rows, rank=folder)]
        return _numbered(pandas.DataFrame(rows), "event")
    return _text(path, _json_lines if ending == ".jsonl" else _separated, pandas=pandas)


def _import(package: str, path: Path) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        remedy = "pip install 'delayjax[logs]'"
        raise ImportError(f"{path} needs {package}: {remedy}") from error


def _numbered(rows: Any, place: str) -> Cells:
    """Rows that are numbered from 1."""
    header = list(rows.columns)
    rows.columns, rows.index = range(len(header)), rows.index + 1
    return Cells(header, rows, place)


def _text(path: Path, parse: Any, **options: Any) -> Any:
    """Parses the text of a file; an error names the file."""
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        return parse(data.decode("utf-8-sig"), **options)
    except (csv.Error, EOFError, OSError, ValueError, zlib.error) as error:
        kind = Path(path.name.removesuffix(".gz")).suffix
        raise ValueError(f"{path} is no {kind}: {error}.") from error


def _separated(text: str, pandas: Any) -> Cells:
    """Columns that the first of , ; tab | and space in the header separates.

    A line that begins with # is a comment: an empty line, which counts.
    """
    text = re.sub(r"(?m)^#.*", "", text)
    lines, text = text.count("\n"), text.lstrip("\r\n")
    above = lines - text.count("\n")  # the header
    first, _, body = text.partition("\n")
    separator = next((mark for mark in ",;\t|" if mark in first), " ")
    names = next(csv.reader([first], delimiter=separator, skipinitialspace=True), [])
    if not body.strip():
        return Cells(names, pandas.DataFrame(columns=range(len(names))), "line")
    rows = pandas.read_csv(
        io.StringIO(body),
        sep=separator,
        skipinitialspace=True,
        skip_blank_lines=False,  # line numbers include them
        header=None,
        names=range(len(names)),
        usecols=range(len(names)),  # a row may have more
        index_col=False,
        dtype=str,  # float() is exact, and an error shows the text
        keep_default_na=False,
    ).fillna("")  # a row may have fewer
    rows.index += above + 2
    rows = rows[(rows != "").any(axis=1)]
    return Cells([name.strip() for name in names], rows, "line")


def _json_lines(text: str, pandas: Any) -> Cells:
    """An object in each line."""
    lines = {k: line for k, line in enumerate(text.split("\n"), 1) if line.strip()}
    objects = {number: json.loads(line) for number, line in lines.items()}
    for number, held in objects.items():
        if not isinstance(held, dict):
            raise ValueError(f"line {number} is no object, but {held!r}")
    header = list(dict.fromkeys(name for held in objects.values() for name in held))
    rows = [[held.get(name, "") for name in header] for held in objects.values()]
    columns = range(len(header))
    return Cells(header, pandas.DataFrame(rows, list(objects), columns), "line")
