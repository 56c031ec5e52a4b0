"""The studies that docs/rules.md reports, by name."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import optax

import delayjax as dj
from experiments import tasks
from experiments.comparison import cures, search, theory, trials
from experiments.comparison.spaces import Range
from experiments.comparison.study import Study
from experiments.training.recorded_job import recorded_job

SIZES = ("small", "full", "large")


def _effort(points: int, finalists: int, confirming: int) -> search.Effort:
    """Three rounds of so many points, with fewer seeds than a whole search has."""
    rounds = (
        search.Round(points, 1),
        search.Round(points, 2, 0.15),
        search.Round(points, 2, 0.1),
    )
    return search.Effort(rounds, finalists, confirming)


WHOLE = search.Effort()
MEDIUM = _effort(24, finalists=4, confirming=8)
"""For models that take long: about two fifths of the trainings of `WHOLE`."""
SHORT = _effort(16, finalists=3, confirming=5)
"""For a first look: about a quarter of them."""


def _options(
    size: str,
    rows: Sequence[cures.Cure],
    effort: search.Effort = WHOLE,
    searches: int = 4,
) -> dict:
    """What a size decides: searches, seeds, and the effort if it is small."""
    if size == "small":
        return dict(cures=rows, effort=SHORT, searches=2, reporting=10)
    if size == "large":  # for a GPU: half the band
        return dict(cures=rows, effort=effort, searches=16, reporting=40)
    return dict(cures=rows, effort=effort, searches=searches)


def _those(rows: Sequence[cures.Cure], *names: str) -> list[cures.Cure]:
    """The rows of these names, and those that are not ours."""
    return [own for own in rows if own.name in names or own not in cures.CURES]


def _on(*names: str) -> dict[str, dj.cluster.Cluster]:
    """The clusters of these names, and the one without delay."""
    known = trials.clusters()
    return {name: known[name] for name in (trials.NO_DELAY, *names)}


def _warm_cosine(updates: int) -> optax.Schedule:
    """A warm-up of a tenth, then a cosine to zero."""
    cosine = optax.cosine_decay_schedule(1.0, updates)
    return lambda step: jnp.minimum(1, (step + 1) / (0.1 * updates)) * cosine(step)


def digits(size: str, rows: Sequence[cures.Cure]) -> Study:
    """An MLP on scikit-learn's digits, 500 gradients of 32 examples."""
    setting = trials.Setting(tasks.digits_mlp(batch_size=32), budget=500)
    return Study(setting, cures.OPTIMIZERS, **_options(size, rows, searches=8))


def digits_long(size: str, rows: Sequence[cures.Cure]) -> Study:
    """As `digits`, four times as long; rows that helped there, on three clusters."""
    return _digits_again(size, rows, _on(*_THREE), budget=2000)


def digits_cosine(size: str, rows: Sequence[cures.Cure]) -> Study:
    """As `digits`, but the step warms up and decays as a cosine; rows that helped."""
    late = _on(*_THREE)
    return _digits_again(size, rows, late, budget=500, shape=_warm_cosine)


def digits_recorded(size: str, rows: Sequence[cures.Cure]) -> Study:
    """As `digits`, with the recorded times of 17 workers of a job on a real cluster."""
    steps = recorded_job(workers=17).service("steps")
    late = _on() | {"recorded, 16": dj.cluster.Cluster(17, steps)}
    return _digits_again(size, rows, late, budget=500)


def _digits_again(
    size: str,
    rows: Sequence[cures.Cure],
    late: dict[str, dj.cluster.Cluster],
    **options,
) -> Study:
    """The digits otherwise, for the rows that helped."""
    task = tasks.digits_mlp(batch_size=32)
    setting = trials.Setting(task, clusters=late, **options)
    options = _options(size, _those(rows, *_FEW, "DANA"), MEDIUM)
    return Study(setting, cures.OPTIMIZERS, **options)


BOWL = theory.Bowl((0.01, 0.1, 1.0), noise=0.03, updates=500)


def convex(size: str, rows: Sequence[cures.Cure]) -> Study:
    """A quadratic with noise: logarithms of losses, then losses beside theory's."""
    task = tasks.quadratic(BOWL.curvatures, noise=BOWL.noise)
    setting = trials.Setting(task, budget=BOWL.updates)
    sgd = cures.OPTIMIZERS["sgd"]._replace(learning_rate=Range(0.003, 3.0))
    options = _options(size, rows)
    return Study(setting, {"sgd": sgd}, in_logarithm=True, **options)


def cnn(size: str, rows: Sequence[cures.Cure]) -> Study:
    """A convolutional network on the digits' images: five rows of two optimizers."""
    task = tasks.digits_cnn(batch_size=16, width=8)
    setting = trials.Setting(task, budget=300, clusters=_on(*_THREE))
    options = _options(size, _those(rows, *_FEW), MEDIUM)
    optimizers = {name: cures.OPTIMIZERS[name] for name in ("sgd", "adam")}
    return Study(setting, optimizers, **options)


def char_lm(size: str, rows: Sequence[cures.Cure]) -> Study:
    """A character language model, trained past its bigram entropy (2.46 nats)."""
    task = tasks.char_lm(batch_size=8, context=16, width=16, evaluated_tokens=8192)
    setting = trials.Setting(task, budget=1500, clusters=_on("memoryless, 4"))
    options = _options(size, _those(rows, *_FEW), SHORT)
    optimizers = {name: cures.OPTIMIZERS[name] for name in ("adam", "muon")}
    return Study(setting, optimizers, **options)


_FEW = "average of the weights", "one slow momentum", "late updates"
"""Rows of models that take long: what helped the MLP."""
_THREE = "memoryless, 4", "memoryless, 16", "heavy tails, 16"
"""Clusters of the same."""


STUDIES: dict[str, Callable[[str, Sequence[cures.Cure]], Study]] = {
    "digits": digits,
    "digits_long": digits_long,
    "digits_cosine": digits_cosine,
    "digits_recorded": digits_recorded,
    "cnn": cnn,
    "char_lm": char_lm,
    "convex": convex,
}
