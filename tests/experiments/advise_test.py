"""The command `experiments.advise`: what it prints, its page, and its errors."""

import contextlib
import dataclasses
import html
import io
from types import SimpleNamespace

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import delayjax as dj
from delayjax.cluster import Recorded
from experiments.advise import __main__ as advise
from experiments.advise import facts, pictures

pytestmark = pytest.mark.runs

FAST = ("--target=0.3", "--seeds=2")


def run(*arguments):
    """Runs the command in this process: what it prints, and its error."""
    printed, error = io.StringIO(), ""
    with (
        flagsaver.flagsaver(),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            advise.main(flags.FLAGS(["experiments.advise", *map(str, arguments)]))
        except SystemExit as end:
            error = end.code
    return SimpleNamespace(stdout=printed.getvalue(), error=error)


def write(path, seconds):
    rows = [
        f"{worker},{step},{value}"
        for step, values in enumerate(seconds.T)
        for worker, value in enumerate(values)
    ]
    path.write_text("\n".join(["worker,step,seconds", *rows]) + "\n")
    return path


def test_the_rest_of_a_step_is_measured_with_all_workers(tmp_path):
    """Without worker 3 its task of 4 s is no communication: 0.3 of 4.3 s is."""
    seconds = np.tile([[1.0], [1.0], [1.0], [4.0]], 60)
    log, out = write(tmp_path / "times.csv", seconds), tmp_path / "advice.html"
    done = run(log, f"--out={out}", "--step_seconds=4.3", "--workers=3", *FAST)
    assert not done.error
    assert "7% of a step, 0.3 of 4.3 s, is not these tasks" in done.stdout


def test_a_log_becomes_tables_and_a_page(tmp_path):
    """Worker 2 takes 4 s, the others 1 s; in a step of 5 s each task gets 1 s more."""
    seconds = np.tile([[1.0], [1.0], [4.0]], 60)
    log, out = write(tmp_path / "times.csv", seconds), tmp_path / "advice.html"
    done = run(log, f"--out={out}", "--step_seconds=5", "--noise=0,1", *FAST)
    assert not done.error
    first, slow, *lines = done.stdout.splitlines()
    assert first.startswith("20% of a step, 1 of 5 s, is not these tasks")  # 1 - 4/5
    assert slow.startswith("Worker 2 takes 2.5 times as long as the others (medians)")
    assert "a step would take 2 s in place of 5 s" in slow
    assert "3 workers and 60 steps, with a mean of 3 s" in done.stdout
    page = html.unescape(out.read_text())
    assert page.count("<img") == 3 and page.count("k_sync(2)</th>") == 2
    # SVG figures have no white background on a dark page
    assert page.count("data:image/svg+xml") == 3 and "data:image/png" not in page
    assert all(text in page for text in (first, slow))
    for noise in ("0", "1"):
        (verdict,) = [line for line in lines if line.startswith(f"Noise {noise}:")]
        text = verdict.partition(": ")[2]
        assert text in page
        assert "applies (almost) no gradients of worker 2" in text  # k_sync(2)
        assert page.count(f'<th scope="col">Noise {noise}</th>') == 1
    rows = [row.split() for row in lines if row.startswith(("hardsync", "k_sync(2)  "))]
    assert [row[1] for row in rows] == ["5", "2"] * 2  # seconds an update
    assert "k_sync(2) is the best protocol at each of these noises." in page


def test_a_marker_stands_at_a_protocol_s_staleness_and_speed():
    cluster = dj.cluster.Cluster(3, dj.cluster.exponential(1.0))
    advice = dj.cluster.advise(cluster, target=0.3, seeds=2)
    (axis,) = pictures.speed_against_staleness({1.0: advice}).axes
    markers = [tuple(map(float, bars[0].get_xydata()[0])) for bars in axis.containers]
    first, *_ = advice.choices
    assert markers == [
        (choice.mean_staleness.mean, choice.times_as_fast_as(first).mean)
        for choice in advice.choices
    ]


def test_whether_the_noise_decides_is_said():
    one, other = (
        SimpleNamespace(best=SimpleNamespace(protocol=name)) for name in ("a()", "b()")
    )
    (sentence,) = facts.decides({0.1: one, 1.0: other, 10.0: other})
    assert sentence.startswith("The noise decides between a() and b(): measure it.")
    (sentence,) = facts.decides({0.1: other, 1.0: other})
    assert sentence == "b() is the best protocol at each of these noises."
    assert facts.decides({1.0: one}) == []


def test_a_worker_with_some_long_tasks_is_not_called_slow():
    """A worker is slow only if steps take more than 1.1 times as long because of it."""
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


def test_islands_with_equal_steps_exchange_as_often_as_the_closed_form_says():
    """An exchange takes c = 4 * 0.03 / 2 + 1.6 s, H = c 0.95 / (0.05 * 0.5) = 63.08."""
    link = dj.cluster.Communication(0.03, 2e9, 1.25e9)
    islands = dj.cluster.Cluster(2, dj.cluster.constant(0.5), communication=link)
    (sentence,) = facts.periods(islands, Recorded(np.full((2, 60), 0.5)))
    assert "takes 1.66 s and costs at most 5% of the time from H = 64" in sentence
    # with d = 4, or with 4 fragments, a slice takes 0.06 + 1.6 / 4 < 0.5 / 0.95 s
    assert "costs no more from d = 4 on (H above 4), or in 4 fragments" in sentence
    assert "from d = 1 on (H above 7). Late outer steps cost loss" in sentence
    free = dj.cluster.Cluster(2, dj.cluster.constant(0.5))
    assert facts.periods(free, Recorded(np.full((2, 60), 0.5))) == []


def test_a_slice_pays_the_latency_too():
    """2 * 0.2 + 1.6 / d <= 0.5 / 0.95 from d = 13 on; with a latency of 0.27, never."""
    sentences = {0.2: "from d = 13 on (H above 13)", 0.27: "that costs more"}
    for latency, words in sentences.items():
        link = dj.cluster.Communication(latency, 2e9, 1.25e9)
        islands = dj.cluster.Cluster(2, dj.cluster.constant(0.5), communication=link)
        (sentence,) = facts.periods(islands, Recorded(np.full((2, 60), 0.5)))
        assert words in sentence


@pytest.mark.parametrize("half", ["--message_bytes=2e9", "--bytes_per_second=1e9"])
def test_half_a_link_is_refused(tmp_path, half):
    log = write(tmp_path / "times.csv", np.ones((2, 60)))
    assert "must be given together" in run(log, half, *FAST).error


def test_islands_that_are_slow_for_some_time_are_drawn_in_blocks():
    link = dj.cluster.Communication(0.5)
    recorded = Recorded(phases(0.1))
    by_clock = recorded.cluster(lasts="clock")
    by_clock = dataclasses.replace(by_clock, communication=link)
    drawn = dj.cluster.Cluster(4, recorded.service("block"), communication=link)
    (sentence,) = facts.periods(by_clock, recorded)
    assert f"from H = {drawn.shortest_period(0.05)} steps on" in sentence
    more = np.pad(recorded.seconds, ((0, 0), (0, 9)), constant_values=np.nan)
    more[0, -9:] = 1.0  # a log without waits: a fast worker does more tasks
    gaps = Recorded(more, starts=np.nancumsum(more, axis=1) - np.nan_to_num(more))
    by_clock = dataclasses.replace(gaps.cluster(), communication=link)
    assert facts.periods(by_clock, gaps) == [sentence]


def test_more_and_fewer_workers_than_recorded(tmp_path):
    log = write(tmp_path / "times.csv", np.tile([[1.0], [2.0], [9.0]], 60))
    out = f"--out={tmp_path}/advice.html"
    link = "--message_bytes=3.9", "--bytes_per_second=2", "--latency_seconds=1"
    fewer = run(log, out, "--workers=2", "--noise=0", *link, *FAST).stdout
    # c = 2 * 1 + 3.9 / 2 s, and H = c 0.95 / (0.05 * 2) = 37.5
    assert "an exchange takes 3.95 s" in fewer and "from H = 38 steps" in fewer
    assert "Messages take no time" not in fewer
    assert "2 workers and 60 steps, with a mean of 1.5 s" in fewer
    assert "Worker 1 takes 2 times" in fewer and "modulo" not in fewer
    more = run(log, out, "--workers=6", "--noise=0", *FAST).stdout
    assert "worker w modulo 3. Such copies are slow together" in more
    assert "hardsync()" in more and "rennala(6)" in more


def test_rows_may_be_sorted_by_step(tmp_path):
    log, out = tmp_path / "times.csv", f"--out={tmp_path}/advice.html"
    rows = [f"{worker},{step},1.0" for step in range(9, -1, -1) for worker in range(2)]
    log.write_text("\n".join(["worker,step,seconds", *rows]))
    assert "give sort=True" in run(log, out, "--noise=0", *FAST).error
    assert not run(log, out, "--sort", "--noise=0", *FAST).error


def test_starts_are_read_and_a_clock_s_times_need_a_flag(tmp_path):
    """The log has no step 2 of worker 1. Such a gap needs the column `start`."""
    rows = [
        f"{w},{k},{1 + w},{1.7e9 + 3 * k}"
        for w in range(2)
        for k in range(5)
        if (w, k) != (1, 2)
    ]
    log, out = tmp_path / "times.csv", f"--out={tmp_path}/advice.html"
    log.write_text("\n".join(["worker,step,seconds,start", *rows]) + "\n")
    done = run(log, out, "--noise=0", *FAST)
    assert 'give start_seconds="first"' in done.error
    done = run(log, out, "--start_seconds=first", "--noise=0", *FAST)
    assert not done.error
    assert "2 workers and 5 steps, with a mean of 1.444 s" in done.stdout  # 13 / 9
    done = run(log, out, "--columns=start=", "--noise=0", *FAST)
    assert "worker 1 must have a row for step 2, got none" in done.error


def phases(noise=0.0):
    """Of 80 steps, worker 0 is 5 times as slow in the first 20, then worker 1, ..."""
    slow = np.ones((4, 240))
    for worker in range(4):
        for step in range(20 * worker, 240, 80):
            slow[worker, step : step + 20] = 5.0
    return slow * np.random.default_rng(0).lognormal(0.0, noise, slow.shape)


def test_the_page_says_with_what_slowness_lasts(tmp_path):
    log, out = write(tmp_path / "times.csv", phases()), tmp_path / "advice.html"
    options = "--lasts=clock", "--noise=0", "--momentum=0.5", *FAST
    by_clock = run(log, f"--out={out}", *options)
    assert not by_clock.error
    page = html.unescape(out.read_text())
    for sentence in (
        "Slowness lasts with the clock: a worker is slow at the times",
        "The log has no `start`: all workers begin a step together.",
        "with momentum 0.5",
    ):
        assert sentence in " ".join(page.split()) and sentence in by_clock.stdout
    by_task = run(log, f"--out={out}", "--noise=0", "--resample=steps", *FAST)
    assert "--resample=steps, all workers together." in by_task.stdout
    assert "Slowness lasts" not in by_task.stdout
    # a step of the log takes 5 s. By the clock each worker has a speed of 1/5 for a
    # quarter of the time, else of 1; by the task it takes 2 s on average
    speeds = [
        float(line.split()[1])
        for done in (by_clock, by_task)
        for line in done.stdout.splitlines()
        if line.startswith("k_async(1)  ")
    ]
    right = [1 / (4 * (0.25 / 5 + 0.75)), 2 / 4]
    assert speeds == pytest.approx(right, rel=0.03)


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_a_log_that_does_not_show_how_long_slowness_lasts_names_the_flag(
    tmp_path, noise
):
    log = write(tmp_path / "times.csv", phases(noise))
    done = run(log, f"--out={tmp_path}/advice.html", "--noise=0", *FAST)
    assert 'service("block") is --resample=block' in done.error
    assert "\n" not in done.error
    options = "--resample=block", "--noise=0", *FAST
    assert not run(log, f"--out={tmp_path}/advice.html", *options).error


@pytest.mark.parametrize("options", [(), ("--resample=steps",), ("--step_seconds=3",)])
def test_times_that_contain_the_barrier_are_a_sentence_of_the_page(tmp_path, options):
    seconds = np.tile(np.random.default_rng(0).uniform(1.0, 2.0, 60), (3, 1))
    log, out = write(tmp_path / "times.csv", seconds), tmp_path / "advice.html"
    done = run(log, f"--out={out}", "--noise=0", *options, *FAST)
    assert not done.error  # and no warning, which would be an error here
    for text in (done.stdout, html.unescape(out.read_text())):
        assert text.count("nearly equal for all workers in each step") == 1


def test_an_error_does_not_hide_what_was_warned_of(tmp_path):
    """All workers have slow phases; their times contain the wait for the slowest."""
    rng = np.random.default_rng(0)
    seconds = np.repeat(rng.uniform(1.0, 9.0, 10), 10) * rng.uniform(0.95, 1, (3, 100))
    log, out = write(tmp_path / "times.csv", seconds), f"--out={tmp_path}/advice.html"
    done = run(log, out, "--noise=0", *FAST)
    assert "workers that wait for" in done.error
    assert done.error.count("nearly equal for all workers in each step") == 1
    milliseconds = write(tmp_path / "times.csv", 1000 * seconds)
    done = run(milliseconds, out, "--step_seconds=9", *FAST)
    assert "`step_seconds` must be" in done.error
    assert "If these are milliseconds, divide them by 1000" in done.error


def test_gaps_do_not_count_in_what_is_said():
    seconds = np.tile([[1.0], [1.0], [4.0]], 60)
    seconds[2, ::2] = np.nan
    starts = np.tile(5.0 * np.arange(60), (3, 1))
    recorded = Recorded(seconds, starts)
    (sentence,) = facts.slow_worker(recorded)
    assert "Worker 2 takes 4 times" in sentence
    assert "in place of 2.5 s" in sentence  # 4 s and 1 s
    assert facts.doubts(recorded) == []
    assert "a mean of 1.6 s" in facts.simulated(recorded, 3)[0]  # 240 / 150
    (axis,) = pictures.waiting(seconds).axes
    heights = [bar.get_height() for bar in axis.patches]
    # computing: workers 2, 0, 1; waiting: worker 2 never, others 3 s in half of steps
    assert heights == [4.0, 1.0, 1.0, 0.0, 1.5, 1.5]


BAD = [
    (["--start_seconds=last"], "--start_seconds must be a number, got 'last'"),
    (["--columns=worker="], "--columns must be as worker=rank, got 'worker='"),
    (["--columns=worker"], "--columns must be as worker=rank, got 'worker'"),
    (["--target=2"], "`target` must be in"),
    (["--noise=much"], "--noise must be a number, got 'much'"),
    (["--noise="], "--noise must hold a number, got none"),
]


def test_bad_options_are_named_before_anything_runs(tmp_path):
    log = write(tmp_path / "times.csv", np.tile([[1.0], [4.0]], 5))
    for options, message in BAD:
        done = run(log, f"--out={tmp_path}/advice.html", *options)
        assert message in done.error
        assert "\n" not in done.error and not done.stdout  # the error alone
        assert not (tmp_path / "advice.html").exists()
