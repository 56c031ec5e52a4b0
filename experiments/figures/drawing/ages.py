"""How many gradients are older than so many updates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import delayjax as dj
from experiments.figures import palette, tables
from experiments.figures.figure import Figure, Theory
from experiments.results.runs import Run

_SHOWN = 0.995  # of the gradients; a few may be far older


def staleness(*, theory: Theory | None = None) -> Figure:
    """How stale the gradients of each arm were, under the first seed.

    Args:
        theory: the mean in updates, a function of labels or {arm: mean}.
    """

    def draw(run: Run) -> Any:
        return of_traces(run.traces, tables.theory_of_arms(theory, run))

    caption = "How many gradients of each arm are older than so many updates."
    return Figure("staleness", caption, draw)


def of_traces(
    traces: Mapping[str, dj.cluster.Trace], theory: Sequence[float] | float = np.nan
) -> Any:
    """The staleness of the gradients of each trace, and the means of theory."""
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
    """A line for each name: the share of gradients that are older; markers are means.

    Args:
        shares: {name: the shares of the ages 0, 1, ... updates}; empty if there is no
            gradient.
        styles: by name, of these and of others.
        theory: what each mean is to be.
    """
    from experiments.figures import scales, sheets

    said = dict(zip(shares, np.broadcast_to(theory, len(shares)), strict=True))
    means = {name: np.arange(len(own)) @ own for name, own in shares.items()}

    def label(name):
        text = f"mean {means[name]:.3g}" if len(shares[name]) else "none"
        text += f", theory {said[name]:.3g}" if np.isfinite(said[name]) else ""
        return f"{name} ({text})"

    handles = palette.handles({label(name): styles[name] for name in shares})
    if np.isfinite([*said.values()]).any():
        handles.append(palette.mark("theory", **palette.THEORY))
    figure, (axis,) = sheets.sheet("How stale are the gradients?", [""], handles)
    last = 1
    for name, own in shares.items():
        (color, marker, dashes), above = styles[name], 100 * (1 - own.cumsum())
        last = max(last, int(np.searchsorted(own.cumsum(), _SHOWN)) + 1)
        axis.plot(above, color=color, ls=dashes, drawstyle="steps-post", zorder=2)
        looks = {"color": color, "marker": marker, "ls": ""}, palette.THEORY
        for mean, look in zip((means[name], said[name]), looks, strict=True):
            if len(own) and np.isfinite(mean):
                height = above[min(int(mean), len(above) - 1)]
                axis.plot(mean, height, clip_on=False, **look)
    scales.x_axis([axis], range(last + 1), "staleness (updates)")
    axis.set_xlim(right=last)
    axis.set_ylim(0, 100)
    axis.set_ylabel("gradients that are older, %")
    return figure
