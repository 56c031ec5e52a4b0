"""The command `experiments.advise`: what it prints, its page, and its errors."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.cases import shortened

ROOT = Path(__file__).parents[2]
FAST = ("--noise=0", "--target=0.3", "--seeds=2")


def run(*arguments):
    command = [sys.executable, "-m", "experiments.advise", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def write(path, seconds):
    rows = [
        f"{worker},{step},{value}"
        for step, values in enumerate(seconds.T)
        for worker, value in enumerate(values)
    ]
    path.write_text("\n".join(["worker,step,seconds", *rows]) + "\n")
    return path


def test_a_log_becomes_a_table_and_a_page(tmp_path):
    seconds = np.tile([[1.0], [1.0], [4.0]], 30)
    log, out = write(tmp_path / "times.csv", seconds), tmp_path / "advice.html"
    done = run(log, f"--out={out}", "--step_seconds=5", *FAST)
    assert done.returncode == 0, done.stderr
    first, _, verdict, *lines = done.stdout.splitlines()
    assert first.startswith("20% of a step of 5 s is not these tasks")  # 1 - 4/5
    assert "hardsync()" in "".join(lines) and "3 workers and 30 steps" in done.stdout
    page = out.read_text()
    assert verdict.replace("'", "&#x27;") in page and page.count("<img") == 3
    assert "Worker" not in verdict


BAD = [
    (["--columns=worker"], "--columns must be as worker=rank, got 'worker'"),
    (["--resample=often"], "`resample` must be"),
    (["--step_seconds=2"], "`step_seconds` must be"),
    (["--target=2"], "`target` must be in"),
    (["--out=nowhere/advice.html"], "there is no folder nowhere"),
    (["another.csv"], "give one file of times"),
]


@pytest.mark.parametrize(("options", "message"), shortened(BAD, BAD[2]))
def test_bad_options_are_named_before_anything_runs(tmp_path, options, message):
    log = write(tmp_path / "times.csv", np.tile([[1.0], [4.0]], 5))
    done = run(log, f"--out={tmp_path}/advice.html", *options)
    assert done.returncode == 1 and message in done.stderr + done.stdout
    assert not (tmp_path / "advice.html").exists()


def test_a_log_that_cannot_be_read_is_named(tmp_path):
    done = run(tmp_path / "times.csv")
    assert done.returncode == 1 and "times.csv" in done.stderr + done.stdout
