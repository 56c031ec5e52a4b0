"""What a query names, and the number it answers."""

import dataclasses
import itertools
import math

import pytest

from experiments import expected
from experiments.results import Row

ROW = Row(
    task="digits_mlp",
    optimizer="sgd",
    learning_rate=0.1,
    delay_law="constant",
    delay=0.0,
    modulation="none",
    placement="after",
    compensation="none",
    strength=0.0,
    seed=0,
    steps=600,
    diverged=False,
    diverged_step=-1,
    train_loss=0.5,
    test_loss=0.6,
    train_accuracy=0.9,
    test_accuracy=0.8,
    staleness_mean=0.0,
    staleness_p99=0.0,
    staleness_max=0.0,
    clipped=0.0,
    dropped=0.0,
)


def grid(loss, **changes):
    """Rows whose training loss is a function of step size, delay and seed."""
    return [
        dataclasses.replace(
            ROW,
            learning_rate=rate,
            delay=delay,
            seed=seed,
            train_loss=loss(rate, delay, seed),
            diverged=not math.isfinite(loss(rate, delay, seed)),
            **changes,
        )
        for rate, delay, seed in itertools.product((0.1, 0.2, 0.4), (0, 4), (0, 1, 2))
    ]


def best_at(rate_at_delay):
    """A loss that is least at a given step size of each delay."""
    return lambda rate, delay, seed: 0.1 + abs(math.log(rate / rate_at_delay[delay]))


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


def test_a_stable_step_is_below_the_first_that_diverges():
    def loss(rate, delay, seed):
        return math.nan if rate == 0.2 and seed == 1 else 1.0

    assert expected.measure(grid(loss), "stable_step/sgd/delay=4") == 0.1
