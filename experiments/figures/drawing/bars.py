"""How each label ends: a dot a row."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from experiments.figures import palette, scales, sheets, tables
from experiments.figures.drawing import over
from experiments.results.column_words import loss_unit, with_unit, words
from experiments.results.runs import Run

_BAND = "0.955"  # the color behind every other row


@sheets.STYLED
def draw(run: Run, *, metric, fixed, panels, color, only, theory, title) -> Figure:
    """Draws `figures.bars`."""
    chosen = tables.choose(run, metric, only)
    series = tables.series_of(chosen.run.results, chosen.axes, None)
    table = numbers(chosen, series, fixed=fixed)
    rows_by = [name for name in series if name != color]
    rows = tables.name(table, rows_by, panels, spread=False)
    labels = list(rows.styles)
    colors = tables.name(table, [color] if color else [], spread=False)
    lost = "not reached" if isinstance(metric, tuple) else tables.fate(chosen.run)
    handles = palette.handles(colors.styles, lines=False)
    if (table["kind"] == "fixed").any():
        what = f"{' and '.join(map(words, chosen.axes))} of the first row"
        handles.append(palette.hollow(what))
    if theory is not None:
        handles.append(Line2D([], [], label="theory", **palette.THEORY))
    if table["seeds"].max() > 1:
        handles.append(patches.Patch(**over.INTERVAL | {"alpha": 0.4}))
    wrapped = [sheets.wrapped(label or words(chosen.metric)) for label in labels]
    lines = max(label.count("\n") + 1 for label in wrapped)
    row = 0.12 + max(0.17 * lines, 0.13 * len(colors.styles))
    figure, axes = sheets.sheet(
        title or f"Which has the least {words(chosen.metric)}?",
        rows.panels,
        handles,
        tables.edge_notes(chosen, rows.label),
        height=0.9
        + len(labels) * (0.12 + max(0.17 * lines, 0.13 * len(colors.styles))),
    )
    for axis, panel in zip(axes, rows.panels, strict=True):
        for i in range(1, len(labels), 2):
            axis.axhspan(i - 0.5, i + 0.5, color=_BAND, zorder=0)
        own = [row for row in table.to_dict("records") if rows.panel(row) == panel]
        for row in own:
            names = list(colors.styles)
            shift = (names.index(colors.label(row)) + 1) / (len(names) + 1) - 0.5
            at = labels.index(rows.label(row)) + 0.8 * shift
            _plot(axis, row, at, colors.styles[colors.label(row)])
            expected = tables.formula(theory, row) if theory else np.nan
            if np.isfinite(expected):
                axis.plot(expected, at, **palette.THEORY)
        axis.set_xlabel(with_unit(chosen.metric, loss_unit(run)))
        axis.tick_params(axis="y", length=0)
        shown = [row["mean"] for row in own if not row["lost"]]
        if not scales.log_if_wide(axis.xaxis, shown, scales.crowds(chosen.metric)):
            axis.xaxis.set_major_locator(MaxNLocator(4))
        if not shown:
            axis.set_xticks([])
        if any(row["lost"] for row in own):
            above = {"ha": "center", "va": "bottom", "transform": axis.transAxes}
            axis.text(1.05, 1.01, lost, **above)
    axes[0].set_yticks(range(len(labels)), wrapped)
    axes[0].set_ylim(len(labels) - 0.5, -0.5)
    return figure


def numbers(chosen: tables.Chosen, series: list[str], *, fixed: bool) -> pd.DataFrame:
    """What is drawn: settings, `kind`, mean, low, high, seeds and `lost`."""
    table = tables.points(chosen.best, chosen.metric, series).assign(kind="tuned")
    if not (fixed and chosen.axes):
        return table
    first = chosen.best[series].iloc[[0]]
    start = chosen.best.merge(first, on=series) if series else chosen.best
    keys = ["seed", *chosen.axes]
    rows = chosen.run.results.merge(start[keys], on=keys)
    other = tables.points(rows, chosen.metric, series).assign(kind="fixed")
    return pd.concat([other, table], ignore_index=True)


def _plot(axis: Axes, row: Mapping[str, Any], at: float, style: palette.Style) -> None:
    fixed = row["kind"] == "fixed"
    own = {"color": style.color} | ({"mfc": "white", "ms": 5} if fixed else {})
    if row["lost"]:  # in the gutter, right of the scale
        place = axis.get_yaxis_transform()
        axis.plot(1.05, at, marker="x", mew=1.8, clip_on=False, transform=place, **own)
        return
    axis.plot([row["low"], row["high"]], [at, at], color=style.color, alpha=0.4, lw=4)
    axis.plot(row["mean"], at, marker=style.marker, zorder=2.5 if fixed else 3, **own)
