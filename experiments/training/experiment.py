"""An experiment as a value: the training, its grid, and the checks of both."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.tasks.task import Task
from experiments.training import column_names
from experiments.training.axis_values import (
    MOST_UPDATES,
    check_axis,
    check_whole,
    is_number,
    is_whole,
)
from experiments.training.gradients import as_training
from experiments.training.jobs import Training
from experiments.training.ranges import Range, Search

_MOST_SEEDS = 10_000
_FIRST_TUNING_SEED = 1000
FIRST_SEARCH_SEED = 10**9
"""Searches use this seed and later ones."""

Axis = Sequence[Any] | Mapping[str, Any] | Range
"""The values of a grid axis; or {name: value}; or a range to search."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One of several ways to train that an experiment compares.

    Attributes:
        training: the kind of training.
        labels: the settings that distinguish this arm; they are columns of the tables.
        grid: axes of this arm only, in addition to the experiment's.
        task: replaces the experiment's task.
        seconds: simulated time after which this arm ends; replaces the experiment's.
        updates: updates after which this arm ends; replaces the experiment's.
        contains: labels of another arm, which this arm equals if each number that only
            this arm searches is off, or has the value that `contains` gives it. The
            search of this arm begins at the optimum of that arm, and never ends at a
            worse point.
    """

    training: Training
    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, Axis] = dataclasses.field(default_factory=dict)
    task: Task | Callable[..., Task] | None = None
    seconds: float | None = None
    updates: int | None = None
    contains: Mapping[str, Any] | None = None

    def __post_init__(self):
        if not isinstance(self.labels, Mapping):
            raise TypeError(
                "`labels` of an arm must be a mapping {name: value}, got"
                f" {self.labels!r}: name it, as in {{'rule': {self.labels!r}}}."
            )
        _check_end("Arm", 0, updates=self.updates, seconds=self.seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A question and the training that answers it, without flags and files.

    A run ends after `updates`, after `seconds` of simulated time or after `examples`,
    whichever is given. Give one of the three. With `along`, each seed ends when its
    time is over; with `replicas`, all seeds do as many steps as the slowest seed.

    Attributes:
        question: one sentence, the title of the report.
        task: the task to minimize, or a function of grid axes that makes it.
        training: an Optax transformation, a function of grid axes that makes one, or
            one of `along`, `replicas`, `pipelined`, `on_devices`.
        arms: several trainings to compare, in place of `training`: `Arm`s, or pairs
            (labels, training).
        grid: {axis: its values}, or {axis: {name: value}}, where tables show the names;
            or {axis: Range}, a number to search. An axis is an argument of the
            functions above. Numbers are traced if the functions allow it, so that all
            cells are one compiled program; every other value is a separate program. A
            range must be traced.
        static: axes that are never traced.
        seeds: the reported seeds: their number (3 is the seeds 0, 1, 2), or a tuple.
        tuned: the axes of which each series gets the best value, in tables, figures and
            claims. Rows that are equal in all other axes and labels form one series.
        tuned_by: the metric whose smallest value is best: a column of the results, or a
            `figures.TimeTo` without `cost`.
        tuning_seeds: seeds that choose the best value and are not reported: their
            number (3 is the seeds 1000, 1001, 1002), or a tuple. Without them the
            scores of the searches choose where a series has a `Range`. Elsewhere the
            reported `seeds` choose the best value, which then looks better than on
            other seeds; the report says so.
        search: the effort of the search for the optimum of the ranges; None for
            `Search()`. The search uses separate seeds; `seeds` report each series at
            its optimum.
        also_at: {axis or label: value}, one or several: each series is also trained at
            the optimum of the series with these values, see `measures.kept`.
        updates: the number of updates of the parameters.
        seconds: the simulated time; needs a training that takes time.
        examples: the number of examples in the applied gradients.
        evaluate_every: the number of updates from one evaluation to the next.
        evaluations: the number of evaluations, equally many updates apart, if
            `evaluate_every` is not given.
        metrics: further metrics, {name: (model, task) -> float32 []}.
        answer: the comparison that answers `question`, an `Effect` or several. Without
            it each series is compared with the first.
        figures: objects with `name` and `draw(run)`; see `figures`. If one has
            `check(found)`, it is called before training, with made-up numbers.
        tables: objects with `name`, `caption` and `make(run)`, which returns a data
            frame; see `figures.Table`.
    """

    question: str
    task: Task | Callable[..., Task]
    training: Training | Callable[..., Any] | None = None
    arms: Sequence[Any] = ()
    grid: Mapping[str, Axis] = dataclasses.field(default_factory=dict)
    static: Sequence[str] = ()
    seeds: int | Sequence[int] = 3
    tuned: str | Sequence[str] = ()
    tuned_by: Any = "train_loss"
    tuning_seeds: int | Sequence[int] = ()
    search: Search | None = None
    also_at: Sequence[Mapping[str, Any]] = ()
    updates: int | None = None
    seconds: float | None = None
    examples: int | None = None
    evaluate_every: int | None = None
    evaluations: int = 20
    metrics: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    answer: Any = ()
    figures: Sequence[Any] = ()
    tables: Sequence[Any] = ()

    def __post_init__(self):
        if (self.training is None) == (not self.arms):
            raise ValueError("`Experiment` needs `training` or `arms`, and not both.")
        ends = dict(updates=self.updates, seconds=self.seconds, examples=self.examples)
        _check_end("Experiment", 1, **ends)
        for name in ("evaluate_every", "evaluations"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, MOST_UPDATES)
        self._check_seeds()
        self._check_columns()
        self._check_tuned_by()
        self._check_report()
        if self.search is not None and not self.searched:
            raise ValueError(
                f"`search` is {self.search}, but no axis of `grid` is a `Range`, so"
                " that nothing is searched: give a `Range`, or leave `search` out."
            )

    def _check_report(self):
        """Checks the parts of the report now, before the training that precedes it."""
        for name, attribute in (
            ("figures", "draw"),
            ("tables", "make"),
            ("answer", "answer"),
        ):
            parts = self.effects if name == "answer" else getattr(self, name)
            listed = isinstance(parts, Sequence) and not isinstance(parts, str)
            if not listed or not all(hasattr(part, attribute) for part in parts):
                raise TypeError(
                    f"`{name}` must be a list of objects with `{attribute}`, got"
                    f" {parts!r}."
                )
        names = [figure.name for figure in self.figures]
        again = [name for name in names if names.count(name) > 1]
        if again:
            raise ValueError(
                f"`figures` has two with the file name {again[0]!r}: give one `name=`."
            )

    def _check_tuned_by(self):
        """Checks the metric that chooses: the records of a run must have all of it."""
        by = self.tuned_by
        if not isinstance(by, str) and getattr(by, "cost", by) is not None:
            raise ValueError(
                "`tuned_by` must be a column of the results or a `TimeTo` without"
                f" `cost`, got {by!r}: the records of a run cannot keep a function."
                " The measure `soonest` chooses by a cost."
            )

    def _check_seeds(self):
        end = FIRST_SEARCH_SEED if self.searched else 2**31
        _check_seeds("seeds", self.seeds, 1, end)
        _check_seeds("tuning_seeds", self.tuning_seeds, 0, end)
        both = {*self.seed_numbers} & {*self.tuning_seed_numbers}
        if both:
            raise ValueError(
                f"`tuning_seeds` are not reported, but {min(both)} is in `seeds` too:"
                " name others."
            )
        if self.tuning_seed_numbers and not self.tuned_axes:
            raise ValueError(
                f"`tuning_seeds` is {self.tuning_seeds}, but nothing is tuned: name an"
                " axis in `tuned`, or leave them out."
            )

    def _check_columns(self):
        """Checks labels and axes, each of which is a column of the tables."""
        for axis, values in itertools.chain(*(grid.items() for grid in self._grids)):
            if not isinstance(values, Range):
                check_axis(axis, values)
            elif axis == "delay":
                raise ValueError(
                    "`grid['delay']` must be whole numbers of updates, but a `Range` is"
                    " searched between them: give a tuple, and name 'delay' in `tuned`."
                )
            else:
                check_axis(axis, (values.low, values.high))
        axes = {*itertools.chain(*self._grids)}
        labels = itertools.chain(*(arm.labels for arm in self.all_arms))
        written = (*column_names.OURS, *column_names.OF_SEARCH)
        column_names.check("`grid` has the axis", axes, written)
        column_names.check("`arms` have the label", labels, written)
        for what, names in (("static", self.static), ("tuned", self.tuned_axes)):
            unknown = set(names) - axes
            if unknown:
                raise ValueError(
                    f"`{what}` names no axis of the grid: {sorted(unknown)}."
                )

    @property
    def effort(self) -> Search:
        """The effort of the search."""
        return self.search or Search()

    @property
    def effects(self) -> tuple[Any, ...]:
        """The comparisons that answer the question."""
        one = hasattr(self.answer, "answer")
        return (self.answer,) if one else tuple(self.answer)

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The numbers of the reported seeds."""
        return _numbers(self.seeds, 0)

    @property
    def tuning_seed_numbers(self) -> tuple[int, ...]:
        """The numbers of the tuning seeds."""
        return _numbers(self.tuning_seeds, _FIRST_TUNING_SEED)

    @property
    def tuned_axes(self) -> tuple[str, ...]:
        """The axes of which each series gets the best value: tuned or searched."""
        tuned = [self.tuned] if isinstance(self.tuned, str) else self.tuned
        return tuple(dict.fromkeys([*tuned, *self.searched]))

    @property
    def searched(self) -> tuple[str, ...]:
        """The axes whose optimum is searched."""
        axes = itertools.chain(*(grid.items() for grid in self._grids))
        return tuple(
            dict.fromkeys(a for a, values in axes if isinstance(values, Range))
        )

    @property
    def _grids(self) -> list[Mapping[str, Axis]]:
        return [self.grid, *(arm.grid for arm in self.all_arms)]

    @property
    def all_arms(self) -> list[Arm]:
        """The arms; a single training is one arm without labels."""
        arms = self.arms or [Arm(training=as_training(self.training))]
        return [_as_arm(arm) for arm in arms]


def _numbers(seeds: int | Sequence[int], first: int) -> tuple[int, ...]:
    if isinstance(seeds, int):
        return tuple(range(first, first + seeds))
    return tuple(seeds)


def _check_end(what: str, least: int, **ends: float | None) -> None:
    """Checks the numbers that say where a run ends: `least` of them or one."""
    given = {name: end for name, end in ends.items() if end is not None}
    if not least <= len(given) <= 1:
        rule = "needs one" if least else "takes at most one"
        *first, last = (f"`{name}`" for name in ends)
        raise ValueError(
            f"`{what}` {rule} of {', '.join(first)} and {last}, got"
            f" {list(ends.values())}: it says where a run ends."
        )
    for name, end in given.items():
        if name != "seconds":
            check_whole(name, end, 1, MOST_UPDATES)
        elif not (is_number(end) and 0 < end < math.inf):
            raise ValueError(f"`seconds` must be positive and finite, got {end!r}.")


def _check_seeds(name: str, seeds: int | Sequence[int], least: int, end: int) -> None:
    if not isinstance(seeds, Sequence):
        check_whole(name, seeds, least, _MOST_SEEDS)
        return
    known = all(is_whole(seed) and 0 <= seed < end for seed in seeds)
    if not known or not least <= len({*seeds}) == len(seeds):
        raise ValueError(
            f"`{name}` must be a number of seeds, or a tuple of different seeds below"
            f" {end:,}, got {seeds!r}."
        )


def _as_arm(arm: Any) -> Arm:
    if isinstance(arm, Arm):
        return dataclasses.replace(arm, training=as_training(arm.training))
    labels, training = arm
    return Arm(training=as_training(training), labels=labels)
