"""Three pictures of a cluster: who waits, staleness, speed against staleness."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

import delayjax as dj
from experiments.figures import palette, sheets
from experiments.figures.drawing import ages

_BARS = 64  # the most workers that have a bar


@sheets.STYLED
def waiting(seconds: np.ndarray) -> Figure:
    """A figure of each worker's seconds per step: computing, and waiting.

    Args:
        seconds: the seconds of the tasks, [workers, steps]; nan is a gap.
    """
    order = np.argsort(-np.nanmean(seconds, axis=1))[:_BARS]
    computes = np.nanmean(seconds, axis=1)[order]
    waits = np.nanmean(np.nanmax(seconds, axis=0) - seconds, axis=1)[order]
    slowest = np.bincount(np.nanargmax(seconds, axis=0), minlength=len(seconds))[order]
    often = int(slowest.argmax())
    blue, orange = palette.COLORS[0], palette.COLORS[4]
    legend = [
        Patch(color=blue, label="computes"),
        Patch(fc=orange, hatch="//", ec="white", label="waits for the slowest"),
    ]
    title = (
        f"Worker {order[often]} is the slowest in"
        f" {slowest[often] / seconds.shape[1]:.0%} of the steps"
    )
    figure, (axis,) = sheets.sheet(title, [""], legend)
    places = np.arange(len(order))
    axis.bar(places, computes, color=blue)
    axis.bar(places, waits, bottom=computes, color=orange, hatch="//", ec="white")
    shown = places[:: math.ceil(len(places) / 16)]
    axis.set_xticks(shown, [str(order[place]) for place in shown])
    axis.set_xlabel("worker, the slowest first")
    axis.set_ylabel("seconds a step, mean")
    return figure


@sheets.STYLED
def staleness(choices: Sequence[dj.cluster.Choice]) -> Figure:
    """A figure of the share of gradients older than each age, for late protocols."""
    styles = palette.styles([one.protocol for one in choices])  # as in the next figure
    late = {one.protocol: one.staleness for one in choices if one.max_staleness}
    return ages.older(late, styles)


@sheets.STYLED
def speed_against_staleness(advices: Mapping[float, dj.cluster.Advice]) -> Figure:
    """A figure of each protocol's speed to the target against its mean staleness.

    Args:
        advices: {noise: advice}, all with the same protocols; a noise has a panel.
    """
    one = next(iter(advices.values()))
    names = [choice.protocol for choice in one.choices]
    styles = palette.styles(names)
    panels = [f"noise {noise:g}" for noise in advices]
    title = "How fast is a protocol, and how late are its gradients?"
    figure, axes = sheets.sheet(title, panels, palette.handles(styles), columns=3)
    for axis, advice in zip(axes, advices.values(), strict=True):
        for choice in advice.choices:
            if not choice.reaches:
                continue
            mean, low, high = choice.times_as_fast_as(advice.first)
            style = styles[choice.protocol]
            axis.errorbar(
                choice.mean_staleness.mean,
                mean,
                [[mean - low], [high - mean]],
                fmt=style.marker,
                color=style.color,
                capsize=3,
            )
        axis.axhline(1.0, color="#000000", lw=0.8, ls=":")
        axis.margins(x=0.12)
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes[0].set_ylim(bottom=0)  # for all panels, after all markers are drawn
    axes[len(axes) // 2].set_xlabel("mean staleness, updates")
    axes[0].set_ylabel(f"times as fast to the target\nas {one.first.protocol}")
    return figure
