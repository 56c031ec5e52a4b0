"""Arms on their way: what was evaluated when, and the time to a target."""

import math

import numpy as np
import pytest

from experiments import curves

SETTINGS = [[{"seed": s, "cell": c} for c in range(2)] for s in range(3)]


def evaluation(step, metric="train_loss"):
    """A loss that tells seeds, cells and steps apart."""
    return {metric: [[100 * s + 10 * c - step for c in range(2)] for s in range(3)]}


def moment(step):
    return {
        "step": step,
        "seconds": [step * (1.0 + s) for s in range(3)],
        "examples": [step * 4 + s for s in range(3)],
        "evaluation": evaluation(step),
    }


def test_a_curve_goes_through_every_evaluation_of_every_cell_from_step_0():
    initial = {name: np.asarray(table) for name, table in evaluation(0).items()}
    rows = curves.rows(SETTINGS, initial, [moment(5), moment(10)])
    expected = [
        {
            "seed": s,
            "cell": c,
            "step": step,
            "seconds": step * (1.0 + s),
            "examples": step * 4 + s if step else 0,
            "train_loss": 100 * s + 10 * c - step,
        }
        for s in range(3)
        for c in range(2)
        for step in (0, 5, 10)
    ]
    assert rows == expected


def test_what_was_not_finite_is_nan():
    broken = moment(5) | {"evaluation": {"train_loss": [[None, 1.0]]}}
    (first, second) = curves.rows(SETTINGS[:1], {"train_loss": [[2.0, 2.0]]}, [broken])[
        1::2
    ]
    assert math.isnan(first["train_loss"]) and second["train_loss"] == 1.0


@pytest.mark.parametrize(
    ("metric", "values", "target", "seconds"),
    [
        ("train_loss", (2.0, 1.0, 0.5, 1.5), 1.0, 10.0),
        ("gradient_norm", (2.0, 1.0, 0.5, 1.5), 0.9, 20.0),
        ("test_accuracy", (0.1, 0.7, 0.9, 0.8), 0.8, 20.0),
        ("train_loss", (2.0, math.nan, 0.5, 0.4), 1.0, 20.0),
        ("train_loss", (2.0, 1.0, 0.5, 1.5), 0.4, math.inf),
        ("train_loss", (0.3, 1.0, 0.5, 1.5), 0.4, 0.0),
    ],
)
def test_a_target_is_reached_at_the_first_evaluation_beyond_it(
    metric, values, target, seconds
):
    curve = [{"seconds": 10.0 * i, metric: value} for i, value in enumerate(values)]
    assert curves.seconds_to_target(curve, metric, target) == seconds


def test_each_row_is_timed_by_its_own_curve_and_never_if_it_diverged():
    initial = {"train_loss": [[1000.0] * 2] * 3}
    curve = curves.rows(SETTINGS, initial, [moment(5), moment(10)])
    results = [
        {"diverged": int((s, c) == (1, 0)), "name": (s, c)}
        for s in range(3)
        for c in range(2)
    ]
    timed = curves.with_target(results, curve, "train_loss", 103.0)
    assert {row["name"]: row["seconds_to_target"] for row in timed} == {
        **{(0, 0): 5.0, (0, 1): 5.0},
        **{(1, 0): math.inf, (1, 1): 10.0 * 2},
        **{(2, 0): math.inf, (2, 1): math.inf},
    }
