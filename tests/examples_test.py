"""The notebooks of examples/ run, and what they claim is true."""

import contextlib
import io
import re
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from experiments.figures.palette import COLORS, NOTE_COLOR
from experiments.running.programs import programs
from tests.support.cases import shortened

pytestmark = pytest.mark.runs

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.md"))


def run(name):
    """Runs a notebook: the variables of its cells, and what they print."""
    matplotlib.use("agg")
    text = (EXAMPLES / f"{name}.md").read_text()
    text = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)  # a notebook's own commands
    names = {"__name__": name}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.chdir(EXAMPLES):
        for cell in re.findall(r"```\{code-cell\} ipython3\n(.*?)```", text, re.DOTALL):
            exec(cell, names)
    return names | {"printed": printed.getvalue()}


@pytest.fixture(scope="module")
def delay():
    return run("what_a_delay_costs")


@pytest.fixture(scope="module")
def cluster():
    return run("along_a_cluster")


@pytest.fixture(scope="module")
def recorded():
    return run("recorded_clusters")


@pytest.fixture(scope="module")
def quick():
    return run("quickstart")


@pytest.fixture(scope="module")
def rule(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("own")))
        return run("own_optimizer")


def test_all_are_in_the_site():
    index = (EXAMPLES.parent / "docs" / "index.md").read_text()
    assert len(NOTEBOOKS) == 5
    assert all(f"\nexamples/{path.stem}\n" in index for path in NOTEBOOKS)
    assert (EXAMPLES.parent / "docs" / "examples").resolve() == EXAMPLES.resolve()


def test_the_quickstart_installs_in_its_first_cell_and_prints_what_theory_says(quick):
    text = (EXAMPLES / "quickstart.md").read_text()
    (first, *_) = re.findall(r"```\{code-cell\} ipython3\n(.*?)```", text, re.DOTALL)
    assert '"-m", "pip", "install"' in first and "\nimport delayjax as dj\n" in first
    printed = quick["printed"]
    assert "the last gradient was 16 updates old" in printed
    limits = re.findall(r"delay (\d+): the limit is (\S+)", printed)
    theory = [2 * np.sin(np.pi / (2 * (2 * int(tau) + 1))) for tau, _ in limits]
    np.testing.assert_allclose([float(limit) for _, limit in limits], theory, atol=5e-4)
    losses = re.findall(r"of it: (\S+); at 1.1: (\S+)", printed)
    assert len(losses) == 3
    assert all(float(below) < 0.1 and not float(above) < 1e3 for below, above in losses)
    # a round of hardsync is the slowest of 8 exponential times, k_async(1) takes each
    rounds = re.findall(r"updates in (\d+) s, mean staleness (\S+)", printed)
    (each, age), (waiting, fresh) = [tuple(map(float, pair)) for pair in rounds]
    assert each == pytest.approx(400 / 8, rel=0.15) and age == pytest.approx(7, abs=0.5)
    slowest = sum(1 / k for k in range(1, 9))
    assert waiting == pytest.approx(400 * slowest, rel=0.1) and fresh == 0


def test_a_run_diverges_beyond_the_limit_and_decays_below_it(delay):
    steps, limits = delay["STEPS"], delay["limits"]
    assert (delay["diverged"] == (steps[None] > limits[:, None])).all()


def largest_root(a, tau):
    """The largest modulus of the roots of z^(tau+1) - z^tau + a."""
    powers = np.zeros(tau + 2)
    powers[:2] = 1.0, -1.0
    powers[-1] += a
    return np.abs(np.roots(powers)).max()


def test_simulated_costs_are_those_of_theory(delay):
    theory = np.array(
        [[largest_root(a, tau) for a in delay["STEPS"]] for tau in delay["DELAYS"]]
    )
    measured = delay["measured"]
    # near a double root, or if a fall takes few updates, the count is not exact
    compared = np.isfinite(measured) & (theory < 1) & (theory > 0.5)
    assert compared.sum() > 100
    expected = -1 / np.log10(theory[compared])
    np.testing.assert_allclose(measured[compared], expected, rtol=0.05)


def test_lines_and_limits_are_those_of_the_recursion(delay):
    for i, tau in enumerate(delay["DELAYS"]):
        limit = 2 * np.sin(np.pi / (2 * (2 * tau + 1)))
        assert delay["limits"][i] == pytest.approx(limit)
        assert largest_root(limit, tau) == pytest.approx(1.0, abs=1e-6)
        roots = [largest_root(a, tau) for a in delay["fine"]]
        np.testing.assert_allclose(delay["theory"][i], roots, rtol=1e-6)


def test_the_best_step_moves_left_and_up(delay):
    cost = np.nan_to_num(delay["cost"], nan=np.inf)
    best, steps = cost.min(axis=1), cost.argmin(axis=1)
    assert (np.diff(best) > 0).all()
    assert (np.diff(steps) < 0).all()


def test_slow_workers_gradients_are_several_times_as_old(cluster):
    trace, ages = cluster["asynchronous"], cluster["ages"]
    slow = trace.worker >= 6
    assert ages[slow].mean() > 3 * ages[~slow].mean()
    np.testing.assert_array_equal(ages, trace.staleness[:, 0])


def test_who_does_not_wait_has_more_updates_and_is_ahead_nearly_all_the_time(cluster):
    waits, takes = cluster["traces"]["wait for all"], cluster["traces"]["take each"]
    assert takes.num_updates > 20 * waits.num_updates
    times = np.linspace(20.0, 110.0, 10)
    ahead = np.interp(times, *cluster["best"]["take each"])
    losses = np.interp(times, *cluster["best"]["wait for all"])
    assert (ahead < losses).sum() >= 8
    damped = np.interp(times, *cluster["best"]["take each, step / staleness"])
    assert (ahead < damped).sum() >= 8


def test_no_best_step_lies_on_the_edge_of_the_grid(cluster):
    assert cluster["printed"].count("best step") == 3
    assert "edge of the grid" not in cluster["printed"]


def test_a_dropped_replica_changes_the_rate_by_the_mean_order_statistic(recorded):
    for job, log in recorded["recorded"].items():
        slowest, next_slowest = np.sort(log.seconds, axis=0)[::-1][:2].mean(axis=1)
        results, workers = recorded["results"], log.workers
        waits, drops = results[job, "hardsync"], results[job, "k_sync, one dropped"]
        assert len(set(waits[0])) == recorded["SEEDS"]  # each seed draws other steps
        # 32 or more drawn steps in each of 20 simulations
        assert waits[0].mean() == pytest.approx(slowest, rel=0.01)
        assert drops[0].mean() == pytest.approx(next_slowest, rel=0.01)
        gain = (workers - 1) / workers * slowest / next_slowest
        assert (drops[1] / waits[1]).mean() == pytest.approx(gain, rel=0.01)
        best, ratio = recorded["best"][job]
        assert best == {"AR": 1, "SE": 2, "ST": 0}[job]
        assert ratio >= max(gain, 1.0)
        assert workers - 1.1 < results[job, "k_async(1)"][2].mean() + 0.5 < workers


def test_shares_of_a_step_are_of_mean_and_slowest_replica(recorded):
    for job, log in recorded["recorded"].items():
        step = recorded["step_seconds"][job].mean()
        compute, waits, rest = recorded["shares"][job]
        assert compute == pytest.approx(log.seconds.mean() / step)
        assert compute + waits == pytest.approx(log.seconds.max(axis=0).mean() / step)
        assert compute + waits + rest == pytest.approx(1.0)


def stages(job):
    """A value for each rank, in the order of the ranks."""
    path = EXAMPLES / "data" / f"{job}.csv"
    table = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(2, 1), dtype=int)
    return np.unique(table, axis=0)[:, 1]


def test_the_causes_of_waiting_are_those_that_the_page_says(recorded):
    slowest = {job: log.seconds for job, log in recorded["ranks"].items()}
    slowest = {job: seconds.argmax(axis=0) for job, seconds in slowest.items()}
    assert (slowest["AR"] == recorded["slow"]).all()
    assert (stages("ST")[slowest["ST"]] == 3).all()
    counts = np.bincount(recorded["recorded"]["SE"].seconds.argmax(axis=0))
    assert counts.max() <= 5
    ranks = np.flatnonzero(stages("AR") == stages("AR")[recorded["slow"]])
    assert sorted([recorded["slow"], *recorded["others"]]) == ranks.tolist()
    assert recorded["cost"][0] / recorded["cost"][1] == pytest.approx(2.24, abs=0.01)


def test_advice_gains_less_than_a_cluster_without_the_cause(recorded):
    assert 1 < recorded["whole"]["SE"] < 1.54
    advice = recorded["advice"]["AR"]
    gain = advice.best.times_as_fast_as(advice.choices[0]).mean
    assert 1 < recorded["whole"]["AR"] < gain < 2.24


@pytest.mark.long
def test_fading_momentum_without_delay_is_momentum_and_beats_it_under_delay(rule):
    rows = rule["found"].results.set_index(["optimizer", "learning_rate", "seed"])
    fresh = rows[rows["delay"] == 0]["train_loss"]
    assert (fresh["fading momentum"] == fresh["momentum 0.9"]).all()
    loss = rule["table"].set_index(["optimizer", "delay"])
    assert loss["mean"]["momentum 0.9", 0] < loss["mean"]["no momentum", 0]
    assert loss["mean"]["momentum 0.9", 2] < loss["mean"]["fading momentum", 2]
    assert loss["high"]["fading momentum", 8] < loss["low"]["momentum 0.9", 8]
    assert loss["low"]["no momentum", 8] < loss["mean"]["fading momentum", 8]
    assert loss["mean"]["fading momentum", 8] < loss["high"]["no momentum", 8]


@pytest.mark.long
def test_each_arm_of_one_s_own_is_one_program(rule):
    assert len(programs(rule["experiment"])) == 3


@pytest.mark.parametrize(
    "name",
    shortened(["delay", "cluster", "recorded", "rule"], "delay", "cluster", "recorded"),
)
def test_figures_have_labels_with_units_and_colors_that_all_can_tell(name, request):
    values = request.getfixturevalue(name).values()
    figures = [value for value in values if isinstance(value, Figure)]
    assert figures
    for axis in (axis for figure in figures for axis in figure.axes):
        assert re.search(r"\(.+\)$", axis.get_xlabel())
        assert axis.get_ylabel()
        drawn = {to_hex(line.get_color()).upper() for line in axis.get_lines()}
        drawn |= {to_hex(patch.get_facecolor()).upper() for patch in axis.patches}
        # a ring around a point without an optimum has the color of the notes
        assert drawn <= {color.upper() for color in (*COLORS, NOTE_COLOR)}
