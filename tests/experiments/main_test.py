"""The command line as a user runs it, each time in a new process.

`bad_flags_test.py` tests the errors, in this process.
"""

import os
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import Run, main
from tests.support.cases import shortened
from tests.support.commands import Forks, ended, in_terminal, metrics

pytestmark = pytest.mark.runs

TINY = "--config=tests/support/tiny.py"
CLUSTER = f"{TINY}:cluster"


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """Starts commands in forks of one process that has imported all packages."""
    return Forks(tmp_path_factory.mktemp("outputs"))


def finished(config, place, forks, compiled):
    """The folder of a run that was not interrupted, and what it printed."""
    workdir = place.mktemp("finished")
    code, output = forks.finish(config, f"--workdir={workdir}", compiled)
    assert code == 0, output
    return workdir, output


@pytest.fixture(scope="module")
def whole(tmp_path_factory, forks, compiled):
    return finished(TINY, tmp_path_factory, forks, compiled)


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory, forks, compiled):
    return finished(CLUSTER, tmp_path_factory, forks, compiled)


def tables(workdir):
    return [(workdir / f"{name}.csv").read_text() for name in ("results", "curves")]


def test_a_run_leaves_its_records(whole):
    workdir, output = whole
    for name in ("run.json", "metrics.jsonl", "results.csv", "report.html"):
        assert (workdir / name).stat().st_size > 0
    assert {path.name for path in (workdir / "figures").iterdir()} == {
        "train_loss_over_update.svg"
    }
    assert list((workdir / "tensorboard").rglob("events*"))
    assert [row["step"] for row in metrics(workdir)] == list(range(0, 401, 10))
    assert f"report: {workdir / 'report.html'}" in output


def test_a_finished_run_is_read_and_its_records_are_compared(
    whole_cluster, forks, compiled
):
    workdir, _ = whole_cluster
    assert not (workdir / "checkpoints").exists()
    before = tables(workdir), metrics(workdir)
    (workdir / "report.html").unlink()
    asked = CLUSTER, f"--workdir={workdir}", compiled, "--check"
    code, output = forks.finish(*asked)
    assert "the run is finished: its records are read" in output, output
    assert (tables(workdir), metrics(workdir)) == before
    assert (workdir / "report.html").exists()
    assert code == 1 and "MISSED: The largest training loss: " in output
    assert "expected 10 ± 0.01" in output and "Traceback" not in output
    code, output = forks.finish(*asked, "--config.noise=0.6")
    assert code == 1 and "--check is for the config file's values" in output


def test_what_is_kept_is_compiled_once_and_a_quiet_command_says_nothing(
    whole, forks, compiled, tmp_path
):
    kept = Path(compiled.partition("=")[2])
    programs = {path.name for path in kept.glob("*-cache")}
    short = TINY, f"--workdir={tmp_path}", "--config.updates=50", compiled, "--quiet"
    assert forks.finish(*short) == (0, "")
    assert programs and {path.name for path in kept.glob("*-cache")} == programs


def test_programs_are_kept_in_the_user_s_cache_where_nothing_is_said(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    settings = {}
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    main.keep_compiled(None)
    assert settings["jax_compilation_cache_dir"] == f"{tmp_path}/delayjax/xla"
    assert settings["jax_persistent_cache_min_compile_time_secs"] == 0


def test_a_run_along_clusters_leaves_its_records_too(whole_cluster):
    workdir, _ = whole_cluster
    result = Run.read(workdir)
    results, curves = (
        table.query("learning_rate == 0.1") for table in (result.results, result.curves)
    )
    assert set(results["protocol"]) == {"softsync", "hardsync"}
    for row in results.itertuples():
        rows = curves.query(f"protocol == '{row.protocol}' and seed == {row.seed}")
        assert rows["update"].iloc[0] == 0 and rows["update"].iloc[-1] >= row.updates
        # a seed that has ended keeps its last row while the others go on
        live = rows[rows["update"] <= row.updates]
        assert np.all(np.diff(live["seconds"]) > 0)
        assert np.all(rows["seconds"] <= row.seconds)
        assert len(rows) >= 41
        end = rows.iloc[-1]
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
    ("kind", "number", "code"),
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
    tmp_path, kind, number, code, forks, compiled, request
):
    whole, _ = request.getfixturevalue(kind)
    config = TINY if kind == "whole" else CLUSTER
    # frequent checkpoints make the run long enough to interrupt it
    command = config, f"--workdir={tmp_path}", compiled, "--checkpoint_every=10"
    process, output = forks.start(*command)
    wait_for_rows(tmp_path, process)
    os.kill(process.pid, number)
    seen, output = ended(process, output)
    assert seen == code, output
    assert "Traceback" not in output
    if code > 0:
        assert f"stopped by {number.name}, saved at update" in output
    assert not (tmp_path / "results.csv").exists()
    code, output = forks.finish(*command)
    assert code == 0 and "resumes at update" in output
    assert metrics(tmp_path) == metrics(whole)
    assert tables(tmp_path) == tables(whole)


def test_a_run_in_a_terminal_goes_on_outside_of_one(tmp_path, forks, compiled):
    flags = TINY, f"--workdir={tmp_path}", compiled, "--keep_checkpoints"
    for begin, updates in ((in_terminal, 20), (forks.finish, 30)):
        code, output = begin(*flags, f"--config.updates={updates}")
        assert code == 0, output
        assert ("resumes at update" in output) == (updates > 20)
    assert [row["step"] for row in metrics(tmp_path)] == list(range(0, 31, 10))


def test_dry_run_prints_costs_and_writes_nothing(tmp_path, forks, compiled):
    code, output = forks.finish(
        TINY, f"--workdir={tmp_path / 'none'}", "--dry_run", compiled
    )
    assert code == 0, output
    for words in (
        "programs: 1",
        "8 cells",
        "parameters of a cell   2",
        "history",
        "peak",
    ):
        assert words in output
    assert not (tmp_path / "none").exists()


def test_a_single_cell_that_diverges_says_when_and_what_to_do(tmp_path, forks):
    code, output = forks.finish(
        *(TINY, f"--workdir={tmp_path}", "--config.seeds=1", "--config.delay=(0,)"),
        "--config.learning_rate=(1e25,)",
    )
    assert code == 1 and "Traceback" not in output
    line = output.splitlines()[-1]
    assert line.startswith("error: the loss was not finite at update ")
    assert line.endswith("Lower the learning rate or the delay.")


def test_the_end_of_a_run_is_told(whole):
    _, output = whole
    lines = [line for line in output.splitlines() if "update 400/400" in line]
    assert len(lines) == 1 and "0 s left" in lines[0]


FAILING = """
from experiments import Effect, percent
from tests.support.tiny import experiment as tiny, get_config
import dataclasses


def theory(delay):
    raise RuntimeError("boom\\nmore")


def experiment(config):
    answer = Effect(metric="train_loss", against=theory, size=percent(10))
    return dataclasses.replace(tiny(config), answer=answer)
"""


def test_an_answer_that_fails_is_one_line(tmp_path, forks, compiled):
    config = tmp_path / "failing.py"
    config.write_text(FAILING)
    asked = f"--config={config}", f"--workdir={tmp_path / 'run'}", compiled
    code, output = forks.finish(*asked, "--config.updates=20")
    lines = [line for line in output.splitlines() if "boom" in line or "more" in line]
    assert code == 0 and len(lines) == 1, output
    assert "`answer` fails: training loss cannot be compared with theory" in lines[0]
    assert lines[0].endswith("RuntimeError: boom more")
    assert "RuntimeError: boom more" in (tmp_path / "run/report.html").read_text()
