"""Files: a saved trace is read back; a log is read as documented, or refused."""

import datetime
import itertools
import pickle
import re

import numpy as np
import pytest

from delayjax import cluster
from tests.cluster import oracle
from tests.cluster.traces import (
    LOGGABLE,
    PROTOCOLS,
    assert_equal,
    by_hand,
    simulate,
)
from tests.logs.files_test import GRADIENTS
from tests.logs.files_test import UPDATES as GOOD

HEADER, *GOOD_ROWS = GRADIENTS


@pytest.mark.parametrize("name", PROTOCOLS)
def test_npz_keeps_everything_to_the_bit(name, tmp_path):
    trace = simulate(name)
    for path in (tmp_path / "trace.npz", str(tmp_path / "other.npz")):
        trace.save(path)
        loaded = cluster.load_trace(path)
        assert_equal(trace, loaded)
        assert type(loaded.num_workers) is int


def test_an_older_npz_does_not_say_what_workers_held(tmp_path):
    trace, path = simulate("ASGD"), tmp_path / "older.npz"
    trace.save(path)
    with np.load(path) as held:
        np.savez(path, **{name: held[name] for name in held if name != "held_until"})
    loaded = cluster.load_trace(path)
    assert len(loaded.held_until) == 0 < len(trace.held_until)
    np.testing.assert_array_equal(loaded.read_version, trace.read_version)


def test_what_a_trace_remembers_of_its_slots_is_neither_saved_nor_pickled_wrong(
    tmp_path,
):
    trace, fresh = simulate("ASGD"), simulate("ASGD")
    trace.arrivals(0, 3)
    trace.save(tmp_path / "used.npz")
    with np.load(tmp_path / "used.npz") as held:
        assert not [name for name in held if name.startswith("_")]
    copy = pickle.loads(pickle.dumps(trace))
    assert_equal(copy, fresh)
    for one, other in zip(copy.arrivals(0, 60), fresh.arrivals(0, 60), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", LOGGABLE)
def test_csv_keeps_updates_and_times_to_the_bit(name, tmp_path):
    trace = simulate(name)
    path = tmp_path / "trace.csv"
    trace.save(path)
    loaded = cluster.load_trace(path, num_workers=7)  # more than the log shows
    for field in ("seconds", "update", "worker", "read_version", "divisor"):
        np.testing.assert_array_equal(getattr(loaded, field), getattr(trace, field))
        assert getattr(loaded, field).dtype == getattr(trace, field).dtype
    assert loaded.num_workers == 7
    # a log doesn't know when workers computed
    for column in (loaded.begun, loaded.arrived):
        assert np.isnan(column).all() and column.shape == trace.update.shape
    assert np.isnan(loaded.busy_seconds).all() and loaded.busy_seconds.shape == (7,)
    assert loaded.summary().dropped == 0
    np.testing.assert_array_equal(loaded.staleness, trace.staleness)
    assert_equal(loaded, cluster.load_trace(str(path), num_workers=7))


def test_awkward_times_survive_a_csv(tmp_path):
    seconds = [5e-324, 0.1, 1 / 3, 1e22, 1.7976931348623157e308]
    trace = by_hand(1, [(s, [(0, t)]) for t, s in enumerate(seconds)])
    trace.save(tmp_path / "t.csv")
    assert cluster.load_trace(tmp_path / "t.csv").seconds.tolist() == seconds


def test_a_csv_is_plain_text_with_its_header(tmp_path):
    trace = by_hand(3, [(0.5, [(2, 0)]), (1.25, [(0, 0), (1, 1)])])
    trace.save(tmp_path / "t.csv")
    text = (tmp_path / "t.csv").read_text()
    assert text.split() == [HEADER, "0,0.5,2,0", "1,1.25,0,0", "1,1.25,1,1"]


@pytest.mark.parametrize(
    "trace",
    [
        by_hand(1, [(1.0, [(0, 0)]), (2.0, [])], divisor=[1.0, 0.0]),
        by_hand(1, [(1.0, [(0, 0)])], divisor=[0.5]),
        by_hand(2, []),
    ],
    ids=["an empty update", "a divisor of its own", "no updates"],
)
def test_what_a_csv_cannot_hold_is_refused_and_an_npz_holds_it(trace, tmp_path):
    with pytest.raises(ValueError, match=r"csv.*npz"):
        trace.save(tmp_path / "t.csv")
    assert not (tmp_path / "t.csv").exists()
    trace.save(tmp_path / "t.npz")
    assert_equal(trace, cluster.load_trace(tmp_path / "t.npz"))


def load(tmp_path, text, **keywords):
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return cluster.load_trace(path, **keywords)


@pytest.mark.parametrize("times", [("5e-1", ".5", '"0.5"', "2")])
def test_times_may_be_spelled_in_any_way(times, tmp_path):
    rows = [row.split(",") for row in GOOD_ROWS]
    spelled = [
        ",".join([update, time, *read])
        for time, (update, _, *read) in zip(times, rows, strict=True)
    ]
    oracle.assert_same(load(tmp_path, "\n".join([HEADER, *spelled])), GOOD)


def test_times_may_be_dates(tmp_path):
    dates = [f"2026-11-28 22:00:0{at}" for at in ("0.5", "0.5", "0.5", "2.0")]
    rows = [
        f"{update},{date},{worker},{read}"
        for date, row in zip(dates, GOOD_ROWS, strict=True)
        for update, _, worker, read in [row.split(",")]
    ]
    start = datetime.datetime.fromisoformat("2026-11-28T22:00:00Z").timestamp()
    text = "\n".join([HEADER, *rows])
    oracle.assert_same(load(tmp_path, text, start_seconds=start), GOOD)
    with pytest.raises(ValueError, match=r"line 2: `time_s` .*start_seconds=\"first\""):
        load(tmp_path, text)


def test_workers_may_have_names_which_are_numbered_in_their_order(tmp_path):
    """rank10 comes after rank9 and before rank11."""
    names = "rank9", "rank10", "rank11"
    rows = [
        re.sub(r",(\d),", lambda at: f",{names[int(at[1])]},", r) for r in GOOD_ROWS
    ]
    text = "\n".join([HEADER, *rows])
    oracle.assert_same(load(tmp_path, text), GOOD)
    assert load(tmp_path, text, num_workers=5).num_workers == 5
    with pytest.raises(ValueError, match=r"line 4: `worker` .* give num_workers=3"):
        load(tmp_path, text, num_workers=2)


@pytest.mark.parametrize(
    ("ids", "rows"),
    [
        ((123456, 123459), 4),
        ((123456, 123459), 130_000),
        ((500, 501, 503), 20),
        ((1, 2, 3, 4), 40),
        ((3,), 1),
        ((0, 4), 2),
        ((0, 1000), 5000),
    ],
)
def test_numbers_of_workers_may_be_of_processes_or_count_from_1(ids, rows, tmp_path):
    """They are names, for any number of rows. 123,460 workers are too many."""
    each = [ids[row % len(ids)] for row in range(rows)]
    text = "\n".join(["worker,staleness", *(f"{one},0" for one in each)])
    match = f"workers {ids[0]}, .*, {ids[-1]} are renumbered to 0 .. {len(ids) - 1}, "
    with pytest.warns(UserWarning, match=match):
        trace = load(tmp_path, text)
    assert trace.num_workers == len(ids)
    np.testing.assert_array_equal(trace.worker, np.arange(rows) % len(ids))
    declared = load(tmp_path, text, num_workers=ids[-1] + 1)
    assert declared.num_workers == ids[-1] + 1
    np.testing.assert_array_equal(declared.worker, each)


@pytest.mark.parametrize("ids", [(0, 1, 2), (0, 3), (0, 2, 3, 5), (0,)])
def test_a_worker_may_have_no_gradient_in_the_log(ids, tmp_path):
    text = "\n".join(["worker,staleness", *(f"{one},0" for one in ids)])
    trace = load(tmp_path, text)  # without a warning
    assert trace.num_workers == ids[-1] + 1
    np.testing.assert_array_equal(trace.worker, ids)


def test_a_row_that_is_there_twice_is_refused_where_updates_have_one_row(tmp_path):
    rows = ["0,1,0,0", "1,2,1,0", "1,2,1,0", "2,3,0,1"]
    match = "line 4: `update` .* others have, got 1: leave out one of the two rows"
    with pytest.raises(ValueError, match=match):
        load(tmp_path, "\n".join([HEADER, *rows]))
    assert load(tmp_path, "\n".join([HEADER, *rows[:2], rows[3]])).counts.max() == 1
    each_twice = [row for row in GOOD_ROWS[:2] for _ in (0, 1)]
    with pytest.raises(ValueError, match=r"line 3: `update` must have one row"):
        load(tmp_path, "\n".join([HEADER, *each_twice]))
    # two gradients in each update
    rows = [f"{row // 2},{row // 2},{row % 4},0" for row in range(10)]
    assert load(tmp_path, "\n".join([HEADER, *rows])).counts.tolist() == [2] * 5
    with pytest.raises(ValueError, match=r"line 8: `update` must have 2 rows, as the"):
        load(tmp_path, "\n".join([HEADER, *rows[:6], rows[5], *rows[6:]]))
    # a fast worker may give two gradients at one version to one update
    twice = [*rows[:5], rows[4], *rows[6:]]
    assert load(tmp_path, "\n".join([HEADER, *twice])).counts.tolist() == [2] * 5
    trace = load(tmp_path, "\n".join([HEADER, *GOOD_ROWS, "2,2.0,1,1"]))
    assert trace.counts.tolist() == [1, 2, 2]


def test_updates_that_are_counted_from_1_do_not_make_all_gradients_old(tmp_path):
    """Fresh gradients: the first update has the number 1, the first version 0."""
    rows = [f"{t},{t},0,{t - 1}" for t in range(1, 5)]
    text = "\n".join([HEADER, *rows])
    with pytest.raises(ValueError, match=r"line 2: `update` .* got 1: subtract 1 if"):
        load(tmp_path, text)
    match = r"line 2: `read_version` .* counted from 1.*: subtract 1 from all updates"
    with pytest.raises(ValueError, match=match):
        load(tmp_path, text, first_update=1)
    right = "\n".join([HEADER, *(f"{t},{t + 1},0,{t}" for t in range(4))])
    assert load(tmp_path, right).max_staleness == 0
    # the second update of a run, with a fresh gradient among the late ones
    rows = ["1,1,0,0", "2,2,1,2", "3,3,0,1"]
    late = load(tmp_path, "\n".join([HEADER, *rows]), first_update=1)
    assert late.staleness[:, 0].tolist() == [0, 0, 2]


@pytest.mark.parametrize(
    ("row", "options", "remedy"),
    [
        ("0,0.5,0,1", {}, "count the updates that were done when the worker read"),
        ("0,0.5,0,-1", {}, "give first_update if"),
        ("5,0.5,0,-1", {"first_update": 5}, "no version is older than the run"),
        ("-1,0.5,0,0", {}, "number updates 0, 1, 2"),
        ("7,0.5,0,0", {}, "give first_update=7 if the log begins there; or sort=True"),
        ("0,0.5,0,0\n2,1,0,0", {}, "got 2: add the rows between"),
        ("0,0.5,0,0\n1,1,0,0\n0,1,0,0", {}, "got 0: give sort=True"),
        ("0,0.5,2,0", {"num_workers": 2}, "lie in 0 .. 1, got 2: give num_workers=3"),
        (
            "0,0.5,0,0",
            {"start_seconds": 2.0},
            '`time_s` must not be before 2 s, got 0.5: give "first" as `start_seconds`',
        ),
        ("0,1.7e12,0,0", {}, "are milliseconds: divide them by 1e3"),
        (
            "0,1.7e15,0,0",
            {"start_seconds": "first"},
            "since 1970 these are microseconds: divide them by 1e6",
        ),
        ("0,1.7e18,0,0", {"start_seconds": "first"}, "nanoseconds: divide them by 1e9"),
    ],
)
def test_a_remedy_fits_the_error(row, options, remedy, tmp_path):
    with pytest.raises(ValueError, match=re.escape(remedy)):
        load(tmp_path, f"{HEADER}\n{row}", **options)


BAD_ROWS = {
    "starts at 1": (["1,0.5,0,0"], 1, "`update`"),
    "a gap": (["0,0.5,0,0", "2,0.6,0,1"], 2, "`update`"),
    "goes back": (["0,0.5,0,0", "1,0.6,0,1", "0,0.5,1,0"], 3, "`update`"),
    "a negative update": (["-1,0.5,0,0"], 1, "`update`"),
    "an update that is no integer": (["0,0.5,0,0", "1.5,0.6,0,0"], 2, "`update`"),
    "an empty update": ([",0.5,0,0"], 1, "`update`"),
    "time goes back": (["0,0.5,0,0", "1,0.4,0,1"], 2, "`time_s`"),
    "a time is nan": (["0,0.5,0,0", "1,nan,0,1"], 2, "`time_s`"),
    "a time is no number": (["0,soon,0,0"], 1, "`time_s`"),
    "a time is missing": (["0,0.5,0,0", "1"], 2, "`time_s`"),
    "an update has two times": (["0,0.5,0,0", "0,0.6,1,0"], 2, "`time_s`"),
    "a version of the future": (["0,0.5,0,1"], 1, "`read_version`"),
    "a later version of the future": (
        ["0,0.5,0,0", "1,0.6,0,1", "1,0.6,1,2"],
        3,
        "`read_version`",
    ),
    "a negative version": (["0,0.5,0,-1"], 1, "`read_version`"),
    "a version that is no integer": (["0,0.5,0,zero"], 1, "`read_version`"),
    "a negative worker": (["0,0.5,-2,0"], 1, "`worker`"),
    "a worker that is no integer": (["0,0.5,1.5,0"], 1, "`worker`"),
    "one worker alone with a name": (["0,0.5,1,0", "1,0.5,rank3,0"], 2, "`worker`"),
    "no name": (["0,0.5,rank3,0", "1,0.5,,0"], 1, "`worker`"),
    "an integer beyond float64": (["0,0.5,0,1e300"], 1, "`read_version`"),
    "a clock's time": (["0,1.7e9,0,0"], 1, "`time_s`"),
    "a worker beyond the declared": (["0,0.5,3,0", "1,0.5,4,0"], 2, "`worker`"),
    "beyond int32, and declared": (["0,0.5,3,0", "1,0.5,4294967296,0"], 2, "`worker`"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named_with_its_column_its_value_and_the_remedy(name, tmp_path):
    rows, number, column = BAD_ROWS[name]
    place = HEADER.split(",").index(column.strip("`"))
    text = ([*rows[number - 1].split(","), "", "", ""])[place]
    try:
        got = re.escape(f"{float(text) if column == '`time_s`' else int(text):.10g}")
    except ValueError:
        got = repr(text)
    got = rf"({got}|{text!r})"
    declared = 4 if "declared" in name else None
    for newline in ("\n", "\n\n"):  # an empty line counts as a line
        line = 1 + number * len(newline)
        match = rf"log\.csv, line {line}: {column} must .*, got {got}: ..."
        with pytest.raises(ValueError, match=match):
            load(tmp_path, newline.join([HEADER, *rows]), num_workers=declared)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a column 'update', once, got \[\]"),
        (
            "update,time_s,worker\n0,1,0",
            r"a column 'read_version', once, .*`columns`.* worker, read_version, stal",
        ),
        (
            "step,time,worker,read_version\n0,1,0,0",
            r"a column 'update', once, got \['step', 'time', .*`columns` the names",
        ),
        # with versions, a log has all gradients; a typing error is no gap
        ("update,time_s,rank,read_version,staleness\n0,1,0,0,0", "a column 'worker'"),
        ("update,time_s,worker,read_version,worker\n0,1,0,0,1", "'worker', once"),
        ("\n".join(GOOD_ROWS), r"a column 'update', once"),
        (HEADER, r"must have rows, got none below \['update'"),
    ],
)
def test_a_file_that_is_no_log_is_refused(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, text)


# What real logs look like


def test_times_of_a_clock_count_from_the_first_or_from_a_given_one(tmp_path):
    clock = 1_700_000_000.0
    text = "\n".join([HEADER, *(f"{t},{clock + 2.5 * t},0,{t}" for t in range(4))])
    with pytest.raises(ValueError, match=r"`time_s`.* 1700000000:.*start_seconds"):
        load(tmp_path, text)
    first = load(tmp_path, text, start_seconds="first")
    np.testing.assert_array_equal(first.seconds, [0.0, 2.5, 5.0, 7.5])
    given = load(tmp_path, text, start_seconds=clock - 10.0)
    np.testing.assert_array_equal(given.seconds, [10.0, 12.5, 15.0, 17.5])
    # long times that are not of a clock
    raw = load(tmp_path, text, start_seconds=0.0)
    np.testing.assert_array_equal(raw.seconds, clock + 2.5 * np.arange(4))
    with pytest.raises(ValueError, match=r"line 2: `time_s` .*before 1\.8e\+09 s"):
        load(tmp_path, text, start_seconds=1.8e9)


def test_a_log_may_begin_in_the_middle_of_a_run(tmp_path):
    rows = "500,0.5,1,500", "501,0.5,0,500", "501,0.5,2,501", "502,2.0,1,501"
    text = "\n".join([HEADER, *rows])
    with pytest.raises(ValueError, match=r"line 2: `update` .* 0, got 500: .*=500"):
        load(tmp_path, text)
    oracle.assert_same(load(tmp_path, text, first_update=500), GOOD)
    with pytest.raises(ValueError, match=r"line 2: `update` .* 499, got 500"):
        load(tmp_path, text, first_update=499)


def test_what_was_read_before_the_log_began_counts_as_its_first_version(tmp_path):
    rows = "500,1,0,497", "501,2,1,499", "502,3,0,501"
    trace = load(tmp_path, "\n".join([HEADER, *rows]), first_update=500)
    assert trace.read_version.tolist() == [0, 0, 1]
    assert trace.staleness[:, 0].tolist() == [0, 1, 1]
    ages = load(tmp_path, "staleness\n3\n2\n1", first_update=500)
    assert ages.read_version.tolist() == [0, 0, 1]
    # but not before the run itself
    for text in (f"{HEADER}\n2,1,0,-1", "staleness\n3"):
        with pytest.raises(
            ValueError, match=r"line 2: `(read_version|staleness)` must"
        ):
            load(tmp_path, text, first_update=2)


def test_rows_may_be_sorted(tmp_path):
    trace = simulate("2-softsync")
    trace.save(tmp_path / "t.csv")
    header, *rows = (tmp_path / "t.csv").read_text().split()
    # updates in any order; the gradients of an update in their order
    order = np.random.default_rng(1).permutation(60)
    mixed = [
        row for update in order for row in rows if int(row.split(",")[0]) == update
    ]
    text = "\n".join([header, *mixed])
    with pytest.raises(ValueError, match=r"`update` .*sort=True"):
        load(tmp_path, text, num_workers=5)
    assert_equal(
        load(tmp_path, text, num_workers=5, sort=True),
        cluster.load_trace(tmp_path / "t.csv", num_workers=5),
    )
    with pytest.raises(
        ValueError, match=r"has no column `update`, which sort=True needs\."
    ):
        load(tmp_path, "worker,staleness\n0,0\n1,0", sort=True)
    # an error names the line of the file
    bad = mixed.index(rows[-1])
    mixed[bad] = re.sub(r"\d+$", "99", mixed[bad])
    with pytest.raises(ValueError, match=rf"line {bad + 2}: `read_version`.* 99"):
        load(tmp_path, "\n".join([header, *mixed]), sort=True)


def test_columns_may_have_other_names(tmp_path):
    names = {"update": "step", "time_s": "wall clock", "worker": "rank"}
    text = "\n".join(["rank,base version,step,wall clock", "1,0,0,0.5", "0,0,1,0.75"])
    columns = {**names, "read_version": "base version"}
    trace = load(tmp_path, text, columns=columns)
    oracle.assert_same(trace, [(0.5, [(1, 0)]), (0.75, [(0, 0)])])
    # and errors use them
    with pytest.raises(
        ValueError, match=r"line 3: `rank` must be an integer.*, got 'b'"
    ):
        load(tmp_path, text.replace("\n0,", "\nb,"), columns=columns)
    with pytest.raises(ValueError, match="a column 'read_version', once"):
        load(tmp_path, text, columns=names)


def test_a_log_may_hold_nothing_but_ages(tmp_path):
    ages = [0, 1, 2, 0, 3]
    trace = load(tmp_path, "\n".join(["staleness", *map(str, ages)]))
    assert trace.staleness[:, 0].tolist() == ages
    assert trace.num_workers == 1 and (trace.worker == 0).all()
    assert np.isnan(trace.seconds).all() and len(trace.seconds) == 5
    summary = trace.summary()
    assert summary.mean == np.mean(ages)
    assert np.isnan(summary.updates_per_second) and np.isnan(summary.idle_share)
    delays = load(tmp_path, "delay\n0\n1.0\n", columns={"staleness": "delay"})
    assert delays.staleness[:, 0].tolist() == [0, 1]


def test_a_log_of_ages_may_say_more(tmp_path):
    rows = "0,0.5,2,0", "1,0.75,0,1", "1,0.75,1,0", "2,1.5,2,1"
    for kept in itertools.product([True, False], repeat=3):
        columns = [*itertools.compress((0, 1, 2), kept), 3]
        names = "update", "time_s", "worker", "staleness"
        lines = [[row.split(",")[column] for column in columns] for row in rows]
        text = "\n".join(
            ",".join(line) for line in [[names[c] for c in columns], *lines]
        )
        trace = load(tmp_path, text)
        updates, times, workers = kept
        update = [0, 1, 1, 2] if updates else [0, 1, 2, 3]
        assert trace.update.tolist() == update
        assert (trace.update - trace.read_version).tolist() == [0, 1, 0, 1]
        assert trace.worker.tolist() == ([2, 0, 1, 2] if workers else [0] * 4)
        of_rows = trace.seconds[trace.update]
        assert of_rows.tolist() == [0.5, 0.75, 0.75, 1.5] if times else True
        assert np.isnan(of_rows).all() != times


def test_versions_and_ages_must_agree(tmp_path):
    rows = [f"{row},{age}" for row, age in zip(GOOD_ROWS, (0, 1, 0, 1), strict=True)]
    text = "\n".join([f"{HEADER},staleness", *rows])
    oracle.assert_same(load(tmp_path, text), GOOD)
    shifted_text = "\n".join(
        [f"{HEADER},staleness", "7,0.5,0,6,1", "8,0.75,0,8,0"],
    )
    assert load(tmp_path, shifted_text, first_update=7).max_staleness == 0
    with pytest.raises(ValueError, match=r"line 5: `staleness` .*got 2"):
        load(tmp_path, text[:-1] + "2")


def test_a_trace_without_times_is_saved_as_a_log_of_ages(tmp_path):
    text = "worker,staleness\n1,0\n0,1\n2,0\n"
    trace = load(tmp_path, text)
    for name in ("again.csv", "again.npz"):
        trace.save(tmp_path / name)
        assert_equal(trace, cluster.load_trace(tmp_path / name))
    header = (tmp_path / "again.csv").read_text().split()[0]
    assert header == "update,worker,staleness"


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"columns": {"step": "update"}}, ValueError, r"`columns` .* got 'step'"),
        ({"columns": {"worker": "rank"}}, ValueError, r"'rank', once.*`columns`"),
        ({"first_update": -1}, ValueError, r"`first_update` .* -1"),
        ({"start_seconds": "last"}, TypeError, r"`start_seconds` .* 'last'"),
        ({"start_seconds": np.nan}, ValueError, r"`start_seconds` .* nan"),
        ({"num_workers": 0}, ValueError, r"`num_workers`.* 0"),
    ],
)
def test_a_bad_option_is_refused(keywords, error, message, tmp_path):
    with pytest.raises(error, match=message):
        load(tmp_path, "\n".join([HEADER, *GOOD_ROWS]), **keywords)


def test_options_of_a_log_are_refused_for_a_saved_trace(tmp_path):
    simulate("ASGD").save(tmp_path / "t.npz")
    for keywords in (
        {"columns": {"worker": "rank"}},
        {"first_update": 3},
        {"start_seconds": "first"},
        {"sort": True},
    ):
        with pytest.raises(
            ValueError, match="Only a log in text has options, got one for "
        ):
            cluster.load_trace(tmp_path / "t.npz", **keywords)


def test_an_npz_that_is_no_trace_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", seconds=np.zeros(3))
    (tmp_path / "text.npz").write_text("not an archive")
    simulate("ASGD").save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    for name, why in (("other", "'num"), ("text", "This file contains"), ("cut", "")):
        with pytest.raises(ValueError, match=rf"{name}\.npz holds no trace: {why}"):
            cluster.load_trace(tmp_path / f"{name}.npz")
