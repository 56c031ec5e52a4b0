import csv
import json
import os

import numpy as np
import pytest

import delayjax as dj
from configs import default
from delayjax._src.cluster.trace import Dropped
from experiments import grid, records, results
from experiments.course import Course
from experiments.train import Chunk, Counters

PROGRAM = grid.Program("adam", "none", "after")


def tiny_counters(seeds=1, cells=1, diverged=(-1,)):
    """Counters of [seeds, cells] whose every update was fresh."""
    counts = np.zeros((seeds, cells, 3), np.int32)
    counts[..., 0] = 10
    none = np.zeros((seeds, cells), np.int32)
    return Counters(
        diverged_step=np.tile(np.asarray(diverged, np.int32), (seeds, 1)),
        staleness_counts=counts,
        clipped=none,
        dropped=none,
    )


def write(workdir, config):
    records.write_config(workdir, config, docstring="", facts={}, wall_seconds=None)


def test_a_workdir_takes_its_own_config_back(tmp_path):
    config = default.get_config()
    records.open_workdir(tmp_path / "new", config)
    write(tmp_path / "new", config)
    config.dry_run, config.profile = True, (3, 4)  # are not the run
    records.open_workdir(tmp_path / "new", config)


def test_another_config_is_refused_with_the_keys_named(tmp_path):
    config = default.get_config()
    write(tmp_path, config)
    config.delay.max_delay = 64
    with pytest.raises(ValueError, match=r"delay.max_delay: None there, 64 now"):
        records.open_workdir(tmp_path, config)


def test_an_unreadable_record_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"config"')
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        records.open_workdir(tmp_path, default.get_config())


def test_an_unwritable_workdir_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        records.open_workdir(tmp_path / "file" / "run", default.get_config())


def test_what_ran_is_written_down(tmp_path):
    config = default.get_config()
    records.write_config(
        tmp_path, config, docstring="Why?", facts={"n": 1}, wall_seconds=None
    )
    records.write_config(
        tmp_path, config, docstring="Why?", facts={"n": 1}, wall_seconds=2.0
    )
    records.write_config(
        tmp_path, config, docstring="Why?", facts={"n": 1}, wall_seconds=3.0
    )
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["wall_seconds"] == 5.0  # over all commands on this run
    assert record["config"]["task"]["name"] == "digits_mlp"
    assert record["seeds"] == [0, 1, 2]
    assert {"python", "jax", "optax", "delayjax"} <= record["versions"].keys()
    assert record["docstring"] == "Why?" and record["facts"] == {"n": 1}


def test_the_metrics_of_a_resumed_run_end_as_if_uninterrupted(tmp_path):
    counters = tiny_counters()
    chunk = Chunk(np.ones((10, 1, 1), np.float32), np.zeros((10, 1, 1), np.int32))

    def rows(path, resumed_at):
        for kept, steps in resumed_at:
            metrics = records.Metrics(path, PROGRAM, kept)
            for step in steps:
                metrics.write(step, chunk, counters, 1.0)
            metrics.close()
        return (path / "metrics.jsonl").read_text()

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    whole = rows(tmp_path / "a", [(0, (10, 20, 30, 40))])
    broken = tmp_path / "b"
    rows(broken, [(0, (10, 20, 30))])
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"program": "adam-none-aft')  # killed in the middle of a line
    assert rows(broken, [(20, (30, 40))]) == whole


def test_a_loss_that_is_not_finite_is_null_in_json(tmp_path):
    loss = np.array([[[1.0, np.nan]]], np.float32)
    counters = tiny_counters(cells=2, diverged=(-1, 0))
    metrics = records.Metrics(tmp_path, PROGRAM, 0)
    row = metrics.write(1, Chunk(loss, np.zeros_like(loss, np.int32)), counters, 1.0)
    metrics.close()
    assert row["losses"] == [[1.0, None]] and row["not_finite"] == 1
    (read,) = results.read_metrics(tmp_path / "metrics.jsonl")
    assert read == row


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_staleness_summary_is_numpys(seed):
    draws = np.random.default_rng(seed).poisson(5.0, 1000)
    summary = records.staleness_summary(np.bincount(draws))
    np.testing.assert_allclose(summary["staleness_mean"], draws.mean())
    expected = np.percentile(draws, 99, method="inverted_cdf")
    assert summary["staleness_p99"] == expected
    assert summary["staleness_max"] == draws.max()


def test_results_are_tidy(tmp_path):
    config = default.get_config()
    config.opt.adam.learning_rate = (0.01, 0.03)
    config.delay.value, config.seeds, config.steps = (0, 4), (5, 6), 10
    counters = tiny_counters(seeds=2, cells=4, diverged=(-1, -1, 7, -1))
    initial = {"train_loss": np.full((2, 4), 2.0)}
    final = {
        "train_loss": np.array([[1.0, 3.0, np.nan, 1.0]] * 2),
        "test_accuracy": np.full((2, 4), 0.5),
    }
    records.write_results(
        tmp_path, records.results(config, PROGRAM, counters, initial, final)
    )
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == records.COLUMNS and len(rows) == 8
    # ending above the initial loss is diverging too
    assert [row["diverged"] for row in rows[:4]] == ["0", "1", "1", "0"]
    assert [row["diverged_step"] for row in rows[:4]] == ["-1", "-1", "7", "-1"]
    assert [row["learning_rate"] for row in rows[:4]] == [
        "0.01",
        "0.01",
        "0.03",
        "0.03",
    ]
    assert [row["delay"] for row in rows[:4]] == ["0", "4", "0", "4"]
    assert [row["seed"] for row in rows[::4]] == ["5", "6"]
    assert rows[0]["test_loss"] == "" and rows[0]["test_accuracy"] == "0.5"
    assert not os.path.exists(tmp_path / "results.part")


def tiny_course(*arrived, batch_size=4):
    """Two updates of workers 0, 1, ..., at 1.5 and 2 s; one seed for each argument.

    An argument holds how many gradients each update has, and how many are dropped
    before the second.
    """

    def trace(counts, dropped):
        update = np.repeat(np.arange(2, dtype=np.int32), counts)
        worker = np.concatenate([np.arange(n, dtype=np.int32) for n in counts])
        none = np.zeros(dropped, np.int32)
        never = np.zeros(dropped)
        return dj.cluster.Trace(
            num_workers=4,
            seconds=np.array([1.5, 2.0]),
            update=update,
            worker=worker,
            read_version=0 * update,
            begun=0.0 * update,
            arrived=1.0 * update,
            divisor=np.asarray(counts, np.float64),
            dropped=Dropped(none + 1, none, none, never, never),
            busy_seconds=np.zeros(4),
        )

    traces = tuple(trace(counts, dropped) for counts, dropped in arrived)
    return Course("k_async(1)", traces, 2, 2, batch_size)


def arm_config(learning_rate=(0.01,), seeds=(5,)):
    config = default.get_config()
    config.opt.adam.learning_rate = learning_rate
    config.seeds, config.steps = seeds, 2
    config.cluster.arms = ("k_async(1)",)
    return config


ARM = PROGRAM._replace(arm="k_async(1)")


def test_an_arm_s_rows_have_its_clock_and_its_share_of_dropped_gradients():
    config = arm_config(seeds=(5, 6))
    course = tiny_course(((1, 2), 1), ((2, 2), 0))
    counters = tiny_counters(seeds=2, diverged=(-1,))
    counters.diverged_step[1] = 1
    metrics = {"train_loss": np.ones((2, 1)), "gradient_norm": np.full((2, 1), 3.0)}
    first, second = records.results(config, ARM, counters, metrics, metrics, course)
    assert (first["arm"], first["delay_law"], first["delay"]) == (
        *("k_async(1)", "trace", "0"),
    )
    assert (first["updates"], first["seconds"], first["dropped"]) == (2, 2.0, 1 / 4)
    # one update was done before the loss was not finite
    assert (second["updates"], second["seconds"], second["dropped"]) == (1, 1.5, 0.0)
    assert first["gradient_norm"] == 3.0


def test_without_an_arm_its_columns_are_empty(tmp_path):
    config = default.get_config()
    config.opt.adam.learning_rate, config.delay.value = (0.1,), (4,)
    config.seeds = (0,)
    metrics = {"train_loss": np.ones((1, 1))}
    records.write_results(
        tmp_path, records.results(config, PROGRAM, tiny_counters(), metrics, metrics)
    )
    (row,) = results.read(tmp_path / "results.csv")
    assert (row.arm, row.delay, row.updates) == ("", 4.0, config.steps)
    assert np.isnan([row.seconds, row.seconds_to_target, row.gradient_norm]).all()


def test_the_metrics_of_an_arm_hold_its_clock_and_its_evaluation(tmp_path):
    course = tiny_course(((1, 2), 1), ((0, 2), 0))
    losses = np.array([[[1.0], [9.0]], [[3.0], [5.0]]], np.float32)
    evaluation = {"train_loss": np.array([[0.5], [np.nan]])}
    chunk = Chunk(losses, 0 * losses, evaluation)
    metrics = records.Metrics(tmp_path, ARM, 0, course)
    row = metrics.write(2, chunk, tiny_counters(seeds=2), 1.0)
    assert metrics.rows() == [row]
    metrics.close()
    # the second seed's first update had no gradient, and so no loss
    assert row["losses"] == [[2.0], [5.0]]
    assert row["seconds"] == [2.0, 2.0] and row["examples"] == [4 * 3, 4 * 2]
    assert row["evaluation"] == {"train_loss": [[0.5], [None]]}
    assert row["dropped"] == pytest.approx((1 / 4 + 0) / 2)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_mean_loss_of_a_delay_is_the_plain_mean(tmp_path, seed):
    losses = np.random.default_rng(seed).normal(size=(50, 2, 7)).astype(np.float32)
    chunk = Chunk(losses, np.zeros_like(losses, np.int32))
    metrics = records.Metrics(tmp_path, PROGRAM, 0)
    row = metrics.write(50, chunk, tiny_counters(2, 7, (-1,) * 7), 1.0)
    metrics.close()
    assert row["losses"] == np.mean(losses, axis=0).tolist()  # bit for bit


def test_the_first_seed_s_trace_is_kept_and_no_other_takes_its_place(tmp_path):
    course = tiny_course(((1, 2), 1), ((2, 2), 0))
    for _ in range(2):
        records.write_trace(tmp_path, course, 5)
    path = tmp_path / "traces" / "k_async_1-seed5.npz"
    assert [*path.parent.iterdir()] == [path]
    kept = dj.cluster.load_trace(path)
    np.testing.assert_array_equal(kept.counts, [1, 2])
    with pytest.raises(ValueError, match=r"k_async_1-seed5\.npz is the trace of anoth"):
        records.write_trace(tmp_path, tiny_course(((2, 2), 0)), 5)


def test_curves_are_read_as_they_are_written(tmp_path):
    config = arm_config((0.01, 0.03))
    cells = records.settings(config, ARM)[0]
    rows = [
        cell | {"step": 2, "seconds": 1.5, "examples": 8, "train_loss": 0.25}
        for cell in cells
    ]
    records.write_curves(tmp_path, rows)
    first, second = results.read_curves(tmp_path / "curves.csv")
    assert (first.arm, first.learning_rate, second.learning_rate) == (
        *("k_async(1)", 0.01, 0.03),
    )
    assert (first.step, first.seconds, first.examples) == (2, 1.5, 8)
    assert first.train_loss == 0.25 and np.isnan(first.test_accuracy)
