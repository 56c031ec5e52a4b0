"""Where gradient noise leaves the loss, beside theory."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.figures import palette, scales, sheets, tables
from experiments.figures.drawing import over
from experiments.results.column_words import loss_unit, with_unit, words
from experiments.results.runs import Run


@sheets.STYLED
def draw(run: Run, *, x, axis, theory, limit, metric, only, title) -> Figure:
    """Draws `figures.noise_floor`."""
    table = numbers(run, x, axis, theory, limit, metric, only)
    series = [name for name in over.series_in(table, x) if name not in _COMPUTED]
    named = tables.name(table, series, color=axis, spread=False)
    handles = palette.handles(named.styles, lines=False)
    handles.append(Line2D([], [], color="0.3", label="theory"))
    handles.append(patches.Patch(**over.INTERVAL | {"alpha": 0.4}))
    panels = ["measured, and theory", "measured / theory"][: 1 if limit is None else 2]
    figure, axes = sheets.sheet(
        title or "Where does gradient noise leave the loss?",
        panels if limit is not None else [""],
        handles,
        height=3.4,
        sharey=False,
    )
    marks = []
    for label, style in named.styles.items():
        line = named.rows(table, "", label).sort_values(x)
        live = line[~line["lost"]]
        _line(axes[0], line, x, theory, style)
        _plot(axes[0], live[x], live[["mean", "low", "high"]], style)
        if limit is not None:
            shares = live[["mean", "low", "high"]].div(live["theory"], axis=0)
            _plot(axes[1], live[axis] / live["limit"], shares, style)
        marks.append((line[x][line["lost"]].tolist(), style))
    shown = table["mean"][~table["lost"]]
    scales.gutter(axes[0], marks, tables.fate(run))
    if len(shown) and shown.min() > 0:
        axes[0].set_yscale("log")
        axes[0].set_ylim(0.6 * table["low"].min(), 1.6 * shown.max())
        scales.log_ticks(axes[0].yaxis, [*table["low"], *shown])
    scales.y_label(axes[0], f"{with_unit(metric, loss_unit(run))} at the end")
    scales.x_axis(axes[:1], scales.positions(table[x]), with_unit(x))
    if limit is not None:
        axes[1].axhline(1.0, color="0.3", linewidth=1.2)
        axes[1].set_xlim(0.0, 1.0)
        axes[1].set_xlabel(f"{words(axis)} / its limit")
    return figure


_COMPUTED = ("theory", "limit")


def numbers(
    run: Run,
    x: str,
    axis: str,
    theory: Any,
    limit: Any,
    metric: str,
    only: Mapping[str, Any] | None,
) -> pd.DataFrame:
    """Means and intervals of all cells, beside `theory` and `limit`."""
    chosen = tables.choose(run, metric, only, x, axis)
    for name in (x, axis):
        tables.require(chosen.run.results, name)
    by = [*tables.series_of(chosen.run.results, [], x), x]
    table = tables.points(chosen.best, metric, by).sort_values([axis, x])
    rows = table.to_dict("records")
    return table.assign(
        theory=[tables.formula(theory, row) for row in rows],
        limit=[tables.limit_of(limit, row, x) for row in rows],
    )


def _line(
    axis: Axes, line: pd.DataFrame, x: str, theory: Any, style: palette.Style
) -> None:
    """Theory, at every whole number between the first and the last value."""
    row = line.iloc[0].to_dict()
    whole = np.arange(np.floor(line[x].min()), line[x].max() + 1)
    values = [tables.formula(theory, row | {x: type(row[x])(at)}) for at in whole]
    values = np.asarray(values, float)
    values[~np.isfinite(values)] = np.nan
    axis.plot(whole, values, color=style.color, zorder=2)


def _plot(
    axis: Axes, at: pd.Series, values: pd.DataFrame, style: palette.Style
) -> None:
    mean, low, high = values.to_numpy(float).T
    at = at.to_numpy(float)
    axis.vlines(at, low, high, color=style.color, alpha=0.4, lw=3)
    axis.plot(at, mean, color=style.color, marker=style.marker, ls="", zorder=3)
