"""The studies of the comparison, by name."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import optax

from experiments import tasks
from experiments.comparison import clusters, cures
from experiments.comparison.compare import compare
from experiments.training.experiment import Experiment
from experiments.training.ranges import Range, Search

Rows = Sequence[cures.Cure]


def _those(rows: Rows, *names: str) -> list[cures.Cure]:
    """The rows of these names, and those that are not ours."""
    return [row for row in rows if row.name in names or row not in cures.CURES]


def _warm_cosine(updates: int) -> optax.Schedule:
    """A warm-up of a tenth, then a cosine to zero."""
    cosine = optax.cosine_decay_schedule(1.0, updates)
    return lambda step: jnp.minimum(1, (step + 1) / (0.1 * updates)) * cosine(step)


def digits(rows: Rows, optimizers: Sequence[str], **options: Any) -> Experiment:
    """An MLP on scikit-learn's digits, 500 gradients of 32 examples."""
    every = clusters.clusters()
    task = tasks.digits_mlp(batch_size=32)
    return compare(rows, task, _named(optimizers), clusters=every, **options)


def digits_long(rows: Rows, optimizers: Sequence[str], **options: Any) -> Experiment:
    """As `digits`, four times as long; rows that helped there, on three clusters."""
    return _again(rows, optimizers, updates=2000, **options)


def digits_cosine(rows: Rows, optimizers: Sequence[str], **options: Any) -> Experiment:
    """As `digits`, but the step warms up and decays as a cosine; rows that helped."""
    return _again(rows, optimizers, shape=_warm_cosine, **options)


def digits_recorded(
    rows: Rows, optimizers: Sequence[str], **options: Any
) -> Experiment:
    """As `digits`, with the recorded times of 17 workers of a job on a real cluster."""
    return _again(rows, optimizers, clusters=clusters.recorded(), **options)


def _again(rows: Rows, optimizers: Sequence[str], **options: Any) -> Experiment:
    """The digits otherwise, for the rows that helped."""
    task = tasks.digits_mlp(batch_size=32)
    rows = _those(rows, *_FEW, "DANA")
    return compare(rows, task, _named(optimizers), **{"clusters": _three()} | options)


def convex(rows: Rows, optimizers: Sequence[str], **options: Any) -> Experiment:
    """A quadratic with noise: logarithms of losses."""
    task = tasks.quadratic((0.01, 0.1, 1.0), noise=0.03)
    sgd = cures.OPTIMIZERS["sgd"]._replace(learning_rate=Range(0.003, 3.0))
    return compare(
        rows,
        task,
        {"sgd": sgd},
        clusters=clusters.clusters(),
        **{"search": Search(relative=True)} | options,
    )


def cnn(rows: Rows, optimizers: Sequence[str], **options: Any) -> Experiment:
    """A convolutional network on the digits' images: five rows of two optimizers."""
    task = tasks.digits_cnn(batch_size=16, width=8)
    rows = _those(rows, *_FEW)
    late = _three()
    return compare(
        rows, task, _named(optimizers), clusters=late, updates=300, **options
    )


def char_lm(rows: Rows, optimizers: Sequence[str], **options: Any) -> Experiment:
    """A character language model, trained past its bigram entropy (2.46 nats)."""
    task = tasks.char_lm(batch_size=8, context=16, width=16, evaluated_tokens=8192)
    late = clusters.some("memoryless, 4")
    rows = _those(rows, *_FEW)
    return compare(
        rows, task, _named(optimizers), clusters=late, updates=1500, **options
    )


def _named(optimizers: Sequence[str]) -> dict[str, cures.Optimizer]:
    return {name: cures.OPTIMIZERS[name] for name in optimizers}


def _three() -> dict[str, Any]:
    return clusters.some("memoryless, 4", "memoryless, 16", "heavy tails, 16")


_FEW = "average of the weights", "one slow momentum", "late updates"
"""Rows of models that take long: what helped the MLP."""


STUDIES: dict[str, Callable[..., Experiment]] = {
    "digits": digits,
    "digits_long": digits_long,
    "digits_cosine": digits_cosine,
    "digits_recorded": digits_recorded,
    "cnn": cnn,
    "char_lm": char_lm,
    "convex": convex,
}
