"""The studies that docs/rules.md reports, by name."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import optax

from experiments import tasks
from experiments.comparison import cures, search, trials
from experiments.comparison.spaces import Range
from experiments.comparison.study import Study

SIZES = ("small", "full")

SHORT = search.Effort(
    rounds=(
        search.Round(16, 1),
        search.Round(16, 2, 0.15),
        search.Round(16, 2, 0.1),
    ),
    finalists=3,
    confirming=5,
)
"""An effort for a first look: a tenth of a whole search."""


def _options(size: str, rows: Sequence[cures.Cure]) -> dict:
    """What a size decides: searches, seeds, effort."""
    if size == "small":
        return dict(cures=rows, effort=SHORT, searches=2, reporting=10)
    return dict(cures=rows)


def _warm_cosine(updates: int) -> optax.Schedule:
    """A warm-up of a tenth, then a cosine to zero."""
    cosine = optax.cosine_decay_schedule(1.0, updates)
    return lambda step: jnp.minimum(1, (step + 1) / (0.1 * updates)) * cosine(step)


def digits(size: str, rows: Sequence[cures.Cure]) -> Study:
    """An MLP on scikit-learn's digits, 500 gradients of 32 examples."""
    setting = trials.Setting(tasks.digits_mlp(batch_size=32), budget=500)
    return Study(setting, cures.OPTIMIZERS, **_options(size, rows))


def digits_long(size: str, rows: Sequence[cures.Cure]) -> Study:
    """As `digits`, four times as long."""
    setting = trials.Setting(tasks.digits_mlp(batch_size=32), budget=2000)
    return Study(setting, cures.OPTIMIZERS, **_options(size, rows))


def digits_cosine(size: str, rows: Sequence[cures.Cure]) -> Study:
    """As `digits`, with a warm-up and a cosine decay of the learning rate."""
    task = tasks.digits_mlp(batch_size=32)
    setting = trials.Setting(task, budget=500, shape=_warm_cosine)
    return Study(setting, cures.OPTIMIZERS, **_options(size, rows))


def convex(size: str, rows: Sequence[cures.Cure]) -> Study:
    """A quadratic with noise, whose loss theory gives."""
    task = tasks.quadratic((0.01, 0.1, 1.0), noise=0.03)
    setting = trials.Setting(task, budget=500)
    sgd = cures.OPTIMIZERS["sgd"]._replace(learning_rate=Range(0.003, 3.0))
    options = _options(size, rows)
    return Study(setting, {"sgd": sgd}, in_logarithm=True, **options)


STUDIES: dict[str, Callable[[str, Sequence[cures.Cure]], Study]] = {
    "digits": digits,
    "digits_long": digits_long,
    "digits_cosine": digits_cosine,
    "convex": convex,
}
