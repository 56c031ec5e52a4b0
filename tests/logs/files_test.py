"""Files of every kind hold the same log, for both readers, or are refused by name."""

import gzip
import importlib
import json

import numpy as np
import pytest

from delayjax import cluster
from tests.cluster import oracle

# seconds, and starts, of two workers and the steps 3, 4 and 7
SECONDS = np.array([[1.5, 2.0, 1.25], [3.0, 2.5, 2.75]])
STARTS = np.array([[0.0, 4.0, 8.0], [0.5, 4.0, 8.0]])
TASKS = ["worker,step,seconds,start"] + [
    f"{worker},{step},{SECONDS[worker, k]},{STARTS[worker, k]}"
    for k, step in enumerate((3, 4, 7))
    for worker in range(2)
]
UPDATES = [(0.5, [(1, 0)]), (0.5, [(0, 0), (2, 1)]), (2.0, [(1, 1)])]
GRADIENTS = ["update,time_s,worker,read_version"]
GRADIENTS += ["0,0.5,1,0", "1,0.5,0,0", "1,0.5,2,1", "2,2.0,1,1"]


def assert_tasks(recorded, *, starts=STARTS):
    np.testing.assert_array_equal(recorded.seconds, SECONDS)
    np.testing.assert_array_equal(recorded.steps, [3, 4, 7])
    if starts is None:
        assert recorded.starts is None
    else:
        np.testing.assert_array_equal(recorded.starts, starts)


def assert_updates(trace):
    oracle.assert_same(trace, UPDATES)
    assert trace.num_workers == 3


# the rows, the reader, and what it must return
READERS = {
    "load_recorded": (TASKS, cluster.load_recorded, assert_tasks),
    "load_trace": (GRADIENTS, cluster.load_trace, assert_updates),
}
every_reader = pytest.mark.parametrize("reader", READERS)


def respelled(spelling):
    """The same rows; a number is written in another way."""

    def spell(rows):
        head, *cells = ([*row.split(",")] for row in rows)
        return "\n".join(
            [",".join(head), *(",".join(map(spelling.format, row)) for row in cells)]
        )

    return spell


def with_column(rows):
    """A column more, at the beginning, which is not read."""
    head, *rest = rows
    return "\n".join([f"host,{head}", *(f"a,{row}" for row in rest)])


def turned(rows):
    """The columns in the opposite order."""
    return "\n".join(",".join(reversed(row.split(","))) for row in rows)


LOOKS = {
    "plain": "\n".join,
    "last newline": lambda rows: "\n".join([*rows, ""]),
    "CRLF": lambda rows: "\r\n".join([*rows, ""]),
    "BOM": lambda rows: "\ufeff" + "\n".join(rows),
    "empty rows": lambda rows: "\n\n".join([*rows, "", ""]),
    "CRLF, BOM, empty rows": lambda rows: "\ufeff" + "\r\n\r\n".join([*rows, ""]),
    "comments": lambda rows: "\n".join(
        ["# of job 3, made by a, b; c", "", *rows[:2], "#", *rows[2:], "# end"]
    ),
    "CRLF, BOM, comments": lambda rows: "\ufeff# job 3\r\n" + "\r\n".join(rows),
    "more columns": with_column,
    "other order": turned,
    "more values than columns": lambda rows: "\n".join(
        [rows[0], *(f"{row},more" for row in rows[1:])]
    ),
    "spaces": lambda rows: " \n".join(row.replace(",", ", ") for row in rows),
    "quotes and spaces": lambda rows: "\n".join(
        ", ".join(f'"{cell}"' for cell in row.split(",")) for row in rows
    ),
    **{
        mark: (lambda rows, m=mark: "\n".join(rows).replace(",", m)) for mark in ";\t| "
    },
    **{spelling: respelled(spelling) for spelling in (" {} ", '"{}"', "+{}", "{}e0")},
}


@every_reader
@pytest.mark.parametrize("look", LOOKS)
def test_a_csv_may_look_like_this(look, reader, tmp_path):
    rows, read, check = READERS[reader]
    path = tmp_path / "log.csv"
    path.write_bytes(LOOKS[look](rows).encode())
    check(read(path))


def test_an_error_counts_lines_of_comments(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("# job 3\n\nworker,step,seconds\n#1\na#1,0,1.0\na#2,0,soon")
    with pytest.raises(ValueError, match=r"line 6 \(worker a#2, step 0\)"):
        cluster.load_recorded(path)


def as_file(path, rows, kind):
    """The rows, of which the first is the header, in a file of another kind."""
    path, cells = path.with_suffix(kind), [row.split(",") for row in rows]
    if kind == ".parquet":
        pandas = pytest.importorskip("pandas")
        head, *values = cells
        columns = {n: [*map(float, c)] for n, *c in zip(head, *values, strict=True)}
        pandas.DataFrame(columns).to_parquet(path)
        return path
    if kind == ".tsv":
        rows = [row.replace(",", "\t") for row in rows]
    if kind.startswith(".jsonl"):
        dicts = [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]
        rows = [json.dumps({n: float(v) for n, v in row.items()}) for row in dicts]
        rows.insert(2, "")  # lines may be empty
    text = "\n".join(rows).encode()
    path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    return path


@every_reader
@pytest.mark.parametrize("kind", [".tsv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet"])
def test_other_kinds_of_files_hold_the_same(kind, reader, tmp_path):
    rows, read, check = READERS[reader]
    check(read(as_file(tmp_path / "log", rows, kind)))


def test_a_parquet_may_hold_dates_and_names_and_an_index(tmp_path):
    pandas = pytest.importorskip("pandas")
    worker, step, seconds, start = zip(*(r.split(",") for r in TASKS[1:]), strict=True)
    begin = np.datetime64("2026-11-28T22:00:00")
    columns = {
        "worker": [f"w{number}" for number in worker],
        "step": [*map(int, step)],
        "seconds": [*map(float, seconds)],
        "start": [begin + np.timedelta64(int(1e3 * float(at)), "ms") for at in start],
    }
    table = pandas.DataFrame(columns)
    for held in (table, table.set_index(["worker", "step"])):
        held.to_parquet(tmp_path / "t.parquet")
        read = cluster.load_recorded(tmp_path / "t.parquet", start_seconds="first")
        assert_tasks(read)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "worker",
            ["a", None],
            "row 1 .*`worker` must be an integer, or a name in each row",
        ),
        ("worker", [0, None], "row 2 .*`worker` must be an integer"),
        ("step", [0, None], "row 2 .*`step` must be an integer"),
        ("seconds", [1.0, None], "row 2 .*`seconds` must be a finite number"),
        ("start", ["2026-11-28", None], "row 2 .*`start` must be a finite number"),
    ],
)
@pytest.mark.parametrize("nullable", [False, True])
def test_a_null_of_a_parquet_is_refused_with_its_row(
    nullable, column, values, message, tmp_path
):
    pandas, path = pytest.importorskip("pandas"), tmp_path / "t.parquet"
    table = {"worker": [0, 1], "step": [0, 0], "seconds": [1.0, 2.0], column: values}
    frame = pandas.DataFrame(table)
    (frame.convert_dtypes() if nullable else frame).to_parquet(path)
    with pytest.raises(ValueError, match=message):
        cluster.load_recorded(path)


BROKEN = {
    "no gzip": ("log.csv.gz", b"worker,step", "is no .csv: Not a gzipped file"),
    "half of a gzip": ("log.csv.gz", gzip.compress(b"worker,step" * 9)[:-9], "is no"),
    "no text": ("log.csv", b"\xff\xfe\x00garbage", "is no .csv: 'utf-8' codec"),
    "no JSON": ("log.jsonl", b'{"worker": 0}\n{worker', r"is no .jsonl: Expecting"),
    "a list": (
        "log.jsonl",
        b'{"worker": 0}\n\n[1, 2]',
        r"is no \.jsonl: line 3 is no object, but \[1, 2\]\.",
    ),
    "null": (
        "log.jsonl",
        b'{"worker": 0, "step": 0, "seconds": null}',
        r"line 1 .*`seconds` must be a finite .* got None",
    ),
    "no key": (
        "log.jsonl",
        b'{"worker": 0, "step": 0, "seconds": 1}\n{"worker": 1, "step": 0}',
        r"line 2 .*`seconds` must be a finite .* got ''",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_broken_is_named(name, tmp_path):
    file, held, message = BROKEN[name]
    (tmp_path / file).write_bytes(held)
    with pytest.raises(ValueError, match=message) as error:
        cluster.load_recorded(tmp_path / file)
    assert file in str(error.value)


@every_reader
@pytest.mark.parametrize("name", ["t.txt", "t", "t.npz.gz", "t.parquet.gz"])
def test_other_endings_are_refused(name, reader, tmp_path):
    _, read, _ = READERS[reader]
    (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=rf"`path` must end in .*\.csv, .*{name}"):
        read(tmp_path / name)


@pytest.mark.parametrize("lacks", ["pandas", "pyarrow"])
def test_a_log_without_a_library_says_what_to_install(lacks, tmp_path, monkeypatch):
    path = as_file(tmp_path / "log", TASKS, ".parquet")
    imported = importlib.import_module

    def absent(name):
        if name == lacks:
            raise ImportError(name)
        return imported(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    match = rf"log\.parquet needs {lacks}: pip install 'delayjax\[logs\]'"
    with pytest.raises(ImportError, match=match):
        cluster.load_recorded(path)
