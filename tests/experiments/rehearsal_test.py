"""Names that a run lacks are refused before training, with made-up tables."""

import functools
import math

import optax
import pandas as pd
import pytest

import delayjax as dj
from experiments import Experiment, Range, Simulation, along, figures, run, tasks
from experiments.rehearsal import _made_up, check_names
from experiments.results import measures
from experiments.results.claims import Published, Record
from experiments.results.decay import DecayRate
from experiments.results.effects import Effect
from experiments.results.metrics import LargestStable, TimeTo
from experiments.results.sizes import percent
from experiments.run import prepared
from experiments.running.programs import programs

pytestmark = pytest.mark.runs

QUADRATIC = tasks.quadratic((1.0,), noise=0.1)


def late(learning_rate, delay):
    return dj.delayed(optax.sgd(learning_rate), delay, max_delay=4)


def experiment(**changes):
    asked = dict(
        question="?",
        task=QUADRATIC,
        training=late,
        grid={"delay": (0, 4), "learning_rate": (0.1, 0.2)},
        tuned="learning_rate",
        seeds=3,
        updates=4,
    )
    return Experiment(**asked | changes)


def effect(metric="train_loss", against=None, **more):
    return Effect(
        metric=metric, against=against or {"delay": 0}, size=percent(10), **more
    )


def claimed(measure):
    return Published(text="It is so", source="A", said="so", measure=measure, at_most=9)


def theory(delay, momentum):
    return delay + momentum


ABSENT = {
    r"`answer`: `against` has delay=5, which no row has: choose of \[0, 4\]\.": {
        "answer": effect(against={"delay": 5})
    },
    "`answer`: `against` names 'law', which is no setting: choose of delay, learn": {
        "answer": [effect(), effect(against={"law": "none"})]
    },
    r"`answer`: `where` has delay=3, which no row has: choose of \[0, 4\]": {
        "answer": effect(where={"delay": (0, 3, 4)})
    },
    "`answer`: `where` names 'dleay', which is no setting": {
        "answer": effect(where={"dleay": 4})
    },
    "`answer`: `kept` has delay=1, which no row has": {
        "answer": effect(kept={"delay": 1})
    },
    "`answer`: `mean_over` names 'law', which is no setting": {
        "answer": effect(mean_over=("law",))
    },
    "`answer`: the run has no 'test_error'; it has delay, learning_rate, seed, upd": {
        "answer": effect("test_error")
    },
    "`answer` needs 'seconds', which the run will not have: name one of its settings": {
        "answer": effect(TimeTo("train_loss", 0.1))
    },
    "`answer` needs 'rate', which the run will not have": {
        "answer": effect(LargestStable("rate"))
    },
    "`answer`: a formula has the argument 'momentum', which is no setting: choose": {
        "answer": effect(against=theory)
    },
    "figure 'test_error_over_delay': the run has no 'test_error'; it has delay": {
        "figures": [figures.curves(), figures.over("delay")]
    },
    "figure 'train_loss_over_lag': `x` names 'lag', which is no setting": {
        "figures": [figures.over("lag", "train_loss")]
    },
    "figure 'train_loss_over_delay': `only` has delay=1, which no row has": {
        "figures": [figures.over("delay", "train_loss", only={"delay": (0, 1)})]
    },
    "figure 'train_loss_over_delay': `fixed` names 'law', which is no setting": {
        "figures": [figures.over("delay", "train_loss", fixed={"law": "a"})]
    },
    "figure 'train_loss_bars': `panels` names 'law', which is no setting": {
        "figures": [figures.bars("train_loss", panels="law")]
    },
    "figure 'train_loss_over_seconds': the run has no 'seconds'; it has delay, lea": {
        "figures": [figures.curves(against="seconds")]
    },
    "figure 'train_loss_over_update': `color` names 'law', which is no setting": {
        "figures": [figures.curves(color="law")]
    },
    "figure 'train_loss_over_delay': `color` names 'delay', which is on the horizon": {
        "figures": [figures.over("delay", "train_loss", color="delay")]
    },
    "figure 'best_value_over_delay': `panels` names 'delay', which is on the horizo": {
        "figures": [figures.best_step("delay", panels="delay")]
    },
    "figure 'best_delay_over_learning_rate': the run tunes no 'delay'; it tunes no": {
        "figures": [figures.best_step("learning_rate", "delay")]
    },
    "statement 'It is so' needs 'train_los', which the run will not have": {
        "stated": [claimed(measures.mean("train_los"))]
    },
    r"statement 'It is so': no row has {'delay': 5}: choose of the values {'delay'": {
        "stated": [claimed(measures.tuned("train_loss", delay=5))]
    },
    "statement 'A number' needs 'dleay', which the run will not have": {
        "stated": [Record("A number", measures.mean("train_loss", dleay=4))]
    },
}


ASKED = functools.cache(lambda: programs(experiment()))


@pytest.mark.parametrize("message", ABSENT)
def test_a_name_or_a_value_that_the_run_lacks_is_refused(message):
    changes = dict(ABSENT[message])
    stated = changes.pop("stated", ())
    with pytest.raises(ValueError, match=message):
        check_names(experiment(**changes), ASKED(), {0: ["train_loss"]}, stated)


@pytest.mark.parametrize("read", ["`answer`", "figure", "statement"])
def test_they_are_refused_before_any_work(read, tmp_path):
    message = next(message for message in ABSENT if message.startswith(read))
    changes = dict(ABSENT[message])
    stated = changes.pop("stated", ())
    with pytest.raises(ValueError, match=message):
        run(experiment(**changes), tmp_path / "run", stated=stated)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=message):  # --dry_run
        prepared(experiment(**changes), stated=stated)


CLUSTER = dj.cluster.Cluster(2, dj.cluster.exponential(1.0))
TIMED = {
    "training": along(Simulation(CLUSTER, dj.cluster.protocols.k_async(1)), optax.sgd),
    "grid": {"learning_rate": (0.1, 0.2)},
    "updates": None,
    "seconds": 3.0,
}


class Own:
    """A user's figure, which is not drawn before the run."""

    name = "own"

    def draw(self, run):
        return {}["absent"]


def test_what_made_up_numbers_cannot_decide_is_no_error(tmp_path):
    def of_numbers(result):
        return 1.0 / (result.results["train_loss"].iloc[0] - 1.0).item()

    def of_records(result):
        return result.info["wall_seconds"]

    time = TimeTo("train_loss", -1.0, along="update")
    rate = figures.over("learning_rate", DecayRate())  # it needs three evaluations
    drawn = [Own(), figures.staleness(), rate]
    late = effect(time, against={"learning_rate": 0.1})
    whole = experiment(answer=late, figures=drawn, tuned=(), **TIMED)
    stated = [claimed(of_numbers), claimed(of_records)]
    assert len(prepared(whole, stated=stated)) == 1


def test_a_user_s_function_that_looks_up_what_it_lacks_is_no_error():
    """The tables have all of its columns; if it fails, the report will say so."""

    def of_a_dict(delay):
        return {}["boom"]

    def of_a_table(delay):
        return pd.DataFrame()["boom"]

    drawn = [figures.over("delay", "train_loss", theory=of_a_dict)]
    whole = experiment(
        answer=[effect(against=of_a_dict), effect(against=of_a_table)], figures=drawn
    )
    stated = [claimed(lambda result: of_a_dict(0))]
    check_names(whole, ASKED(), {0: ["train_loss"]}, stated)


def test_a_changed_flag_may_remove_what_the_answer_names(tmp_path):
    """The answer then says what is missing, and the run has its tables."""
    short = experiment(answer=effect(against={"delay": 5}))
    result = run(short, tmp_path, changed={"delay": [(0, 5), (0, 4)]})
    assert "cannot be compared with delay=5" in result.answers[0]
    assert len(result.results) == 2 * 2 * 3


TRAININGS = {
    "by updates": {},
    "along a trace, by seconds": TIMED,
    "with tuning seeds": {"tuning_seeds": 2},
    "of two arms": {
        "training": None,
        "arms": [
            ({"rule": "plain"}, optax.sgd),
            ({"rule": "decayed", "share": 0.5}, lambda learning_rate: optax.sgd(0.1)),
        ],
        "grid": {"learning_rate": (0.1, 0.2)},
    },
}


@pytest.mark.parametrize("name", TRAININGS)
def test_the_made_up_tables_have_the_columns_and_settings_of_the_run(name, tmp_path):
    asked = experiment(**TRAININGS[name])
    made = programs(asked)
    result = run(asked, tmp_path)
    known = _made_up(asked, made, {made[0].executable: ["train_loss"]})
    pairs = [(known.results, result.results), (known.curves, result.curves)]
    if result.selection.results is not None:
        pairs += [(known.selection.results, result.selection.results)]
    for made_up, measured in pairs:
        assert [*made_up] == [*measured]
        settings = [*made_up][: [*made_up].index("seed")]
        rows = measured[settings].drop_duplicates().reset_index(drop=True)
        assert made_up[settings].drop_duplicates().reset_index(drop=True).equals(rows)
        assert [*made_up["seed"].unique()] == [*measured["seed"].unique()][:2]
    assert math.isfinite(known.best["train_loss"].sum())


def test_a_searched_number_has_a_value_in_its_range():
    grid = {"delay": (0,), "learning_rate": Range(0.1, 0.4)}
    asked = experiment(grid=grid, tuned=())
    made = programs(asked)
    known = _made_up(asked, made, {made[0].executable: ["train_loss"]})
    assert known.results["learning_rate"].between(0.1, 0.4).all()
