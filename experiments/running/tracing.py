"""Finds the axes of a grid that can be traced, and checks their values."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.host.failures import naming
from experiments.running.program import column, label
from experiments.tasks.task import Task
from experiments.training.axis_values import is_number
from experiments.training.jobs import Job, begun

_OF_AN_INDEX = jax.errors.NonConcreteBooleanIndexError
_NEEDS_A_NUMBER = (TypeError, ValueError, AttributeError, _OF_AN_INDEX)
"""The errors of a function that gets a tracer but needs a number.

Most are errors of JAX, which are TypeErrors except one; Optax and a user's functions
raise the others when they check types. Any other error is a mistake in the functions.
"""

Grid = Mapping[str, Sequence[Any]]


def traced_axes(
    task: Task,
    job: Job,
    grid: Grid,
    declared: set[str],
    labels: Mapping[str, Any],
) -> tuple[list[str], jax.stages.Traced]:
    """The axes that can be traced: the functions accept unknown numbers for them.

    Args:
        task: the task to minimize.
        job: the training.
        grid: the axes that the training takes.
        declared: axes that must not be traced.
        labels: the labels of the arm, for errors.

    Returns:
        The axes, and the trace, `of_cell`, with the first values of the others.

    Raises:
        ValueError: if the functions fail even if no axis is traced.
    """
    first = {axis: values[0] for axis, values in grid.items()}
    traced: dict[tuple[str, ...], jax.stages.Traced] = {}

    def trace(axes):
        columns = {axis: column(grid[axis])[0] for axis in axes}
        traced[tuple(axes)] = of_cell(task, job, first, columns)

    def works(axes):
        try:
            trace(axes)
        except _NEEDS_A_NUMBER:
            return False
        return True

    numbers = [axis for axis, values in grid.items() if all(map(is_number, values))]
    candidates = [axis for axis in numbers if axis not in declared]
    shown = {name: label(value) for name, value in {**labels, **first}.items()}
    with naming("The training", shown):
        if works(candidates):
            return candidates, traced[tuple(candidates)]
        alone = [axis for axis in candidates if works([axis])]
        while alone and not works(alone):
            alone.pop()
        if not alone:
            trace([])  # if this fails too, the functions have a mistake: report it now
    return alone, traced[tuple(alone)]


def check_values(task: Task, job: Job, grid: Grid, traced: Sequence[str]) -> None:
    """Checks that training can begin with the least and the largest of traced values.

    In the program the value is unknown: an impossible value, such as a delay beyond
    `max_delay`, would silently train something else. Most functions allow a range of
    numbers, so checking its ends is enough; each check is a trace.

    Raises:
        ValueError: if training cannot begin.
    """
    key = jax.random.key(0)
    model = jax.eval_shape(lambda: begun(task, key))
    columns = {axis: column(grid[axis]) for axis in traced}
    first = {axis: values[0] for axis, values in (dict(grid) | columns).items()}

    def check(hyper, what):
        def begin(model):
            return job.init(key, hyper, model)

        try:
            jax.eval_shape(_over_workers(begin, job), model)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{what}: {error}") from error

    shown = {axis: f"{axis}={label(values[0])}" for axis, values in grid.items()}
    if traced:
        every = ", ".join(shown.values())
        check(first, f"`grid` must not have {every} (the first values)")
    for axis in traced:
        order = np.argsort(np.asarray(columns[axis]))
        others = ", ".join(text for other, text in shown.items() if other != axis)
        for i in {int(order[0]), int(order[-1])} - {0}:
            what = f"`grid[{axis!r}]` must not have {grid[axis][i]!r}"
            what += f" with {others}" * bool(others)
            check(first | {axis: columns[axis][i]}, what)


def of_cell(
    task: Task, job: Job, hyper: Mapping[str, Any], cell: Mapping[str, jax.Array]
) -> jax.stages.Traced:
    """The start and the first update of a cell, traced.

    Args:
        task: the task to minimize.
        job: the training.
        hyper: the value of each axis.
        cell: the axes whose numbers are unknown, with any number.
    """

    def step(cell, given):
        key = jax.random.key(0)
        values = {**hyper, **cell}
        model, memory = job.init(key, values, begun(task, key))
        return job.update(key, values, jnp.int32(0), model, memory, given)

    first_of = (0, 0, 0) if job.workers > 1 else (0, 0)
    given = jax.tree.map(lambda x: jnp.asarray(x[first_of]), job.given(0, 1))
    try:
        return jax.jit(_over_workers(step, job)).trace(dict(cell), given)
    except NameError as error:
        if error.name:  # not an axis, but a name of Python
            raise
        there = " and ".join(map(repr, job.worker_axes)) or "none"
        raise ValueError(
            "The training takes a mean over an axis that is not there: its workers have"
            f" {there}. Set `axis_name` where the mean is taken, as exchange.mean does."
            f" ({error})"
        ) from error


def _over_workers(function: Callable[..., Any], job: Job) -> Callable[..., Any]:
    for name, size in job.worker_axes.items():
        function = jax.vmap(function, axis_name=name, axis_size=size, in_axes=None)
    return function
