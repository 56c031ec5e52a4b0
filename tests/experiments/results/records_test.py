"""What a run leaves in its folder: rows, tables, run.json and traces."""

import dataclasses
import json

import numpy as np
import optax
import pandas as pd
import pytest

import delayjax as dj
from experiments import Experiment, Simulation, along, tasks
from experiments.results import records
from experiments.running.loop import Chunk, Counters
from experiments.running.programs import programs

EXPERIMENT = Experiment(
    question="Why?",
    task=tasks.quadratic(),
    training=optax.sgd,
    grid={"learning_rate": (0.01, 0.03)},
    seeds=(5, 6),
    updates=10,
    notes="So.",
)


def program(experiment=EXPERIMENT, **rule):
    """Its only one, with another rule's numbers."""
    (made,) = programs(experiment)
    return dataclasses.replace(made, rule=made.rule._replace(**rule))


PROGRAM = program()
SIMULATED = program(
    updates=2,
    seconds=lambda step: np.array([[0.0, 1.5, 2.0][step]] * 2),
    examples=lambda step: np.array([[0, 4, 12], [0, 0, 8]])[:, step],
    dropped=lambda step: np.array([[0.0, 0.5, 0.25], [0.0, 0.0, 0.0]])[:, step],
)
"""Two updates, at 1.5 s and 2 s; the second seed's first has no gradient."""


def counters(diverged=((-1, -1), (-1, -1))):
    """Of two seeds and two cells; every update was fresh."""
    counts = np.zeros((2, 2, 3), np.int32)
    counts[..., 0] = 10
    none = np.zeros((2, 2), np.int32)
    return Counters(np.asarray(diverged, np.int32), counts, none + 10, none, none)


def chunk(losses):
    losses = np.asarray(losses, np.float32)
    return Chunk(losses, np.zeros_like(losses))


ONES = chunk(np.ones((10, 2, 2)))


def begun(path, *, experiment=EXPERIMENT, made=(PROGRAM,), config=None, changed=None):
    folder = records.Folder(path)
    try:
        digests = {program.name: lambda updates: {} for program in made}
        given = config or {"rate": 1}, changed or {}
        folder.begin(experiment, made, *given, "a.py", digests)
    finally:
        folder.close()
    return folder


def test_a_folder_takes_its_own_run_back_and_adds_up_its_time(tmp_path):
    for seconds in (2.0, 3.0):
        begun(tmp_path / "new", changed={"rate": [2, 1]}).spent(seconds)
    record = json.loads((tmp_path / "new" / "run.json").read_text())
    assert record["wall_seconds"] == 5.0
    assert record["config"] == {"rate": 1} and record["changed"] == {"rate": [2, 1]}
    assert (record["question"], record["notes"]) == ("Why?", "So.")
    assert record["seeds"] == [5, 6] and record["settings"] == ["learning_rate"]
    assert {"python", "jax", "optax", "delayjax"} <= record["versions"].keys()
    (made,) = record["programs"]
    assert made["cells"] == [{"learning_rate": 0.01}, {"learning_rate": 0.03}]
    assert (made["updates"], made["facts"]) == (10, dict(EXPERIMENT.task.facts))


def test_an_unreadable_record_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"config"')
    with pytest.raises(ValueError, match=r"run\.json cannot be read"):
        begun(tmp_path)


def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"--workdir=.*file/run cannot be written"):
        records.Folder(tmp_path / "file" / "run")


def test_the_metrics_of_a_resumed_run_end_as_if_uninterrupted(tmp_path):
    def rows(path, resumed_at):
        for kept, steps in resumed_at:
            metrics = records.Metrics(path, PROGRAM, kept)
            for step in steps:
                metrics.write(step, ONES, counters(), 1.0, None)
        return (path / "metrics.jsonl").read_text()

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    whole = rows(tmp_path / "a", [(0, (0, 10, 20, 30, 40))])
    broken = tmp_path / "b"
    # killed before its first checkpoint, it begins again
    rows(broken, [(0, (0, 10)), (0, (0, 10, 20, 30))])
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"program": "al')  # killed in the middle of a line
    assert rows(broken, [(20, (30, 40))]) == whole


def test_a_line_that_cannot_be_read_costs_itself_alone(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    lines = ['{"program": "a", "step": 1}', "{", "[]", '{"step": 2}']
    path.write_text("\n".join([*lines, '{"program": "a", "step": 3}', ""]))
    with caplog.at_level("WARNING", logger="experiments"):
        rows = records.read_metrics(path)
    assert [row["step"] for row in rows] == [1, 3]
    assert "3 lines cannot be read and are left out" in caplog.text


def test_the_rows_of_other_programs_stay(tmp_path):
    other = dataclasses.replace(PROGRAM, name="other")
    for made in (PROGRAM, other, PROGRAM):  # the first begins again
        metrics = records.Metrics(tmp_path, made, 0)
        row = metrics.write(10, ONES, counters(), 1.0, None)
        assert metrics.rows() == [row]
    rows = records.read_metrics(tmp_path / "metrics.jsonl")
    assert [row["program"] for row in rows] == ["other", PROGRAM.name]


def test_a_loss_that_is_not_finite_is_null_in_json(tmp_path):
    metrics = records.Metrics(tmp_path, PROGRAM, 0)
    losses = [[[1.0, np.nan], [3.0, np.inf]]]
    counted = counters([[-1, 0], [-1, 0]])
    row = metrics.write(1, chunk(losses), counted, 1.0, None)
    assert row["losses"] == [[1.0, None], [3.0, None]]
    assert (row["not_finite"], row["train_loss"]) == (2, 2.0)  # the live ones' median
    assert records.read_metrics(tmp_path / "metrics.jsonl") == [row]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_mean_loss_of_a_chunk_is_the_plain_mean(tmp_path, seed):
    losses = np.random.default_rng(seed).normal(size=(50, 2, 2)).astype(np.float32)
    metrics = records.Metrics(tmp_path, PROGRAM, 0)
    row = metrics.write(50, chunk(losses), counters(), 1.0, None)
    assert row["losses"] == np.mean(losses, axis=0).tolist()  # bit for bit


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_staleness_summary_is_numpys(seed):
    draws = np.random.default_rng(seed).poisson(5.0, 1000)
    summary = records.staleness_summary(np.bincount(draws))
    np.testing.assert_allclose(summary["staleness_mean"], draws.mean())
    expected = np.percentile(draws, 99, method="inverted_cdf")
    assert summary["staleness_p99"] == expected
    assert summary["staleness_max"] == draws.max()


def test_without_gradients_the_summary_is_zero():
    assert set(records.staleness_summary(np.zeros(3, int)).values()) == {0}


def test_results_are_tidy():
    initial = {"train_loss": np.full((2, 2), 2.0)}
    final = {
        "train_loss": np.array([[1.0, 3.0], [np.nan, 1.0]]),
        "test_accuracy": np.full((2, 2), 0.5),
    }
    rows = records.results(PROGRAM, counters([[-1, -1], [7, -1]]), initial, final)
    found = pd.DataFrame(rows)
    assert found["seed"].tolist() == [5, 5, 6, 6]
    assert found["learning_rate"].tolist() == [0.01, 0.03] * 2
    # ending above the initial loss is diverging too
    assert found["diverged"].tolist() == [0, 1, 1, 0]
    assert found["diverged_update"].tolist() == [-1, -1, 7, -1]
    # seven updates were done before the loss was not finite
    assert found["updates"].tolist() == [10, 10, 7, 10]
    assert found["test_accuracy"].eq(0.5).all() and "seconds" not in found


def test_rows_have_the_clock_and_the_share_of_dropped_gradients():
    metrics = {"train_loss": np.ones((2, 2)), "gradient_norm": np.full((2, 2), 3.0)}
    counted = counters([[-1, -1], [1, -1]])
    rows = records.results(SIMULATED, counted, metrics, metrics)
    first, _, stopped, second = rows
    assert (first["updates"], first["seconds"], first["dropped"]) == (2, 2.0, 0.25)
    assert (second["examples"], second["dropped"]) == (8, 0.0)
    # one update was done before the loss was not finite
    assert (stopped["updates"], stopped["seconds"], stopped["examples"]) == (1, 1.5, 0)
    assert first["gradient_norm"] == 3.0


def test_without_a_cluster_dropped_is_the_share_that_was_counted():
    counted = counters()._replace(dropped=np.array([[0, 1], [2, 3]]))
    metrics = {"train_loss": np.ones((2, 2))}
    rows = records.results(PROGRAM, counted, metrics, metrics)
    assert [row["dropped"] for row in rows] == [0.0, 0.1, 0.2, 0.3]


def test_what_the_server_and_a_rule_refuse_is_one_share_in_rows_and_metrics(tmp_path):
    refused = np.array([[0, 1], [2, 10]])
    counted = counters()._replace(dropped=refused, dropped_in_row=refused)
    metrics = {"train_loss": np.ones((2, 2))}
    rows = records.results(SIMULATED, counted, metrics, metrics)
    # the server refused a quarter of the first seed's; of the rest a rule, a tenth
    shares = [0.25, 0.25 + 0.75 * 0.1, 0.2, 1.0]
    assert [row["dropped"] for row in rows] == pytest.approx(shares)
    assert [row["dropped_in_row"] for row in rows] == [0, 1, 2, 10]
    written = records.Metrics(tmp_path, SIMULATED, 0)
    row = written.write(2, ONES, counted, 1.0, None)
    assert row["dropped"] == pytest.approx(np.mean(shares))
    assert row["dropped_in_row"] == 10


def test_metrics_hold_the_clock_and_the_evaluation_and_curves_are_read_from_them(
    tmp_path,
):
    losses = [[[1.0, 1.0], [np.nan] * 2], [[3.0, 3.0], [5.0, 5.0]]]
    evaluation = {"train_loss": np.array([[0.5, np.nan], [2.0, 3.0]])}
    metrics = records.Metrics(tmp_path, SIMULATED, 0)
    row = metrics.write(2, chunk(losses), counters(), 1.0, evaluation)
    # the second seed's first update had no gradient, and so no loss
    assert row["losses"] == [[2.0, 2.0], [5.0, 5.0]]
    assert row["seconds"] == [2.0, 2.0] and row["examples"] == [12, 8]
    assert row["evaluation"] == {"train_loss": [[0.5, None], [2.0, 3.0]]}
    found = pd.DataFrame(records.curves(SIMULATED, metrics.rows()))
    assert found["seed"].tolist() == [5, 5, 6, 6]
    assert found["learning_rate"].tolist() == [0.01, 0.03] * 2
    assert found["examples"].tolist() == [12, 12, 8, 8]
    np.testing.assert_array_equal(found["train_loss"], [0.5, np.nan, 2.0, 3.0])


def test_tuning_seeds_have_tables_of_their_own(tmp_path):
    """Seed 5 is reported, seed 6 chooses."""
    losses = {"train_loss": np.array([[0.1, 0.2], [0.9, 0.8]])}
    rows = records.results(SIMULATED, counters(), losses, losses)
    points = [row | {"update": 0} for row in rows]
    own = dataclasses.replace(EXPERIMENT, tuned="learning_rate", seeds=(5,))
    tuned = dataclasses.replace(own, tuning_seeds=(6,))
    found = records.tables(tuned, ["learning_rate"], rows, points)
    records.write_tables(tmp_path, found)
    info = {"tuned": ["learning_rate"], "tuning_seeds": [6], "tuned_by": "train_loss"}
    (tmp_path / "run.json").write_text(json.dumps(info))
    for there in (found, records.Run.read(tmp_path)):
        assert set(there.results.seed) == set(there.curves.seed) == {5}
        assert there.choice.seeds == [6] and set(there.choice.curves.seed) == {6}
        assert there.best.learning_rate.tolist() == [0.03]
        assert there.best.train_loss.tolist() == [0.2]
    # a line of metrics.jsonl that was lost stays in both curves
    fewer = records.tables(tuned, ["learning_rate"], rows, points[1:3])
    again = records.with_lost(tmp_path, fewer)
    assert len(again.curves) == len(again.choice.curves) == 2
    # beside a run without tuning seeds, each is judged as it says
    other = tmp_path / "other"
    other.mkdir()
    plain = records.tables(own, ["learning_rate"], rows[:2], points[:2])
    records.write_tables(other, plain)
    (other / "run.json").write_text(json.dumps({"question": "another"}))
    both = records.Run.read(tmp_path, other).best
    assert both.groupby("run").learning_rate.unique().str[0].to_dict() == {
        tmp_path.name: 0.03,
        "other": 0.01,
    }


def test_tables_are_read_as_they_are_written(tmp_path):
    metrics = {"train_loss": np.array([[0.1, 1 / 3], [np.nan, 1e-30]])}
    rows = records.results(SIMULATED, counters(), metrics, metrics)
    names = ("None", "", "NA", "x")
    rows = [{"law": name} | row for name, row in zip(names, rows, strict=True)]
    found = records.tables(EXPERIMENT, ["law", "learning_rate"], rows, [])
    records.write_tables(tmp_path, found)
    read = records.Run.read(tmp_path).results
    pd.testing.assert_frame_equal(read, found.results.replace("", np.nan), rtol=0)
    assert list(read)[:3] == ["law", "learning_rate", "seed"]
    assert not list(tmp_path.glob("*.part"))


def followed(service, updates=8):
    """Along a cluster of two workers with this service time."""
    cluster = dj.cluster.Cluster(2, dj.cluster.exponential(service))
    source = Simulation(cluster, dj.cluster.protocols.k_async(1))
    experiment = dataclasses.replace(
        EXPERIMENT, training=along(source, optax.sgd), updates=updates
    )
    return experiment, programs(experiment)


def test_the_first_seed_s_trace_is_kept_as_far_as_the_run_goes(tmp_path):
    for updates in (8, 12, 12):
        experiment, made = followed(1.0, updates)
        begun(tmp_path, experiment=experiment, made=made)
        (path,) = (tmp_path / "traces").iterdir()
        kept = dj.cluster.load_trace(path)
        np.testing.assert_array_equal(kept.seconds, made[0].rule.traces[0].seconds)
    assert kept.num_updates == 12
    other, slower = followed(2.0, 12)
    with pytest.raises(ValueError, match=r"all\.npz is the trace of another run"):
        begun(tmp_path, experiment=other, made=slower)
