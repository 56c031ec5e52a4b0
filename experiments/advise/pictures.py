"""Three pictures of a cluster: who waits, staleness, time against staleness."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import delayjax as dj
from experiments.figures import palette, sheets

_BARS = 64  # workers that have a bar of their own


@sheets.STYLED
def waiting(seconds: np.ndarray) -> Figure:
    """Each worker's seconds a step: computing, and waiting for the slowest one.

    Args:
        seconds: of the tasks, [workers, steps].
    """
    order = np.argsort(-seconds.mean(axis=1))[:_BARS]
    computes = seconds.mean(axis=1)[order]
    waits = (seconds.max(axis=0) - seconds).mean(axis=1)[order]
    slowest = np.bincount(seconds.argmax(axis=0), minlength=len(seconds))[order]
    often = int(slowest.argmax())
    blue, orange = palette.COLORS[0], palette.COLORS[4]
    legend = [
        Patch(color=blue, label="computes"),
        Patch(color=orange, label="waits for the slowest"),
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
def staleness(choices: list[dj.cluster.Choice]) -> Figure:
    """How many gradients are older than so many updates, under each late protocol."""
    late = {own.protocol: own for own in choices if own.max_staleness}
    styles = palette.styles([own.protocol for own in choices])  # as in the next figure
    styles = {name: styles[name] for name in late}
    title = "How stale are the gradients?"
    figure, (axis,) = sheets.sheet(title, [""], palette.handles(styles))
    for name, own in late.items():
        above = 1 - np.cumsum(own.staleness)
        ages = np.arange(len(above))
        style = styles[name]
        axis.step(
            ages, 100 * above, where="post", color=style.color, linestyle=style.dashes
        )
        mean = own.mean_staleness.mean
        share = 100 * np.interp(mean, ages, above)
        axis.plot(mean, share, style.marker, color=style.color)
    axis.set_ylim(0, 100)
    axis.set_xlim(left=0)
    axis.set_xlabel("staleness, updates (marker: mean)")
    axis.set_ylabel("older gradients, %")
    return figure


@sheets.STYLED
def time_against_staleness(choices: list[dj.cluster.Choice]) -> Figure:
    """The seconds to the target of each protocol, against its mean staleness."""
    there = [own for own in choices if math.isfinite(own.seconds_to_target.mean)]
    styles = palette.styles([own.protocol for own in choices])
    best = min(there, key=lambda own: own.seconds_to_target.mean, default=None)
    title = f"{best.protocol} is the fastest" if best else "None reaches the target"
    figure, (axis,) = sheets.sheet(title, [""], palette.handles(styles))
    for own in there:
        mean, low, high = own.seconds_to_target
        style = styles[own.protocol]
        axis.errorbar(
            own.mean_staleness.mean,
            mean,
            [[mean - low], [high - mean]],
            fmt=style.marker,
            color=style.color,
            capsize=3,
        )
    _from_zero(axis)
    axis.set_xlabel("mean staleness, updates")
    axis.set_ylabel("seconds to the target")
    return figure


def _from_zero(axis: Axes) -> None:
    """Both axes begin a little below 0, so that no marker is cut."""
    right, top = axis.get_xlim()[1], axis.get_ylim()[1]
    axis.set_xlim(-0.04 * max(right, 1.0), 1.05 * max(right, 1.0))
    axis.set_ylim(0, 1.05 * top)
