"""The records of a run: what is read, and why what cannot be read cannot."""

import csv
import dataclasses
import json
import math

import pytest

from experiments import results


def record(**changes):
    """One row of results.csv as it is written."""
    row = {
        "task": "digits_mlp",
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "delay_law": "constant",
        "delay": 0,
        "modulation": "none",
        "placement": "after",
        "compensation": "none",
        "strength": 0.0,
        "seed": 0,
        "steps": 600,
        "diverged": 0,
        "diverged_step": -1,
        "train_loss": 0.5,
        "test_loss": 0.6,
        "train_accuracy": 0.9,
        "test_accuracy": 0.8,
        "staleness_mean": 0.0,
        "staleness_p99": 0,
        "staleness_max": 0,
        "clipped": 0.0,
        "dropped": 0.0,
    }
    assert not changes.keys() - row.keys()
    return row | changes


def read(folder, records):
    path = folder / "results.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return results.read(path)


def test_a_row_is_read_with_its_types(tmp_path):
    (row,) = read(tmp_path, [record(delay="2.5", seed=3, test_accuracy="")])
    assert (row.delay, row.seed, row.diverged) == (2.5, 3, False)
    assert math.isnan(row.test_accuracy)
    assert row.value("train_loss") == 0.5
    assert row.value("gap") == pytest.approx(0.6 - 0.5)


@pytest.mark.parametrize("loss", ["nan", "inf", "", "0.3"])
def test_a_diverged_row_has_no_value_whatever_is_written(tmp_path, loss):
    diverged = int(loss == "0.3")
    (row,) = read(tmp_path, [record(train_loss=loss, diverged=diverged)])
    assert row.diverged
    assert all(math.isnan(row.value(metric)) for metric in results.METRICS)


def test_a_diverged_row_never_reaches_its_target(tmp_path):
    changes = {"arm": "k_sync(2)", "seconds_to_target": "inf", "diverged": 1}
    (row,) = read(tmp_path, [record() | changes])
    assert row.arm == "k_sync(2)" and row.value("seconds_to_target") == math.inf


def test_records_of_the_first_version_lack_the_columns_of_arms(tmp_path):
    (row,) = read(tmp_path, [record()])
    assert row.arm == "" and math.isnan(row.seconds) and math.isnan(row.gradient_norm)


def test_curves_are_read_with_their_types(tmp_path):
    setting = {
        name: value
        for name, value in record().items()
        if name in {field.name for field in dataclasses.fields(results.Setting)}
    }
    metrics = {"train_loss": 0.5, "test_loss": "", "gradient_norm": "nan"}
    curve = setting | {"arm": "k_sync(2)", "step": 3, "seconds": 1.5, "examples": 96}
    curve |= {"train_accuracy": 0.75, "test_accuracy": ""} | metrics
    path = tmp_path / "curves.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(curve))
        writer.writeheader()
        writer.writerow(curve)
    (row,) = results.read_curves(path)
    assert (row.arm, row.step, row.seconds, row.examples) == ("k_sync(2)", 3, 1.5, 96)
    assert row.train_loss == 0.5 and math.isnan(row.gradient_norm)


def test_a_table_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"experiments\.main"):
        results.read(tmp_path / "results.csv")
    with pytest.raises(ValueError, match="lacks the columns strength, dropped"):
        read(
            tmp_path,
            [
                {k: v for k, v in record().items() if k not in ("strength", "dropped")},
            ],
        )
    with pytest.raises(ValueError, match=r"line 2: `seed` must be int, got 'x'"):
        read(tmp_path, [record(seed="x")])
    (tmp_path / "results.csv").write_text(",".join(record()) + "\n")
    with pytest.raises(ValueError, match="no rows"):
        results.read(tmp_path / "results.csv")


def test_a_metric_is_recorded_where_a_row_has_it(tmp_path):
    rows = read(tmp_path, [record(test_accuracy="")])
    assert not results.recorded(rows, "test_accuracy")
    assert results.recorded(rows, "gap")


def test_a_run_that_diverged_everywhere_may_record_anything(tmp_path):
    rows = read(tmp_path, [record(test_accuracy="", diverged=1)])
    assert results.recorded(rows, "test_accuracy")


@pytest.mark.parametrize(
    ("task", "unit"),
    [
        ("digits_mlp", "nats"),
        ("tokens:/data/*.bin", "nats"),
        ("tfds:cifar10", "nats"),
        ("quadratic", ""),
        ("mine.tasks:make", ""),
    ],
)
def test_only_cross_entropies_are_in_nats(task, unit):
    assert results.loss_unit(task) == unit


def test_metrics_are_read_up_to_a_line_cut_short(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert results.read_metrics(path) == []
    rows = [{"program": "sgd-none-after", "step": step} for step in (50, 100)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"program": "s')
    assert results.read_metrics(path) == rows


def test_the_metrics_of_one_program_are_read_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    names = ("sgd-none-after", "sgd-none-after-k_async(1)", "sgd-none-after")
    rows = [{"program": name, "step": step} for step, name in enumerate(names)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert results.read_metrics(path, "sgd-none-after") == [rows[0], rows[2]]
    assert results.read_metrics(path, "sgd") == []


def test_a_folder_without_a_run_says_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"experiments.main.*{tmp_path}"):
        results.read_config(tmp_path)
