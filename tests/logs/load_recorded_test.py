"""Logs of tasks are read as documented, or refused with the number of the wrong row."""

import datetime
import gzip
import json
import math
import time
import warnings

import numpy as np
import pytest

from delayjax import cluster
from tests.logs import files_test as files
from tests.logs.files_test import SECONDS, STARTS, assert_tasks

TASKS = files.TASKS[1:]
HEADER = files.TASKS[0]


def load(tmp_path, text, **options):
    path = tmp_path / "log.csv"
    path.write_bytes("\n".join(text).encode() if isinstance(text, list) else text)
    return cluster.load_recorded(path, **options)


def without_start(rows):
    return [row.rpartition(",")[0] for row in rows]


def test_workers_may_have_names_which_are_numbered_in_their_order(tmp_path):
    """host10 comes after host9."""
    names = "host9", "host10"
    rows = [f"{names[int(row[0])]}{row[1:]}" for row in TASKS]
    assert_tasks(load(tmp_path, [HEADER, *rows[::-1]], sort=True))
    with pytest.raises(
        ValueError, match=r"line 3 \(worker host10, step 3\): `start` m"
    ):
        load(tmp_path, [HEADER, rows[0], "host10,3,1,1e12", *rows[2:]])
    with pytest.raises(ValueError, match=r"worker host9 must have a row for step 4"):
        load(tmp_path, without_start([HEADER, *rows[:2], *rows[3:]]))
    rows[3] = rows[3].replace("host10", "")
    with pytest.raises(ValueError, match=r"line 2 .*`worker` .* or a name in each row"):
        load(tmp_path, [HEADER, *rows])


def test_starts_may_be_dates(tmp_path, monkeypatch, request):
    """In UTC unless they name a time zone, and independent of the local one."""
    request.addfinalizer(time.tzset)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XYZ-5")
        time.tzset()
        _starts_may_be_dates(tmp_path)


def _starts_may_be_dates(tmp_path):
    hour = "2026-11-28T22:00:"
    rows = [row.rsplit(",", 1) for row in TASKS]
    dated = [f"{row},{hour}{float(at):04.1f}" for row, at in rows]
    with pytest.raises(ValueError, match=r"line 2 .*`start` must .*start_seconds=\"fi"):
        load(tmp_path, [HEADER, *dated])
    assert_tasks(load(tmp_path, [HEADER, *dated], start_seconds="first"))
    dated[1] = dated[1].replace("T22", "T23") + "+01:00"
    seconds = datetime.datetime.fromisoformat("2026-11-28T22:00:00Z").timestamp()
    assert_tasks(load(tmp_path, [HEADER, *dated], start_seconds=seconds))


def test_rows_may_be_sorted_by_step(tmp_path):
    with pytest.raises(ValueError, match=r"`step` must not go back .*sort=True"):
        load(tmp_path, [HEADER, *TASKS[::-1]])
    assert_tasks(load(tmp_path, [HEADER, *TASKS[::-1]], sort=True))
    twice = [*TASKS[::-1], TASKS[1]]
    with pytest.raises(
        ValueError, match=r"line 8 \(worker 1, step 3\): `step` .* once"
    ):
        load(tmp_path, [HEADER, *twice], sort=True)


def test_operations_may_be_in_any_file(tmp_path):
    rows = [f"{w},{k},{op},1.5" for w in (0, 1) for k in (0, 1) for op in "aab"]
    header = "worker,step,operation,duration"
    recorded = load(tmp_path, [header, *rows], operations=["a"])
    np.testing.assert_array_equal(recorded.seconds, np.full((2, 2), 3.0))


def test_the_rows_may_be_worker_by_worker(tmp_path):
    assert_tasks(load(tmp_path, [HEADER, *TASKS[::2], *TASKS[1::2]]))


def test_a_log_without_starts_has_none(tmp_path):
    assert_tasks(load(tmp_path, without_start([HEADER, *TASKS])), starts=None)
    read = load(tmp_path, [HEADER, *TASKS], columns={"start": None})
    assert_tasks(read, starts=None)


def test_columns_have_the_names_that_are_given(tmp_path):
    text = ["rank,it,s,begun,start", *(f"{row},soon" for row in TASKS)]
    names = {"worker": "rank", "step": "it", "seconds": "s", "start": "begun"}
    assert_tasks(load(tmp_path, text, columns=names))


def test_workers_are_in_the_order_of_their_numbers(tmp_path):
    moved = [f"{9 - 5 * int(row[0])}{row[1:]}" for row in TASKS]  # 9 and 4
    recorded = load(tmp_path, [HEADER, *moved])
    np.testing.assert_array_equal(recorded.seconds, SECONDS[::-1])


@pytest.mark.filterwarnings("ignore:`starts` show that workers wait")
def test_a_task_that_is_missing_is_a_gap_where_starts_are_known(tmp_path):
    recorded = load(tmp_path, [HEADER, *TASKS[:2], *TASKS[3:]])
    gap = np.zeros_like(SECONDS, bool)
    gap[0, 1] = True
    for table, all_of_it in ((recorded.seconds, SECONDS), (recorded.starts, STARTS)):
        np.testing.assert_array_equal(table, np.where(gap, np.nan, all_of_it))
    # five tasks, the times after the last ones, and before the first one of worker 1
    assert len(recorded.slowdowns()) == 5 + 2 + 1


def test_the_first_task_of_a_worker_may_be_missing(tmp_path):
    recorded = load(tmp_path, [HEADER, *TASKS[1:]])
    np.testing.assert_array_equal(recorded.seconds[0], [np.nan, *SECONDS[0, 1:]])
    np.testing.assert_array_equal(recorded.starts[1], STARTS[1])


def test_workers_may_take_steps_in_turn(tmp_path):
    """No worker has two successive steps."""
    recorded = load(tmp_path, [HEADER, "0,0,1,0", "1,1,1,1", "0,2,1,2", "1,3,1,3"])
    assert np.isnan(recorded.seconds).sum() == 4


@pytest.mark.parametrize("start", ["first", 1.76e9])
def test_a_clock_s_times_count_from_the_start_of_the_log(start, tmp_path):
    rows = [row.rsplit(",", 1) for row in TASKS]
    text = [HEADER, *(f"{row},{1.76e9 + float(at)}" for row, at in rows)]
    assert_tasks(load(tmp_path, text, start_seconds=start))


def test_a_record_that_is_read_gives_its_own_times_back(tmp_path):
    recorded = load(tmp_path, [HEADER, *TASKS])
    spec = cluster.Cluster(2, recorded.service())
    np.testing.assert_array_equal(spec.draw(1, 3, seed=0), SECONDS[1])


def without(number, *rows):
    """The tasks, with other rows in place of one row."""
    return [*TASKS[:number], *rows, *TASKS[number + 1 :]]


BAD_ROWS = {
    "a duration of zero": (
        without(2, "0,4,0,4"),
        "line 4 .*`seconds` must be positive",
    ),
    "a negative duration": (without(2, "0,4,-1,4"), "line 4 .*`seconds` .* got -1:"),
    "no number": (
        without(2, "0,4,soon,4"),
        "line 4 .*`seconds` must be a finite number .* got 'soon'",
    ),
    "no value": (
        without(0, "0,3,,0"),
        "line 2 .*`seconds` must be a finite number .* got ''",
    ),
    "a short row": (
        without(2, "0,4"),
        "line 4 .*`seconds` must be a finite number .* got ''",
    ),
    "nan": (without(2, "0,4,nan,4"), "line 4 .*`seconds` .* got 'nan'"),
    "a clock's time as duration": (
        without(5, "1,7,1760000000,8"),
        "line 7 .worker 1, step 7.: `seconds` must be positive and at most 1e.08 s, got"
        " 1760000000: give durations in seconds, and leave out steps without one",
    ),
    "a clock's time as start": (
        without(1, "1,3,1,1760000000.5"),
        "line 3 .*`start` must be at most 1e.08 s after the start of the log, got"
        " 1760000000: log all starts by one clock",
    ),
    "a start that is nan": (
        without(1, "1,3,1,nan"),
        "line 3 .*`start` must be a finite",
    ),
    "a negative start": (
        without(1, "1,3,1,-2"),
        "line 3 .*`start` must not be before 0",
    ),
    "a start that goes back": (
        without(5, "1,7,1,2"),
        r"line 7 \(worker 1, step 7\): `start` must increase .* got 2: .*'start': None",
    ),
    "the first of two rows": (
        [*TASKS[:3], "1,4,1,0.25", "0,7,1,3", TASKS[5]],
        r"line 5 \(worker 1, step 4\): `start` must increase",
    ),
    "a worker with a half": (without(2, "0.5,4,1,4"), "line 4 .*`worker` .* integer"),
    "a step with a half": (without(2, "0,4.5,1,4"), "line 4 .*`step` .* integer"),
    "an integer beyond float64": (
        without(2, "0,1e300,1,4"),
        "line 4 .*`step` .* integ",
    ),
    "a step twice": (
        without(3, TASKS[3], TASKS[3]),
        r"line 6 \(worker 1, step 4\): `step` must be there once for a worker, got 4:"
        " leave out one of the rows",
    ),
    "out of order": (
        [*TASKS[2:4], *TASKS[:2], *TASKS[4:]],
        r"line 4 \(worker 0, step 3\): `step` must not go back for a worker, got 3:"
        " give sort=True, and leave out steps that were done again",
    ),
    "milliseconds among seconds": (
        without(3, "1,4,2500,4"),
        r"line 5 \(worker 1, step 4\): `seconds` must have the unit of the others, of"
        r" about 2.375, got 2500: in seconds there are 3 s and 2500 s, in milliseconds"
        r" 0.003 s and 2.5 s, .* hung",
    ),
    "seconds among milliseconds": (
        [
            f"{row[:4]}{1000 * float(row.split(',')[2])},0{row[-3:]}" if k != 3 else row
            for k, row in enumerate(TASKS)
        ],
        "line 5 .*`seconds` must have the unit .* got 2.5: in seconds .* 2.5 s and 125",
    ),
    "a task before the last one ended": (
        without(4, "0,7,1,4.5"),  # 2 s from 4 s on
        r"line 6 \(worker 0, step 7\): `start` must not be before the worker's last"
        " task has ended, got 4.5: give `seconds` of one task alone, in its unit",
    ),
    "a start by another clock": (
        without(5, "1,7,2.75,1e9"),
        r"line 7 \(worker 1, step 7\): `start` .* got 1000000000: log all .* one clock",
    ),
    "starts in milliseconds": (
        [f"{row[:-3]}{1000 * float(row[-3:]):g}" for row in TASKS],
        r"line 2 .*`start` must be in the unit of `seconds`, .* 1074 times as long",
    ),
    "starts in milliseconds, and a gap": (
        [f"{row[:-3]}{1000 * float(row[-3:]):g}" for row in TASKS[:3] + TASKS[4:]],
        r"line 2 .*`start` must be in the unit of `seconds`",
    ),
    "a worker in milliseconds": (
        # 0.02 .. 1.9 s, and 1000 times as much: no gap of 100 between
        [
            f"{w},{k},{1000**w * 0.01 * 2.5**k},{1e4 * k}"
            for k in range(6)
            for w in (0, 1)
        ],
        r"line 2 \(worker 0, step 0\): `seconds` must have the unit of the others",
    ),
    "a start that goes back, before a gap at the end": (
        [*TASKS[:3], "1,4,1,0.25", "0,7,1,8"],
        r"line 5 \(worker 1, step 4\): `start` must increase .* got 0.25",
    ),
    "one worker alone": (TASKS[::2], "line 2 .*`worker` must number two .*empirical"),
    "no rows": ([], r"must have rows, got none below \['worker', 'step', 'seconds',"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_cannot_be_true_is_named(name, tmp_path):
    rows, message = BAD_ROWS[name]
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path, [HEADER, *rows])
    assert "log.csv" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("factor", "warns"), [(44.0, False), (45.0, True)])
def test_times_that_may_be_milliseconds_are_asked_about(factor, warns, tmp_path):
    """Half of the tasks take over 2.25 s (the median of `SECONDS`) times a factor."""
    rows = [f"{w},{k},{factor * SECONDS[w, k]}" for w in range(2) for k in range(3)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(tmp_path, ["worker,step,seconds", *rows])
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == warns and all(
        "half of the tasks take over 101.2 s" in text for text in messages
    )


CLOCK = 1_764_367_200
UNITS = {"milliseconds": 3, "microseconds": 6, "nanoseconds": 9}


@pytest.mark.parametrize("unit", UNITS)
def test_a_clock_s_times_in_another_unit_are_refused_and_the_remedy_helps(
    unit, tmp_path
):
    factor = 10 ** UNITS[unit]
    rows = [row.rsplit(",", 1) for row in TASKS]
    times = [int(factor * (CLOCK + float(at))) for _, at in rows]
    log = [f"{row},{time}" for (row, _), time in zip(rows, times, strict=True)]
    for start in (None, "first", float(factor * CLOCK)):
        with pytest.raises(
            ValueError, match=rf"`start` .* {unit}: divide .* by 1e\d:?"
        ):
            load(tmp_path, [HEADER, *log], start_seconds=start)
    divided = [
        f"{row},{time / factor}" for (row, _), time in zip(rows, times, strict=True)
    ]
    assert_tasks(load(tmp_path, [HEADER, *divided], start_seconds="first"))


@pytest.mark.parametrize(
    ("factor", "unit"), [(1e3, "milliseconds .* 1000"), (1e6, "microseconds .* 1e.06")]
)
def test_the_unit_that_times_may_have_is_the_one_that_helps(factor, unit, tmp_path):
    rows = [f"{w},{k},{factor * SECONDS[w, k]}" for w in range(2) for k in range(3)]
    with pytest.warns(UserWarning, match=unit.replace(" .* ", ", divide them by ")):
        load(tmp_path, ["worker,step,seconds", *rows])


@pytest.mark.parametrize("lacking", range(6))
def test_a_task_that_is_missing_without_starts_is_named(lacking, tmp_path):
    rows = without_start([HEADER, *without(lacking)])
    worker, step, *_ = TASKS[lacking].split(",")
    with pytest.raises(
        ValueError,
        match=rf"worker {worker} must have a row for step {step}, got none: leave out"
        " this step, or log `start`",
    ):
        load(tmp_path, rows)


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        ("worker,step,time,start", {}, "must have a column 'seconds', once"),
        (HEADER + ",step", {}, "must have a column 'step', once"),
        (
            HEADER,
            {"columns": {"worker": "rank"}},
            "must have a column 'rank'.*`columns`",
        ),
        (
            HEADER,
            {"columns": {"wroker": "step"}},
            "must name some of worker, step, seconds",
        ),
        (HEADER, {"columns": {"seconds": None}}, "must have a column 'seconds'"),
        (HEADER, {"operations": ["a"]}, "`operations` needs a column 'operation'"),
        (
            HEADER[:-5] + "end",
            {"start_seconds": "first"},
            "have a column 'start', once",
        ),
        (HEADER, {"start_seconds": "last"}, "`start_seconds` must be a number"),
        (HEADER, {"start_seconds": -1.0}, "`start_seconds` must be finite and non"),
        (HEADER, {"start_seconds": 2.0}, "line 2 .*`start` must not be before 2 s"),
    ],
)
def test_columns_and_options_that_do_not_fit_are_refused(
    header, options, message, tmp_path
):
    with pytest.raises((TypeError, ValueError), match=message):
        load(tmp_path, [header, *(f"{row},9" for row in TASKS)], **options)


# operations

OPERATIONS = ["forward", "backward"]
REPLICAS, STAGES, STEPS = 3, 2, [16, 18, 40]
NAMES = {"worker": "rank", "operation": "optype", "duration": "seconds"}


@pytest.fixture
def trace(tmp_path):
    """A file of operations, and the durations that count [replica, stage, step]."""
    pandas, rng = pytest.importorskip("pandas"), np.random.default_rng(0)
    rows = [
        (
            replica,
            stage,
            10 * replica + stage,
            step,
            name,
            float(rng.integers(1, 99)) / 8,
        )
        for replica in range(REPLICAS)
        for stage in range(STAGES)
        for step in STEPS
        for name in (*OPERATIONS, "send", *OPERATIONS, "gc")
    ]
    columns = ["replica", "stage", "rank", "step", "optype", "seconds"]
    table = pandas.DataFrame(rows, columns=columns)
    table["optype"] = table["optype"].astype("category")
    table.loc[table["optype"] == "gc", "seconds"] = 0.0
    table.to_parquet(tmp_path / "trace.parquet")
    counted = np.array([row[-1] * (row[-2] in OPERATIONS) for row in rows])
    return tmp_path / "trace.parquet", counted.reshape(REPLICAS, STAGES, 3, 6).sum(-1)


def test_a_task_is_the_sum_of_its_operations(trace):
    path, seconds = trace
    recorded = cluster.load_recorded(path, columns=NAMES, operations=OPERATIONS)
    np.testing.assert_array_equal(recorded.seconds, seconds.reshape(-1, 3))
    np.testing.assert_array_equal(recorded.steps, STEPS)
    assert recorded.starts is None


def test_a_replica_is_as_slow_as_its_slowest_stage(trace):
    path, seconds = trace
    names = NAMES | {"worker": "replica", "stage": "stage"}
    recorded = cluster.load_recorded(path, columns=names, operations=OPERATIONS)
    np.testing.assert_array_equal(recorded.seconds, seconds.max(axis=1))


def test_a_replica_without_the_row_of_a_stage_is_named(trace):
    path, _ = trace
    pandas = pytest.importorskip("pandas")
    table = pandas.read_parquet(path)
    table[~((table["rank"] == 11) & (table["step"] == 18))].to_parquet(path)
    names = NAMES | {"worker": "replica", "stage": "stage"}
    message = r"worker 1 \(stage 1\) must have a row for step 18"
    with pytest.raises(ValueError, match=message):
        cluster.load_recorded(path, columns=names, operations=OPERATIONS)


def test_a_task_begins_with_the_first_of_its_operations(tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = [
        (w, k, op, 10.0 * k + w + at, 1.0)
        for w in (0, 1)
        for k in (0, 1)
        for op, at in (("send", 0.0), ("b", 3.0), ("a", 2.0))
    ]
    names = ["worker", "step", "operation", "start", "duration"]
    pandas.DataFrame(rows, columns=names).to_parquet(tmp_path / "t.parquet")
    recorded = cluster.load_recorded(tmp_path / "t.parquet", operations=["a", "b"])
    np.testing.assert_array_equal(recorded.starts, [[2.0, 12.0], [3.0, 13.0]])
    np.testing.assert_array_equal(recorded.seconds, np.full((2, 2), 2.0))


def test_the_steps_of_each_stage_must_not_go_back(tmp_path):
    pandas = pytest.importorskip("pandas")
    order = [(0, 5), (1, 4), (0, 4), (1, 5)]  # (stage, step)
    rows = [(w, stage, k, "a", 1.0) for w in (0, 1) for stage, k in order]
    names = ["worker", "stage", "step", "operation", "duration"]
    pandas.DataFrame(rows, columns=names).to_parquet(tmp_path / "t.parquet")
    columns = {"stage": "stage"}
    with pytest.raises(
        ValueError, match=r"row 3 \(worker 0, step 4\): `step` must not"
    ):
        cluster.load_recorded(tmp_path / "t.parquet", columns=columns, operations=["a"])


def test_a_start_that_is_infinite_is_refused_whatever_is_subtracted(tmp_path):
    with pytest.raises(ValueError, match=r"line 3 .*`start` must be a finite"):
        load(tmp_path, [HEADER, *without(1, "1,3,1,inf")], start_seconds=0.0)


@pytest.mark.parametrize("operations", [None, [], ["forward", "loss"], "forward"])
def test_operations_that_are_not_in_the_file_are_refused(operations, trace):
    path, _ = trace
    message = (
        r"`operations` must be some of \['backward', 'forward', 'gc', 'send'\], got "
    )
    with pytest.raises(ValueError, match=message):
        cluster.load_recorded(path, columns=NAMES, operations=operations)


def test_the_row_of_an_operation_is_its_row_in_the_file(trace):
    path, _ = trace
    pandas = pytest.importorskip("pandas")
    table = pandas.read_parquet(path)
    for value, must in ((-1.0, "positive"), (math.inf, "a finite"), (1.76e9, "posi")):
        table.loc[9, "seconds"] = value  # row 10, after two rows that are not counted
        table.to_parquet(path)
        message = rf"row 10 \(worker 0, step 18\): `seconds` must be {must}"
        with pytest.raises(ValueError, match=message):
            cluster.load_recorded(path, columns=NAMES, operations=OPERATIONS)
    table["seconds"] = "1 s"
    table.to_parquet(path)
    with pytest.raises(
        ValueError, match=r"row 1 .*`seconds` must be a finite .* got '1 s'"
    ):
        cluster.load_recorded(path, columns=NAMES, operations=OPERATIONS)


def test_a_task_whose_operations_take_no_time_is_refused(trace):
    path, _ = trace
    with pytest.raises(ValueError, match=r"row 6 .*must be positive in all, got 0:"):
        cluster.load_recorded(path, columns=NAMES, operations=["gc"])


# profiles and reports

BASE = 1_700_000_000_000_000_000  # nanoseconds


def kineto(rank):
    """Two steps of a process: ranges of the host, and of the device if there is one.

    Forward takes 1 + rank seconds, backward 2 seconds; the device ends a step after
    the host has begun the next one.
    """
    steps, second = [], 1_000_000
    ranges = ("forward", 1 + rank), ("backward", 2)
    for step, at in ((5, 0), (6, 10)):
        for category, late, slow in (
            ("user_annotation", 0, 0.1),
            ("gpu_user_annotation", 8, 1),
        ):
            begun = at + late
            events = [(f"ProfilerStep#{step}", begun, 9)]
            for name, seconds in ranges:
                events.append((name, begun, seconds * slow))
                begun += seconds * slow
            steps += [
                dict(ph="X", cat=category, name=name, pid=77, tid=1)
                | dict(ts=start * second, dur=seconds * second)
                for name, start, seconds in events
            ]
    between = dict(ph="X", cat="gpu_user_annotation", name="forward", pid=77, tid=1)
    steps.append(between | dict(ts=17.5 * second, dur=second / 4))  # belongs to no step
    steps.append(dict(ph="i", name="forward", pid=77, ts=0))  # is no range
    document = dict(traceEvents=steps[::-1], baseTimeNanoseconds=BASE)
    return document | dict(distributedInfo=dict(rank=rank, world_size=2))


def write_json(path, document):
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def test_the_ranges_that_the_device_ran_count_in_a_kineto_profile(tmp_path):
    for rank in (0, 1):
        write_json(tmp_path / f"{1 - rank}.json.gz", kineto(rank))
    recorded = cluster.load_recorded(
        tmp_path, operations=["forward", "backward"], start_seconds=BASE / 1e9
    )
    np.testing.assert_array_equal(recorded.seconds, [[3.0, 3.0], [4.0, 4.0]])
    np.testing.assert_array_equal(recorded.steps, [5, 6])
    np.testing.assert_allclose(recorded.starts, [[8.0, 18.0]] * 2, atol=1e-6)


def test_a_stream_with_a_shorter_step_does_not_end_the_step_of_its_device(tmp_path):
    for rank in (0, 1):
        profile = kineto(rank)
        shorter = [
            event | dict(ts=event["ts"] + 100, dur=500_000, tid=20)
            for event in profile["traceEvents"]
            if event["name"].startswith("ProfilerStep")
        ]
        profile["traceEvents"] += shorter
        write_json(tmp_path / f"{rank}.json", profile)
    recorded = cluster.load_recorded(
        tmp_path, operations=["forward", "backward"], start_seconds="first"
    )
    np.testing.assert_array_equal(recorded.seconds, [[3.0, 3.0], [4.0, 4.0]])


def test_each_process_of_a_trace_has_its_own_steps(tmp_path):
    """Process 1 begins and ends its steps half a second after process 0."""
    second, events = 1_000_000, []
    for pid, late in ((0, 0.0), (1, 0.5)):
        for step in (0, 1):
            begun = late + step
            for name, at, duration in (
                (f"ProfilerStep#{step}", begun, 1.0),
                ("forward", begun + 0.1, 0.2),
                ("forward", begun + 0.7, 0.2),
            ):
                times = dict(ts=at * second, dur=duration * second)
                events.append(dict(ph="X", name=name, pid=pid, tid=0) | times)
    write_json(tmp_path / "t.json", dict(traceEvents=events))
    recorded = cluster.load_recorded(
        tmp_path / "t.json", operations=["forward"], start_seconds="first"
    )
    np.testing.assert_allclose(recorded.seconds, 0.4 * np.ones((2, 2)))


@pytest.mark.parametrize("left_out", ["", "ProfilerStep"])
def test_the_ranges_of_the_host_count_where_the_device_shows_no_steps(
    left_out, tmp_path
):
    """No range may count twice."""
    (tmp_path / "notes.jsonl").write_text("no profile")
    for rank in (0, 1):
        profile = kineto(rank)
        host = [
            event
            for event in profile["traceEvents"]
            if event.get("cat") != "gpu_user_annotation"
            or (left_out and not event["name"].startswith(left_out))
        ]
        write_json(tmp_path / f"{rank}.json", profile | dict(traceEvents=host))
    recorded = cluster.load_recorded(
        tmp_path, operations=["forward"], start_seconds="first"
    )
    np.testing.assert_allclose(recorded.seconds, [[0.1] * 2, [0.2] * 2])


@pytest.mark.parametrize("bare", [False, True])
def test_a_chrome_trace_names_its_step_and_worker(bare, tmp_path):
    """A list of events is a valid trace, too."""
    events = [
        dict(ph="X", name="train", pid=3 + pid, tid=0, args=dict(step_num=str(step)))
        | dict(ts=4e6 * step, dur=1e6 * (1 + pid))
        for pid in (0, 1)
        for step in (2, 1)
    ]
    events += [dict(ph="X", name="other", pid=3, tid=0, ts=0, dur=9e6)]
    path = tmp_path / "trace.json"
    write_json(path, events if bare else dict(traceEvents=events))
    columns = {"step": "step_num"}
    recorded = cluster.load_recorded(path, columns=columns, operations=["train"])
    np.testing.assert_array_equal(recorded.seconds, [[1.0, 1.0], [2.0, 2.0]])
    np.testing.assert_array_equal(recorded.starts, [[4.0, 8.0]] * 2)
    np.testing.assert_array_equal(recorded.steps, [1, 2])
    events[1]["dur"] = -1.0
    write_json(path, events)
    with pytest.raises(ValueError, match=r"event \d \(worker 3, step 1\): `duration`"):
        cluster.load_recorded(path, columns=columns, operations=["train"])


def test_a_report_of_flagscale_has_the_seconds_of_sections(tmp_path):
    for step in (40, 20):
        sections = {
            "forward": {"0": 1.5, "1": 2.5},
            "backward": {"0": 1.0, "1": 1.0 + step},
            "optimizer": {"0": 9.0, "1": 9.0},
        }
        write_json(
            tmp_path / f"report_{step}.json",
            dict(step=step, section_scores=sections, gpu_scores={}, timestamp=1.7e9),
        )
    recorded = cluster.load_recorded(
        tmp_path, operations=["forward", "backward"], sort=True
    )
    np.testing.assert_array_equal(recorded.seconds, [[2.5, 2.5], [23.5, 43.5]])
    np.testing.assert_array_equal(recorded.steps, [20, 40])
    assert recorded.starts is None


def test_an_operation_within_another_one_would_count_twice_and_is_refused(tmp_path):
    write_json(tmp_path / "0.json", kineto(0))
    write_json(tmp_path / "1.json", kineto(1))
    operations = ["ProfilerStep#5", "ProfilerStep#6", "backward"]
    match = r"`start` must not be before the last operation has ended, .* that contain"
    with pytest.raises(ValueError, match=match):
        cluster.load_recorded(tmp_path, operations=operations, start_seconds="first")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            [{"ph": "X", "ts": 1.0, "pid": 1, "name": "a"}],
            r'is no \.json: a profile in a folder needs \{"distributedInfo":',
        ),
        (
            {"traceEvents": [{"ph": "X", "ts": 1.0, "pid": 1, "name": "a"}]}
            | {"distributedInfo": {"rank": 0}},
            "is no .json: an event or the report has no 'dur'",
        ),
        ({"section_scores": {"a": {"0": 1.0}}}, "the report has no 'step'"),
        ({"steps": []}, "is no .json: it has neither `traceEvents` nor `section_sc"),
        (3, "is no .json: it has neither"),
        (
            {"traceEvents": []},
            r'is no \.json: a profile in a folder needs \{"distributedInfo":',
        ),
    ],
)
def test_another_json_is_refused(document, message, tmp_path):
    write_json(tmp_path / "some.json", document)
    with pytest.raises(ValueError, match=message):
        cluster.load_recorded(tmp_path, operations=["forward"])


def test_a_trace_is_no_profile(tmp_path):
    with pytest.raises(ValueError, match=r"`path` must end in \.npz, \.csv"):
        cluster.load_trace(tmp_path)
    with pytest.raises(ValueError, match=r"`path` must end in \.npz, \.csv"):
        cluster.load_trace(tmp_path / "trace.json")


def test_a_name_with_an_underscore_is_no_number(tmp_path):
    """float() would read node 1, device 10, and node 11, device 0, as worker 110."""
    names = [f"{node}_{device}" for node in (1, 11) for device in (0, 10)]
    rows = [f"{name},{step},1.0" for step in (0, 1) for name in names]
    recorded = load(tmp_path, ["worker,step,seconds", *rows])
    np.testing.assert_array_equal(recorded.seconds, np.ones((4, 2)))
