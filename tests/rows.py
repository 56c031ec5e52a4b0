"""Rows of a results.csv, made by hand."""

import dataclasses
import itertools
import math

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


def grid(loss, *, rates=(0.1, 0.2, 0.4), delays=(0, 4), seeds=(0, 1, 2), **changes):
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
        for rate, delay, seed in itertools.product(rates, delays, seeds)
    ]


def best_at(rate_at_delay):
    """A loss that is least at a given step size of each delay."""
    return lambda rate, delay, seed: 0.1 + abs(math.log(rate / rate_at_delay[delay]))
