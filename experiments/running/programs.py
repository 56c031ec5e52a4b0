"""Divides the cells of an experiment's grid into programs of one compiled step."""

import dataclasses
import functools
import graphlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.running import tracing
from experiments.running.program import Program, label, named
from experiments.tasks.task import Task
from experiments.training.axis_values import is_number, is_whole
from experiments.training.experiment import Arm, Experiment
from experiments.training.jobs import NO_ROOM, Job, Request, Room, arguments
from experiments.training.ranges import Range


def programs(experiment: Experiment, *, devices: int | None = None) -> list[Program]:
    """The programs of an experiment, in the order of its arms and static axes.

    Args:
        experiment: the experiment.
        devices: the number of devices to train on; None for those that JAX sees.

    Raises:
        ValueError: if an axis is not an argument of the functions, an argument has no
            axis, two cells have the same columns, or batches have another shape than
            `Task.batches` says.
    """
    request = Request(
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
    arms = experiment.all_arms
    _check_distinct(experiment)
    for number, arm in enumerate(arms):
        request_of_arm = request
        if arm.seconds is not None or arm.updates is not None:
            end = dict(updates=arm.updates, seconds=arm.seconds)
            request_of_arm = request._replace(**end, examples=None)
        contains = _contained(experiment, arm)
        executable = len(made)
        made += [
            dataclasses.replace(
                p, arm=number, contains=contains, executable=executable + p.executable
            )
            for p in _of_arm(experiment, arm, request_of_arm, tasks)
        ]
    for axis in experiment.grid:
        if experiment.arms and all(axis not in program.takes for program in made):
            known = dict.fromkeys(name for program in made for name in program.takes)
            raise ValueError(
                f"`grid` has the axis {axis!r}, which no arm takes: they take"
                f" {', '.join(known) or 'no axis'}."
            )
    _check_contained(made)
    names: dict[str, int] = {}
    unique = []
    for program in made:
        seen = names[program.name] = names.get(program.name, 0) + 1
        name = program.name if seen == 1 else f"{program.name}-{seen}"
        unique.append(dataclasses.replace(program, name=name))
    return unique


def _of_arm(
    experiment: Experiment, arm: Arm, request: Request, tasks: dict[Any, Task]
) -> list[Program]:
    """The programs of an arm; `tasks` has the tasks that earlier arms have made."""
    given = {**experiment.grid, **arm.grid}
    names = {
        axis: {value: name for name, value in values.items()}
        for axis, values in given.items()
        if isinstance(values, Mapping)
    }
    searched = {a: values for a, values in given.items() if isinstance(values, Range)}
    grid = {
        axis: _ends(values) if axis in searched else tuple(names.get(axis, values))
        for axis, values in given.items()
    }
    of_training = arm.training.arguments()
    make_task = arm.task or experiment.task
    of_task = _axes_of_task(make_task)
    known = {**of_training, **of_task}
    _check_axes(experiment, arm, grid, known)
    axes = {axis: values for axis, values in grid.items() if axis in of_training}
    known_names = getattr(arm.training, "fed", {})
    fed = {axis: axes[axis] for axis in known_names}
    for axis in fed:
        _check_names(axis, names.get(axis, {}), known_names[axis])
    made = []
    for of_task_axes in _products({a: v for a, v in grid.items() if a in of_task}):
        key = id(make_task), tuple(of_task_axes.items())
        if key not in tasks:
            is_task = isinstance(make_task, Task)
            tasks[key] = make_task if is_task else make_task(**of_task_axes)
            _check_batches(tasks[key])
        task = tasks[key]
        jobs = _jobs(arm.training, task, request, _products(fed))
        declared = {*experiment.static, *of_task}
        traced, first = tracing.traced_axes(
            task, jobs[0][1], axes, declared, arm.labels
        )
        tracing.check_values(task, jobs[0][1], axes, traced)
        _check_traced({**searched, **fed}, traced, known)
        # a search begins within its range; a fed axis has a program for each value
        of_cells = {
            axis: axes[axis][:1] if axis in searched else axes[axis]
            for axis in traced
            if axis not in fed
        }
        untraced = {axis: v for axis, v in axes.items() if axis not in traced}
        for number, fixed in enumerate(_products(untraced)):
            executable, static = len(made), {**of_task_axes, **fixed}
            for fed_values, job, bind in jobs:
                cells = [{**fed_values, **cell} for cell in _products(of_cells)]
                columns = {**arm.labels, **static, **fed_values}
                made.append(
                    Program(
                        name=_name(named(columns, names), grid),
                        labels=arm.labels,
                        static=static,
                        axes={
                            axis: _of_one_type([cell[axis] for cell in cells])
                            for axis in traced
                        },
                        task=task,
                        job=job,
                        seeds=request.seeds,
                        bind=bind,
                        names=names,
                        takes=tuple(known),
                        searched={a: r for a, r in searched.items() if a in traced},
                        executable=executable,
                        fed=fed_values,
                        traced=None if number else first,  # for the first values
                    )
                )
    return made


def _axes_of_task(make_task: Any) -> dict[str, bool]:
    """{axis that a task takes: whether it is required}."""
    return {} if isinstance(make_task, Task) else arguments(make_task)


def _check_names(axis: str, given: Mapping[Any, str], known: Sequence[str]) -> None:
    """Checks that the grid names the values 0, 1, ... of a fed axis as the arm does."""
    for number, name in given.items():
        if name != dict(enumerate(known)).get(number, name):
            right = {name: number for number, name in enumerate(known)}
            raise ValueError(
                f"`grid[{axis!r}]` calls {number} {name!r}, which is {known[number]!r}:"
                f" give {right}, or some of these."
            )


_Bind = Callable[..., Job]


def _jobs(
    training: Any, task: Task, request: Request, fed: Sequence[Mapping[str, Any]]
) -> list[tuple[Mapping[str, Any], Job, _Bind]]:
    """The job of each combination of fed values, with room for all of them.

    Returns:
        The values, the job, and (seeds, room) -> the job under other seeds.
    """

    def bind(values, seeds, room=NO_ROOM):
        return training.job(
            task, request._replace(seeds=tuple(seeds), room=room, fed=values)
        )

    jobs = [bind(values, request.seeds) for values in fed]
    room = functools.reduce(Room.with_room_for, (job.room for job in jobs))
    if len(jobs) > 1:
        jobs = [bind(values, request.seeds, room) for values in fed]
    return [
        (values, job, functools.partial(bind, values))
        for values, job in zip(fed, jobs, strict=True)
    ]


def _of_one_type(values: list[Any]) -> list[Any]:
    """Converts whole numbers to floats if others are not whole: one dtype for all."""
    whole = [is_whole(value) for value in values]
    if all(whole):
        return values
    return [float(v) if w else v for v, w in zip(values, whole, strict=True)]


def _ends(searched: Range) -> tuple[float, ...]:
    """A value within a range, its ends, and `off`, which a training must accept."""
    low, high = searched.ends
    amid = searched.value((low + high) / 2)
    off = () if searched.off is None else (searched.off,)
    return tuple(dict.fromkeys([amid, searched.low, searched.high, *off]))


def _check_traced(
    axes: Mapping[str, Any], traced: Sequence[str], known: Mapping[str, bool]
) -> None:
    """Checks that searched and fed axes are arguments of a compiled program."""
    for axis, values in axes.items():
        if axis in known and axis not in traced:
            what = "is a `Range`" if isinstance(values, Range) else "is fed"
            raise ValueError(
                f"`grid[{axis!r}]` {what}, so it must be an unknown number when the"
                " program is compiled, but the functions need the number then: write"
                " them in jax.numpy, or give a tuple of values, and name the axis in"
                " `tuned`."
            )


def _contained(experiment: Experiment, arm: Arm) -> dict[int, dict[str, float]]:
    """`Program.contains` of an arm."""
    if arm.contains is None:
        return {}
    grid = {**experiment.grid, **arm.grid}
    values = {k: v for k, v in arm.contains.items() if isinstance(grid.get(k), Range)}
    chosen = [
        number
        for number, other in enumerate(experiment.all_arms)
        if other is not arm
        and all(
            other.labels.get(k) == v for k, v in arm.contains.items() if k not in values
        )
    ]
    if len(chosen) != 1:
        raise ValueError(
            f"`contains` must name one other arm by its labels, got {arm.contains}:"
            f" {len(chosen)} arms have these."
        )
    return {chosen[0]: values}


def _check_contained(programs: Sequence[Program]) -> None:
    """Checks that a contained arm is a point of its arm, and does not contain it."""
    of_arm = {program.arm: program for program in programs}
    for program in programs:
        for number, values in program.contains.items():
            there, here = of_arm[number].searched, program.searched
            missing = [axis for axis in there if axis not in here]
            free = here.keys() - there.keys() - values.keys()
            bound = [axis for axis in here if axis in free and here[axis].off is None]
            if missing or bound:
                name = (missing or bound)[0]
                why = "lacks" if missing else "cannot switch off: give it `off`"
                raise ValueError(
                    f"`contains={dict(of_arm[number].columns)}` needs every searched"
                    f" number of that arm, and `off` or a value for each further one:"
                    f" {name!r} is a number that the arm {why}."
                )
    try:
        graphlib.TopologicalSorter({p.arm: p.contains for p in programs}).prepare()
    except graphlib.CycleError as error:
        names = [str(dict(of_arm[arm].labels)) for arm in reversed(error.args[1])]
        raise ValueError(
            "`contains` must not lead from an arm back to it, got:"
            f" {names[0]} contains {', which contains '.join(names[1:])}."
        ) from error


def _check_axes(
    experiment: Experiment, arm: Arm, grid: Mapping[str, Any], known: Mapping[str, bool]
) -> None:
    """Checks that the axes are those that the task and the training of an arm take.

    Args:
        experiment: the experiment.
        arm: one of its arms.
        grid: the axes of both.
        known: {argument of the functions: whether it must be given}.
    """
    # an arm may leave out axes of the experiment
    arm_grid = arm.grid if experiment.arms else grid
    unknown = [axis for axis in arm_grid if axis not in known]
    if unknown:
        raise ValueError(
            f"`grid` has the axis {unknown[0]!r}, which neither the task nor the"
            f" training takes: they take {', '.join(known) or 'no axis'}."
        )
    missing = [axis for axis, needed in known.items() if needed and axis not in grid]
    if missing:
        raise ValueError(
            f"The task or the training takes {missing[0]!r}, which is no axis of"
            f" `grid`: add it, {missing[0]}=(value,) for one."
        )
    given = {**experiment.grid, **arm.grid}
    for axis in experiment.searched:
        several = axis in known and len(grid.get(axis, ())) > 1
        if several and not isinstance(given[axis], Range):
            raise ValueError(
                f"`grid[{axis!r}]` is a `Range` of one arm and has several values of"
                " another: the reported seeds would choose among these. Give each arm"
                " a `Range` or one value."
            )
    for name in arm.labels:
        if name in grid:
            raise ValueError(
                f"`arms` have the label {name!r}, which is an axis of `grid` too: name"
                " one of them otherwise."
            )


def _check_distinct(experiment: Experiment) -> None:
    """Checks that no two cells have the same columns: tables would mix their rows.

    It comes before the timetables of the arms, which may take half a minute.
    """
    seen: set[frozenset[Any]] = set()
    for arm in experiment.all_arms:
        of_task = _axes_of_task(arm.task or experiment.task)
        takes = {**arm.training.arguments(), **of_task}
        given = {**experiment.grid, **arm.grid}
        axes = {axis: values for axis, values in given.items() if axis in takes}
        searched = {axis for axis in axes if isinstance(axes[axis], Range)}
        for cell in _products({a: v for a, v in axes.items() if a not in searched}):
            columns = {k: label(v) for k, v in {**arm.labels, **cell}.items()}
            key = frozenset([*columns.items(), *searched])
            if key in seen:
                shown = ", ".join(f"{name}={value}" for name, value in columns.items())
                raise ValueError(
                    "`arms` or `grid` make two cells with the same columns"
                    f" ({shown or 'none'}): give each value once, the arms different"
                    " labels, or the values of an axis names, as in"
                    " grid={'law': {'none': f}}."
                )
            seen.add(key)


def _check_batches(task: Task) -> None:
    """Checks the leading axes of batches: else an update may train on a single row."""
    part, rows, of = (), (), "a batch for each update"
    if task.examples is not None:  # a slice beyond the end has one example
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


def _products(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(grid, values, strict=True))
        for values in itertools.product(*grid.values())
    ]


def _name(columns: Mapping[str, Any], grid: Mapping[str, Any]) -> str:
    parts = []
    for key, value in columns.items():
        shown = f"{label(value):g}" if isinstance(value, float) else str(label(value))
        parts.append(f"{key}={shown}" if key in grid or is_number(value) else shown)
    # no dots at the ends: checkpoints/.. would be the folder of the run
    slug = re.sub(r"[^\w.=+-]+", "_", "-".join(parts)).strip("_-.")
    return slug[:100] or "all"
