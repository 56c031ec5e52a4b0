"""The command `experiments.advise`: what it prints, its page, and its errors."""

import html
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import delayjax as dj
from delayjax.cluster import Recorded
from experiments.advise import facts, pictures
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
    """Worker 2 takes 4 s, the others 1 s; in a step of 5 s each task gets 1 s more."""
    seconds = np.tile([[1.0], [1.0], [4.0]], 60)
    log, out = write(tmp_path / "times.csv", seconds), tmp_path / "advice.html"
    done = run(log, f"--out={out}", "--step_seconds=5", "--noise=0,1", *FAST)
    assert done.returncode == 0, done.stderr
    first, slow, *lines = done.stdout.splitlines()
    assert first.startswith("20% of a step, 1 of 5 s, is not these tasks")  # 1 - 4/5
    assert slow.startswith("Worker 2 takes 2.5 times as long as the others (medians)")
    assert "a step would take 2 s in place of 5 s" in slow
    assert "3 workers and 60 steps, with a mean of 3 s" in done.stdout
    page = html.unescape(out.read_text())
    assert page.count("<img") == 3 and page.count("k_sync(2)</th>") == 2
    assert all(text in page for text in (first, slow))
    for noise in ("0", "1"):
        (verdict,) = [own for own in lines if own.startswith(f"Noise {noise}:")]
        said = verdict.partition(": ")[2]
        assert said in page
        assert "applies (almost) no gradients of worker 2" in said  # k_sync(2)
        assert page.count(f'<th scope="col">Noise {noise}</th>') == 1
    rows = [own.split() for own in lines if own.startswith(("hardsync", "k_sync(2)  "))]
    assert [own[1] for own in rows] == ["5", "2"] * 2  # seconds an update
    assert "k_sync(2) is the best protocol at each of these noises." in page


def test_a_marker_stands_at_a_protocol_s_staleness_and_speed():
    cluster = dj.cluster.Cluster(3, dj.cluster.exponential(1.0))
    advice = dj.cluster.advise(cluster, target=0.3, seeds=2)
    (axis,) = pictures.speed_against_staleness({1.0: advice}).axes
    markers = [tuple(map(float, own[0].get_xydata()[0])) for own in axis.containers]
    first, *_ = advice.choices
    assert markers == [
        (own.mean_staleness.mean, own.times_as_fast_as(first).mean)
        for own in advice.choices
    ]


def test_whether_the_noise_decides_is_said():
    one, other = (
        SimpleNamespace(best=SimpleNamespace(protocol=own)) for own in ("a()", "b()")
    )
    (said,) = facts.decides({0.1: one, 1.0: other, 10.0: other})
    assert said.startswith("The noise decides between a() and b(): measure it.")
    (said,) = facts.decides({0.1: other, 1.0: other})
    assert said == "b() is the best protocol at each of these noises."
    assert facts.decides({1.0: one}) == []


def test_a_worker_with_some_long_tasks_is_not_called_slow():
    """Only a worker that makes steps more than 1.1 times as long is."""
    assert facts.slow_worker(Recorded(np.tile([[1.0], [1.0], [1.09]], 5))) == []
    assert facts.slow_worker(Recorded(np.tile([[1.0], [1.0], [1.11]], 5))) != []
    seconds = np.ones((3, 9))
    seconds[1, ::3] = 9.0
    assert facts.slow_worker(Recorded(seconds)) == []


def test_a_poor_log_is_doubted():
    enough = np.ones((2, 50))
    assert facts.doubts(Recorded(enough)) == []
    assert "Only 49 steps" in facts.doubts(Recorded(enough[:, 1:]))[0]
    enough[:, 0] = 3.01
    assert "The first step took 3.01 s" in facts.doubts(Recorded(enough))[0]


def test_more_and_fewer_workers_than_recorded(tmp_path):
    log = write(tmp_path / "times.csv", np.tile([[1.0], [2.0], [9.0]], 60))
    out = f"--out={tmp_path}/advice.html"
    fewer = run(log, out, "--workers=2", "--noise=0", *FAST).stdout
    assert "2 workers and 60 steps, with a mean of 1.5 s" in fewer
    assert "Worker 1 takes 2 times" in fewer and "modulo" not in fewer
    more = run(log, out, "--workers=6", "--noise=0", *FAST).stdout
    assert "worker w modulo 3. Such copies are slow together" in more
    assert "hardsync()" in more and "rennala(6)" in more


def test_starts_are_not_used(tmp_path):
    """Starts of a clock would be refused, and gaps would be allowed."""
    rows = [f"{w},{k},{1 + w},{1.7e9 + 3 * k}" for w in range(2) for k in range(5)]
    log, out = tmp_path / "times.csv", f"--out={tmp_path}/advice.html"
    log.write_text("\n".join(["worker,step,seconds,start", *rows]) + "\n")
    assert run(log, out, "--noise=0", *FAST).returncode == 0
    done = run(log, out, "--columns=start=start", "--noise=0", *FAST)
    assert "advice has no use for it" in done.stderr


BAD = [
    (["--columns=worker"], "--columns must be as worker=rank, got 'worker'"),
    (["--resample=often"], "`resample` must be"),
    (["--step_seconds=2"], "`step_seconds` must be"),
    (["--target=2"], "`target` must be in"),
    (["--out=nowhere/advice.html"], "there is no folder nowhere"),
    (["another.csv"], "give one file of times"),
    (["--noise=much"], "--noise must be a number, got 'much'"),
    (["--noise="], "--noise must hold a number, got none"),
    (["--seeds=1"], "`seeds` must be at least 2"),
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
