"""Families of series in a search: one series begins at the optimum of another."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from experiments.running.program import Program, label


def fixed(program: Program) -> list[dict[str, Any]]:
    """{axis: value} of each series of a program, without labels."""
    return [
        {name: value for name, value in series.items() if name not in program.labels}
        for series in program.series()
    ]


def nested(
    program: Program, axes: Mapping[str, Any], programs: Sequence[Program]
) -> Iterator[tuple[Program, int]]:
    """The series of other arms that a series contains: their common axes are equal.

    Args:
        program: the program of the series.
        axes: the axes of the series, as in `fixed`.
        programs: all programs of the experiment.
    """
    for other in programs:
        if other.arm in program.contains:
            for i, theirs in enumerate(fixed(other)):
                if all(axes.get(axis, v) == v for axis, v in theirs.items()):
                    yield other, i


def containing(
    program: Program, axes: Mapping[str, Any], programs: Sequence[Program]
) -> Iterator[tuple[Program, int]]:
    """The series of other arms that contain a series; arguments as of `nested`."""
    for other in programs:
        if program.arm in other.contains:
            for i, theirs in enumerate(fixed(other)):
                if all(theirs.get(axis, v) == v for axis, v in axes.items()):
                    yield other, i


def with_same_numbers(
    program: Program, number: int, programs: Sequence[Program]
) -> Iterator[tuple[Program, int]]:
    """The other series that search the same numbers in the same ranges.

    Args:
        program: the program of the series.
        number: the number of the series in its program.
        programs: all programs of the experiment.
    """
    for other in programs:
        if other.searched == program.searched:
            for i in range(other.size):
                if (other.name, i) != (program.name, number):
                    yield other, i


def at(
    program: Program,
    series: Mapping[str, Any],
    values: Mapping[str, Any],
    programs: Sequence[Program],
) -> tuple[Program, int]:
    """The searched series that equals a series except in some values.

    Args:
        program: the program of the series.
        series: the labels and values of the series.
        values: the values that differ.
        programs: all programs of the experiment.

    Raises:
        ValueError: if there is no such series, or its optimum is not a point of the
            program.
    """
    wanted = {**series, **{name: label(value) for name, value in values.items()}}
    for other in programs:
        if other.searched and wanted in other.series():
            for axis, searched in program.searched.items():
                if axis not in other.searched and searched.off is None:
                    raise ValueError(
                        f"`also_at` needs a value of {axis!r}, which the series with"
                        f" {wanted} does not search: give its `Range` an `off`."
                    )
            return other, other.series().index(wanted)
    raise ValueError(
        f"`also_at` needs a series with {wanted} and a `Range`, but there is none."
    )


def sharded(
    programs: Sequence[Program],
    part: int,
    parts: int,
    also_at: Sequence[Mapping[str, Any]] = (),
) -> list[Program]:
    """Every `parts`-th cell of all programs, beginning with number `part`.

    Series that need each other's optimum count as one cell.
    """
    first = np.cumsum([0, *(program.size for program in programs)])
    number = {p.name: int(n) for p, n in zip(programs, first, strict=False)}
    pairs = []
    for program in programs:
        both = enumerate(zip(program.series(), fixed(program), strict=True))
        for i, (series, axes) in both:
            needed = [*nested(program, axes, programs)]
            if program.searched:
                needed += [at(program, series, v, programs) for v in also_at]
            for other, j in needed:
                pairs.append((number[program.name] + i, number[other.name] + j))
    rows, columns = np.array(pairs, int).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows)), (rows, columns)), (first[-1], first[-1]))
    _, family = connected_components(graph, directed=False)
    kept = []
    for program in programs:
        cells = range(number[program.name], number[program.name] + program.size)
        chosen = [
            row
            for row, cell in zip(program.rows, cells, strict=True)
            if family[cell] % parts == part
        ]
        if len(chosen) == program.size:
            kept.append(program)
        elif chosen:
            kept.append(program.with_cells(chosen))
    return kept
