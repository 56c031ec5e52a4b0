"""How stale the gradients of each arm were."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import delayjax as dj
from experiments.figures import palette, tables
from experiments.figures.figure import Figure, Theory
from experiments.results.runs import Run

_HEIGHT = 0.8  # of the highest bar, in rows
_WIDE = 100.0  # updates; staleness beyond it takes a logarithmic axis
_OCTAVE = 0.25  # the narrowest bin of that axis
_BAR, _MEAN = palette.COLORS[5], palette.COLORS[1]


def staleness(
    *, theory: Theory | None = None, title: str = "", name: str = "staleness"
) -> Figure:
    """How stale the gradients of each arm were, under the first seed.

    Args:
        theory: the mean in updates, a function of labels or {arm: mean}.
        title: the question.
        name: of the file.
    """

    def draw(run: Run) -> Any:
        return of_traces(run.traces, tables.of_arms(run, theory), title)

    caption = "Histograms of the staleness of each arm's gradients, with their mean."
    return Figure(name, caption, draw)


def of_traces(
    traces: Mapping[str, dj.cluster.Trace],
    theory: Mapping[str, float] | None = None,
    title: str = "",
) -> Any:
    """A histogram of staleness for each trace, its mean and, where known, theory's.

    Bars point upwards from their row: areas are shares, and all highest are equal.

    Args:
        traces: by name.
        theory: the mean that a formula gives, by name; nan where it gives none.
        title: the question.
    """
    from experiments.figures import scales, sheets

    said = dict.fromkeys(traces, math.nan) | dict(theory or {})
    known = bool(np.isfinite([*said.values()]).any())
    handles = [
        palette.area("share of its gradients", color=_BAR),
        palette.mark("mean", color=_MEAN, lw=2.2),
        *[palette.mark("theory", **palette.THEORY)] * known,
    ]
    title = title or "How stale are gradients?"
    figure, (axis,) = sheets.rows(traces, title, [""], handles, least=0.34)
    last = max(_percentile(trace) for trace in traces.values())
    wide = last > _WIDE
    edges = bins(last, wide=wide)
    for row, (arm, trace) in enumerate(traces.items()):
        counts, _ = np.histogram(trace.update - trace.read_version, edges)
        density = counts / np.diff(_octaves(edges) if wide else edges)
        tops = row - _HEIGHT * density / max(density.max(), 1e-30)
        axis.stairs(tops, edges, baseline=row, fill=True, color=_BAR)
        axis.axhline(row, color="0.7", lw=0.8, zorder=0)
        mean = trace.summary().mean
        axis.plot([mean, mean], [row, row - _HEIGHT], color=_MEAN, lw=2.2)
        if math.isfinite(said[arm]):
            axis.plot(said[arm], row, **palette.THEORY)
        sheets.beside(axis, row - _HEIGHT / 2, mean, said[arm])
    sheets.head(axis, known)
    middle = [row - _HEIGHT / 2 for row in range(len(traces))]
    axis.set_yticks(middle, axis.get_yticklabels())
    axis.set_ylim(len(traces) - 0.8, -1.0)
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
