"""The command line as a person uses it, in processes of its own."""

import itertools
import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import load
from tests.support.cases import shortened
from tests.support.commands import ROOT, Forks, ended, finish, metrics

TINY = "--config=tests/support/tiny.py"
CLUSTER = f"{TINY}:cluster"
DEFAULT = "--config=configs/default.py"


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """Starts commands in forks of one process that has imported what all import."""
    return Forks(tmp_path_factory.mktemp("outputs"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What one run has compiled, the next need not."""
    return f"--compile_cache={tmp_path_factory.mktemp('compiled')}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, forks, compiled):
    """A run that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("whole")
    command = TINY, f"--workdir={workdir}", compiled, "--keep_checkpoints"
    code, output = forks.finish(*command)
    assert code == 0, output
    return workdir, output


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory, forks, compiled):
    """A run along clusters that nothing interrupted, without its checkpoints."""
    workdir = tmp_path_factory.mktemp("cluster")
    code, output = forks.finish(CLUSTER, f"--workdir={workdir}", compiled)
    assert code == 0, output
    return workdir, output


def tables(workdir):
    return [(workdir / f"{name}.csv").read_text() for name in ("results", "curves")]


def test_a_run_leaves_its_records(whole):
    workdir, output = whole
    for name in ("run.json", "metrics.jsonl", "results.csv", "report.html"):
        assert (workdir / name).stat().st_size > 0
    assert {path.name for path in (workdir / "figures").iterdir()} == {
        "train_loss_over_update.png"
    }
    assert list((workdir / "tensorboard").rglob("events*"))
    assert [row["step"] for row in metrics(workdir)] == list(range(0, 401, 10))
    assert f"report: {workdir / 'report.html'}" in output


def test_the_same_command_again_says_that_it_is_done(whole_cluster, forks, compiled):
    workdir, _ = whole_cluster
    assert not (workdir / "checkpoints").exists()
    before = tables(workdir), metrics(workdir)
    (workdir / "report.html").unlink()
    code, output = forks.finish(CLUSTER, f"--workdir={workdir}", compiled)
    assert code == 0 and "the run is finished: its records are read" in output
    assert (tables(workdir), metrics(workdir)) == before
    assert (workdir / "report.html").exists()
    profiled = CLUSTER, f"--workdir={workdir}", compiled, "--profile=0,10"
    code, output = forks.finish(*profiled)
    assert code == 1 and "error: `profile` has nothing to see" in output


def test_another_target_claim_figure_or_metric_of_a_finished_run_is_the_same_run(
    whole, forks, compiled, tmp_path
):
    shutil.copytree(whole[0], tmp_path / "run")
    text = (ROOT / "tests" / "support" / "tiny.py").read_text()
    edits = {
        'figures.curves("train_loss")': 'figures.over("delay", "gradient_norm")',
        "        figures=[": "        measure=dict(gradient_norm=gradient_norm),\n"
        "        figures=[",
        "import optax": "import optax\n"
        "from experiments.running.evaluation import gradient_norm",
    }
    for there, now in edits.items():
        assert there in text
        text = text.replace(there, now)
    (tmp_path / "edited.py").write_text(text)
    code, output = forks.finish(
        f"--config={tmp_path / 'edited.py'}",
        *(f"--workdir={tmp_path / 'run'}", compiled),
        *("--config.target=0.0", "--check", "--keep_checkpoints"),
    )
    assert "is done at update 400" in output, output
    # and so may be asked whether another claim holds
    assert code == 1 and "MISSED: The largest training loss: " in output
    assert "expected at most 0" in output and "Traceback" not in output
    assert (tmp_path / "run" / "figures" / "gradient_norm_over_delay.png").exists()
    found, expected = load(tmp_path / "run").results, load(whole[0]).results
    assert (found["gradient_norm"] > 0).all()
    pd.testing.assert_series_equal(found["train_loss"], expected["train_loss"])


def test_another_config_in_the_same_workdir_is_refused(whole, forks):
    code, output = forks.finish(TINY, f"--workdir={whole[0]}", "--config.noise=0.25")
    assert code == 1 and "config.noise: 0.5 there, 0.25 now" in output
    assert "Traceback" not in output


def test_two_runs_in_one_workdir_are_refused(forks, compiled, tmp_path):
    long = TINY, f"--workdir={tmp_path}", compiled, "--config.updates=1000000"
    process, output = forks.start(*long)
    wait_for_rows(tmp_path, process)
    code, said = forks.finish(*long)
    assert code == 1 and "is in use by another run" in said
    assert said.count("\n") == 1
    process.kill()
    ended(process, output)


def test_a_checkpoint_of_another_state_is_refused_and_stays(whole, forks, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    for path in (tmp_path / "run").glob("*.*"):  # they would be refused before
        path.unlink()
    code, output = forks.finish(
        TINY, f"--workdir={tmp_path / 'run'}", "--config.delay=(0,1,3)"
    )
    assert code == 1 and "Traceback" not in output
    # two seeds, two steps by two or three delays, a history of four gradients
    there, now = (f"float32[2, {cells}, 4, 2]" for cells in (4, 6))
    assert f"memory.gradients.slots is {there} there, {now} now" in output
    left = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert left == {"all"}
    assert (tmp_path / "run" / "checkpoints" / "all" / "400").exists()


def test_programs_are_compiled_once_where_they_are_kept(
    whole, forks, compiled, tmp_path
):
    kept = Path(compiled.partition("=")[2])
    programs = {path.name for path in kept.glob("*-cache")}
    code, output = forks.finish(
        TINY, f"--workdir={tmp_path}", "--config.updates=50", compiled
    )
    assert code == 0, output
    assert programs and {path.name for path in kept.glob("*-cache")} == programs


def test_they_are_kept_in_the_user_s_cache_where_nothing_is_said(tmp_path):
    code, output = finish(
        *(TINY, f"--workdir={tmp_path / 'run'}", "--config.updates=10"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert code == 0, output
    assert list((tmp_path / "cache" / "delayjax" / "xla").glob("*-cache"))


def test_a_run_along_clusters_leaves_its_records_too(whole_cluster):
    workdir, _ = whole_cluster
    found = load(workdir)
    results, curves = (
        table.query("learning_rate == 0.1") for table in (found.results, found.curves)
    )
    assert set(results["protocol"]) == {"softsync", "hardsync"}
    for row in results.itertuples():
        own = curves.query(f"protocol == '{row.protocol}' and seed == {row.seed}")
        assert own["update"].iloc[0] == 0 and own["update"].iloc[-1] == row.updates
        assert np.all(np.diff(own["seconds"]) > 0)
        assert len(own) >= 41
        end = own.iloc[-1]
        assert (end.train_loss, end.seconds) == (row.train_loss, row.seconds)
        assert end.examples == row.examples
    assert {path.name for path in (workdir / "traces").iterdir()} == {
        "softsync.npz",
        "hardsync.npz",
    }


def wait_for_rows(workdir, process, more_than=8):
    deadline = time.monotonic() + 120
    while len(metrics(workdir)) < more_than:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("kind", "how", "code"),
    shortened(
        [
            ("whole", signal.SIGTERM, 143),
            ("whole", signal.SIGINT, 130),
            ("whole", signal.SIGKILL, -9),
            ("whole_cluster", signal.SIGKILL, -9),
        ],
        *(("whole", signal.SIGINT, 130), ("whole_cluster", signal.SIGKILL, -9)),
    ),
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    tmp_path, kind, how, code, forks, compiled, request
):
    whole, _ = request.getfixturevalue(kind)
    config = TINY if kind == "whole" else CLUSTER
    # saving often takes the time in which it is interrupted
    command = config, f"--workdir={tmp_path}", compiled, "--checkpoint_every=10"
    process, output = forks.start(*command)
    wait_for_rows(tmp_path, process)
    os.kill(process.pid, how)
    seen, output = ended(process, output)
    assert seen == code, output
    assert "Traceback" not in output
    if code > 0:
        assert f"stopped by {how.name}, saved at update" in output
    assert not (tmp_path / "results.csv").exists()
    code, output = forks.finish(*command)
    assert code == 0 and "resumes at update" in output
    assert metrics(tmp_path) == metrics(whole)
    assert tables(tmp_path) == tables(whole)


@pytest.mark.long  # tests/experiments/run_test.py has it, in this process
def test_more_updates_of_a_finished_run_go_on(whole, forks, compiled, tmp_path):
    command = TINY, f"--workdir={tmp_path}", compiled, "--keep_checkpoints"
    for updates in (150, 400):
        code, output = forks.finish(*command, f"--config.updates={updates}")
        assert code == 0, output
    assert "resumes at update 150" in output
    assert metrics(tmp_path) == metrics(whole[0])
    assert tables(tmp_path) == tables(whole[0])


@pytest.mark.long  # likewise
def test_the_parts_of_a_run_together_are_the_whole(whole, forks, compiled, tmp_path):
    for i in range(2):
        code, output = forks.finish(
            TINY, f"--workdir={tmp_path / str(i)}", f"--shard={i}/2", compiled
        )
        assert code == 0, output
    keys = ["learning_rate", "delay", "seed"]
    parts, expected = (
        table.sort_values(keys).reset_index(drop=True)
        for table in (load(tmp_path / "0", tmp_path / "1").results, load(whole[0])[0])
    )
    # programs of other sizes may round differently
    pd.testing.assert_frame_equal(
        parts.drop(columns="run"), expected.drop(columns="run"), rtol=1e-6
    )


def test_dry_run_prints_costs_and_writes_nothing(tmp_path, forks, compiled):
    code, output = forks.finish(
        TINY, f"--workdir={tmp_path / 'none'}", "--dry_run", compiled
    )
    assert code == 0, output
    for words in ("8 cells", "parameters of a cell   2", "history", "FLOPs", "peak"):
        assert words in output
    assert not (tmp_path / "none").exists()


def test_profile_writes_a_trace(tmp_path, forks, compiled):
    code, output = forks.finish(
        *(TINY, f"--workdir={tmp_path}", "--config.updates=50", compiled),
        "--profile=20,30",
    )
    assert code == 0, output
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_quiet_says_nothing(tmp_path, forks, compiled):
    code, output = forks.finish(
        TINY, f"--workdir={tmp_path}", "--config.updates=50", compiled, "--quiet"
    )
    assert (code, output) == (0, "")


BROKEN = {
    "get.py": (
        "def get_config():\n    return 1 + 'a'\n\n\ndef experiment(config): pass\n",
        "get.py, line 2: TypeError: unsupported operand",
    ),
    "make.py": (
        "from ml_collections import ConfigDict\n\n\ndef get_config():\n"
        "    return ConfigDict(dict(a=1))\n\n\n"
        "def experiment(config):\n    return config.a.b\n",
        "make.py, line 9: AttributeError: 'int' object has no attribute 'b'",
    ),
    "trace.py": (
        "import optax\nfrom ml_collections import ConfigDict\n"
        "from experiments import Experiment, tasks\n\n\ndef get_config():\n"
        "    return ConfigDict(dict(a=1))\n\n\ndef make(rate):\n"
        "    return optax.sgd(rate + 'a')\n\n\ndef experiment(config):\n"
        "    return Experiment(question='?', task=tasks.quadratic(), training=make,\n"
        "                      grid={'rate': (0.1,)}, updates=2)\n",
        "trace.py, line 11: TypeError: ",
    ),
    "syntax.py": ("def get_config(:\n", "syntax.py, line 1: SyntaxError: "),
    "half.py": ("def get_config(): pass\n", "has no function `experiment(config)`"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_config_file_that_fails_is_one_line_with_its_place(tmp_path, forks, name):
    text, message = BROKEN[name]
    (tmp_path / name).write_text(text)
    code, output = forks.finish(
        f"--config={tmp_path / name}", f"--workdir={tmp_path / 'run'}"
    )
    assert code == 1 and message in output, output
    assert output.startswith("error: ") and output.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config.lrr=1",), "the config has no key 'lrr'; it has batch_size, delay"),
        (("--config.updates=many",), "config.updates=many: invalid literal for int"),
        (("--config.updates=1e3",), "config.updates=1e3: invalid literal for int"),
        (("--config.updates=0",), "config.updates must be at least 1, got 0"),
        (("--config.optimizer=adm",), "config.optimizer must be one of adam, sgd"),
        (("--config.optimizer=nowhere:make",), "'nowhere:make' cannot be imported"),
        (("--config.seeds=99999999999",), "`seeds` must be at least 1 and at most"),
        (("--config.learning_rate=(0.1,0.1)",), "has the same value twice, in float32"),
        (("--config.delay=(1000,)",), "config.delay must hold delays from 0 to"),
        (("--config.batch_size=-3",), "`batch_size` must lie in 0 .. 1348"),
        (("stray",), "unknown argument 'stray'"),
        (("--stray=1",), "Unknown command line flag 'stray'"),
        (("--shard=2/2",), "--shard must be i/n with 0 <= i < n, got '2/2'"),
        (("--profile=3",), "--profile must be two updates, start,stop, with 0"),
        (("--checkpoint_every=0",), "--checkpoint_every must be at least 1 update"),
        (("--config=configs/nothing.py",), "there is no file configs/nothing.py"),
        (("--config=configs/default.py:foo",), "default.py asks one question only"),
        (("--config=configs/k_async.py:x",), "config.service must be one of exponen"),
        (
            ("--config=configs/stability_edge.py", "--config.task=moon"),
            "config.task must be one of breast_cancer",
        ),
        (("--workdir=/proc/none",), "--workdir=/proc/none cannot be written"),
    ],
)
def test_a_bad_command_is_one_readable_line(tmp_path, forks, arguments, message):
    workdir = f"--workdir={tmp_path / 'run'}"
    config = () if arguments[0].startswith("--config=") else (DEFAULT,)
    code, output = forks.finish(*config, workdir, *arguments)
    assert code == 1 and message in output, output
    assert output.startswith("error: ") and output.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", [DEFAULT, "--workdir=/tmp/none"])
def test_a_missing_flag_is_named(forks, given):
    code, output = forks.finish(given)
    missing = "--workdir" if given == DEFAULT else "--config"
    assert (code, output) == (1, f"error: {missing} is missing.\n")


def test_where_everything_diverges_there_is_a_report(tmp_path, forks, compiled):
    code, output = forks.finish(
        *(TINY, f"--workdir={tmp_path}", "--config.updates=50", compiled),
        "--config.learning_rate=(1e25,2e25)",
    )
    assert code == 0 and "Traceback" not in output, output
    assert (tmp_path / "report.html").exists()
    assert load(tmp_path).results["diverged"].all()


def test_a_single_cell_that_diverges_says_when_and_what_to_do(tmp_path, forks):
    code, output = forks.finish(
        *(TINY, f"--workdir={tmp_path}", "--config.seeds=1", "--config.delay=(0,)"),
        "--config.learning_rate=(1e25,)",
    )
    assert code == 1 and "Traceback" not in output
    said = output.splitlines()[-1]
    assert said.startswith("error: the loss was not finite at update ")
    assert said.endswith("Lower the learning rate or the delay.")


def test_the_end_of_a_run_is_told_and_its_time_is_kept(whole):
    _, output = whole
    lines = [line for line in output.splitlines() if "update 400/400" in line]
    assert len(lines) == 1 and "0 s left" in lines[0]
    assert json.loads((whole[0] / "run.json").read_text())["wall_seconds"] > 0


def test_rows_of_metrics_are_in_order(whole_cluster):
    rows = metrics(whole_cluster[0])
    for _, own in itertools.groupby(rows, lambda row: row["program"]):
        steps = [row["step"] for row in own]
        assert steps == sorted(set(steps))
