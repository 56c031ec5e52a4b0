"""Tables are tidy, do not change on disk, and keep tuning seeds apart."""

import json

import numpy as np
import pandas as pd

from experiments.host.folder import RunFolder
from experiments.results import tables
from experiments.results.metrics import TimeTo
from experiments.results.runs import Run
from experiments.results.selection import Selection


def split(*rows, **options):
    return Run(*tables.split(*rows, **options))


def write(folder, run):
    tables.write(RunFolder(folder), run.results, run.curves, run.selection)


def rows_of(losses):
    """Rows of results: seeds 5 and 6, two step sizes."""
    return [
        {"learning_rate": rate, "seed": seed, "train_loss": losses[s][c], "diverged": 0}
        for s, seed in enumerate((5, 6))
        for c, rate in enumerate((0.01, 0.03))
    ]


def table_of(rows, points, tuning_seeds=()):
    return split(
        ["learning_rate"],
        rows,
        points,
        selection=Selection(("learning_rate",)),
        tuning_seeds=tuning_seeds,
    )


def test_the_rows_of_some_settings_are_of_both_tables():
    rows = rows_of([[0.1, 0.2], [0.9, 0.8]])
    result = table_of(rows, [row | {"update": 0} for row in rows])
    part = result.where(learning_rate=0.03)
    for table in (part.results, part.curves):
        assert table[["learning_rate", "train_loss"]].to_numpy().tolist() == [
            [0.03, 0.2],
            [0.03, 0.8],
        ]


def test_tuning_seeds_have_tables_of_their_own(tmp_path):
    """Seed 5 is reported, and seed 6 chooses."""
    rows = rows_of([[0.1, 0.2], [0.9, 0.8]])
    points = [row | {"update": 0} for row in rows]
    result = table_of(rows, points, (6,))
    write(tmp_path, result)
    info = {"tuned": ["learning_rate"], "tuning_seeds": [6], "tuned_by": "train_loss"}
    (tmp_path / "run.json").write_text(json.dumps(info))
    for run in (result, Run.read(tmp_path)):
        assert set(run.results.seed) == set(run.curves.seed) == {5}
        assert run.selection.seeds == [6] and set(run.selection.curves.seed) == {6}
        assert run.best.learning_rate.tolist() == [0.03]
        assert run.best.train_loss.tolist() == [0.2]
    # beside a run without tuning seeds, each run chooses by its own rule
    other = tmp_path / "other"
    other.mkdir()
    plain = table_of(rows[:2], points[:2])
    write(other, plain)
    (other / "run.json").write_text(json.dumps({"question": "another"}))
    both = Run.read(tmp_path, other).best
    assert both.groupby("run").learning_rate.unique().str[0].to_dict() == {
        tmp_path.name: 0.03,
        "other": 0.01,
    }


def test_tables_are_read_as_they_are_written(tmp_path):
    names = ("None", "", "NA", "x")
    rows = rows_of([[0.1, 1 / 3], [np.nan, 1e-30]])
    rows = [{"law": name} | row for name, row in zip(names, rows, strict=True)]
    result = split(["law", "learning_rate"], rows, [], selection=Selection())
    write(tmp_path, result)
    read = Run.read(tmp_path).results
    pd.testing.assert_frame_equal(read, result.results.replace("", np.nan), rtol=0)
    assert list(read)[:3] == ["law", "learning_rate", "seed"]
    assert not list(tmp_path.glob("*.part"))


def test_what_a_run_found_is_printed_as_its_series_and_not_as_frames():
    """The interval is of the metric that chose, over the reported seeds only."""
    rows = [
        {"law": law, "learning_rate": rate, "seed": seed, "train_loss": loss * rate}
        for law, loss in (("none", 2.0), ("inverse", 1.0))
        for rate in (0.5, 1.0)
        for seed in (5, 6, 7)
    ]
    selection = Selection(("learning_rate",))
    result = split(["law", "learning_rate"], rows, rows, selection=selection)
    summary, header, *shown = str(result).splitlines()
    assert summary == "2 series, 3 seeds; each at its best learning_rate"
    assert header.split() == [
        "law",
        "learning_rate",
        *["train_loss", "(95", "%", "interval)"],
    ]
    assert [line.split() for line in shown] == [
        ["none", "0.5", "1"],
        ["inverse", "0.5", "0.5"],
    ]
    many = [row | {"law": str(i)} for i in range(40) for row in rows[:1]]
    result = split(["law", "learning_rate"], many, [], selection=selection)
    assert str(result).splitlines()[-1] == "10 more series: see `best`"
    assert str(Run(pd.DataFrame(), pd.DataFrame())) == "0 results"
    late = TimeTo("train_loss", 1.5, along="update")
    curves = [row | {"update": 10 * row["seed"]} for row in rows]
    timed = split(
        ["law", "learning_rate"], rows, curves, selection=selection._replace(by=late)
    )
    assert "update_to_train_loss_1.5 (95 % interval)" in str(timed)


def test_a_time_is_printed_beside_its_own_series_where_rows_were_left_out():
    rows = [{"delay": d, "seed": 0, "train_loss": 1.0, "diverged": 0} for d in (0, 4)]
    curves = [row | {"update": 5 * (1 + row["delay"])} for row in rows]
    selection = Selection(by=TimeTo("train_loss", 1.5, along="update"))
    result = split(["delay"], rows, curves, selection=selection).where(delay=4)
    assert str(result).splitlines()[-1].split() == ["25"]
