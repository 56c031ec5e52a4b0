"""A run: its numbers, its records, its end and its resumption."""

import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import logging
import os
import shutil
import signal
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import delayjax as dj
from delayjax.cluster.protocols import k_async, k_batch_async, n_softsync
from experiments import (
    Effect,
    Experiment,
    Run,
    Simulation,
    along,
    percent,
    run,
    tasks,
)
from experiments.figures import TimeTo
from experiments.host import checkpoints, processes, progress
from experiments.host.folder import RunFolder
from experiments.run import prepared
from experiments.running import loop
from experiments.running.evaluation import gradient_norm
from experiments.running.programs import programs
from experiments.running.trainer import Trainer
from experiments.training.jobs import data_seed
from tests.support.cases import shortened

pytestmark = pytest.mark.runs

EIGENVALUES = (0.5, 2.0)
QUADRATIC = tasks.quadratic(EIGENVALUES, noise=0.1)


def late(learning_rate, delay):
    return dj.delayed(optax.sgd(learning_rate), delay, max_delay=3)


def experiment(**changes):
    return Experiment(
        **dict(
            question="?",
            task=QUADRATIC,
            training=late,
            grid={"learning_rate": (0.1, 0.2), "delay": (0, 3)},
            seeds=2,
            updates=30,
            evaluate_every=10,
        )
        | changes
    )


NORM = {"norm": lambda model, task: jnp.sum(model.params)}


def by_hand(learning_rate, delay, seed, updates):
    """SGD with the gradient of `delay` updates ago, in float64."""
    key = jax.random.fold_in(jax.random.key(0), seed)
    x = np.asarray(QUADRATIC.init(key), float)
    noise = QUADRATIC.batches(data_seed(seed), 0, 30)
    gradients = []
    for t in range(updates):
        gradients.append(np.asarray(EIGENVALUES) * x + 0.1 * noise[t])
        x = x - learning_rate * gradients[t - min(delay, t)]
    return 0.5 * np.sum(np.asarray(EIGENVALUES) * x**2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupted: its folder, which is to stay, and its tables."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(experiment(), str(folder), keep_checkpoints=True)


TUNED = experiment(updates=10, tuned="learning_rate", tuning_seeds=1)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The folder of a run with tuning seeds."""
    folder = tmp_path_factory.mktemp("tuned")
    run(TUNED, str(folder), keep_checkpoints=True)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of that run's folder."""
    return shutil.copytree(whole[0], tmp_path / "copy")


def test_a_run_s_results_are_a_loop_s_by_hand_and_it_knows_its_time(whole):
    there, result = whole
    written = json.loads((there / "run.json").read_text())
    assert result.info["wall_seconds"] == written["wall_seconds"] > 0
    assert len(result.results) == 2 * 2 * 2
    for row in result.results.itertuples():
        expected = by_hand(row.learning_rate, row.delay, row.seed, 30)
        assert row.train_loss == pytest.approx(expected, rel=1e-4)
        assert row.staleness_max == row.delay
        assert (row.updates, row.diverged) == (30, 0)


def test_curves_have_the_start_each_evaluation_and_the_end(tmp_path):
    result = run(experiment(updates=25), str(tmp_path))
    cell = result.curves.query("learning_rate == 0.1 and delay == 3 and seed == 1")
    assert cell["update"].tolist() == [0, 10, 20, 25]
    expected = [by_hand(0.1, 3, 1, updates) for updates in (0, 10, 20, 25)]
    np.testing.assert_allclose(cell["train_loss"], expected, rtol=1e-4)
    last = result.results.query("learning_rate == 0.1 and delay == 3 and seed == 1")
    assert last["train_loss"].item() == cell["train_loss"].iloc[-1]


def test_the_tables_are_on_disk_and_several_runs_are_one_frame(whole, tmp_path):
    there, result = whole
    for name in ("a", "b"):
        shutil.copytree(there, tmp_path / name)
    both = Run.read(tmp_path / "a", tmp_path / "b")
    assert both.results["run"].value_counts().to_dict() == {"a": 8, "b": 8}
    again = both.results.query("run == 'b'").drop(columns="run").reset_index(drop=True)
    pd.testing.assert_frame_equal(again, result.results, rtol=0)


def test_a_grid_of_momentum_delay_and_step_is_traced_once(tmp_path):
    traced = []

    def make(learning_rate, momentum, delay):
        if isinstance(learning_rate, jax.core.Tracer):
            traced.append(learning_rate)
        return dj.delayed(optax.sgd(learning_rate, momentum), delay, max_delay=4)

    grid = {"learning_rate": (0.1, 0.3), "momentum": (0.0, 0.9), "delay": (0, 4)}
    few = {name: values[:1] for name, values in grid.items()}
    counts = []
    for axes in (few, grid):
        traced.clear()
        run(
            experiment(training=make, grid=axes, updates=4, seeds=1),
            str(tmp_path / str(len(counts))),
        )
        counts.append(len(traced))
    assert counts[0] == counts[1]


def test_the_parts_of_a_run_together_are_the_whole(whole, tmp_path):
    parts = [
        run(experiment(), str(tmp_path / str(i)), shard=(i, 3)).results
        for i in range(3)
    ]
    keys = ["learning_rate", "delay", "seed"]
    together = pd.concat(parts).sort_values(keys).reset_index(drop=True)
    expected = whole[1].results.sort_values(keys).reset_index(drop=True)
    pd.testing.assert_frame_equal(together, expected, rtol=1e-6)


def test_a_cell_that_diverges_is_frozen_and_its_neighbors_go_on(tmp_path):
    grid = {"learning_rate": (0.1, 1e25), "delay": (0,)}
    result = run(experiment(grid=grid), str(tmp_path)).results
    lost = result.query("learning_rate > 1")
    assert lost["diverged"].all()
    assert (lost["diverged_update"] == lost["updates"]).all()
    for row in result.query("learning_rate < 1").itertuples():
        expected = by_hand(0.1, 0, row.seed, 30)
        assert row.train_loss == pytest.approx(expected, rel=1e-4)
        assert row.diverged == 0


def test_a_bounded_run_that_begins_at_the_optimum_ends_higher_and_is_tuned(tmp_path):
    """Noise alone moves it: the smallest step ends lowest, and is not the first."""
    at_optimum = dataclasses.replace(QUADRATIC, init=lambda key: jnp.zeros(2))
    grid = {"learning_rate": (0.2, 0.02), "delay": (0,)}
    asked = experiment(task=at_optimum, grid=grid, tuned="learning_rate")
    result = run(asked, str(tmp_path))
    assert result.results["ended_higher"].all() and not result.results["diverged"].any()
    assert result.best["learning_rate"].unique().tolist() == [0.02]


def test_a_finished_run_is_read_and_a_further_metric_trains_again(
    folder, whole, monkeypatch
):
    trained = []
    module = sys.modules["experiments.run"]
    train = module._train
    monkeypatch.setattr(
        module, "_train", lambda *a, **k: trained.append(a) or train(*a, **k)
    )
    assert (folder / "checkpoints").exists()
    again = run(experiment(question="Asked otherwise?"), str(folder))
    assert not trained and not (folder / "checkpoints").exists()
    pd.testing.assert_frame_equal(again.results, whole[1].results, atol=0, rtol=0)
    pd.testing.assert_frame_equal(again.curves, whole[1].curves, atol=0, rtol=0)
    assert Run.read(folder).info["question"] == "Asked otherwise?"
    result = run(experiment(metrics=NORM), str(folder))
    assert trained and result.curves["norm"].notna().all()
    assert result.results["norm"].notna().all()
    expected = whole[1].results
    pd.testing.assert_frame_equal(result.results[[*expected]], expected, rtol=0)
    trained.clear()
    run(experiment(), str(folder))  # a metric less
    assert not trained
    (folder / "curves.csv").unlink()
    run(experiment(), str(folder))
    assert trained


ANEW = "all begins at update 0: it was evaluated after other updates"
TENS, TWENTY = dict(evaluate_every=10), dict(updates=20)
FOUR = dict(evaluate_every=None, evaluations=4)
# the first run, a run that goes on in the same folder, and what it says; where it says
# something else than `ANEW`, it says so only if there are checkpoints
EVALUATIONS = {
    "edited to be more": (TENS, dict(evaluate_every=4), ANEW),
    "edited to be fewer": (dict(evaluate_every=5), TENS, "all is done at update 30"),
    "more updates": (TWENTY, dict(updates=40), "all resumes at update 20"),
    "more updates, from between two": (
        dict(updates=25),
        dict(updates=40),
        "all resumes at update 25",
    ),
    "more updates, further apart": (
        TWENTY | FOUR,
        dict(updates=40) | FOUR,
        "all resumes at update 20",
    ),
    "more updates, elsewhere": (
        TWENTY | FOUR | dict(evaluations=3),
        dict(updates=40) | FOUR | dict(evaluations=5),
        ANEW,
    ),
}
# without checkpoints all of these train from update 0
LOST = ("edited to be more", "edited to be fewer", "more updates")


@functools.cache
def from_the_start(**changes):
    return run(experiment(**changes))


@pytest.mark.parametrize(
    ("name", "kept"),
    [(name, True) for name in EVALUATIONS] + [(name, False) for name in LOST],
)
def test_a_run_that_goes_on_has_the_evaluations_of_one_from_the_start(
    name, kept, tmp_path, caplog
):
    caplog.set_level("INFO", logger=progress.log.name)
    first, then, said = EVALUATIONS[name]
    run(experiment(**first), str(tmp_path), keep_checkpoints=kept)
    assert (tmp_path / "checkpoints").exists() == kept
    caplog.clear()
    result = run(experiment(**then), str(tmp_path))
    assert (said in caplog.text) == (kept or said == ANEW)
    assert ("resumes" in caplog.text) == (kept and "resumes" in said)
    whole = from_the_start(**then)
    for one in (result, Run.read(tmp_path)):
        pd.testing.assert_frame_equal(one.curves, whole.curves, rtol=0)
        pd.testing.assert_frame_equal(one.results, whole.results, rtol=0)


# what happened to a table: a copy that was cut off, an editor
DAMAGED = {
    "half a line is lost": lambda text: text[: -len(text.splitlines()[-1]) // 2],
    "another number": lambda text: text.replace("0.2", "0.3"),
}


TABLES = ("results.csv", "curves.csv", "tuning/curves.csv")


def damaged(file, damage):
    """Damages a table, and returns its text before."""
    before = file.read_text()
    file.write_text(DAMAGED[damage](before))
    assert file.read_text() != before
    return before


def test_a_damaged_table_is_seen(tuned, tmp_path):
    folder = shutil.copytree(tuned, tmp_path / "copy")
    for name, damage in itertools.product(TABLES, DAMAGED):
        before = damaged(folder / name, damage)
        with pytest.raises(ValueError, match=rf"{name} is not as its run wrote it: a"):
            Run.read(folder)
        (folder / name).write_text(before)
        Run.read(folder)


@pytest.mark.parametrize(
    ("damage", "name", "kept"),
    [
        ("another number", "tuning/curves.csv", True),
        ("half a line is lost", "results.csv", False),
    ],
)
def test_a_damaged_table_is_made_anew(tuned, tmp_path, damage, name, kept, caplog):
    folder = shutil.copytree(tuned, tmp_path / "copy")
    if not kept:
        shutil.rmtree(folder / "checkpoints")
    before = damaged(folder / name, damage)
    run(TUNED, str(folder))
    assert f"{name} is not as the run wrote it: the tables are made" in caplog.text
    assert (folder / name).read_text() == before
    Run.read(folder)


def test_tables_of_an_earlier_version_have_no_digest_and_are_made_anew(folder):
    info = json.loads((folder / "run.json").read_text())
    tables = info.pop("tables")
    assert sorted(tables) == ["curves.csv", "results.csv"]
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "results.csv").write_text("seed\n0\n")
    run(experiment(), str(folder))
    assert Run.read(folder).info["tables"] == tables


def stopping(signal_number, at):
    """A task whose batches of update `at` ask the run to stop."""
    asked = []

    def batches(seed, start, stop):
        if start <= at < stop and not asked:
            asked.append(start)
            os.kill(os.getpid(), signal_number)
        return QUADRATIC.batches(seed, start, stop)

    return tasks.Task(QUADRATIC.init, QUADRATIC.loss, batches, QUADRATIC.evaluate)


@pytest.mark.parametrize(
    "number", shortened([signal.SIGTERM, signal.SIGINT], signal.SIGTERM)
)
def test_a_stopped_run_ends_in_the_same_bits(whole, tmp_path, number):
    task = stopping(number, 17)  # the digest reads the first, middle and last one
    with pytest.raises(
        loop.InterruptionError, match=f"stopped by {number.name}, "
    ) as e:
        run(experiment(task=task), str(tmp_path))
    assert e.value.by_hand == (number == signal.SIGINT)
    result, expected = run(experiment(task=task), str(tmp_path)), whole[1]
    pd.testing.assert_frame_equal(result.results, expected.results, rtol=0)
    pd.testing.assert_frame_equal(result.curves, expected.curves, rtol=0)


def events(trainer, **functions):
    """What `loop.run` does with a program, in order; a number is an update."""
    seen = []

    def run_chunk(state, given, count):
        seen.append(("run", int(state.step) + int(count)))
        return trainer.run_chunk(state, given, count)

    def save(step, state):
        assert int(state.step) == step
        seen.append(("save", step))
        functions.get("save", lambda: None)()

    own = copy.copy(trainer)
    own.run_chunk = run_chunk
    with contextlib.suppress(loop.InterruptionError, loop.DivergenceError):
        loop.run(
            own,
            own.init(),
            save=save,
            wait=lambda: seen.append(("wait", None)),
            report=lambda step, *rest: seen.append(("report", step)),
            checkpoint_every=20,
        )
        seen.append(("end", None))
    return seen


def test_a_chunk_is_reported_while_the_next_runs_and_before_its_checkpoint():
    (program,) = programs(experiment(updates=40))
    assert events(Trainer(program)) == [
        *(("run", 10), ("run", 20), ("report", 10), ("report", 20), ("save", 20)),
        *(("run", 30), ("run", 40), ("report", 30), ("report", 40), ("save", 40)),
        *(("wait", None), ("end", None)),
    ]


@pytest.mark.parametrize("where", ["here", "in another process"])
def test_a_row_that_cannot_be_written_ends_all_before_a_checkpoint(where, monkeypatch):
    (program,) = programs(experiment(updates=40))
    trainer, reported, saved = Trainer(program), [], []

    def report(step, *rest):
        reported.append(step)
        if where == "here":
            raise OSError("full")

    def save(step, state):
        saved.append(step)

    message = "^full$"
    if where == "in another process":  # of its flags, the last one is set
        message = "process 1 stops, and says why"
        monkeypatch.setattr(
            processes, "_of_each", lambda *own: [list(own), [*own[1:], True]]
        )
    with pytest.raises((OSError, ValueError), match=message):
        loop.run(trainer, trainer.init(), save=save, report=report)
    assert reported == ([10, 20] if where == "here" else [10]) and not saved


def test_sigterm_while_the_last_state_is_saved_is_not_forgotten():
    """The next program would train on."""
    (program,) = programs(experiment(updates=10))

    def save():
        os.kill(os.getpid(), signal.SIGTERM)

    seen = events(Trainer(program), save=save)
    assert seen[-2:] == [("save", 10), ("wait", None)]


def test_the_chunk_that_diverges_is_reported_and_no_other_begins():
    grid = {"learning_rate": (1e25,), "delay": (0,)}
    (program,) = programs(experiment(grid=grid, seeds=1, updates=40))
    seen = events(Trainer(program))
    assert seen == [("run", 10), ("report", 10)]


def test_a_full_disk_is_one_line_and_the_same_call_goes_on(
    whole, tmp_path, monkeypatch
):
    free = iter([10**9] * 2 + [1000])
    with monkeypatch.context() as patch:
        patch.setattr(
            checkpoints.shutil,
            "disk_usage",
            lambda path: SimpleNamespace(free=next(free)),
        )
        with pytest.raises(OSError, match=r"^the disk of \S+ is full: make room, "):
            run(experiment(), str(tmp_path), checkpoint_every=5)
    result, expected = run(experiment(), str(tmp_path), checkpoint_every=5), whole[1]
    pd.testing.assert_frame_equal(result.results, expected.results, rtol=0)
    pd.testing.assert_frame_equal(result.curves, expected.curves, rtol=0)


def test_a_bad_line_of_the_metrics_costs_that_line_alone(folder):
    path = folder / "metrics.jsonl"
    path.write_text("{broken\n" + path.read_text())
    result = run(experiment(updates=40), str(folder), keep_checkpoints=True)
    cell = result.curves.query("learning_rate == 0.1 and delay == 3 and seed == 1")
    assert cell["update"].tolist() == [0, 10, 20, 30, 40]


OF_A_RUN = ("results.csv", "curves.csv", "report.html", "checkpoints/", "tuning/")
OF_A_RUN += ("traces/", "figures/", "tensorboard/", "profile/")


@pytest.mark.parametrize("name", OF_A_RUN)
def test_a_file_of_someone_else_is_not_overwritten_or_removed(tmp_path, name):
    file = tmp_path / name / ("mine" * name.endswith("/"))
    file.parent.mkdir(exist_ok=True)
    file.write_text("a,b\n1,2\n")

    def untraced(learning_rate, delay):
        raise AssertionError("the folder is refused before any work")

    with pytest.raises(ValueError, match=f"has {name}, but no run.json: no run wrote"):
        run(experiment(training=untraced), str(tmp_path))
    assert file.read_text() == "a,b\n1,2\n"


def test_the_end_of_a_run_removes_only_checkpoints_that_the_run_wrote(folder):
    there = folder / "checkpoints"
    for name in ("of-another-program", "search-mine"):
        (there / name).mkdir()
        (there / name / "notes.txt").write_text("mine")
    (there / "notes.txt").write_text("mine")
    for name in ("all-broken-20", "search-0123abcd"):  # left by an interrupted run
        (there / name).mkdir()
    before = {path for path in folder.rglob("*") if there not in path.parents}
    run(experiment(), str(folder))
    assert {str(path.relative_to(there)) for path in there.rglob("*")} == {
        *("notes.txt", "of-another-program", "of-another-program/notes.txt"),
        *("search-mine", "search-mine/notes.txt"),
    }
    assert before <= {*folder.rglob("*")}


def test_of_several_cells_one_that_diverges_alone_in_its_program_has_its_row(tmp_path):
    arms = [
        ({"step": name}, lambda rate=rate: optax.sgd(rate))
        for name, rate in (("large", 1e25), ("small", 0.1))
    ]
    both = dict(training=None, arms=arms, grid={}, seeds=1)
    result = run(experiment(**both), str(tmp_path / "whole")).results
    assert result["diverged"].tolist() == [1, 0]
    part = run(experiment(**both), str(tmp_path / "part"), shard=(0, 2)).results
    assert part["diverged"].tolist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": (99, 100)}, r"--shard=99/100 has no cell: the grid has 4"),
        *(
            ({"profile": updates}, r"`profile` must lie in 0 .. 30, the updates")
            for updates in (range(20, 40), range(30, 31), range(-1, 3))
        ),
    ],
)
def test_how_a_run_cannot_be_made_is_said_before_anything_is_written(
    options, message, tmp_path
):
    with pytest.raises(ValueError, match=message):
        run(experiment(), **{"workdir": str(tmp_path)} | options)
    assert not any(tmp_path.iterdir())


def with_schedule(learning_rate, schedule):
    decayed = optax.cosine_decay_schedule(learning_rate, 10)
    return optax.sgd({"cosine": decayed, "constant": learning_rate}[schedule])


def tuned_by(by):
    return {"tuned": "learning_rate", "tuned_by": by}


SCHEDULES = {"learning_rate": (0.1,), "schedule": ("cosine", "linear")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"training": with_schedule, "grid": SCHEDULES},
            r"with schedule=linear fails: .*run_test.py, line \d+: KeyError: 'linear'",
        ),
        ({"metrics": {"seed": lambda *of: 0.0}}, "metric 'seed', the name of another"),
        ({"metrics": {"a": lambda model, _: model["a"]}}, "fails: .*line .*TypeError"),
        (
            {"task": dataclasses.replace(QUADRATIC, evaluate=lambda x: {"loss": x[0]})},
            "must return 'train_loss', by which a cell counts as diverged, got loss",
        ),
        (tuned_by(TimeTo("norm", 0.1, "update")), "`tuned_by` needs 'norm', which the"),
    ],
)
def test_what_would_fail_or_mislead_after_training_is_refused_before(
    tmp_path, changes, message
):
    with pytest.raises(ValueError, match=message):
        run(experiment(**changes), str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


CLOCK = TimeTo("train_loss", 1e9, "clock")


@pytest.fixture(scope="module")
def measured():
    """The tables of a run with a clock and the norm of the gradient."""
    clock = {"clock": lambda model, task: jnp.float32(3.0)}
    measure = clock | {"gradient_norm": gradient_norm}
    return run(experiment(metrics=measure, updates=1, **tuned_by(CLOCK)))


def test_a_clock_may_be_measured(measured):
    times = CLOCK.with_column(measured.results, measured.curves)[CLOCK.name]
    assert set(times) == {3.0}


def test_the_gradient_s_norm_is_a_metric(measured):
    begin = measured.curves.query("update == 0")["gradient_norm"]
    np.testing.assert_allclose(begin, np.hypot(*EIGENVALUES), rtol=1e-6)


def test_batches_that_change_their_shape_are_refused(tmp_path):
    digits = tasks.digits_mlp(batch_size=8)

    def shrinking(seed, start, stop):
        batch = digits.batches(seed, start, stop)
        return jax.tree.map(lambda x: x[:, : 8 if start < 10 else 4], batch)

    task = dataclasses.replace(digits, batches=shrinking, examples=None)
    with pytest.raises(ValueError, match=r"of one shape at all updates, got .*, 4, 8"):
        run(experiment(task=task, seeds=1), str(tmp_path))


OTHERS = {
    r"holds another run: config\.rate \(it was None\) changed\.": {
        "config": {"rate": 2}
    },
    "holds another run: seeds, code, constants, data or platform changed": {"seeds": 1},
    "holds another run: the cells of the programs, code": {
        "grid": {"learning_rate": (0.1,), "delay": (0, 3)}
    },
    "holds another run: the facts of the programs, code": {
        "task": tasks.quadratic((0.5, 3.0), noise=0.1)
    },
    "holds another run: the number of updates, which is smaller, changed": {
        "updates": 20
    },
    "holds another run: code, constants, data or platform changed": {
        "training": lambda learning_rate, delay: late(2 * learning_rate, delay)
    },
}


@pytest.mark.parametrize("message", OTHERS)
def test_another_run_in_the_folder_is_refused_and_names_what_differs(folder, message):
    changes = dict(OTHERS[message])
    config = changes.pop("config", None)
    before = (folder / "run.json").read_text()
    with pytest.raises(ValueError, match=message):
        run(experiment(**changes), str(folder), config=config)
    assert (folder / "run.json").read_text() == before


def test_hosts_that_share_no_folder_write_nothing(tmp_path, monkeypatch):
    def check_shared(folder):
        raise ValueError("not one folder")

    monkeypatch.setattr(RunFolder, "check_shared", check_shared)
    with pytest.raises(ValueError, match="not one folder"):
        run(experiment(), str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_two_runs_at_once_in_one_folder_are_refused(tmp_path):
    with (
        RunFolder(tmp_path).locked(),
        pytest.raises(ValueError, match="is in use by another run"),
        RunFolder(tmp_path).locked(),
    ):
        pass
    with RunFolder(tmp_path).locked():
        pass


def cluster(workers=4):
    return dj.cluster.Cluster(workers, dj.cluster.exponential(1.0))


def test_along_a_trace_time_examples_and_staleness_are_the_cluster_s(tmp_path):
    source = Simulation(cluster(), dj.cluster.protocols.n_softsync(2))
    arms = [({"n": 2}, along(source, optax.sgd))]
    result = run(
        experiment(
            task=tasks.digits_mlp(batch_size=4, width=4),
            training=None,
            arms=arms,
            grid={"learning_rate": (0.1,)},
            updates=None,
            seconds=20.0,
            evaluate_every=None,
        ),
        str(tmp_path),
    ).results
    assert (result["seconds"] <= 20.0).all()
    for row in result.itertuples():
        trace = source.trace(row.seed, row.updates, np.inf)
        assert row.seconds == trace.seconds[-1]
        assert row.staleness_mean == pytest.approx(trace.summary().mean)
        assert row.examples == 4 * len(trace.update)
    kept = Run.read(tmp_path)
    assert kept.settings == kept.info["settings"] == ["n", "learning_rate"]
    (trace,) = kept.traces.values()  # of the first seed
    own = source.trace(kept.info["seeds"][0], trace.num_updates, np.inf)
    np.testing.assert_array_equal(trace.seconds, own.seconds)
    assert kept.info["traces"][0]["labels"] == {"n": 2}


def test_each_source_of_the_axis_cluster_has_its_trace_and_all_share_a_program():
    sources = {
        "late": Simulation(cluster(4), k_async(1)),
        "soft": Simulation(cluster(3), n_softsync(2)),
    }
    sides = experiment(
        training=along(sources, optax.sgd),
        grid={"learning_rate": (0.1, 0.2), "cluster": {"late": 0, "soft": 1}},
    )
    assert len({id(trainer.run_chunk) for trainer in prepared(sides)}) == 1
    result = run(sides)
    assert result.trace_labels == {
        "late": {"cluster": "late"},
        "soft": {"cluster": "soft"},
    }
    for trace, source in zip(result.traces.values(), sources.values(), strict=True):
        expected = source.trace(0, 30, np.inf)
        np.testing.assert_array_equal(trace.seconds, expected.seconds)


class Collected:
    """A writer that keeps what it is given."""

    def __init__(self):
        self.steps, self.closed = [], False

    def write(self, program, step, scalars):
        assert "updates_per_second" in scalars or step == 0
        self.steps.append(step)

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run in a home with a writer of one's own and a profile: home and writer."""
    home, writer = tmp_path_factory.mktemp("home"), Collected()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        run(experiment(), "~/there", writers=[writer], profile=range(12, 13))
    return home, writer


def test_a_home_is_found(watched, monkeypatch):
    home, _ = watched
    monkeypatch.setenv("HOME", str(home))
    assert len(Run.read("~/there").results) == 8 and (home / "there").is_dir()


def test_a_writer_of_one_s_own_gets_each_chunk_and_is_closed(watched):
    _, writer = watched
    assert writer.steps == [0, 10, 20, 30]
    assert writer.closed


def test_profiled_updates_leave_a_trace_of_jax(whole, watched):
    assert list((watched[0] / "there" / "profile").rglob("*.xplane.pb"))
    assert not (whole[0] / "profile").exists()


def test_a_check_that_takes_long_is_said_every_five_seconds(monkeypatch, caplog):
    caplog.set_level("INFO", logger=progress.log.name)
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    lines = progress.Lines("program %d of %d")
    for number in range(1, 13):  # two seconds each
        lines.say(number, 12)
        now[0] += 2.0
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"program {number} of 12" for number in (4, 7, 10)]


@pytest.mark.parametrize("level", ["NOTSET", "WARNING"])
def test_a_run_from_python_shows_progress_unless_its_log_is_set(
    level, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(progress.log, "propagate", True)
    monkeypatch.setattr(progress.log, "handlers", [])  # another test may leave one
    before = progress.log.level
    try:
        progress.log.setLevel(level)
        run(experiment(), str(tmp_path))
        assert progress.log.level == getattr(logging, level)
    finally:
        progress.log.setLevel(before)
    lines = [line for line in caplog.messages if "update 30/30, median batch" in line]
    assert len(lines) == (level == "NOTSET")


SECONDS, EXAMPLES = dict(seconds=20.0), dict(examples=170)
CLIENTS = dict(workers=4, concentration=1.0)
ENDS = {
    f"{name}, {', '.join({**end, **data})}": (protocol, end, data)
    for name, protocol in {
        "k_async": k_async(1),
        "n_softsync": n_softsync(2),
        "k_batch_async": k_batch_async(3),
    }.items()
    for end in (SECONDS, EXAMPLES)
    for data in ({}, CLIENTS)
}


@pytest.mark.parametrize(
    "name",
    shortened(
        ENDS,
        "k_async, seconds",
        "k_batch_async, seconds, workers, concentration",
    ),
)
def test_a_seed_ends_when_its_own_time_is_over(name, tmp_path):
    """What a seed does in its time does not depend on the seeds beside it."""
    protocol, end, data = ENDS[name]
    source, task = Simulation(cluster(), protocol), QUADRATIC
    if data or end is EXAMPLES:
        task = tasks.digits_mlp(batch_size=4, width=4, **data)

    def results(seeds, place):
        asked = experiment(
            task=task,
            training=along(source, lambda learning_rate: optax.adam(learning_rate)),
            grid={"learning_rate": (0.01, 0.1)},
            seeds=seeds,
            evaluate_every=5,
            **dict(updates=None) | end,
        )
        return run(asked, str(tmp_path / place))

    together = results((0, 1), "all")
    apart = [results((seed,), str(seed)) for seed in (0, 1)]
    order = ["learning_rate", "seed"]
    alone = pd.concat([own.results for own in apart]).sort_values(order)
    if "seconds" in end:
        assert alone["updates"].nunique() > 1
        assert (alone["seconds"] <= 20.0).all()
    pd.testing.assert_frame_equal(
        together.results.sort_values(order).reset_index(drop=True),
        alone.reset_index(drop=True),
        rtol=1e-4,
        atol=1e-5,
    )
    for own in apart:  # the curve of a seed, and behind its end its last value
        (seed,) = own.results["seed"].unique()
        curve = together.curves[together.curves["seed"] == seed]
        last = own.curves["update"].max()
        behind = curve[curve["update"] >= last]
        assert behind["seconds"].max() == own.curves["seconds"].max()
        ends = curve.groupby("learning_rate")["train_loss"].last()
        own_ends = own.curves.groupby("learning_rate")["train_loss"].last()
        np.testing.assert_allclose(ends, own_ends, rtol=1e-4)


def test_a_shard_without_the_settings_of_an_answer_is_no_error(tmp_path):
    whole = Experiment(
        question="Which?",
        task=tasks.quadratic((1.0,)),
        arms=[
            ({"rule": "plain"}, optax.sgd(0.1)),
            ({"rule": "slow", "share": 0.5}, optax.sgd(0.05)),
        ],
        seeds=2,
        updates=3,
        answer=Effect(metric="train_loss", against={"share": 0.5}, size=percent(10)),
    )
    result = run(whole, tmp_path / "plain", shard=(0, 2))
    assert result.results["rule"].unique().tolist() == ["plain"]
    assert "cannot be compared with share=0.5" in result.answers[0]


def test_an_answer_that_fails_is_one_line_of_the_log(tmp_path, caplog):
    def theory():
        raise RuntimeError("boom\nmore")

    asked = Experiment(
        question="Which?",
        task=tasks.quadratic((1.0,)),
        training=optax.sgd,
        grid={"learning_rate": (0.1, 0.2)},
        updates=3,
        answer=Effect(metric="train_loss", against=theory, size=percent(10)),
    )
    result = run(asked, tmp_path)
    said = [one.getMessage() for one in caplog.records if "boom" in one.getMessage()]
    assert said == [f"`answer` fails: {result.answers[0]}"]
    assert said[0].startswith(
        "`answer` fails: training loss cannot be compared with theory: "
    )
    assert said[0].endswith("RuntimeError: boom more")
