import optax
import pytest

from experiments import Arm, Experiment, tasks
from experiments.training.rules import arguments

QUADRATIC = tasks.quadratic()


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
        ({"updates": None}, "needs one of `updates`, `seconds` and `examples`"),
        ({"seconds": 3.0}, "needs one of `updates`, `seconds` and `examples`"),
        ({"updates": 0}, "`updates` must be positive, got 0"),
        ({"training": None}, "needs `training` or `arms`"),
        ({"arms": [({}, optax.sgd)]}, "needs `training` or `arms`"),
        ({"seeds": 0}, "`seeds` must be at least 1 and at most 10,000, got 0"),
        ({"seeds": 10**12}, "`seeds` must be at least 1 and at most 10,000, got"),
        ({"tuning_seeds": -1}, "`tuning_seeds` must be at least 0 and at most 10,000"),
        ({"tuning_seeds": (7, 7)}, "`tuning_seeds` must be different numbers"),
        (
            {"tuning_seeds": 2},
            "`tuning_seeds` is 2, but nothing is tuned: name an axis",
        ),
        (
            {"seeds": 1002, "tuning_seeds": 3, "tuned": "learning_rate"},
            "`tuning_seeds` are not reported, but 1000 is in `seeds` too: name others",
        ),
        ({"tuned": "learning_rates"}, "`tuned` names no axis of the grid"),
        ({"measure": {"seconds": len}}, "has the metric 'seconds', a column that the"),
        # the analysis computes these two
        (
            {"measure": {"test_loss": len, "gap": len}},
            "'gap', a column that the runner",
        ),
        (
            {"measure": {"train_accuracy": len, "train_error": len}},
            "'train_error', a column that the runner writes",
        ),
        (
            {"measure": {"learning_rate": len}},
            "'learning_rate', an axis or a label too",
        ),
        ({"seeds": ()}, "`seeds` must be at least one, got"),
        ({"seeds": (1, 1)}, "`seeds` must be different numbers"),
        ({"seeds": (2**40,)}, "`seeds` must be different numbers"),
        ({"evaluate_every": 0}, "`evaluate_every` must be at least 1, got 0"),
        ({"grid": {"learning_rate": ()}}, "must be a tuple of values"),
        ({"grid": {"learning_rate": "0.1"}}, "must be a tuple of values"),
        (
            {"grid": {"learning_rate": (0.1, 0.1 + 1e-12)}},
            "has the same value twice, in float32",
        ),
        (
            {"grid": {"learning_rate": (0.0,)}},
            "positive and finite in float32, got 0.0",
        ),
        ({"grid": {"learning_rate": (-0.1,)}}, "positive and finite in .*, got -0.1"),
        ({"grid": {"learning_rate": (1e40,)}}, "must hold numbers of float32, got 1e"),
        ({"grid": {"learning_rate": (1e-50,)}}, "finite in float32, got 1e-50"),
        ({"grid": {"learning_rate": (None,)}}, "step sizes, as 0.1, or .*, got None"),
        ({"grid": {"noise": (float("nan"),)}}, "must hold numbers of float32, got nan"),
        ({"grid": {"delay": (0, 0.5)}}, "whole numbers of updates, 0 or more, got 0.5"),
        ({"grid": {"delay": (-1,)}}, "whole numbers of updates, 0 or more, got -1"),
        ({"grid": {"seed": (1, 2)}}, "axis 'seed', a column that the runner writes"),
        ({"updates": 10.5}, "`updates` must be a whole number, got 10.5"),
        ({"updates": 2**40}, r"`updates` must be below 2\^31"),
        ({"updates": None, "seconds": float("inf")}, "`seconds` must be finite"),
        ({"evaluations": 2.5}, "`evaluations` must be a whole number, got 2.5"),
        ({"seeds": 2.5}, "`seeds` must be a whole number, or a tuple of them, got 2.5"),
        ({"seeds": "12"}, "`seeds` must be a whole number, or a tuple"),
        ({"static": ("momentum",)}, r"names no axis of the grid: \['momentum'\]"),
    ],
)
def test_an_experiment_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        experiment(**changes)


def test_an_arm_that_is_no_pair_is_refused():
    with pytest.raises(TypeError, match=r"`arms` must hold `Arm`s or pairs"):
        _ = experiment(training=None, arms=[optax.sgd]).all_arms
