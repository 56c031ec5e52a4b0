"""The command line as a person uses it, in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TINY = (
    "--config.task.width=8",
    "--config.opt.adam.learning_rate=(0.01,0.03)",
    "--config.delay.value=(0,4)",
    "--config.seeds=(0,1)",
    "--config.steps=400",
    "--config.chunk=10",
    "--config.checkpoint_every=50",
)


def command(workdir, *arguments, config="configs/default.py"):
    return (
        *(sys.executable, "-m", "experiments.main"),
        *(f"--config={config}", f"--workdir={workdir}", *arguments),
    )


def start(*arguments, **keywords):
    return subprocess.Popen(
        command(*arguments, **keywords),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )


def finish(*arguments, **keywords):
    process = start(*arguments, **keywords)
    output, _ = process.communicate(timeout=240)
    return process.returncode, output


def metrics(workdir):
    """All rows, without the clock."""
    text = (workdir / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows:
        del row["steps_per_second"]
    return rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("whole")
    code, output = finish(workdir, *TINY)
    assert code == 0, output
    return workdir, output


def test_a_run_leaves_its_records(whole):
    workdir, output = whole
    for name in ("config.json", "metrics.jsonl", "results.csv", "report.html"):
        assert (workdir / name).stat().st_size > 0
    assert {path.name for path in (workdir / "figures").iterdir()} == {
        "over_delay.png",
        "best_step.png",
        "loss_curves.png",
    }
    assert list((workdir / "tensorboard").rglob("events*"))
    assert len(metrics(workdir)) == 40
    assert "the best step size at delay 0 is 0.03, the largest tried" in output
    assert "2 seeds a cell, and a spread needs 3" in output


def test_the_same_command_again_says_that_it_is_done(whole):
    workdir, _ = whole
    before = (workdir / "results.csv").read_text(), metrics(workdir)
    code, output = finish(workdir, *TINY)
    assert code == 0 and "is done at step 400" in output
    assert ((workdir / "results.csv").read_text(), metrics(workdir)) == before


def test_another_config_in_the_same_workdir_is_refused(whole):
    workdir, _ = whole
    code, output = finish(workdir, *TINY, "--config.delay.max_delay=9")
    assert code == 1 and "delay.max_delay: None there, 9 now" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(tmp_path, whole, how, code):
    process = start(tmp_path, *TINY)
    deadline = time.monotonic() + 120
    while not (tmp_path / "metrics.jsonl").exists() or len(metrics(tmp_path)) < 8:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(how)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code, output
    assert not (tmp_path / "results.csv").exists()
    code, output = finish(tmp_path, *TINY)
    assert code == 0 and "resumes at step" in output
    whole, _ = whole
    assert metrics(tmp_path) == metrics(whole)
    assert (tmp_path / "results.csv").read_text() == (whole / "results.csv").read_text()


def test_dry_run_prints_costs_and_writes_nothing(tmp_path):
    code, output = finish(tmp_path / "none", *TINY, "--config.dry_run=True")
    assert code == 0
    for words in (
        "parameters of a cell   610",
        "history",
        "checkpoint",
        "FLOPs",
        "peak",
    ):
        assert words in output
    assert not (tmp_path / "none").exists()


def test_profile_writes_a_trace(tmp_path):
    arguments = (*TINY, "--config.steps=50", "--config.profile=(20,30)")
    code, output = finish(tmp_path, *arguments)
    assert code == 0, output
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_a_task_of_ones_own_is_found_where_the_command_runs(tmp_path):
    code, output = finish(
        tmp_path, *TINY, "--config.task.name=nowhere:make", "--config.dry_run=True"
    )
    assert code == 1 and "'nowhere:make' cannot be imported" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config.lrr=1",), "the config has no key 'lrr'"),
        (("--config.steps=many",), "config.steps=many: invalid literal for int"),
        (("--config.opt.name=('adm',)",), "config.opt.name must be among"),
        (("--config.task.name=moon",), "config.task.name is no task: 'moon'"),
        (("stray",), "unknown argument 'stray'"),
        (("--workdir=/proc/none",), "--workdir=/proc/none cannot be written"),
    ],
)
def test_a_bad_command_is_one_readable_line(tmp_path, arguments, message):
    code, output = finish(tmp_path, *arguments)
    assert code == 1
    assert message in output and "Traceback" not in output


def test_a_missing_flag_is_named():
    code = subprocess.run(
        [sys.executable, "-m", "experiments.main", "--config=configs/default.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert code.returncode == 1 and "--workdir" in code.stderr
    assert "Traceback" not in code.stderr
