"""How long the updates of each arm took."""

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

_SHARES = (0.05, 0.95)  # quantiles between which most updates lie
_BAR, _MEAN = palette.COLORS[5], palette.COLORS[1]


def draw(run: Run, *, theory: Any = None, title: str = "") -> Figure:
    """Draws `figures.update_times`."""
    return of_traces(run.traces, tables.of_arms(run, theory), title)


@sheets.STYLED
def of_traces(
    traces: Mapping[str, dj.cluster.Trace],
    theory: Mapping[str, float] | None = None,
    title: str = "",
) -> Figure:
    """The times between updates of each trace, their mean and, where known, theory's.

    Args:
        traces: by name.
        theory: the mean that a formula gives, by name; nan where it gives none.
        title: the question or the finding.
    """
    handles = [
        patches.Patch(color=_BAR, label="9 of 10 updates"),
        Line2D([], [], color=_MEAN, marker="o", ls="", label="mean"),
    ]
    figure, axis, labels, expected, head = sheets.rows(
        title or "How long does an update take?", traces, handles, theory, height=0.26
    )
    shown = [
        seconds
        for row, (arm, trace) in enumerate(traces.items())
        for seconds in _plot(axis, row, trace, expected[arm])
    ]
    sheets.beside(axis, -0.8, head)
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.8)
    if len(shown) > 1 and 0 < 100 * min(shown) < max(shown):
        axis.set_xscale("log")
        scales.log_ticks(axis.xaxis, shown)
    else:
        axis.set_xlim(left=0.0)
    axis.set_xlabel("time since the update before (simulated s)")
    return figure


def _plot(
    axis: Axes, row: int, trace: dj.cluster.Trace, expected: float
) -> list[float]:
    """One arm; returns what an axis must show."""
    seconds = np.diff(trace.seconds, prepend=0.0)
    mean, shown = math.nan, []
    if len(seconds):
        mean = float(seconds.mean())
        low, high = np.quantile(seconds, _SHARES)
        axis.plot([low, high], [row, row], color=_BAR, lw=6, solid_capstyle="butt")
        axis.plot(mean, row, color=_MEAN, marker="o")
        shown = [float(low), float(high), mean]
    if math.isfinite(expected):
        axis.plot(expected, row, ms=8, **palette.THEORY)
        shown.append(expected)
    sheets.beside(axis, row, sheets.mean_and_theory(mean, expected))
    return shown
