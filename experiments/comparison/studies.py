"""The studies of the comparison, and the stages in which each is run."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from experiments import tasks
from experiments.comparison import clusters, rules, tables
from experiments.comparison.compare import Shape, compare
from experiments.results.runs import Run
from experiments.tasks.task import Task
from experiments.training.experiment import Experiment
from experiments.training.ranges import Range, Search

Rows = Sequence[rules.Rule]
_THREE = ("memoryless, 4", "memoryless, 16", "constant, 4")


def _warm_cosine(updates: int) -> optax.Schedule:
    """A schedule: a warm-up in a tenth of the updates, times a cosine to zero."""
    cosine = optax.cosine_decay_schedule(1.0, updates)
    return lambda step: jnp.minimum(1, (step + 1) / (0.1 * updates)) * cosine(step)


class Study(NamedTuple):
    """A task on which the rules are compared.

    Attributes:
        task: a function that makes the task.
        updates: the number of gradients that a training computes.
        tolerance: {optimizer: tolerance of its searches}, in nats, or in logarithms of
            the loss if `relative`. It is about a twentieth of the cost of lateness for
            the optimizer: half of the gain that matters.
        clusters: a function that makes all clusters of the study, {name: cluster}.
        few: the names of the late clusters in stages without `all_clusters`.
        shape: the shape of the learning rate over time.
        relative: whether logarithms of losses are compared.
        optimizers: {name: optimizer}.
    """

    task: Callable[[], Task]
    updates: int
    tolerance: Mapping[str, float]
    clusters: Callable[[], dict[str, Any]] = clusters.clusters
    few: Sequence[str] = _THREE
    shape: Shape = lambda updates: lambda step: 1.0
    relative: bool = False
    optimizers: Mapping[str, rules.Optimizer] = rules.OPTIMIZERS


class Stage(NamedTuple):
    """The size at which a study is run.

    Attributes:
        search: the search of each series; the study sets its tolerance.
        seeds: the number of reported seeds.
        all_clusters: whether all clusters of the study are used, and not only `few`.
        horizon: a factor of the number of updates.
        undelayed: whether rows that need no delay are trained without delay too.
    """

    search: Search
    seeds: int
    all_clusters: bool = False
    horizon: int = 1
    undelayed: bool = False


STAGES = {
    "short": Stage(Search(repeats=1, most=20_000), seeds=60),
    "full": Stage(Search(repeats=3), 100, all_clusters=True, undelayed=True),
    "long": Stage(Search(repeats=2, most=60_000), seeds=60, horizon=4),
}
"""Every row is run in the short stage; rows that may gain also in the other stages."""


def _digits() -> Task:
    return tasks.digits_mlp(batch_size=32)


_DIGITS = Study(_digits, 500, {"sgd": 0.005, "adam": 0.004, "muon": 0.0007})

STUDIES = {
    "digits": _DIGITS,
    "char_lm": Study(
        lambda: tasks.char_lm(
            batch_size=8, context=16, width=16, heads=1, evaluated_tokens=4096
        ),
        1500,
        {"sgd": 0.01, "adam": 0.008, "muon": 0.008},
    ),
    "cnn": Study(
        lambda: tasks.digits_cnn(batch_size=16, width=8),
        300,
        {"sgd": 0.04, "adam": 0.015, "muon": 0.015},
    ),
    "digits_cosine": _DIGITS._replace(shape=_warm_cosine),
    "digits_recorded": _DIGITS._replace(
        clusters=clusters.recorded, few=("recorded, 16",)
    ),
    "convex": Study(
        lambda: tasks.quadratic((0.01, 0.1, 1.0), noise=0.03),
        500,
        {"sgd": 0.02},
        relative=True,
        optimizers={
            "sgd": rules.OPTIMIZERS["sgd"]._replace(learning_rate=Range(0.003, 3.0))
        },
    ),
}
"""The first three run every row; the others test a few rows in further settings.

`char_lm` is a character language model, trained past its bigram entropy (2.46 nats);
`cnn` is a convolutional network on the images of digits.
"""


def experiment(
    study: Study,
    stage: Stage,
    rows: Rows,
    optimizers: Sequence[str],
    **options: Any,
) -> Experiment:
    """The experiment of a study at a stage.

    Args:
        study: one of `STUDIES`, or your own.
        stage: one of `STAGES`.
        rows: the rules, beside plain delay.
        optimizers: names of the study's optimizers. The search uses the smallest of
            their tolerances.
        **options: options of `Experiment`, which replace the options of the stage.

    Raises:
        ValueError: if the study lacks an optimizer.
    """
    unknown = [name for name in optimizers if name not in study.tolerance]
    if unknown or not optimizers:
        raise ValueError(
            f"`optimizers` must be among {', '.join(study.tolerance)} in this study,"
            f" got {tuple(optimizers)}."
        )
    known = study.clusters()
    used = known if stage.all_clusters else (clusters.NO_DELAY, *study.few)
    if not stage.undelayed:
        rows = [dataclasses.replace(row, undelayed=False) for row in rows]
    search = dataclasses.replace(
        stage.search,
        tolerance=min(study.tolerance[name] for name in optimizers),
        relative=study.relative,
    )
    return compare(
        rows,
        study.task(),
        {name: study.optimizers[name] for name in optimizers},
        clusters={name: known[name] for name in used},
        updates=stage.horizon * study.updates,
        shape=study.shape,
        **{"search": search, "seeds": stage.seeds} | options,
    )


def stored(study: str, stage: str) -> Run:
    """The stored table of a study at a stage.

    Raises:
        ValueError: if this table is not stored.
    """
    file = tables.file(study, stage)
    return tables.read(file, relative=STUDIES[study].relative)


def rows_of(study: str, stage: str) -> list[rules.Rule]:
    """The rows of a stage: all in the short stage, later only rows that may gain.

    A row that the short stage has not run yet goes on too. For each row that reads the
    delay, its delay-blind twin is added.

    Raises:
        ValueError: if the short stage is not stored.
    """
    if stage == "short":
        return [*rules.RULES]
    run = stored(study, "short")
    going_on = tables.going_on(run)
    trained = run.selection.optima.groupby("rule")["optimizer"].agg(set)
    rows = []
    for rule in rules.RULES:
        able = {*(rule.optimizers or STUDIES[study].tolerance)}
        new = able - trained.get(rule.name, set())
        names = tuple(sorted(new | going_on.get(rule.name, set())))
        if names:
            rows.append(dataclasses.replace(rule, optimizers=names))
    return [*rows, *(rules.delay_blind_twin(rule) for rule in rows if rule.reads_delay)]
