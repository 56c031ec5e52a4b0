import optax
import pytest

from experiments import Arm, Experiment, Range, Search, tasks
from experiments.results.metrics import Computed, TimeTo
from experiments.training.jobs import arguments

QUADRATIC = tasks.quadratic()
PRICE = Computed("bytes", lambda learning_rate: 8.0)
COST = TimeTo("train_loss", 0.2, along="update", cost=PRICE)


def experiment(**changes):
    return Experiment(
        **{
            "question": "?",
            "task": QUADRATIC,
            "training": optax.sgd,
            "grid": {"learning_rate": (0.1, 0.2)},
            "updates": 4,
        }
        | changes
    )


def test_three_seeds_are_three_seeds():
    assert experiment(seeds=3).seed_numbers == (0, 1, 2)
    assert experiment(seeds=(5, 7)).seed_numbers == (5, 7)
    assert experiment(tuning_seeds=0).tuning_seed_numbers == ()
    tuned = experiment(tuning_seeds=2, tuned="learning_rate")
    assert tuned.tuning_seed_numbers == (1000, 1001)


def test_a_range_without_search_is_searched_as_by_default():
    searched = {"learning_rate": Range(0.1, 1.0)}
    assert experiment(grid=searched).effort == Search()
    # even the default is refused where nothing would be searched
    with pytest.raises(ValueError, match="no axis of `grid` is a `Range`"):
        experiment(search=Search())


def test_one_training_is_an_arm_without_labels():
    (arm,) = experiment().all_arms
    assert dict(arm.labels) == {}
    assert arm.training.arguments()["learning_rate"]


def test_arms_may_be_pairs_of_labels_and_training():
    pairs = [({"name": "a"}, optax.sgd), Arm(training=optax.adam, labels={"name": "b"})]
    arms = experiment(training=None, arms=pairs).all_arms
    assert [arm.labels["name"] for arm in arms] == ["a", "b"]


def test_what_must_be_given_is_told_from_what_may_be():
    assert arguments(lambda rate, *, delay=0: None) == {"rate": True, "delay": False}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": 3.0}, "needs one of `updates`, `seconds` and `examples`"),
        ({"updates": 0}, "`updates` must be a whole number from 1 to .*, got 0"),
        ({"updates": 2**31}, "from 1 to 2,147,483,647, got 2147483648"),
        ({"updates": None, "seconds": float("inf")}, "positive and finite, got inf"),
        ({"evaluate_every": 0}, "`evaluate_every` must be a whole number from 1 to"),
        # their functions are not in the records, from which the report is made
        ({"tuned_by": PRICE}, "`tuned_by` must be a column of the results or a `Tim"),
        ({"tuned_by": COST}, "a `TimeTo` without `cost`, got TimeTo.*cost=Computed"),
        ({"seeds": 0}, "`seeds` must be a whole number from 1 to 10,000, got 0"),
        ({"seeds": 10_001}, "`seeds` must be a whole number from 1 to 10,000, got 1"),
        ({"seeds": 2.5}, "`seeds` must be a whole number from 1 to 10,000, got 2.5"),
        ({"tuning_seeds": -1}, "`tuning_seeds` must be a whole number from 0 to 10,0"),
        ({"tuning_seeds": (7, 7)}, "a tuple of different seeds below 2,147"),
        ({"seeds": ()}, r"a tuple of different seeds below .*, got \(\)"),
        ({"seeds": (2**31,)}, "different seeds below 2,147,483,648, got"),
        (
            {"seeds": (10**9,), "grid": {"learning_rate": Range(0.1, 1.0)}},
            "different seeds below 1,000,000,000, got",  # a search uses later ones
        ),
        ({"grid": {"learning_rate": ()}}, "must be a tuple of values"),
        ({"grid": {"learning_rate": "0.1"}}, "must be a tuple of values"),
        (
            {"grid": {"learning_rate": (0.1, 0.1 + 1e-12)}},
            "has the same value twice, in float32",
        ),
        ({"grid": {"learning_rate": (1e40,)}}, "must hold numbers of float32, got 1e"),
        ({"grid": {"learning_rate": (1e-50,)}}, "hold numbers of float32, got 1e-50"),
        ({"grid": {"learning_rate": (0.0,)}}, "positive numbers or schedules, got 0.0"),
        ({"grid": {"learning_rate": (None,)}}, "positive numbers or sched.*, got None"),
        ({"grid": {"noise": (float("nan"),)}}, "must hold numbers of float32, got nan"),
        ({"grid": {"delay": (0, 0.5)}}, "whole numbers of updates, 0 or more, got 0.5"),
        ({"grid": {"delay": (-1,)}}, "whole numbers of updates, 0 or more, got -1"),
        ({"grid": {"delay": Range(1, 9)}}, "must be whole numbers of updates, but a"),
        (
            {"grid": {"learning_rate": Range(-1, 1, scale="linear")}},
            "must hold step sizes, positive numbers or schedules, got -1",
        ),
    ],
)
def test_an_experiment_that_cannot_be_is_refused(changes, message):
    """`tests/bad_calls.py` has further ones, with the whole of each error."""
    with pytest.raises(ValueError, match=message):
        experiment(**changes)
