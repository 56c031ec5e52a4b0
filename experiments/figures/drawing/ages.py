"""Figures of staleness: the share of gradients older than each number of updates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import delayjax as dj
from experiments.figures import palette, tables
from experiments.figures.figure import Figure, Theory
from experiments.results.runs import Run

_SHOWN = 0.995  # the share of gradients on the axis; a few may be far older


def staleness(*, theory: Theory | None = None) -> Figure:
    """A figure of the staleness of each cluster's gradients, under the first seed.

    Args:
        theory: the mean staleness in updates: a function of labels, or {name: mean}.
    """

    def draw(run: Run) -> Any:
        return of_traces(run.traces, tables.theory_of_arms(theory, run))

    caption = (
        "The share of each cluster's gradients that are older than 0, 1, ... updates."
    )
    return Figure("staleness", caption, draw)


def of_traces(
    traces: Mapping[str, dj.cluster.Trace], theory: Sequence[float] | float = np.nan
) -> Any:
    """A figure of the staleness of each trace's gradients, with theoretical means."""
    shares = {
        name: np.bincount(trace.update - trace.read_version) / max(1, len(trace.update))
        for name, trace in traces.items()
    }
    return older(shares, palette.styles(list(shares)), theory)


def older(
    shares: Mapping[str, np.ndarray],
    styles: Mapping[str, palette.Style],
    theory: Sequence[float] | float = np.nan,
) -> Any:
    """A figure with a line for each name: the share of gradients older than each age.

    Args:
        shares: {name: the shares of the ages 0, 1, ... updates}; empty if there is no
            gradient.
        styles: {name: style}; it may have more names.
        theory: the theoretical mean of each name; markers show all means.
    """
    from experiments.figures import scales, sheets

    expected = dict(zip(shares, np.broadcast_to(theory, len(shares)), strict=True))
    means = {name: np.arange(len(share)) @ share for name, share in shares.items()}

    def label(name):
        text = f"mean {means[name]:.3g}" if len(shares[name]) else "none"
        text += f", theory {expected[name]:.3g}" if np.isfinite(expected[name]) else ""
        return f"{name} ({text})"

    handles = palette.handles({label(name): styles[name] for name in shares})
    if np.isfinite([*expected.values()]).any():
        handles.append(palette.mark("theory", **palette.THEORY))
    figure, (axis,) = sheets.sheet("How stale are the gradients?", [""], handles)
    last = 1
    for name, share in shares.items():
        (color, marker, dashes), percent = styles[name], 100 * (1 - share.cumsum())
        last = max(last, int(np.searchsorted(share.cumsum(), _SHOWN)) + 1)
        axis.plot(percent, color=color, ls=dashes, drawstyle="steps-post", zorder=2)
        looks = {"color": color, "marker": marker, "ls": ""}, palette.THEORY
        for mean, look in zip((means[name], expected[name]), looks, strict=True):
            if len(share) and np.isfinite(mean):
                height = percent[min(int(mean), len(percent) - 1)]
                axis.plot(mean, height, clip_on=False, **look)
    scales.x_axis([axis], range(last + 1), "staleness (updates)")
    axis.set_xlim(right=last)
    axis.set_ylim(0, 100)
    axis.set_ylabel("gradients that are older, %")
    return figure
