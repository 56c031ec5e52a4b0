"""The command `experiments.advise`: what it prints, its page, and its errors."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from delayjax.cluster import Recorded
from experiments.advise import facts
from tests.support.cases import shortened

ROOT = Path(__file__).parents[2]
FAST = ("--target=0.3", "--seeds=2")


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


def test_a_log_becomes_tables_and_a_page(tmp_path):
    seconds = np.tile([[1.0], [1.0], [4.0]], 30)
    log, out = write(tmp_path / "times.csv", seconds), tmp_path / "advice.html"
    done = run(log, f"--out={out}", "--step_seconds=5", "--noise=0,1", *FAST)
    assert done.returncode == 0, done.stderr
    first, slow, *_ = done.stdout.splitlines()
    assert first.startswith("20% of a step, 1 of 5 s, is not these tasks")  # 1 - 4/5
    assert slow.startswith("Worker 2 takes 4 times as long as the median of the others")
    assert "would take 1 s in place of 4 s" in slow
    assert "3 workers and 30 steps were recorded" in done.stdout
    page = out.read_text()
    for noise, gain in (("0", 4), ("1", 2)):  # 2 updates, of the mean of 2 gradients
        (verdict,) = [
            line
            for line in done.stdout.splitlines()
            if line.startswith(f"Noise {noise}:")
        ]
        said = verdict.partition(": ")[2]
        assert said.replace("'", "&#x27;") in page
        assert "applies (almost) no gradients of worker 2" in said  # k_sync(2)
        whole = 1 / (0.2 + 0.8 / gain)  # 20 % of a step stays
        assert f"is {whole:.3g} times as fast as hardsync(), and not {gain} t" in said
        assert page.count(f'<th scope="col">Noise {noise}</th>') == 1
    assert page.count("<img") == 3 and page.count("k_sync(2)</th>") == 2
    assert "the advice is the same for each noise" in page


def test_whether_the_noise_decides_is_said():
    fresh, late = (
        SimpleNamespace(best=SimpleNamespace(max_staleness=own)) for own in (0, 3)
    )
    assert facts.decides({0.1: fresh, 1.0: late})[0].endswith("batch size.")
    assert "the noise decides" in facts.decides({0.1: fresh, 1.0: late})[0]
    assert "the same for each noise" in facts.decides({0.1: late, 1.0: late})[0]
    assert facts.decides({1.0: late}) == []


def test_equal_workers_are_not_called_slow():
    assert facts.slow_worker(Recorded(np.tile([[1.0], [1.0], [1.09]], 5))) == []
    assert facts.slow_worker(Recorded(np.tile([[1.0], [1.0], [1.11]], 5))) != []


def test_a_clock_s_starts_need_an_option(tmp_path):
    rows = [f"{w},{k},{1 + w},{1.7e9 + 3 * k}" for w in range(2) for k in range(5)]
    log = tmp_path / "times.csv"
    log.write_text("\n".join(["worker,step,seconds,start", *rows]) + "\n")
    out = f"--out={tmp_path}/advice.html"
    done = run(log, out)
    assert done.returncode == 1 and 'give start_seconds="first"' in done.stderr
    for option in ("--start_seconds=first", "--columns=start=None"):
        done = run(log, out, option, "--noise=0", *FAST)
        assert done.returncode == 0, done.stderr


BAD = [
    (["--columns=worker"], "--columns must be as worker=rank, got 'worker'"),
    (["--resample=often"], "`resample` must be"),
    (["--step_seconds=2"], "`step_seconds` must be"),
    (["--target=2"], "`target` must be in"),
    (["--out=nowhere/advice.html"], "there is no folder nowhere"),
    (["another.csv"], "give one file of times"),
    (["--noise=much"], "--noise must be a number, got 'much'"),
    (["--start_seconds=soon"], "--start_seconds must be a number, got 'soon'"),
]


@pytest.mark.parametrize(("options", "message"), shortened(BAD, BAD[2]))
def test_bad_options_are_named_before_anything_runs(tmp_path, options, message):
    log = write(tmp_path / "times.csv", np.tile([[1.0], [4.0]], 5))
    done = run(log, f"--out={tmp_path}/advice.html", *options)
    assert done.returncode == 1 and message in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout  # the error alone
    assert not (tmp_path / "advice.html").exists()


def test_a_log_that_cannot_be_read_is_named(tmp_path):
    done = run(tmp_path / "times.csv")
    assert done.returncode == 1
    assert (
        done.stderr.startswith("error: there is no file") and "times.csv" in done.stderr
    )
