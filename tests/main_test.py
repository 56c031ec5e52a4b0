"""The command line as a person uses it, in processes of its own."""

import itertools
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from experiments import results

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
ARMS = (
    *("--config.task.name=breast_cancer", "--config.seeds=(0,1)"),
    *("--config.opt.name=('sgd',)", "--config.opt.sgd.learning_rate=(0.01,0.03)"),
    "--config.cluster.arms=('n_softsync(2) workers=4', 'hardsync() batch_size=2')",
    "--config.cluster.workers=2",
    "--config.cluster.examples=16000",
    "--config.cluster.evaluations=40",
    "--config.checkpoint_every=20",
    "--config.target.value=0.5",
    "--config.figures=('best_step',)",
)


def command(workdir, *arguments):
    return (
        *(sys.executable, "-m", "experiments.main"),
        *("--config=configs/default.py", f"--workdir={workdir}", *arguments),
    )


def finish(*arguments):
    process = subprocess.run(
        command(*arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        timeout=240,
    )
    return process.returncode, process.stdout


def command_here(arguments, output):
    """The command, in this process."""
    os.chdir(ROOT)
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    jax.config.update("jax_platforms", "cpu")
    sys.argv = ["experiments.main", *arguments]
    from experiments import main  # imported before this process was forked

    main.run()


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    """Starts a command in a fork of one process that has imported what all import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.main"])
    outputs = (tmp_path_factory.mktemp("outputs") / str(i) for i in itertools.count())

    def start(*arguments):
        (_, _, _, *flags), output = command(*arguments), next(outputs)
        process = context.Process(target=command_here, args=(flags, output))
        process.start()
        return process, output

    return start


def ended(process, output):
    """As `finish`."""
    process.join(timeout=240)
    return process.exitcode, output.read_text()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What one run has compiled, the next need not."""
    return f"--compile_cache={tmp_path_factory.mktemp('compiled')}"


def metrics(workdir):
    """All rows, without the clock."""
    text = (workdir / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows:
        for unit in ("steps", "examples"):
            row.pop(f"{unit}_per_second", None)
    return rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compiled):
    """A run that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("whole")
    code, output = finish(workdir, *TINY, compiled)
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


def test_the_same_command_again_says_that_it_is_done(whole, fork, compiled):
    workdir, _ = whole
    before = (workdir / "results.csv").read_text(), metrics(workdir)
    code, output = ended(*fork(workdir, *TINY, compiled))
    assert code == 0 and "is done at step 400" in output
    assert ((workdir / "results.csv").read_text(), metrics(workdir)) == before


def test_advice_may_be_asked_of_a_run_that_is_done(fork, compiled, tmp_path):
    sgd = "--config.opt.name=('sgd',)", "--config.opt.sgd.learning_rate=(0.01,0.03)"
    run = tmp_path, *TINY, *sgd, "--config.steps=20", compiled
    code, output = ended(*fork(*run))
    assert code == 0 and "unstable" not in output
    assert json.loads((tmp_path / "config.json").read_text())["limits"] == []
    code, output = ended(*fork(*run, "--config.advise"))
    assert code == 0, output
    assert "sgd, constant: with a sharpness of " in output
    limits = json.loads((tmp_path / "config.json").read_text())["limits"]
    assert [limit["delay"] for limit in limits] == [0, 4]
    assert limits[0]["step"] > limits[1]["step"] > 0
    assert f"{limits[1]['step']:.3g} at 4 updates of delay" in output
    ended(*fork(*run))
    assert json.loads((tmp_path / "config.json").read_text())["limits"] == limits


def test_another_config_in_the_same_workdir_is_refused(whole, fork):
    workdir, _ = whole
    code, output = ended(*fork(workdir, *TINY, "--config.delay.max_delay=9"))
    assert code == 1 and "delay.max_delay: None there, 9 now" in output
    assert "Traceback" not in output


def test_a_checkpoint_of_another_state_is_refused_and_stays(whole, fork, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    (tmp_path / "run" / "config.json").unlink()  # it would have refused before
    code, output = ended(*fork(tmp_path / "run", *TINY, "--config.task.width=16"))
    assert code == 1 and "Traceback" not in output
    # two seeds, four cells, a history of max_delay + 1 = 5 gradients
    there, now = (f"float32[2, 4, 5, {width}]" for width in (8, 16))
    assert f"slots.Dense_0.bias is {there} there, {now} now" in output
    left = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert left == {"adam-none-after"}
    assert (tmp_path / "run" / "checkpoints" / "adam-none-after" / "400").exists()


def test_programs_are_compiled_once_where_they_are_kept(
    whole, fork, compiled, tmp_path
):
    kept = Path(compiled.partition("=")[2])
    programs = {path.name for path in kept.glob("*-cache")}
    code, output = ended(*fork(tmp_path, *TINY, "--config.steps=50", compiled))
    assert code == 0, output
    assert programs and {path.name for path in kept.glob("*-cache")} == programs


@pytest.fixture(scope="module")
def whole_arms(tmp_path_factory, fork, compiled):
    """A run of two arms that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("arms")
    code, output = ended(*fork(workdir, *ARMS, compiled))
    assert code == 0, output
    return workdir, output


def test_a_run_of_arms_leaves_its_records_too(whole_arms):
    workdir, output = whole_arms
    rows = results.read(workdir / "results.csv")
    # 16000 examples in updates of 2 gradients of 32, and of 2 gradients of 2
    steps = {"n_softsync(2) workers=4": 250 - 250 % 6, "hardsync() batch_size=2": 4000}
    assert {row.arm: row.steps for row in rows} == steps
    curves = results.read_curves(workdir / "curves.csv")
    for arm, last in steps.items():
        own = [row for row in curves if (row.arm, row.seed) == (arm, 1)]
        own = [row for row in own if row.learning_rate == 0.03]
        assert [row.step for row in own] == list(range(0, last + 1, last // 40 or 1))
        assert all(a.seconds < b.seconds for a, b in itertools.pairwise(own))
        (end,) = (
            row
            for row in rows
            if (row.arm, row.seed, row.learning_rate) == (arm, 1, 0.03)
        )
        assert (own[-1].train_loss, own[-1].seconds) == (end.train_loss, end.seconds)
        assert own[-1].gradient_norm == end.gradient_norm
        reached = (row.seconds for row in own if row.train_loss <= 0.5)
        assert end.seconds_to_target == next(reached, math.inf)
        assert own[-1].examples == pytest.approx(16000, rel=0.02)
    assert {path.name for path in (workdir / "traces").iterdir()} == {
        "n_softsync_2_workers=4-seed0.npz",
        "hardsync_batch_size=2-seed0.npz",
    }
    assert "s simulated" in output


@pytest.mark.parametrize(
    ("kind", "arguments", "how", "code"),
    [
        ("whole", TINY, signal.SIGTERM, 143),
        ("whole", TINY, signal.SIGKILL, -signal.SIGKILL),
        ("whole_arms", ARMS, signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    tmp_path, kind, arguments, how, code, fork, compiled, request
):
    whole = request.getfixturevalue(kind)
    process, output = fork(tmp_path, *arguments, compiled)
    deadline = time.monotonic() + 120
    while not (tmp_path / "metrics.jsonl").exists() or len(metrics(tmp_path)) < 8:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, how)
    seen, output = ended(process, output)
    assert seen == code, output
    assert not (tmp_path / "results.csv").exists()
    code, output = ended(*fork(tmp_path, *arguments, compiled))
    assert code == 0 and "resumes at step" in output
    whole, _ = whole
    assert metrics(tmp_path) == metrics(whole)
    for name in ("results.csv", "curves.csv"):
        if (whole / name).exists():
            assert (tmp_path / name).read_text() == (whole / name).read_text()


def test_dry_run_prints_costs_and_writes_nothing(tmp_path, fork, compiled):
    code, output = ended(
        *fork(tmp_path / "none", *TINY, "--config.dry_run=True", compiled)
    )
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


def test_dry_run_says_what_the_clusters_do(tmp_path, fork, compiled):
    code, output = ended(
        *fork(tmp_path / "none", *ARMS, "--config.dry_run=True", compiled)
    )
    assert code == 0, output
    for words in (
        "gradients of an update 2 to 2, mean 2",
        "staleness              mean 0, at most 0 updates",
        "updates                246, evaluated every 6",
        "simulated",
    ):
        assert words in output
    assert not (tmp_path / "none").exists()


def test_profile_writes_a_trace(tmp_path, fork, compiled):
    arguments = (*TINY, "--config.steps=50", "--config.profile=(20,30)", compiled)
    code, output = ended(*fork(tmp_path, *arguments))
    assert code == 0, output
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_a_task_of_ones_own_is_found_where_the_command_runs(tmp_path, fork):
    arguments = (*TINY, "--config.task.name=nowhere:make", "--config.dry_run=True")
    code, output = ended(*fork(tmp_path, *arguments))
    assert code == 1 and "'nowhere:make' cannot be imported" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config.lrr=1",), "the config has no key 'lrr'"),
        (("--config.steps=many",), "config.steps=many: invalid literal for int"),
        (("--config.opt.name=('adm',)",), "config.opt.name must be among"),
        (("--config.task.name=moon",), "config.task.name is no task: 'moon'"),
        (("stray",), "unknown argument 'stray'"),
        (("--config=configs/k_async.py:x",), "error: k_async.py:x is none of exponen"),
        (("--config.cluster.arms=('sync()',)",), "no protocol or method 'sync'. There"),
        (("--config.trace=no.csv",), "config.trace=no.csv cannot be read (No such fil"),
        (("--workdir=/proc/none",), "--workdir=/proc/none cannot be written"),
    ],
)
def test_a_bad_command_is_one_readable_line(tmp_path, fork, arguments, message):
    code, output = ended(*fork(tmp_path, *arguments))
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
