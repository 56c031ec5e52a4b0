"""Figures with a row for each label or arm: a dot and an interval."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

import delayjax as dj
from experiments.figures import findings, palette, tables
from experiments.figures.figure import Figure, Only, Theory, beside
from experiments.results.column_words import loss_unit, with_unit, words
from experiments.results.formulas import formulas
from experiments.results.metrics import Metric, column, less_is_better
from experiments.results.runs import Run

_BAND = "0.955"  # the color behind every other row
_GUTTER, _BESIDE = 1.03, 1.06  # x of crosses for lost rows, and of written means
_WIDE = 100.0  # times that span more than this factor have a logarithmic scale


def bars(
    metric: Metric = "test_error",
    *,
    panels: str | None = None,
    color: str | None = None,
    only: Only | None = None,
    theory: Theory | None = None,
    title: str = "",
    name: str = "",
) -> Figure:
    """A figure of final values: a row for each label, with a dot and an interval.

    Args:
        metric: as in `over`.
        panels: as in `over`.
        color: a setting whose values share a row, in colors.
        only: as in `over`.
        theory: a function of settings, or {row: value}; shown as a diamond.
        title: as in `over`.
        name: the name of the file.
    """

    def draw(run: Run) -> Any:
        chosen = tables.choose(run, metric, only, panels, color)
        series = tables.series_of(chosen.run.results, chosen.axes, None)
        table = tables.points(chosen.best, chosen.metric, series)
        by = [setting for setting in series if setting != color]
        rows = tables.name(table, by, panels, spread=False)
        colors = tables.name(table, [color] if color else [], spread=False)
        table = rows.tell(table).assign(color=colors.tell(table)["label"])
        table["row"] = table["label"].replace("", words(of))
        alone = table.assign(name=table["row"])
        figure = plot(
            table.assign(theory=formulas(theory, table, "row")),
            rows.panels,
            colors.styles,
            palette.handles(colors.styles, lines=False) + palette.interval(table),
            title=title,
            notes=tables.edge_notes(chosen, rows.label),
            question=f"Which has the least {words(of)}?",
            finding=findings.least(alone, words(of))
            if less_is_better(metric) and not (color or panels)
            else "",
            lost=chosen.fate,
            wide=tables.crowds(of),
        )

        for axis in figure.axes:
            axis.set_xlabel(with_unit(of, loss_unit(run)))
        return figure

    of = column(metric)
    return Figure(
        name or f"{of}_bars",
        f"{words(of).capitalize()} at the end, a row for each label: means over seeds"
        f" with 95 % intervals{beside(theory)}. The table below has the numbers.",
        draw,
        functools.partial(
            tables.check, metric=metric, only=only, panels=panels, color=color
        ),
    )


def update_times(*, theory: Theory | None = None) -> Figure:
    """A figure of the times between a cluster's updates, under the first seed.

    Args:
        theory: the mean in seconds: a function of labels, or {name: mean}.
    """

    def draw(run: Run) -> Any:
        return times_of(run.traces, tables.theory_of_arms(theory, run))

    caption = (
        "The time between updates of each cluster: mean, and range of 90 % of times."
    )
    return Figure("update_times", caption, draw)


def times_of(
    traces: Mapping[str, dj.cluster.Trace], theory: Sequence[float] | float = np.nan
) -> Any:
    """A figure of the seconds between a trace's updates, with theoretical means."""
    rows = []
    for name, trace in traces.items():
        seconds = np.diff(trace.seconds, prepend=0.0)
        if not len(seconds):
            seconds = np.array([np.nan])
        low, high = np.quantile(seconds, (0.05, 0.95))
        rows.append({"row": name, "mean": seconds.mean(), "low": low, "high": high})
    table = pd.DataFrame(rows).assign(theory=theory, panel="", color="")
    color = palette.COLORS[1]
    figure = plot(
        table.assign(lost=table["mean"].isna()),
        [""],
        {"": palette.Style(color, "o", "-")},
        [
            palette.area("9 of 10 updates", color="0.3", alpha=0.4),
            palette.mark("mean", color=color, marker="o", ls=""),
        ],
        title="How long does an update take?",
        lost="none",
        wide=_WIDE,
        least=0.34,
    )
    (axis,) = figure.axes
    if axis.get_xscale() == "linear":
        axis.set_xlim(left=0.0)
    axis.set_xlabel("time since the update before (simulated s)")
    return figure


def plot(
    table: pd.DataFrame,
    panels: list[str],
    styles: Mapping[str, palette.Style],
    handles: list[Any],
    *,
    lost: str,
    wide: float,
    least: float = 0.0,
    **texts: Any,
) -> Any:
    """A figure with a row for each name; rows with a single dot show its mean as text.

    Args:
        table: has the columns `panel`, `row`, `color`, mean, low, high, `lost` and
            `theory`, the theoretical mean.
        panels: the names of the panels.
        styles: {color: style}.
        handles: the entries of the legend.
        lost: the word for rows that are off the scale.
        wide: the scale is logarithmic if the values span more than this factor.
        least: the least height of a row, in inches.
        **texts: the texts that `sheets.sheet` takes.
    """
    from matplotlib.ticker import MaxNLocator

    from experiments.figures import scales, sheets

    known = bool(np.isfinite(table["theory"]).any())
    handles = [*handles, *[palette.mark("theory", **palette.THEORY)] * known]
    names = list(dict.fromkeys(table["row"]))
    written = len(panels) == len(styles) == 1
    labels = [sheets.wrapped(name) for name in names]
    lines = max(name.count("\n") + 1 for name in labels)
    dots = table.groupby(["panel", "row"]).size().max()
    height = max(0.12 + max(0.17 * lines, 0.13 * dots), least)
    height = 0.9 + len(names) * height
    figure, axes = sheets.sheet(panels=panels, handles=handles, height=height, **texts)
    for axis, panel in zip(axes, panels, strict=True):
        for i in range(1, len(names), 2):
            axis.axhspan(i - 0.5, i + 0.5, color=_BAND, zorder=0)
        rows = table[table["panel"] == panel]
        for row in rows.to_dict("records"):
            of_row = [*rows["color"][rows["row"] == row["row"]]]
            colors = [color for color in styles if color in of_row]
            shift = (colors.index(row["color"]) + 1) / (len(colors) + 1) - 0.5
            at = names.index(row["row"]) + 0.8 * shift
            _dot(axis, row, at, styles[row["color"]])
            axis.plot(row["theory"], at, **palette.THEORY)
            if written:
                text = lost if row["lost"] else f"{row['mean']:.3g}"
                text += "" if np.isnan(row["theory"]) else f" ({row['theory']:.3g})"
                place = axis.get_yaxis_transform()
                axis.text(_BESIDE, at, text, va="center", transform=place)
        live = rows[~rows["lost"]]
        shown = [*live["mean"], *live["low"][live["low"] > 0], *live["theory"]]
        if not scales.log_if_wide(axis.xaxis, shown, wide):
            axis.xaxis.set_major_locator(MaxNLocator(4))
        if live.empty:
            axis.set_xticks([])
        axis.tick_params(axis="y", length=0)
        if rows["lost"].any() and not written:
            place = {"ha": "center", "va": "bottom", "transform": axis.transAxes}
            axis.text(_GUTTER, 1.01, lost, **place)
    if written:
        head = "mean (theory)" if known else "mean"
        axes[0].text(_BESIDE, 1.01, head, va="bottom", transform=axes[0].transAxes)
    axes[0].set_yticks(range(len(names)), labels)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def _dot(axis: Any, row: Mapping[str, Any], at: float, style: palette.Style) -> None:
    color = style.color
    if row["lost"]:  # to the right of the scale
        place = axis.get_yaxis_transform()
        axis.plot(
            _GUTTER, at, "x", mew=1.8, clip_on=False, transform=place, color=color
        )
        return
    axis.plot([row["low"], row["high"]], [at, at], color=color, alpha=0.4, lw=4)
    axis.plot(row["mean"], at, style.marker, color=color, zorder=3)
