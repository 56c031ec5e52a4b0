"""The cells of an experiment's grid, as programs: one compiled step each."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.running.failures import naming
from experiments.tasks.task import Task
from experiments.training.experiment import Arm, Experiment, arguments, is_number
from experiments.training.rules import Plan, Rule, begun


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Cells that share one compiled step.

    Attributes:
        name: for files and progress.
        columns: what is the same in all of its cells: labels, and axes that are not
            traced.
        axes: {traced axis: its value in each cell}, all of one length.
        static: the axes among the columns.
        task: what is minimized.
        rule: how.
        seeds: of the replicates.
        names: {axis: {value: how tables show it}} of the axes whose values have names.
        takes: the axes that its task and its training can have.
    """

    name: str
    columns: Mapping[str, Any]
    static: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]
    task: Task
    rule: Rule
    seeds: tuple[int, ...]
    names: Mapping[str, Mapping[Any, str]] = dataclasses.field(default_factory=dict)
    takes: tuple[str, ...] = ()

    @property
    def cells(self) -> dict[str, jax.Array]:
        """{traced axis: float32 or int32 [cells]}; one cell has no axis."""
        return {axis: _column(values) for axis, values in self.axes.items()}

    @property
    def size(self) -> int:
        """How many cells there are."""
        return len(next(iter(self.axes.values()), (None,)))

    def settings(self) -> list[dict[str, Any]]:
        """The columns of each cell, as the experiment gives them."""
        shown = {key: label(v) for key, v in named(self.columns, self.names).items()}
        rows = zip(*self.axes.values(), strict=True) if self.axes else [()]
        cells = [dict(zip(self.axes, row, strict=True)) for row in rows]
        return [shown | named(cell, self.names) for cell in cells]


def programs(experiment: Experiment, *, devices: int | None = None) -> list[Program]:
    """The programs of an experiment, in the order of its arms and static axes.

    Args:
        experiment: any.
        devices: how many there are to train on; None for those that JAX sees.

    Raises:
        ValueError: if an axis is no argument of the functions, an argument has no axis,
            two cells have the same columns, or batches have another shape than
            `Task.batches` says.
    """
    plan = Plan(
        experiment.seed_numbers + experiment.tuning_seed_numbers,
        experiment.updates,
        experiment.seconds,
        experiment.examples,
        experiment.evaluate_every,
        experiment.evaluations,
        devices,
    )
    made: list[Program] = []
    tasks: dict[Any, Task] = {}
    for arm in experiment.all_arms:
        own = plan
        if arm.seconds is not None:
            own = plan._replace(updates=None, seconds=arm.seconds, examples=None)
        made += _of_arm(experiment, arm, own, tasks)
    for axis in experiment.grid:
        if experiment.arms and all(axis not in program.takes for program in made):
            known = dict.fromkeys(name for program in made for name in program.takes)
            raise ValueError(
                f"`grid` has the axis {axis!r}, which no arm takes: they take"
                f" {', '.join(known) or 'none'}."
            )
    _check_distinct(made)
    names: dict[str, int] = {}
    unique = []
    for program in made:
        seen = names[program.name] = names.get(program.name, 0) + 1
        name = program.name if seen == 1 else f"{program.name}-{seen}"
        unique.append(dataclasses.replace(program, name=name))
    return unique


def shard(programs: Sequence[Program], part: int, parts: int) -> list[Program]:
    """Every `parts`-th cell, from number `part` on, counting through all programs."""
    own, first = [], 0
    for program in programs:
        chosen = [c for c in range(program.size) if (first + c) % parts == part]
        first += program.size
        if len(chosen) == program.size:
            own.append(program)
        elif chosen:
            axes = {a: [v[c] for c in chosen] for a, v in program.axes.items()}
            own.append(dataclasses.replace(program, axes=axes))
    return own


def named(
    values: Mapping[str, Any], names: Mapping[str, Mapping[Any, str]]
) -> dict[str, Any]:
    """Values of axes, by their names where they have some."""
    return {
        axis: names[axis][value] if axis in names else value
        for axis, value in values.items()
    }


def label(value: Any) -> Any:
    """How a value of an axis is written in a table."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (int, float, str, bool)):
        return value
    return getattr(value, "__name__", None) or str(value)


def _of_arm(
    experiment: Experiment, arm: Arm, plan: Plan, tasks: dict[Any, Task]
) -> list[Program]:
    given = {**experiment.grid, **arm.grid}
    names = {
        axis: {value: name for name, value in values.items()}
        for axis, values in given.items()
        if isinstance(values, Mapping)
    }
    grid = {axis: tuple(names.get(axis, values)) for axis, values in given.items()}
    task = arm.task or experiment.task
    of_task = {} if isinstance(task, Task) else arguments(task)
    of_training = arm.training.arguments()
    known = {**of_training, **of_task}
    unknown = [axis for axis in arm.grid if axis not in known]
    if not experiment.arms:  # an arm need not take all axes
        unknown += [axis for axis in experiment.grid if axis not in known]
    if unknown:
        raise ValueError(
            f"`grid` has the axis {unknown[0]!r}, which neither the task nor the"
            f" training takes: they take {', '.join(known) or 'none'}."
        )
    missing = [axis for axis, needed in known.items() if needed and axis not in grid]
    if missing:
        raise ValueError(
            f"The task or the training takes {missing[0]!r}, which is no axis of"
            f" `grid`: add it, {missing[0]}=(value,) for one."
        )

    for name in arm.labels:
        if name in grid:
            raise ValueError(
                f"`arms` have the label {name!r}, which is an axis of `grid` too: name"
                " one of them otherwise."
            )

    made = []
    declared = {*experiment.static, *of_task}
    for chosen in _products({a: v for a, v in grid.items() if a in of_task}):
        key = id(task), tuple(chosen.items())
        if key not in tasks:
            tasks[key] = task if isinstance(task, Task) else task(**chosen)
            _check_batches(tasks[key])
        rule = arm.training.rule(tasks[key], plan)
        own = {axis: v for axis, v in grid.items() if axis in of_training}
        traced = _traced(tasks[key], rule, own, declared)
        _check_values(tasks[key], rule, own, traced)
        rest = {axis: values for axis, values in own.items() if axis not in traced}
        for static in _products(rest):
            rows = list(itertools.product(*(own[axis] for axis in traced)))
            axes = dict(zip(traced, map(list, zip(*rows, strict=True)), strict=True))
            columns = {**arm.labels, **chosen, **static}
            made.append(
                Program(
                    name=_name(named(columns, names), grid),
                    columns=columns,
                    axes=axes,
                    task=tasks[key],
                    rule=rule,
                    seeds=plan.seeds,
                    static={**chosen, **static},
                    names=names,
                    takes=tuple(known),
                )
            )
    return made


def _check_distinct(programs: Sequence[Program]) -> None:
    """Refuses cells that no column tells apart: tables would mix them."""
    seen: set[frozenset[Any]] = set()
    for program in programs:
        for cell in program.settings():
            key = frozenset((name, repr(value)) for name, value in cell.items())
            if key in seen:
                shown = ", ".join(f"{name}={value}" for name, value in cell.items())
                raise ValueError(
                    f"`arms` or `grid` make two cells with the same columns"
                    f" ({shown or 'none'}): give the arms different labels, or the"
                    " values of an axis names, as in grid={'law': {'none': f}}."
                )
            seen.add(key)


def _check_batches(task: Task) -> None:
    """Checks the first axes of batches: an update would train on a single row."""
    part, rows, of = (), (), "a batch for each update"
    if task.examples is not None:  # the last example, and none behind it
        part, rows = (slice(task.examples - 1, task.examples + 1),), (1,)
        of += f", of `examples={task.examples}`"
    for updates in (1, 2):
        drawn = jax.tree.leaves(task.batches(0, 0, updates, *part))
        shape = updates, *rows
        wrong = [np.shape(x) for x in drawn if np.shape(x)[: len(shape)] != shape]
        if wrong or not drawn:
            given = ", ".join(map(str, (0, 0, updates, *part)))
            raise ValueError(
                f"The task's `batches`({given}) must return arrays of shape"
                f" [{', '.join(map(str, shape))}, ...], {of}, got"
                f" {', '.join(map(str, wrong)) or 'no array'}."
            )


def _traced(
    task: Task, rule: Rule, grid: Mapping[str, Sequence[Any]], declared: set[str]
) -> list[str]:
    """The axes that can be traced: the functions work with an unknown number there."""
    first = {axis: values[0] for axis, values in grid.items()}
    given = None

    def trace(axes):
        """The shapes of an update with unknown numbers on these axes."""
        nonlocal given
        if given is None:
            first_of = (0, 0, 0) if rule.workers > 1 else (0, 0)
            rows = rule.given(0, 1)
            given = jax.tree.map(lambda x: jnp.asarray(x[first_of]), rows)

        def step(cell):
            key = jax.random.key(0)
            hyper = {**first, **cell}
            model, memory = rule.init(key, hyper, begun(task, key))
            return rule.update(key, hyper, jnp.int32(0), model, memory, given)

        def over_workers(cell):
            over = step
            for name, size in rule.worker_axes.items():
                over = jax.vmap(over, axis_name=name, axis_size=size, in_axes=None)
            return over(cell)

        cell = {axis: _column(grid[axis])[0] for axis in axes}
        try:
            jax.eval_shape(over_workers, cell)
        except NameError as error:
            if error.name:  # no axis: a name of Python's
                raise
            names = " and ".join(map(repr, rule.worker_axes))
            its = (
                f"its workers have the {'axes' if ' and ' in names else 'axis'} {names}"
            )
            raise ValueError(
                "The training takes a mean over an axis that is not there:"
                f" {its if names else 'there is one worker, without an axis'}. Set"
                f" `axis_name` in exchange.mean(...) and its like. ({error})"
            ) from error

    def works(axes):
        try:
            trace(axes)
        except Exception:  # whatever a user's function raises of a tracer
            return False
        return True

    candidates = [
        axis
        for axis, values in grid.items()
        if axis not in declared and all(map(is_number, values))
    ]
    if works(candidates):
        return candidates
    alone = [axis for axis in candidates if works([axis])]
    while alone and not works(alone):
        alone.pop()
    if not alone:
        # not for the tracers: what is wrong is said before any work
        with naming("The training", {a: label(value) for a, value in first.items()}):
            trace([])
    return alone


def _check_values(
    task: Task, rule: Rule, grid: Mapping[str, Sequence[Any]], traced: Sequence[str]
) -> None:
    """Checks that training can begin with the least and the largest of traced values.

    In the program the value is unknown: what cannot be would be trained in silence on
    something else, such as a delay beyond `max_delay`. Most functions allow a range of
    numbers, whose ends suffice: each takes a trace.
    """
    key = jax.random.key(0)
    model = jax.eval_shape(lambda: begun(task, key))
    columns = {axis: _column(grid[axis]) for axis in traced}
    first = {axis: values[0] for axis, values in (dict(grid) | columns).items()}
    for axis in traced:
        order = np.argsort(np.asarray(columns[axis]))
        for i in dict.fromkeys((int(order[0]), int(order[-1]))):
            value, known = grid[axis][i], columns[axis][i]

            def begin(model, hyper=first | {axis: known}):
                return rule.init(key, hyper, model)

            for name, size in rule.worker_axes.items():
                begin = jax.vmap(begin, axis_name=name, axis_size=size, in_axes=None)
            try:
                jax.eval_shape(begin, model)
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"`grid[{axis!r}]` must not have {value!r}: {error}"
                ) from error


def _products(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(grid, values, strict=True))
        for values in itertools.product(*grid.values())
    ]


def _column(values: Sequence[Any]) -> jax.Array:
    whole = all(isinstance(value, (int, np.integer)) for value in values)
    return jnp.asarray(values, jnp.int32 if whole else jnp.float32)


def _name(columns: Mapping[str, Any], grid: Mapping[str, Any]) -> str:
    parts = []
    for key, value in columns.items():
        shown = f"{label(value):g}" if isinstance(value, float) else str(label(value))
        parts.append(f"{key}={shown}" if key in grid or is_number(value) else shown)
    slug = re.sub(r"[^\w.=+-]+", "_", "-".join(parts)).strip("_-")
    return slug[:100] or "all"
