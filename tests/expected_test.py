"""What a query names, and the number it answers."""

import dataclasses
import math

import pytest

from experiments import expected
from tests.rows import best_at, grid


def test_queries_name_what_was_measured():
    def loss(rate, delay, seed):
        return (
            math.nan if rate * delay > 1 else best_at({0: 0.4, 4: 0.2})(rate, delay, 0)
        )

    rows = (
        grid(loss)
        + grid(loss, compensation="dc", strength=0.04, test_loss=0.7)
        + grid(loss, compensation="dc", strength=0.4, test_loss=0.8)
        + grid(loss, modulation="inverse", test_accuracy=0.3)
        + grid(loss, modulation="inverse", placement="before", test_accuracy=0.4)
    )

    def measure(query):
        return expected.measure(rows, query)

    assert measure("train_loss/sgd/delay=4") == pytest.approx(0.1)
    assert math.isnan(measure("train_loss/sgd/delay=4/fixed"))
    assert measure("train_loss/sgd/delay=0/fixed") == pytest.approx(0.1)
    assert measure("gap/sgd/delay=0") == pytest.approx(0.6 - 0.1)
    assert measure("learning_rate/sgd/delay=4") == 0.2
    assert measure("learning_rate/sgd/delay=4/fixed") == 0.4
    assert measure("stable_step/sgd/delay=4") == 0.2
    assert measure("stable_step/sgd/delay=0") == 0.4
    dc = "test_loss/sgd/delay=4/compensation=dc"
    assert measure(f"{dc},strength=4e-2") == pytest.approx(0.7)
    assert measure(f"{dc}/strength=4e-1") == pytest.approx(0.8)
    law = "test_accuracy/sgd/delay=4/modulation=inverse"
    assert measure(f"{law},placement=before,law=constant") == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("loss/sgd/delay=0", "metric must be among"),
        ("train_loss/sgd", "must have the form"),
        ("train_loss/sgd/fixed", "must have the form"),
        ("train_loss/sgd/strength=1", "must have the form"),
        ("train_loss/sgd/delay=0/step=3", "'step=3' is no KEY=VALUE"),
        ("train_loss/sgd/delay=x", "delay must be a number, got 'x'"),
        ("train_loss/adam/delay=0", "names none of the run's series: sgd"),
        ("train_loss/sgd/delay=0/modulation=inverse", "names several .* before"),
        ("train_loss/sgd/delay=3", "no delay 3, only 0, 4"),
    ],
)
def test_an_unknown_query_says_so(query, match):
    best = best_at({0: 0.2, 4: 0.2})
    rows = (
        grid(best)
        + grid(best, modulation="inverse")
        + grid(best, modulation="inverse", placement="before")
    )
    with pytest.raises(ValueError, match=match):
        expected.measure(rows, query)


ARMS = ("hardsync()", "k_sync(2) workers=4", "k_sync(2, limit=0.5) workers=30")


def rows_of_arms():
    """Three arms, the first also under a law; the third never reaches the target."""
    rows = []
    for i, arm in enumerate(ARMS):
        own = {"delay_law": "trace", "arm": arm, "seconds": 100.0 + i, "dropped": 0.25}
        loss = best_at({0: (0.4, 0.2, 0.1)[i], 4: 1.0})
        cells = [row for row in grid(loss, **own) if row.delay == 0]
        for row in cells:
            reached = math.inf if i == 2 and row.seed == 1 else 10.0 * i + row.seed
            rows.append(
                dataclasses.replace(
                    row,
                    seconds_to_target=reached,
                    gradient_norm=row.learning_rate,
                    staleness_mean=row.learning_rate + row.seed,
                )
            )
    law = [
        dataclasses.replace(row, modulation="inverse", test_loss=0.9)
        for row in rows
        if row.arm == ARMS[0]
    ]
    return rows + law


def test_queries_name_arms_by_name_beginning_and_number():
    rows = rows_of_arms()

    def measure(query):
        return expected.measure(rows, query)

    assert measure(f"learning_rate/sgd/arm={ARMS[1]}") == 0.2
    assert measure("learning_rate/sgd/arm=k_sync(2,") == 0.1
    assert measure("learning_rate/sgd/arm=2") == 0.1
    assert measure("learning_rate/sgd/arm=k_sync(2)/fixed") == 0.4  # the first arm's
    assert measure("learning_rate/sgd/arm=1,placement=after/modulation=none") == 0.2
    assert measure("test_loss/sgd/arm=0,modulation=inverse") == pytest.approx(0.9)
    assert measure("test_loss/sgd/arm=0") == pytest.approx(0.6)
    assert measure("gradient_norm/sgd/arm=1/fixed") == pytest.approx(0.4)
    assert measure("stable_step/sgd/arm=0") == 0.4


def test_queries_know_the_clock_and_the_cluster():
    rows = rows_of_arms()

    def measure(query):
        return expected.measure(rows, query)

    assert measure("seconds/sgd/arm=1") == 101.0
    assert measure("dropped/sgd/arm=1") == 0.25
    assert measure("seconds_to_target/sgd/arm=1") == pytest.approx(10 + (0 + 1 + 2) / 3)
    assert measure("seconds_to_target/sgd/arm=2") == math.inf
    # at the chosen step; over seeds
    assert measure("staleness_mean/sgd/arm=1") == pytest.approx(0.2 + 1)


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("train_loss/sgd/arm=k_sync(2", r"arm=k_sync\(2 names several .* workers=30"),
        ("train_loss/sgd/arm=ssp", r"arm=ssp names none of .*: hardsync\(\);"),
        ("train_loss/sgd/delay=0", "names several of the run's series"),
        ("train_loss/sgd/modulation=inverse", "must have the form .*arm=A"),
    ],
)
def test_an_unknown_arm_says_so(query, match):
    with pytest.raises(ValueError, match=match):
        expected.measure(rows_of_arms(), query)


def test_a_run_without_arms_has_none_to_name():
    with pytest.raises(ValueError, match=r"arm=0 names none .* it has none"):
        expected.measure(grid(best_at({0: 0.2, 4: 0.2})), "train_loss/sgd/arm=0")


def test_a_stable_step_is_below_the_first_that_diverges():
    def loss(rate, delay, seed):
        return math.nan if rate == 0.2 and seed == 1 else 1.0

    assert expected.measure(grid(loss), "stable_step/sgd/delay=4") == 0.1
