"""A metric against an axis of the grid or a label of the arms."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.figures import palette, scales, sheets, tables
from experiments.results import analysis
from experiments.results.column_words import do, loss_unit, with_unit, words
from experiments.results.runs import Run

INTERVAL = {"color": "0.3", "alpha": 0.18, "label": "95 % interval of the mean"}


@sheets.STYLED
def draw(
    run: Run, *, x, metric, fixed, panels, color, only, theory, title, x_label
) -> Figure:
    """Draws `figures.over`."""
    chosen = tables.choose(run, metric, only, x)
    tables.require(chosen.run.results, x)
    table = numbers(chosen, x, fixed=fixed, panels=panels)
    named = tables.name(table, series_in(table, x), panels, color)
    places = scales.positions(table[x].dropna())
    lost = "not reached" if isinstance(metric, tuple) else tables.fate(chosen.run)
    kinds = set(table["kind"])
    handles = palette.handles(named.styles, dashes=False, lines=places.numeric)
    if len(kinds) > 1:
        best = f"best {' and '.join(map(words, chosen.axes))} of"
        kept = fixed if isinstance(fixed, Mapping) else {}
        first = f"{best} {analysis.label({x: places.values[0], **kept})}"
        if places.numeric:
            handles.append(Line2D([], [], color="0.3", label=f"{best} each"))
            handles.append(Line2D([], [], color="0.3", ls="--", label=first))
        else:
            handles.append(palette.hollow(first))
    if theory is not None:
        handles.append(Line2D([], [], color="0.3", lw=1, ls=":", label="theory"))
    if table["seeds"].max() > 1:
        handles.append(patches.Patch(**INTERVAL))
    figure, axes = sheets.sheet(
        title or f"How {do(chosen.metric)} change with {words(x)}?",
        named.panels,
        handles,
        tables.edge_notes(chosen, named.label),
    )
    for axis, panel in zip(axes, named.panels, strict=True):
        _panel(axis, panel, table, named, places, x, lost)
        if theory is not None:
            _theory(axis, panel, table, named, x, theory)
    scales.x_axis(axes, places, x_label or with_unit(x))
    shown = table["mean"].where(~table["lost"])
    for axis in axes:
        if axis.get_subplotspec().is_first_col():
            scales.y_label(axis, with_unit(chosen.metric, loss_unit(run)))
        scales.log_if_wide(axis.yaxis, shown, scales.crowds(chosen.metric))
        if shown.isna().all():
            sheets.empty(axis, lost)
    return figure


def numbers(
    chosen: tables.Chosen,
    x: str,
    *,
    fixed: bool | Mapping[str, Any],
    panels: str | None = None,
) -> pd.DataFrame:
    """What is drawn: settings, `x`, `kind`, mean, low, high, seeds and `lost`."""
    series = tables.series_of(chosen.run.results, chosen.axes, x, panels)
    parts = [tables.points(chosen.best, chosen.metric, [*series, x])]
    parts[0]["kind"] = "tuned"
    tried = chosen.run.results[chosen.axes].drop_duplicates()
    where = fixed if isinstance(fixed, Mapping) else {}
    if fixed and len(tried) > 1:
        rows = tables.at_fixed_step(chosen, x, series, where)
        if rows[x].nunique(dropna=False) > 1:  # a search may have tried it nowhere else
            parts.append(tables.points(rows, chosen.metric, [*series, x]))
            parts[1]["kind"] = "fixed"
    return pd.concat(parts, ignore_index=True)


def series_in(table: pd.DataFrame, x: str) -> list[str]:
    """The settings of a table of points."""
    rest = (x, "mean", "low", "high", "seeds", "lost", "kind")
    return [name for name in table if name not in rest]


def _panel(
    axis: Axes,
    panel: str,
    table: pd.DataFrame,
    named: tables.Named,
    places: scales.Positions,
    x: str,
    lost: str,
) -> None:
    marks: list[tuple[Sequence[float], palette.Style]] = []
    for i, (label, style) in enumerate(named.styles.items()):
        own = named.rows(table, panel, label)
        # beside each other, where no line tells them apart
        aside = (i + 0.5) / len(named.styles) - 0.5
        for kind in ("fixed", "tuned"):
            line = own[own["kind"] == kind]
            if line.empty:
                continue
            everywhere = line[line[x].isna() & ~line["lost"]]
            for row in everywhere.to_dict("records") if kind == "tuned" else ():
                axis.axhspan(
                    row["low"], row["high"], color=style.color, alpha=0.12, lw=0
                )
                axis.axhline(row["mean"], color=style.color, lw=1.4, ls=(0, (6, 2)))
            line = line[line[x].notna()]
            line = line.assign(at=places.of(line[x])).sort_values("at")
            if places.numeric:
                plot_line(axis, line, style, solid=kind == "tuned")
            else:
                line["at"] += 0.6 * aside
                _plot_points(axis, line, style, solid=kind == "tuned")
            marks.append((line["at"][line["lost"]].tolist(), style))
    scales.gutter(axis, marks, lost)


def _plot_points(
    axis: Axes, line: pd.DataFrame, style: palette.Style, *, solid: bool
) -> None:
    """Names have nothing between them: means with their intervals, and no line."""
    live = line[~line["lost"]]
    own = {"color": style.color, "marker": style.marker, "ls": ""}
    at = live["at"]
    axis.vlines(at, live["low"], live["high"], style.color, alpha=0.3, lw=4)
    axis.plot(at, live["mean"], **own | ({} if solid else {"mfc": "white"}))


def plot_line(
    axis: Axes, line: pd.DataFrame, style: palette.Style, *, solid: bool
) -> None:
    """Means with their intervals; a gap where a seed has no value."""
    values = line[["mean", "low", "high"]].where(~line["lost"])
    at, (mean, low, high) = line["at"].to_numpy(float), values.to_numpy(float).T
    axis.fill_between(at, low, high, color=style.color, alpha=0.18, linewidth=0)
    own = {"color": style.color, "marker": style.marker, "ls": "-" if solid else "--"}
    if not solid:  # on top and smaller, so that it shows where both coincide
        own |= {"mfc": "white", "ms": 4, "zorder": 3}
    axis.plot(at, mean, **own)


def _theory(
    axis: Axes,
    panel: str,
    table: pd.DataFrame,
    named: tables.Named,
    x: str,
    theory: Any,
) -> None:
    for label, style in named.styles.items():
        rows = named.rows(table[table[x].notna()], panel, label)
        rows = rows.drop_duplicates(x).sort_values(x)
        values = [tables.formula(theory, row) for row in rows.to_dict("records")]
        values = np.asarray(values, float)
        axis.plot(rows[x], values, color=style.color, lw=1, ls=":")
