"""A run that searches: its optima, its records, its end and its resumption."""

import collections
import dataclasses
import itertools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import delayjax as dj
from delayjax.cluster import Cluster, constant, exponential, protocols
from experiments import (
    Arm,
    Experiment,
    Range,
    Run,
    Search,
    Simulation,
    along,
    report,
    run,
    search,
    tasks,
)
from experiments.figures import TimeTo
from experiments.host import checkpoints
from experiments.results import claims, measures
from experiments.running import feeding, loop, searching, trials
from experiments.running.families import sharded
from experiments.running.programs import programs
from experiments.running.trainer import Trainer
from experiments.training.experiment import FIRST_SEARCH_SEED
from experiments.training.jobs import Room
from tests.support.training_runs import final_loss

pytestmark = pytest.mark.runs

CURVATURE, NOISE, UPDATES = 1.0, 0.5, 12
BOWL = tasks.quadratic((CURVATURE,), noise=NOISE)
LITTLE = Search(seeds=3, repeats=2, tolerance=0.02)
COARSE = Search(seeds=3, repeats=1, tolerance=0.1)  # where the optimum does not matter
ROUGH = dataclasses.replace(COARSE, tolerance=1.0)


def late(learning_rate, delay):
    return dj.delayed(optax.sgd(learning_rate), delay, max_delay=3)


def experiment(**changes):
    return Experiment(
        **dict(
            question="?",
            task=BOWL,
            training=late,
            grid={"delay": (0, 3), "learning_rate": Range(0.01, 1.0)},
            seeds=4,
            updates=UPDATES,
            search=LITTLE,
        )
        | changes
    )


def expected_loss(rate, delay):
    """1/2 E x_T^2 of x_{t+1} = x_t - rate (x_{t - tau} + sigma z_t), x_0 = +-1."""
    size = max(delay, 0) + 1
    step = np.eye(size, k=-1)
    step[0] = 0.0
    step[0, 0] += 1.0
    moment = np.zeros((size, size))
    moment[0, 0] = 1.0  # the gradient is of version t - min(t, delay)
    for t in range(UPDATES):
        now = step.copy()
        now[0, min(t, delay)] -= rate * CURVATURE
        moment = now @ moment @ now.T
        moment[0, 0] += (rate * NOISE) ** 2
    return 0.5 * CURVATURE * moment[0, 0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupted: its folder and its tables."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(experiment(), folder)


def test_each_series_is_reported_at_an_optimum_of_the_expected_loss(whole):
    _, result = whole
    optima = result.selection.optima
    assert optima["found"].all() and list(optima["delay"]) == [0, 3]
    rates = np.geomspace(0.01, 2.0, 400)
    for row in optima.to_dict("records"):
        least = min(expected_loss(rate, row["delay"]) for rate in rates)
        # the mean of the bowl's losses is known up to the noise of the tuning seeds
        assert expected_loss(row["learning_rate"], row["delay"]) < least + 0.05
    # a row a series and seed, at the optimum
    assert len(result.results) == 2 * 4
    means = result.results.groupby("delay")["train_loss"].mean()
    np.testing.assert_allclose(optima["reported"], means)
    both = result.results[["delay", "learning_rate"]].drop_duplicates()
    assert both.merge(optima).shape[0] == 2
    assert (
        result.best.sort_index()
        .sort_values(["seed", "delay"])
        .reset_index(drop=True)
        .equals(result.results.sort_values(["seed", "delay"]).reset_index(drop=True))
    )


def test_the_seeds_of_a_search_are_none_of_the_reported(whole):
    folder, result = whole
    rows = pd.read_csv(folder / "search.csv")
    assert rows["seed"].min() >= FIRST_SEARCH_SEED > result.results["seed"].max()
    # the trainings that the optima count are the lines of the file, series by series
    assert [*rows.groupby("series").size()] == [*result.selection.optima["trainings"]]
    assert not rows.duplicated(["program", "series", "learning_rate", "seed"]).any()


def test_a_line_of_search_csv_is_the_loss_of_that_training(whole):
    folder, _ = whole
    lines = pd.read_csv(folder / "search.csv")
    (template,) = programs(experiment())
    check_scores(template, lines.sample(5, random_state=0))


def check_scores(template, lines):
    """Trains all points of these lines under all their seeds, in another program."""
    cells = [
        template.rows[line.series] | {"learning_rate": line.learning_rate}
        for line in lines.itertuples()
    ]
    seeds = tuple(map(int, lines["seed"].unique()))
    losses = final_loss(Trainer(template.with_cells(cells, seeds)))
    expected = [losses[seeds.index(seed), i] for i, seed in enumerate(lines["seed"])]
    np.testing.assert_allclose(lines["score"], expected, rtol=1e-5)


def test_a_search_that_is_killed_goes_on_to_the_same_bytes(whole, tmp_path):
    folder, result = whole
    text = (folder / "search.csv").read_text()
    lines = text.splitlines(keepends=True)
    # killed while the line in the middle was written
    half = len(lines) // 2
    first = tmp_path / "first"
    run_until_killed(experiment(), first, after=3)
    there = (first / "search.csv").read_text()
    assert text.startswith(there) and 1 < len(there.splitlines()) < len(lines)
    (first / "search.csv").write_text("".join(lines[:half]) + lines[half][:7])
    again = run(experiment(), first)
    assert (first / "search.csv").read_text() == text
    pd.testing.assert_frame_equal(again.results, result.results)
    pd.testing.assert_frame_equal(again.selection.optima, result.selection.optima)


class Killed(BaseException):
    pass


def run_until_killed(made, folder, *, after):
    """Stops a run behind so many calls of its search, without a word."""
    calls = itertools.count()
    trained = trials.Trials.trained

    def until(self, *args):
        if next(calls) == after:
            raise Killed
        return trained(self, *args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(trials.Trials, "trained", until)
        run(made, folder)


def test_a_long_call_goes_on_from_its_checkpoint(whole, tmp_path, monkeypatch):
    made, (_, expected) = experiment(), whole
    chunks, given = itertools.count(), feeding.Feed.given
    starts = []

    def interrupted(self, start, stop):
        if next(chunks) == UPDATES + 3:
            raise Killed
        return given(self, start, stop)

    def noted(self, start, stop):
        starts.append(start)
        return given(self, start, stop)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        # chunks are of one update each, and all are saved
        patch.setattr(feeding, "_CHUNK_BYTES", 4)
        patch.setattr(loop, "_CHECKPOINT_SECONDS", 0.0)
        patch.setattr(feeding.Feed, "given", interrupted)
        closed, close = [], checkpoints.Checkpoints.close
        patch.setattr(
            checkpoints.Checkpoints, "close", lambda self: closed.append(close(self))
        )
        run(made, tmp_path)
    assert closed  # nothing goes on writing there
    assert list((tmp_path / "checkpoints").glob("search-*"))
    monkeypatch.setattr(feeding.Feed, "given", noted)
    again = run(made, tmp_path)
    assert 0 < starts[0] < UPDATES  # the call went on amid its updates
    pd.testing.assert_frame_equal(again.results, expected.results)
    assert not list(tmp_path.glob("checkpoints/search-*"))


def test_a_finished_run_trains_nothing_again(whole, monkeypatch):
    folder, result = whole
    monkeypatch.setattr(trials.Trials, "trained", None)
    again = run(experiment(), folder)
    pd.testing.assert_frame_equal(again.selection.optima, result.selection.optima)
    pd.testing.assert_frame_equal(again.best, Run.read(folder).best)


def test_more_seeds_are_trained_at_the_optima_of_the_same_search(
    whole, tmp_path, monkeypatch
):
    folder, result = whole
    here = shutil.copytree(folder, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(trials.Trials, "trained", None)
        more = run(experiment(seeds=6), here)
    assert (here / "search.csv").read_text() == (folder / "search.csv").read_text()
    assert sorted(more.results["seed"].unique()) == [*range(6)]
    first = more.results[more.results["seed"] < 4].reset_index(drop=True)
    order = ["delay", "seed"]
    pd.testing.assert_frame_equal(
        first.sort_values(order, ignore_index=True),
        result.results.sort_values(order, ignore_index=True),
    )
    # an edited bowl is another search, whatever the number of seeds
    with pytest.raises(ValueError, match=r"holds another run: .*data"):
        run(experiment(seeds=8, task=tasks.quadratic((2.0,), noise=NOISE)), here)


@pytest.mark.parametrize("stopped", ["amid the search", "at the end"])
def test_a_search_goes_on_with_a_larger_most_to_the_bytes_of_one_from_the_start(
    stopped, whole, tmp_path
):
    folder, result = whole
    text = (folder / "search.csv").read_text()
    most = result.selection.optima["trainings"].min() // 2
    short = experiment(search=dataclasses.replace(LITTLE, most=int(most)))
    here = tmp_path / "run"
    if stopped == "at the end":
        # the checkpoints of the trainings at the optima of the short search stay
        first = run(short, here, keep_checkpoints=True)
        optima = first.selection.optima
        assert not optima["found"].any() and (optima["trainings"] <= most).all()
        assert (
            not first.results["learning_rate"]
            .isin(result.results["learning_rate"])
            .all()
        )
    else:
        run_until_killed(short, here, after=3)
    trained = (here / "search.csv").read_text().splitlines()
    again = run(experiment(), here)
    lines = (here / "search.csv").read_text().splitlines()
    assert lines[: len(trained)] == trained and len(trained) < len(lines)
    # the same trainings in another order, so that the checksums are others
    trainings, expected = (
        sorted(line.rpartition(",")[0] for line in some)
        for some in (lines, text.splitlines())
    )
    assert trainings == expected
    for name in ("results.csv", "curves.csv", "optima.csv"):
        assert (here / name).read_bytes() == (folder / name).read_bytes()
    pd.testing.assert_frame_equal(again.best, result.best)


def test_a_most_below_what_was_trained_is_refused_and_names_the_number(
    whole, tmp_path, monkeypatch
):
    folder, result = whole
    here = shutil.copytree(folder, tmp_path / "run")
    record = (here / "run.json").read_text()
    trained = int(result.selection.optima["trainings"].max())

    def with_most(most):
        return experiment(search=dataclasses.replace(LITTLE, most=most))

    with pytest.raises(ValueError, match=f"must be at least {trained}, .* choose"):
        run(with_most(trained - 1), here)
    assert (here / "run.json").read_text() == record
    # of a folder whose searches were asked again, with rivals, some lines are of before
    edited = json.loads(record)
    edited["search"]["most"] = trained - 9
    (here / "run.json").write_text(json.dumps(edited))
    with pytest.raises(ValueError, match=f"must be at least {trained - 9}, "):
        run(with_most(trained - 10), here)
    (here / "run.json").write_text(record)
    # with as many as were trained all of it counts, and nothing is searched again
    monkeypatch.setattr(trials.Trials, "trained", None)
    again = run(with_most(trained), here)
    pd.testing.assert_frame_equal(again.selection.optima, result.selection.optima)
    assert (here / "results.csv").read_bytes() == (folder / "results.csv").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"search": dataclasses.replace(LITTLE, tolerance=0.1)},
        {"updates": UPDATES + 1},  # trainings of the search are shorter
        {"tuned_by": TimeTo("train_loss", 0.1, along="update")},
        {"also_at": [{"delay": 0}]},
        {"grid": {"delay": (0, 3), "learning_rate": Range(0.01, 2.0)}},
    ],
)
def test_another_search_is_another_run(whole, changes):
    folder, _ = whole
    with pytest.raises(ValueError, match="holds another run"):
        run(experiment(**changes), folder)


OFF = 4.0
PLAIN = {"rule": "plain"}


def scaled(learning_rate, delay, factor):
    factor = jnp.where(factor == OFF, 1.0, factor)
    return optax.chain(late(learning_rate, delay), optax.scale(factor))


def arms(*, contains=PLAIN, off=OFF):
    """Plain delay, and a rule that is plain delay where its factor is off."""
    ranges = {"factor": Range(0.5, 2.0, off=off)}
    return [
        Arm(training=late, labels=PLAIN),
        Arm(training=scaled, labels={"rule": "scaled"}, grid=ranges, contains=contains),
    ]


ONCE = dataclasses.replace(LITTLE, repeats=1)
NESTED = experiment(training=None, arms=arms(), search=ONCE)


def with_known(made):
    """A run, and {names of numbers: of each search, the points that it begins with}."""
    known, find = {}, searching.find

    def spied(space, *args, nested, rivals, **options):
        known.setdefault((*space, "rivals"), []).append([*rivals])
        if not rivals:
            known.setdefault(tuple(space), []).append(nested)
        return find(space, *args, nested=nested, rivals=rivals, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.search.searching.find", spied)
        return run(made), known


@pytest.fixture(scope="module")
def nested():
    return with_known(NESTED)


def test_a_series_begins_where_the_series_that_it_contains_ends(nested):
    result, known = nested
    optima = result.selection.optima
    plain = optima[optima["rule"] == "plain"].sort_values("delay")
    rates = plain["learning_rate"].to_list()
    assert known["learning_rate",] == [[], []]
    assert known["learning_rate", "factor"] == [[(rate, OFF)] for rate in rates]


AT_THREE = {"delay": (3,), "learning_rate": Range(0.01, 1.0)}


@pytest.fixture(scope="module")
def last():
    """Plain delay is the last arm, and its optimum is a point of the rule too."""
    listed = dict(training=None, arms=arms()[::-1], also_at=[PLAIN], grid=AT_THREE)
    return with_known(experiment(**listed, search=COARSE))


def test_a_contained_series_may_be_listed_last(last):
    result, known = last
    rate = result.selection.optima.set_index("rule")["learning_rate"]["plain"]
    assert known["learning_rate",] == [[]]
    assert known["learning_rate", "factor"] == [[(rate, OFF)]]


def test_a_rule_may_be_trained_at_the_optimum_of_a_rule_with_fewer_numbers(last):
    result, _ = last
    optima = result.selection.optima.set_index("rule")
    of_rule = result.results[result.results["rule"] == "scaled"]
    pairs = of_rule[["learning_rate", "factor"]].drop_duplicates()
    assert {*pairs.itertuples(index=False, name=None)} == {
        (optima["learning_rate"]["scaled"], optima["factor"]["scaled"]),
        (optima["learning_rate"]["plain"], OFF),
    }


@pytest.fixture
def found_at(monkeypatch):
    """Ends each search at once: {a part of the name of its series: where it ends}.

    A series that has a second end is found there when it has rivals.
    """

    def found_at(ends):
        asked = []

        def ended(space, search, name, *, rivals, **options):
            (part,) = (part for part in ends if part in name)
            asked.append((part, [*rivals]))
            point = ends[part][0 if not rivals else -1]
            yield from ()
            tried = (point, *rivals)
            return searching.Outcome(point, point[0], True, "", 1000, tried)

        monkeypatch.setattr(searching, "find", ended)
        return asked

    return found_at


APART = {"'delay': 0": [(0.3,)], "'delay': 3": [(0.2,)]}


def test_a_contained_series_may_lie_within_the_range_of_a_number(found_at):
    """Plain delay is the rule at the factor 1, which the search may try or not."""
    found_at({"plain": [(0.3,)], "scaled": [(0.2, 1.5)]})
    at_one = arms(contains={**PLAIN, "factor": 1.0}, off=None)
    asked = dict(training=None, arms=at_one, grid=AT_THREE, search=COARSE)
    _, known = with_known(experiment(**asked))
    assert known["learning_rate", "factor"] == [[(0.3, 1.0)]]


def test_a_series_tries_the_optima_of_the_series_that_contain_it(nested):
    result, known = nested
    optima = result.selection.optima
    scaled_at = optima[optima["rule"] == "scaled"].sort_values("delay")
    rates = scaled_at["learning_rate"].to_list()
    tried = known["learning_rate", "rivals"][-2:]
    assert [points[-1] for points in tried] == [(rate,) for rate in rates]


def test_a_series_tries_optima_of_others_where_it_has_tried_nothing(found_at):
    """Each of two series has a new rival once: their second optima are near."""
    none, late = "'delay': 0", "'delay': 3"
    asked = found_at({none: [(0.5,)], late: [(0.001,), (0.4,)]})
    run(experiment())
    first, again = asked[:2], asked[2:]
    assert first == [(none, []), (late, [])]
    # each tries the other's optimum; then 0.4 is within a factor of 2 of 0.5
    assert again == [(none, [(0.001,)]), (late, [(0.5,)])]


def test_no_series_ends_worse_than_the_series_that_it_contains(nested):
    table = nested[0].gains("plain", by=("delay",))
    assert list(table["rule"]) == ["scaled", "scaled"] and table["found"].all()
    # a factor is only another step, so the gain is 0 up to both tolerances
    assert (table["gain"].abs() < 3 * LITTLE.tolerance).all()


def test_nested_series_that_go_on_forget_the_optima_of_a_short_search(nested, tmp_path):
    """The rule began at an optimum of plain delay that the longer search has not."""
    whole = nested[0]
    short = dataclasses.replace(ONCE, most=40)
    first = run(dataclasses.replace(NESTED, search=short), tmp_path)
    assert not first.selection.optima["found"].any()
    again = run(NESTED, tmp_path)
    pd.testing.assert_frame_equal(again.selection.optima, whole.selection.optima)
    pd.testing.assert_frame_equal(again.results, whole.results, rtol=0)


def test_the_search_chooses_a_listed_axis_and_the_report_says_so(tmp_path, found_at):
    """A period beside a `Range`, with reported seeds that would choose another."""
    found_at(APART)
    whole_number = experiment(
        grid={"learning_rate": Range(0.01, 1.0), "delay": (0, 3)},
        tuned="delay",
        seeds=1,
        search=COARSE,
    )
    result = run(whole_number, tmp_path)
    results = result.results.copy()
    undelayed = results["delay"] == 0  # its score is 0.3, the other's 0.2
    results["train_loss"] = results["train_loss"].where(~undelayed, 0.0)
    result = dataclasses.replace(result, results=results)
    assert [*result.best["delay"]] == [3]
    text = report.write(Run.read(tmp_path), whole_number).read_text()
    trainings = "searched in 2,000 trainings on other seeds: means"
    assert f"the least training loss, {trainings}" in text


def test_a_shard_has_whole_families():
    made = programs(NESTED)
    for part in (0, 1):
        kept = sharded(made, part, 2)
        delays = [[row["delay"] for row in program.rows] for program in kept]
        assert delays == [[3 * part]] * 2  # plain and the rule at one delay
    alone = experiment(also_at=[{"delay": 0}])
    whole = programs(alone)
    assert sharded(whole, 0, 2, alone.also_at) == whole
    assert sharded(whole, 1, 2, alone.also_at) == []


def test_a_series_is_trained_at_the_optimum_of_another_too(found_at):
    found_at(APART)
    result = run(experiment(also_at=[{"delay": 0}]))
    pairs = result.results[["delay", "learning_rate"]].drop_duplicates()
    assert {*pairs.itertuples(index=False, name=None)} == {(0, 0.3), (3, 0.2), (3, 0.3)}
    assert len(result.results) == 3 * 4  # the optimum of delay 0 is there once
    best = result.best[["delay", "learning_rate"]].drop_duplicates()
    assert dict(best.itertuples(index=False, name=None)) == {0: 0.3, 3: 0.2}
    kept = measures.kept("train_loss", best_at={"delay": 0}, delay=3)(result)
    rows = result.results.query("delay == 3 and learning_rate == 0.3")
    assert kept == pytest.approx(rows["train_loss"].mean())
    with pytest.raises(ValueError, match="`also_at` needs a series with"):
        run(experiment(also_at=[{"delay": 2}]))


def test_the_time_to_a_value_is_searched_as_well():
    source = Simulation(Cluster(2, constant(1.0)), protocols.k_async(1))
    timed = experiment(
        training=along(source, optax.sgd),
        grid={"learning_rate": Range(0.01, 1.0)},
        tuned_by=TimeTo("train_loss", 0.2),
        search=ROUGH,
        evaluate_every=1,
    )
    result = run(timed)
    (row,) = result.selection.optima.to_dict("records")
    # seconds: the fastest step is there long before a small one
    assert row["found"] and row["score"] < 4.0 and row["learning_rate"] > 0.1
    seconds = TimeTo("train_loss", 0.2).with_column(result.results, result.curves)
    assert row["reported"] == seconds["seconds_to_train_loss_0.2"].mean() < 4.0


@pytest.fixture
def made(monkeypatch):
    """The trainers that a search compiles."""
    there = []

    def noted(*args, **options):
        there.append(Trainer(*args, **options))
        return there[-1]

    monkeypatch.setattr(trials, "Trainer", noted)
    return there


def test_clusters_are_searched_with_one_program_and_simulated_once_under_each_seed(
    made, monkeypatch
):
    simulated, simulate = collections.Counter(), Simulation.trace

    def noted(source, seed, *end):
        simulated[source.cluster.workers, seed] += 1
        return simulate(source, seed, *end)

    monkeypatch.setattr(Simulation, "trace", noted)
    sources = {
        name: Simulation(Cluster(workers, exponential(1.0)), protocols.k_async(1))
        for name, workers in (("two", 2), ("three", 3))
    }
    grid = {
        "learning_rate": Range(0.01, 1.0),
        "cluster": {name: i for i, name in enumerate(sources)},
    }
    run(experiment(training=along(sources, optax.sgd), grid=grid, search=COARSE))
    # compiled again only where a trace needs more room than all before
    needs = [trainer.program.job.room.needs for trainer in made]
    assert needs == sorted(needs) and len(made) <= 3
    # with room to spare: powers of two
    spared = [number for one in needs for number in (one.staleness, one.versions)]
    assert all(number == 2 ** round(np.log2(number)) for number in spared)
    assert all(trainer.run_chunk._cache_size() == 1 for trainer in made)
    counts = [n for (_, seed), n in simulated.items() if seed >= FIRST_SEARCH_SEED]
    assert len(counts) > 3
    # a program that is compiled needs a second job, with room to spare
    assert sum(counts) <= len(counts) + 2


HARD = Search(seeds=3, repeats=2, tolerance=1e-9, most=300)
CLAIM = claims.Published(
    text="It falls",
    source="A",
    said="so",
    measure=measures.tuned("train_loss"),
    at_most=9.0,
)


def test_what_is_not_found_says_so_and_has_no_verdict(tmp_path):
    result = run(
        experiment(
            search=HARD, grid={"learning_rate": Range(0.01, 1.0), "delay": (3,)}
        ),
        tmp_path,
    )
    (row,) = result.selection.optima.to_dict("records")
    assert not row["found"] and row["why"].startswith("not found within 300 trainings")
    assert row["trainings"] <= 300
    (judged,) = claims.judge([CLAIM], result)
    assert judged.verdict == claims.NO_OPTIMUM
    assert result.not_found() == "No optimum is found of plain."
    read = Run.read(tmp_path)
    assert claims.judge([CLAIM], read)[0].verdict == claims.NO_OPTIMUM


def test_what_is_found_has_a_verdict(whole):
    _, result = whole
    claim = dataclasses.replace(CLAIM, measure=measures.tuned("train_loss", delay=3))
    (judged,) = claims.judge([claim], result)
    assert judged.verdict == claims.REPRODUCED and not result.not_found()


STEP = {"learning_rate": (0.1,)}
ONE = {"delay": (0,)}


def whole_steps(learning_rate, period):
    return optax.sgd(learning_rate / int(period))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"static": ["learning_rate"]}, "is a `Range`, so it must be an unknown"),
        (
            {"task": lambda width: BOWL, "grid": ONE | STEP | {"width": Range(1, 9)}},
            r"`grid\['width'\]` is a `Range`, so it must be an unknown",
        ),
        (
            {"grid": STEP | {"period": Range(1, 3)}, "training": whole_steps},
            r"`grid\['period'\]` is a `Range`, so it must be an unknown",
        ),
        (
            {"training": None, "arms": arms(contains={"rule": "other"})},
            "`contains` must name one other arm",
        ),
        (
            {"training": None, "arms": arms(off=None)},
            "'factor' is a number that the arm cannot switch off",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        programs(experiment(**changes))


def test_arms_cannot_contain_each_other():
    both = arms()
    both[0] = dataclasses.replace(both[0], contains={"rule": "scaled"})
    with pytest.raises(ValueError, match="'factor' is a number that the arm lacks"):
        programs(experiment(training=None, arms=both))
    circle = [
        Arm(training=late, labels={"rule": rule}, contains={"rule": other})
        for rule, other in ("ab", "bc", "cb")
    ]
    message = "'rule': 'b'.* contains .*'rule': 'c'.*, which contains .*'rule': 'b'"
    with pytest.raises(ValueError, match=message):
        programs(experiment(training=None, arms=circle))


def test_no_two_arms_share_a_seed_whatever_their_labels():
    # 60 numbers of 200: some hashes of labels are equal
    many = [Arm(training=late, labels={"number": i}) for i in range(60)]
    firsts = search.first_seeds(many)
    assert len(set(firsts)) == 60
    gaps = np.diff(sorted(firsts))
    assert gaps.min() > 100_000 * (40 + 1)  # the most repeats, and the common seeds
    assert firsts[0] >= FIRST_SEARCH_SEED and max(firsts) + 100_000 * 41 < 2**31
    assert search.first_seeds(many[:1]) == firsts[:1]

    def of_object():
        return search.first_seeds([Arm(training=late, labels={"law": object()})])

    assert of_object() == of_object()  # no address counts: processes agree
    assert len(search.first_seeds(many * 4)) == 240  # more arms than numbers


def test_also_at_a_series_without_a_needed_number_is_refused_before_the_search():
    without_off = arms(contains=None, off=None)
    made = experiment(training=None, arms=without_off, also_at=[PLAIN])
    with pytest.raises(ValueError, match="`also_at` needs a value of 'factor'"):
        run(made)
    fixed = Arm(training=late, labels=PLAIN, grid={"learning_rate": (0.1,)})
    beside = [fixed, arms(contains=None)[1]]
    with pytest.raises(ValueError, match="and a `Range`, but there is none"):
        run(experiment(training=None, arms=beside, also_at=[PLAIN]))


def test_an_arm_without_a_search_is_reported_beside_one_with(found_at):
    found_at(APART)
    fixed = Arm(training=late, labels={"rule": "fixed"}, grid={"learning_rate": (0.1,)})
    result = run(experiment(training=None, arms=[arms()[0], fixed]))
    pd.testing.assert_frame_equal(
        result.best.sort_values([*result.best][:4]).reset_index(drop=True),
        result.results.sort_values([*result.best][:4]).reset_index(drop=True),
    )
    table = result.gains("plain", by=("delay",))
    assert list(table["rule"]) == ["fixed"] * 2 and table["found"].all()
    rows = result.results.set_index(["delay", "learning_rate", "seed"]).sort_index()[
        "train_loss"
    ]
    gains = table.set_index("delay")["gain"]
    for delay, rate in ((0, 0.3), (3, 0.2)):
        gain = rows[delay, rate] - rows[delay, 0.1]
        assert gains[delay] == pytest.approx(gain.mean())


def test_a_range_of_one_arm_is_no_list_of_values_of_another():
    values = {"learning_rate": (0.1, 0.3)}
    fixed = Arm(training=late, labels={"rule": "fixed"}, grid=values)
    with pytest.raises(ValueError, match="a `Range` of one arm and has several values"):
        programs(experiment(training=None, arms=[arms()[0], fixed]))
    # the other way round: the range of an arm in place of the experiment's values
    ranged = {"learning_rate": Range(0.01, 1.0)}
    made = experiment(
        training=None,
        grid={"delay": (0,)} | values,
        arms=[Arm(training=late, labels=PLAIN, grid=ranged)],
    )
    (program,) = programs(made)
    assert [*program.searched] == ["learning_rate"] and program.size == 1


def test_a_series_is_trained_in_the_program_of_the_others(made):
    def decayed(learning_rate, weight):  # 0 is written as a whole number
        return optax.chain(optax.add_decayed_weights(weight), optax.sgd(learning_rate))

    grid = {"weight": (0, 0.5), "learning_rate": Range(0.01, 1.0)}
    run(experiment(training=decayed, grid=grid, search=COARSE))
    assert [trainer.run_chunk._cache_size() for trainer in made] == [1]


@pytest.mark.parametrize("name", ["program", "score", "found"])
def test_a_column_of_a_search_is_no_label_and_no_axis(name):
    with pytest.raises(ValueError, match=f"label '{name}', the name of another"):
        experiment(training=None, arms=[Arm(training=late, labels={name: "a"})])
    with pytest.raises(ValueError, match=f"axis '{name}', the name of another"):
        experiment(grid={name: Range(0.1, 1.0)})


def accuracy(model, task):
    """1 - x^2, so that `train_error` is x^2."""
    return 1.0 - sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(model.params))


TIMES = {
    "in the first updates": TimeTo("train_loss", 0.4, along="update"),
    "derived": TimeTo("train_error", 0.3, along="update"),
}


def timed_by(name):
    return experiment(
        grid={"delay": (0,), "learning_rate": Range(0.01, 1.0)},
        tuned_by=TIMES[name],
        search=ROUGH,
        metrics={"train_accuracy": accuracy},
        evaluate_every=4,
    )


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """Searches by a time: {name: the folder and the tables}."""
    folders = {name: tmp_path_factory.mktemp("timed") for name in TIMES}
    return {
        name: (folder, run(timed_by(name), folder)) for name, folder in folders.items()
    }


@pytest.mark.parametrize("name", TIMES)
def test_a_time_that_is_searched_by_is_the_time_that_is_reported(name, timed):
    by, (folder, _) = TIMES[name], timed[name]
    lines = pd.read_csv(folder / "search.csv").drop_duplicates("learning_rate")
    seed = int(lines["seed"].iloc[0])
    lines = lines[lines["seed"] == seed]
    rates = tuple(lines["learning_rate"])
    grid = {"delay": (0,), "learning_rate": rates}
    given = dict(grid=grid, seeds=(seed,), search=None)
    result = run(dataclasses.replace(timed_by(name), **given))
    reported = by.with_column(result.results, result.curves).set_index("learning_rate")[
        by.name
    ]
    expected = reported[list(rates)].to_numpy()
    assert len(rates) > 3 and (expected < 4).any()
    np.testing.assert_allclose(lines["score"], expected, rtol=1e-4)


def test_a_call_that_times_begins_anew(timed, tmp_path, monkeypatch):
    """Evaluations before a checkpoint count, and are not in it."""
    made, (_, expected) = timed_by("derived"), timed["derived"]
    chunks, given = itertools.count(), feeding.Feed.given

    def interrupted(self, start, stop):
        if next(chunks) == UPDATES // 4 + 2:  # of three chunks of the second call
            raise Killed
        return given(self, start, stop)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(loop, "_CHECKPOINT_SECONDS", 0.0)
        patch.setattr(feeding.Feed, "given", interrupted)
        run(made, tmp_path)
    assert (tmp_path / "search.csv").exists()
    again = run(made, tmp_path)
    pd.testing.assert_frame_equal(again.selection.optima, expected.selection.optima)


def test_a_training_counts_that_reaches_the_value_and_diverges_afterwards(tmp_path):
    # x_t = (1 - rate)^t x_0: a large step goes through the value at once
    def rising(learning_rate):
        return optax.sgd(lambda step: jnp.where(step < 4, learning_rate, 1e30))

    timed = experiment(
        training=rising,
        grid={"learning_rate": Range(0.1, 1.0)},
        tuned_by=TimeTo("train_loss", 0.4, along="update"),
        search=ROUGH,
        evaluate_every=1,
    )
    result = run(timed, tmp_path)
    assert result.results["diverged"].all()
    (row,) = result.selection.optima.to_dict("records")
    assert row["found"] and row["score"] < 2


def test_a_seed_whose_trace_needs_more_room_is_trained_in_a_larger_program(
    tmp_path, monkeypatch, made
):
    monkeypatch.setattr(Room, "roomy", lambda self: self)  # no room to spare
    source = Simulation(Cluster(5, exponential(1.0)), protocols.k_async(1))
    heavy = experiment(
        training=along(source, optax.sgd),
        grid={"learning_rate": Range(0.01, 1.0)},
        seeds=1,
        search=Search(seeds=5, repeats=1, tolerance=0.1),
    )
    run(heavy, tmp_path)
    assert len(made) > 1
    (template,) = programs(heavy)
    check_scores(template, pd.read_csv(tmp_path / "search.csv").drop_duplicates("seed"))


def test_a_relative_search_compares_logarithms(tmp_path):
    relative = experiment(
        grid={"delay": (0,), "learning_rate": Range(0.01, 1.0)},
        search=Search(seeds=3, repeats=1, tolerance=0.5, relative=True),
    )
    run(relative, tmp_path)
    (template,) = programs(relative)
    lines = pd.read_csv(tmp_path / "search.csv").head(3)
    check_scores(template, lines.assign(score=np.exp(lines["score"])))


def test_a_line_of_each_arm_and_static_value_is_the_loss_of_its_own_program(tmp_path):
    def halved(learning_rate, nesterov):
        return optax.sgd(learning_rate / 2, 0.5, nesterov=nesterov)

    def plain(learning_rate, nesterov):
        return optax.sgd(learning_rate, 0.5, nesterov=nesterov)

    made = experiment(
        training=None,
        arms=[
            Arm(training=plain, labels=PLAIN),
            Arm(training=halved, labels={"rule": "halved"}),
        ],
        grid={"nesterov": (False, True), "learning_rate": Range(0.01, 1.0)},
        search=Search(seeds=3, repeats=1, tolerance=0.5),
    )
    run(made, tmp_path)
    lines = pd.read_csv(tmp_path / "search.csv").groupby("program").first()
    templates = programs(made)
    assert len(templates) == len(lines) == 4
    for template in templates[::3]:  # of the other arm and of the other value
        line = lines.loc[[template.name]].astype({"series": int, "seed": int})
        check_scores(template, line)
