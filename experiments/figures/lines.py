"""Curves over staleness: who shares a panel, and how each is drawn and named."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from experiments import tuning
from experiments.figures import look
from experiments.tuning import Curve, Series

_PANEL_SERIES = 5  # more of them are spread over panels


class Arrangement(NamedTuple):
    """Which curves share a panel, and how each series is named and drawn."""

    panels: dict[str, list[Curve]]  # by title
    labels: dict[Series, str]
    styles: dict[Series, look.Style]  # equal where labels are


def arrange(curves: Sequence[Curve]) -> Arrangement:
    """One panel; if that is too full one an optimizer, or one a compensation too."""
    among = list(dict.fromkeys(curve.series for curve in curves))

    def by_strength(series):
        rest = tuning.label(
            series._replace(compensation="none"), among, optimizer=False
        )
        return f"strength {series.strength:g}" if rest == "plain" else rest

    choices = (
        (lambda s: "", lambda s: tuning.label(s, among)),
        (lambda s: s.optimizer, lambda s: tuning.label(s, among, optimizer=False)),
        (lambda s: f"{s.optimizer}, {s.compensation}", by_strength),
    )
    for choice in choices:
        title, name = choice
        titles = [title(series) for series in among]
        if max(map(titles.count, titles)) <= _PANEL_SERIES:
            break
    labels = {series: name(series) for series in among}
    order = list(dict.fromkeys(labels.values()))
    panels = {}
    for curve in curves:
        panels.setdefault(title(curve.series), []).append(curve)
    styles = {series: look.style(order.index(text)) for series, text in labels.items()}
    return Arrangement(panels, labels, styles)


def plot(axis: Axes, curve: Curve, style: look.Style, *, less: float = 0.0) -> None:
    """A curve with the spread of its seeds; a gap where one diverged."""
    delays = [point.delay for point in curve.points]
    spread = np.asarray([point.spread for point in curve.points]) - less
    axis.fill_between(delays, *spread.T, color=style.color, alpha=0.18, linewidth=0)
    axis.plot(
        delays,
        [point.mean - less for point in curve.points],
        color=style.color,
        marker=style.marker,
        linestyle=style.dashes,
        # on top and smaller, so that it shows where both coincide
        **({} if curve.retuned else {"mfc": "white", "markersize": 4, "zorder": 3}),
    )


def mark_diverged(
    axis: Axes,
    curves: Sequence[Curve],
    arranged: Arrangement,
    *,
    bottom: bool = False,
) -> None:
    """A cross on the frame, above or below, for each diverged point."""
    order = list(dict.fromkeys(curve.series for curve in curves))
    if diverged_handles(curves):
        axis.margins(y=0.1 + 0.05 * len(order))
    for curve in curves:
        offset = 0.035 + 0.05 * order.index(curve.series)
        delays = [point.delay for point in curve.points if point.diverged]
        axis.scatter(
            delays,
            [offset if bottom else 1.0 - offset] * len(delays),
            s=36,
            marker="X" if curve.retuned else "x",
            color=arranged.styles[curve.series].color,
            transform=axis.get_xaxis_transform(),
            zorder=4,
        )


def series_handles(arranged: Arrangement, *, dashes: bool = True) -> list[Line2D]:
    """One for each name; without dashes where these say something else."""
    looks = {
        label: arranged.styles[series] for series, label in arranged.labels.items()
    }
    return [
        Line2D(
            [],
            [],
            color=style.color,
            marker=style.marker,
            linestyle=style.dashes if dashes else "-",
            label=label,
        )
        for label, style in looks.items()
    ]


def diverged_handles(curves: Sequence[Curve]) -> list[Line2D]:
    """A cross, if one is drawn."""
    if not any(point.diverged for curve in curves for point in curve.points):
        return []
    return [Line2D([], [], color="0.3", marker="x", linestyle="", label="diverged")]


def delay_axes(axes: Sequence[Axes], curves: Sequence[Curve]) -> None:
    """Staleness in octaves from 0 on: 0 stands as far from 1 as 1 from 2."""
    delays = sorted({point.delay for curve in curves for point in curve.points})
    positive = [delay for delay in delays if delay > 0]
    for axis in axes:
        axis.set_xlabel("staleness (updates)")
        if positive:
            # half of the linear range, in octaves: base / (base - 1) makes it one
            axis.set_xscale("symlog", base=2, linthresh=positive[0], linscale=0.5)
            left = delays[0] / 1.2 if delays[0] else -0.2 * positive[0]
            axis.set_xlim(left, 1.15 * delays[-1])
        look.delay_ticks(axis.xaxis, delays, lambda delay: delay)
