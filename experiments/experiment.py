"""An experiment as a value: what is trained, over which grid, and what must hold."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.tasks.task import Task
from experiments.training.gradients import as_training
from experiments.training.rules import Training

_MOST_SEEDS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One of several ways to train that an experiment compares.

    Attributes:
        training: how.
        labels: what tells the arm from the others: columns of the tables.
        grid: axes of this arm alone, beside the experiment's.
        task: in place of the experiment's.
        seconds: of simulated time until it ends, in place of the experiment's end.
    """

    training: Training
    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, Sequence[Any] | Mapping[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    task: Task | Callable[..., Task] | None = None
    seconds: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A question and the training that answers it. It knows no flags and no files.

    A run ends after `updates`, after `seconds` of simulated time or after `examples`,
    whichever is given. Give one of the three.

    Attributes:
        question: one sentence, the title of the report.
        task: what is minimized; or a function of grid axes that makes it.
        training: an Optax transformation, a function of grid axes that makes one, or
            one of `along`, `replicas`, `on_devices`.
        arms: several trainings to compare, in place of `training`: `Arm`s, or pairs
            (labels, training).
        grid: {axis: its values}, or {axis: {name: value}}, and tables show the names.
            An axis is an argument of the functions above. Numbers are traced where the
            functions allow it, so that all cells are one compiled program; every other
            value is a program of its own.
        static: axes that are never traced.
        seeds: how many (3 is the seeds 0, 1, 2), or which.
        updates: of the parameters.
        seconds: of simulated time; needs a training that takes time.
        examples: in the gradients that were applied.
        evaluate_every: updates from one evaluation to the next.
        evaluations: how many there are in place of that, equally many updates apart.
        measure: further metrics, {name: (model, task) -> float32 []}.
        claims: what must hold of the results; see `claims.Claim`.
        figures: objects with `name` and `draw(run)`; see `figures`.
        tables: objects with `name`, `caption` and `of(run)`, which returns a frame; see
            `figures.Table`.
        notes: what was seen, for the report of an unchanged run.
    """

    question: str
    task: Task | Callable[..., Task]
    training: Training | Callable[..., Any] | None = None
    arms: Sequence[Any] = ()
    grid: Mapping[str, Sequence[Any] | Mapping[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    static: Sequence[str] = ()
    seeds: int | Sequence[int] = 3
    updates: int | None = None
    seconds: float | None = None
    examples: int | None = None
    evaluate_every: int | None = None
    evaluations: int = 20
    measure: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    claims: Sequence[Any] = ()
    figures: Sequence[Any] = ()
    tables: Sequence[Any] = ()
    notes: str = ""

    def __post_init__(self):
        ends = [self.updates, self.seconds, self.examples]
        if sum(end is not None for end in ends) != 1:
            raise ValueError(
                "`Experiment` needs one of `updates`, `seconds` and `examples`, got"
                f" {ends}: it says where a run ends."
            )
        for name, end in zip(("updates", "seconds", "examples"), ends, strict=True):
            if end is not None and not end > 0:
                raise ValueError(f"`{name}` must be positive, got {end}.")
        if (self.training is None) == (not self.arms):
            raise ValueError("`Experiment` needs `training` or `arms`, and not both.")
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise ValueError(
                f"`evaluate_every` must be at least 1, got {self.evaluate_every}."
            )
        if self.evaluations < 1:
            raise ValueError(
                f"`evaluations` must be at least 1, got {self.evaluations}."
            )
        if isinstance(self.seeds, int) and not 0 < self.seeds <= _MOST_SEEDS:
            raise ValueError(
                f"`seeds` must be at least one and at most {_MOST_SEEDS:,}, got"
                f" {self.seeds}: it says how many; (7,) is the seed 7."
            )
        if not self.seed_numbers:
            raise ValueError(f"`seeds` must be at least one, got {self.seeds}.")
        if len(set(self.seed_numbers)) < len(self.seed_numbers) or any(
            not 0 <= seed < 2**31 for seed in self.seed_numbers
        ):
            raise ValueError(
                f"`seeds` must be different numbers in 0 .. 2^31 - 1, got {self.seeds}."
            )
        for axis, values in self.grid.items():
            check_axis(axis, values)
        axes = {*self.grid, *(axis for arm in self.all_arms for axis in arm.grid)}
        unknown = set(self.static) - axes
        if unknown:
            raise ValueError(f"`static` names no axis of the grid: {sorted(unknown)}.")

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds, as numbers."""
        if isinstance(self.seeds, int):
            return tuple(range(self.seeds))
        return tuple(self.seeds)

    @property
    def all_arms(self) -> list[Arm]:
        """The arms; one without labels where there is but one training."""
        arms = self.arms or [Arm(training=as_training(self.training))]
        return [_as_arm(arm) for arm in arms]


def check_axis(axis: str, values: Sequence[Any] | Mapping[str, Any]) -> None:
    """Checks that an axis has values, each once.

    Raises:
        ValueError: if it has none, or two that are equal in float32.
    """
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ValueError(
            f"`grid[{axis!r}]` must be a tuple of values, got {values!r}: (0.1,) is an"
            " axis of one value."
        )
    if is_number(values[0]) and all(map(is_number, values)):
        seen = np.asarray(values, np.float32)
        if len(np.unique(seen)) < len(seen):
            raise ValueError(
                f"`grid[{axis!r}]` has the same value twice, in float32: {values}."
            )


def is_number(value: Any) -> bool:
    """Whether a value of an axis may be traced; a bool chooses between programs."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def arguments(function: Callable[..., Any]) -> dict[str, bool]:
    """{argument: whether it must be given} of a function of grid axes."""
    kinds = inspect.Parameter
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
            found[name] = parameter.default is kinds.empty
    return found


def _as_arm(arm: Any) -> Arm:
    if isinstance(arm, Arm):
        return dataclasses.replace(arm, training=as_training(arm.training))
    try:
        labels, training = arm
    except (TypeError, ValueError):
        raise TypeError(
            f"`arms` must hold `Arm`s or pairs (labels, training), got {arm!r}."
        ) from None
    return Arm(training=as_training(training), labels=labels)
