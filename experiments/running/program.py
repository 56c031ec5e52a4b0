"""A program: cells of an experiment's grid that share one compiled step."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import delayjax as dj
from experiments.tasks.task import Task
from experiments.training.jobs import NO_ROOM, Job, Room
from experiments.training.ranges import Range


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Cells that share one compiled step.

    Attributes:
        name: the name in files and in the progress.
        labels: the labels of the program's arm.
        static: {axis that is not traced: its value in all cells}.
        axes: {traced axis: its value in each cell}, all of one length.
        task: the task to minimize.
        job: the training.
        seeds: the seeds of the replicates.
        bind: (seeds, room) -> the job under other seeds, which has the same compiled
            program if there is room for it.
        names: {axis: {value: its name in tables}} of the axes whose values have names.
        takes: the axes that the task and the training can have.
        searched: {traced axis: its range}; `axes` have a value within the range.
        arm: the number of the program's arm.
        contains: {number of an arm that this arm contains: {searched number: its value
            where both arms are equal}}; other numbers that only this arm has are `off`
            there.
        executable: the number of the compiled program, which several programs share.
        fed: {axis that changes only the data of an update: its value in all cells}.
        traced: the start and the first update of a cell, as `tracing.of_cell` traces
            it, if it has been traced.
    """

    name: str
    labels: Mapping[str, Any]
    static: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]
    task: Task
    job: Job
    seeds: tuple[int, ...]
    bind: Callable[[tuple[int, ...], Room], Job]
    names: Mapping[str, Mapping[Any, str]] = dataclasses.field(default_factory=dict)
    takes: tuple[str, ...] = ()
    searched: Mapping[str, Range] = dataclasses.field(default_factory=dict)
    arm: int = 0
    contains: Mapping[int, Mapping[str, float]] = dataclasses.field(
        default_factory=dict
    )
    executable: int = 0
    fed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    traced: jax.stages.Traced | None = None

    def with_cells(
        self,
        cells: Sequence[Mapping[str, Any]],
        seeds: tuple[int, ...] | None = None,
        room: Room = NO_ROOM,
    ) -> "Program":
        """The program with other cells, and under other seeds.

        Args:
            cells: the value of each traced axis.
            seeds: None for the seeds of this program.
            room: the least room of the new program.
        """
        axes = {axis: [cell[axis] for cell in cells] for axis in self.axes}
        seeds, job = self.seeds if seeds is None else seeds, self.job
        if seeds != self.seeds or not job.room.has_room_for(room.needs):
            job = self.bind(seeds, room)
        return dataclasses.replace(self, axes=axes, seeds=seeds, job=job)

    def evaluated_once(self) -> "Program":
        """The program with a single evaluation, at the end."""
        job = self.job._replace(evaluate_every=self.job.updates)
        return dataclasses.replace(self, job=job)

    @property
    def columns(self) -> dict[str, Any]:
        """The settings that all cells share."""
        return {**self.labels, **self.static}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The value of each traced axis in each cell."""
        if not self.axes:
            return [{}]
        rows = zip(*self.axes.values(), strict=True)
        return [dict(zip(self.axes, row, strict=True)) for row in rows]

    @property
    def cells(self) -> dict[str, jax.Array]:
        """{traced axis: float32 or int32 [cells]}; one cell has no axis."""
        return {axis: column(values) for axis, values in self.axes.items()}

    @property
    def size(self) -> int:
        """The number of cells."""
        return len(next(iter(self.axes.values()), (None,)))

    def settings(self) -> list[dict[str, Any]]:
        """The columns of each cell, as the experiment gives them."""
        shown = {key: label(v) for key, v in named(self.columns, self.names).items()}
        return [shown | named(cell, self.names) for cell in self.rows]

    def series(self) -> list[dict[str, Any]]:
        """The columns of each cell except the searched ones."""
        return [
            {name: v for name, v in cell.items() if name not in self.searched}
            for cell in self.settings()
        ]

    def record(self) -> dict[str, Any]:
        """The entry of the program in the records of a run."""
        return {
            "name": self.name,
            "cells": self.series(),
            "searched": {a: dataclasses.astuple(r) for a, r in self.searched.items()},
            "updates": self.job.updates,
            "evaluate_every": self.job.evaluate_every,
            "facts": dict(self.task.facts),
            "batch": self.task.examples,
        }


def setting_names(programs: Sequence[Program]) -> list[str]:
    """The columns of settings: the labels and axes of all programs."""
    return list(dict.fromkeys(name for p in programs for name in p.settings()[0]))


def first_traces(
    programs: Sequence[Program],
) -> dict[str, tuple[dict[str, Any], dj.cluster.Trace]]:
    """The trace of each cluster of each arm under the first seed, and its labels.

    Returns:
        {program: (labels, trace)}, of the first program with the labels: the arm's, and
        the values of the fed axes, which choose one of several clusters.
    """
    saved: dict[str, tuple[dict[str, Any], dj.cluster.Trace]] = {}
    for program in programs:
        values = {**program.labels, **named(program.fed, program.names)}
        labels = {name: label(value) for name, value in values.items()}
        there = [before for before, _ in saved.values()]
        if program.job.traces and labels not in there:
            saved[program.name] = labels, program.job.traces[0]
    return saved


def named(
    values: Mapping[str, Any], names: Mapping[str, Mapping[Any, str]]
) -> dict[str, Any]:
    """The values of axes, replaced by their names if they have names."""
    return {
        axis: names[axis][value] if axis in names else value
        for axis, value in values.items()
    }


def label(value: Any) -> Any:
    """A value of an axis as tables show it; the same in every process."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (int, float, str, bool)):
        return value
    if isinstance(value, (np.ndarray, jax.Array)):
        value = value.tolist()  # print options do not shorten it
    return getattr(value, "__name__", None) or without_addresses(str(value))


def without_addresses(text: str) -> str:
    """A printed object without the addresses of objects in it.

    Example:
        >>> without_addresses("functools.partial(<function late at 0x7f0512>, 3)")
        'functools.partial(<function late>, 3)'
    """
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def column(values: Sequence[Any]) -> jax.Array:
    """The values of a traced axis: int32 if all are whole numbers, else float32."""
    whole = all(isinstance(value, (int, np.integer)) for value in values)
    return jnp.asarray(values, jnp.int32 if whole else jnp.float32)
