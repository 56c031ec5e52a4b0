"""How stale the gradients of each arm were."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import delayjax as dj
from experiments.figures import palette, scales, sheets, tables
from experiments.results.runs import Run

_HEIGHT = 0.8  # of the highest bar, in rows
_WIDE = 100.0  # updates; staleness beyond it takes a logarithmic axis
_OCTAVE = 0.25  # the narrowest bin of that axis
_MEAN = palette.COLORS[1]


def draw(run: Run, *, theory: Any = None, title: str = "") -> Figure:
    """Draws `figures.staleness`."""
    return of_traces(run.traces, tables.of_arms(run, theory), title)


@sheets.STYLED
def of_traces(
    traces: Mapping[str, dj.cluster.Trace],
    theory: Mapping[str, float] | None = None,
    title: str = "",
) -> Figure:
    """A histogram of staleness for each trace, its mean and, where known, theory's.

    Args:
        traces: by name.
        theory: the mean that a formula gives, by name; nan where it gives none.
        title: the question or the finding.
    """
    handles = [
        patches.Patch(color=palette.COLORS[5], label="share of its gradients"),
        Line2D([], [], color=_MEAN, lw=2.2, label="mean"),
    ]
    figure, axis, labels, theory, head = sheets.rows(
        title or "How stale are gradients?", traces, handles, theory, height=0.34
    )
    last = max(_percentile(trace) for trace in traces.values())
    wide = last > _WIDE
    edges = bins(last, wide=wide)
    for row, (arm, trace) in enumerate(traces.items()):
        _plot(axis, row, trace, edges, wide=wide)
        mean, expected = trace.summary().mean, theory[arm]
        axis.plot([mean, mean], [row, row - _HEIGHT], color=_MEAN, lw=2.2)
        if math.isfinite(expected):
            axis.plot(expected, row, **palette.THEORY)
        sheets.beside(axis, row - _HEIGHT / 2, sheets.mean_and_theory(mean, expected))
    sheets.beside(axis, -0.9 - _HEIGHT / 2, head)
    axis.set_yticks([row - _HEIGHT / 2 for row in range(len(labels))], labels)
    axis.set_ylim(len(labels) - 0.8, -1.0)
    if wide:
        axis.set_xscale("function", functions=(_octaves, lambda y: 2.0**y - 1.0))
        powers = [4.0**i for i in range(math.floor(math.log(last, 4.0)) + 1)]
        scales.delay_ticks(axis.xaxis, [0.0, *powers], lambda tau: tau)
    axis.set_xlim(edges[0], edges[-1])
    cut = any(trace.max_staleness > edges[-1] for trace in traces.values())
    axis.set_xlabel("staleness (updates)" + ", at most 1 % beyond" * cut)
    return figure


def bins(last: float, *, wide: bool) -> np.ndarray:
    """Edges of bins of whole numbers, from 0 to `last` or beyond.

    Args:
        last: what the last bin must hold.
        wide: whether large numbers share bins of a quarter of an octave.
    """
    edges = [-0.5]
    while edges[-1] < last:
        edge = edges[-1] + 1.0
        if wide:
            reached = 2.0 ** (_octaves(edges[-1]) + _OCTAVE) - 1.0
            edge = max(edge, math.ceil(reached - 0.5) + 0.5)
        edges.append(edge)
    return np.asarray(edges)


def _octaves(staleness: np.ndarray | float) -> np.ndarray | float:
    return np.log2(1.0 + np.asarray(staleness))


def _percentile(trace: dj.cluster.Trace) -> float:
    """What 99 of 100 gradients do not exceed."""
    p99 = trace.summary().p99
    return 1.0 if math.isnan(p99) else max(1.0, p99)


def _plot(
    axis: Axes, row: int, trace: dj.cluster.Trace, edges: np.ndarray, *, wide: bool
) -> None:
    """Bars upwards from a row; their areas are shares, the highest is as all others."""
    counts, _ = np.histogram(trace.update - trace.read_version, edges)
    density = counts / np.diff(_octaves(edges) if wide else edges)
    heights = density / max(density.max(), 1e-30)
    axis.stairs(
        row - _HEIGHT * heights,
        edges,
        baseline=row,
        fill=True,
        color=palette.COLORS[5],
    )
    axis.axhline(row, color="0.7", lw=0.8, zorder=0)
