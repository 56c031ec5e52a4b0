"""Figures of a metric, or of the best value of a tuned axis, against a setting."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.figures import findings, palette, tables
from experiments.figures.drawing import bars
from experiments.figures.figure import Figure, Only, Theory, beside
from experiments.results import analysis
from experiments.results.analysis import AbsentError
from experiments.results.column_words import do, loss_unit, with_unit, words
from experiments.results.decay import DecayRate
from experiments.results.formulas import formula
from experiments.results.metrics import Metric, column, less_is_better
from experiments.results.runs import Run

_RING = {"color": palette.NOTE_COLOR, "marker": "o", "ms": 12, "ls": "", "mfc": "none"}
_STAR = {"marker": "*", "ms": 17, "mfc": "white", "mew": 1.4, "ls": "", "zorder": 2.5}
_ALONG = 100  # points of a line of theory


def best_step(
    x: str,
    axis: str | None = None,
    *,
    limit: Theory | None = None,
    name: str = "",
    **shown: Any,
) -> Figure:
    """A figure of a tuned axis's best value against `x`; rings mark the grid's edge.

    Args:
        x: an axis or a label.
        axis: the tuned axis; by default the first one of the experiment.
        limit: the largest stable step, dotted: a function of settings, or {x: limit}.
        name: the name of the file.
        **shown: `panels`, `color`, `only`, `title` and `x_label`, as in `over`.
    """

    def of(run: Run) -> Figure:
        axes = [n for n in run.selection.axes if n in run.settings and n != x]
        tuned = axis or next(iter(axes), "")
        if tuned not in axes:
            raise AbsentError(
                f"the run tunes no {tuned!r}; it tunes {', '.join(axes) or 'nothing'}."
            )
        return over(x, tuned, fixed=False, theory=limit, **shown)

    what = axis or "value"
    caption = f"The best {words(what)} against {words(x)}."
    name = name or f"best_{what}_over_{x}"
    return Figure(
        name,
        f"{caption} The table below has the numbers.",
        lambda run: of(run).draw(run),
        lambda run: of(run).check(run),
    )


def over(
    x: str,
    metric: Metric = "test_error",
    *,
    fixed: bool | Mapping[str, Any] = True,
    panels: str | None = None,
    color: str | None = None,
    only: Only | None = None,
    theory: Theory | None = None,
    title: str = "",
    x_label: str = "",
    name: str = "",
) -> Figure:
    """A figure of a metric against an axis or a label, with intervals of 95 %.

    The other settings distinguish the series. A series without `x` is a horizontal
    line. If the experiment tunes an axis, a solid line shows the best value at each
    `x`, and a dashed line keeps the value that is best at the first `x`.

    Args:
        x: an axis or a label; if its values are names, they are the rows of `bars`.
        metric: a column of the results, a `TimeTo`, `LargestStable` or `DecayRate`; or
            a tuned axis, whose best value is shown.
        fixed: whether to show the dashed line too; or {setting: value}: then all series
            keep the value that is best for the series with this setting.
        panels: a setting with a panel for each value; by default there are panels only
            for many series. A tuned axis here is shown at each of its values.
        color: the setting that labels name first and that orders the colors; a tuned
            axis here is shown at each of its values.
        only: {setting: the values shown}.
        theory: a function of settings, or {x: value}: a line; measured values are then
            points.
        title: the question; by default the title states the run, if there is one.
        x_label: the label of the horizontal axis, with the unit.
        name: the name of the file.
    """

    def draw(run: Run) -> Any:
        from experiments.figures import scales, sheets

        best = metric in run.selection.axes
        judged = getattr(metric, "axis", None)  # `LargestStable` needs all its values
        chosen = tables.choose(run, metric, only, x, panels, color, judged)
        analysis.require(chosen.run.results, x)
        if not tables.numeric(chosen.run.results[x].dropna()):  # values are names
            asked = dict(panels=panels, color=color, only=only, theory=theory)
            return bars.bars(metric, **asked, title=title).draw(run)
        table = numbers(chosen, x, fixed=fixed, panels=panels)
        named = tables.name(table, series_in(table, x), panels, color)
        table = named.tell(table)
        what = f"best {words(chosen.metric)}" if best else words(chosen.metric)
        unit = f"{'best ' * best}{with_unit(chosen.metric, loss_unit(run))}"
        if isinstance(metric, DecayRate):
            unit += ", below 0 the error grows"
        wide = 1.0 if best else tables.crowds(chosen.metric)
        texts = dict(title=title, question=f"How {do(what)} change with {words(x)}?")
        if not best:
            texts["notes"] = tables.edge_notes(chosen, named.label)
        starred = theory is not None and isinstance(metric, DecayRate)
        joined = theory is None or best
        if joined:
            shown = table[table["kind"] == "tuned"]
            texts["finding"] = findings.over(
                shown, x, what, less_is_better=less_is_better(metric)
            )
        handles = palette.handles(named.styles, dashes=False, lines=joined)
        handles += _kept(chosen, table, x, fixed)
        if theory is not None:
            of_theory = "largest stable step" if best else "theory"
            handles.append(palette.mark(of_theory, **palette.THEORY_LINE))
        if starred:
            handles.append(palette.mark("best in theory", **_STAR))
        if table["edge"].any():
            handles.append(palette.mark("on the grid's edge", **_RING))
        if not best:
            handles += palette.interval(table)
        figure, axes = sheets.sheet(panels=named.panels, handles=handles, **texts)
        live = table[~table["lost"]]
        for axis, panel in zip(axes, named.panels, strict=True):
            marks = []
            for _, style, rows in named.lines(table, panel):
                _everywhere(axis, rows[rows[x].isna() & ~rows["lost"]], style)
                rows = rows[rows[x].notna()].assign(at=rows[x].astype(float))
                rows = rows.sort_values("at")
                if theory is not None and len(rows):
                    at, values = _theory(rows, x, theory)
                    axis.plot(at, values, color=style.color, **palette.THEORY_LINE)
                    peak = int(np.argmax(np.nan_to_num(values, nan=-np.inf)))
                    if starred and 0 < peak < len(at) - 1:
                        axis.plot(at[peak], values[peak], color=style.color, **_STAR)
                for kind in ("fixed", "tuned"):
                    line = rows[rows["kind"] == kind]
                    if line.empty:
                        continue
                    plot_line(axis, line, style, solid=kind == "tuned", joined=joined)
                    edge = line[line["edge"] & ~line["lost"]]
                    axis.plot(edge["at"], edge["mean"], **_RING)
                    marks.append((line["at"][line["lost"]].tolist(), style))
            scales.gutter(axis, marks, chosen.fate)
            if live["low"].min() < 0 < live["high"].max():
                axis.axhline(0.0, color="0.3", lw=1.0, zorder=0)
            scales.y_axis(axis, live["mean"], unit, wide)
            if live.empty:
                sheets.empty(axis, chosen.fate)
        scales.x_axis(axes, table[x].dropna(), x_label or with_unit(x))
        return figure

    of, shown = column(metric), dict(x=x, panels=panels, color=color)
    return Figure(
        name or f"{of}_over_{x}",
        f"{words(of).capitalize()} against {words(x)}: means over seeds with 95 %"
        f" intervals{beside(theory)}. The table below has the numbers.",
        draw,
        functools.partial(tables.check, metric=metric, only=only, fixed=fixed, **shown),
    )


def numbers(
    chosen: tables.Chosen,
    x: str,
    *,
    fixed: bool | Mapping[str, Any],
    panels: str | None = None,
) -> pd.DataFrame:
    """A table: settings, `x`, `kind`, mean, low, high, seeds, `lost` and `edge`."""
    by = [*tables.series_of(chosen.run.results, chosen.axes, x, panels), x]
    best = chosen.best
    if chosen.metric in chosen.axes:
        edge = best[tables.end_of(chosen.metric)] != ""
        best = best.assign(lost=chosen.unfit.to_numpy(), edge=edge)[best[x].notna()]
    parts = [tables.points(best, chosen.metric, by).assign(kind="tuned")]
    if fixed and (chosen.run.results[chosen.axes].nunique() > 1).any():
        rows = chosen.kept(x, by[:-1], fixed if isinstance(fixed, Mapping) else {})
        if rows[x].nunique(dropna=False) > 1:  # else it was tried at one `x` alone
            other = tables.points(rows, chosen.metric, by)
            parts.append(other.assign(kind="fixed"))
    return pd.concat(parts, ignore_index=True)


def series_in(table: pd.DataFrame, x: str) -> list[str]:
    """The names of the settings in a table of points."""
    rest = (x, "mean", "low", "high", "seeds", "lost", "kind", "edge")
    return [name for name in table if name not in rest]


def plot_line(
    axis: Any,
    line: pd.DataFrame,
    style: palette.Style,
    *,
    solid: bool = True,
    joined: bool = True,
    **looks: Any,
) -> None:
    """Draws means with their intervals, and a gap where a seed is lost.

    Args:
        axis: the panel.
        line: has the columns `at`, mean, low, high and `lost`.
        style: the color and marker of the line.
        solid: whether the line is solid; else it is dashed.
        joined: whether a line joins the means; else there are points alone.
        **looks: options of the line in Matplotlib.
    """
    values = line[["mean", "low", "high"]].where(~line["lost"])
    at, (mean, low, high) = line["at"].to_numpy(float), values.to_numpy(float).T
    look = {"color": style.color, "marker": style.marker, "ls": "-" if solid else "--"}
    if not solid:  # on top and smaller, so that both show where they coincide
        look |= {"mfc": "white", "ms": 4, "zorder": 3}
    if joined:
        axis.fill_between(at, low, high, color=style.color, alpha=0.18, linewidth=0)
    else:
        axis.vlines(at, low, high, color=style.color, alpha=0.4, lw=4)
        look["ls"] = ""
    axis.plot(at, mean, **look | looks)


def _everywhere(axis: Any, rows: pd.DataFrame, style: palette.Style) -> None:
    """Draws series without `x` as horizontal lines, at their best tuned values."""
    for row in rows[rows["kind"] == "tuned"].to_dict("records"):
        axis.axhspan(row["low"], row["high"], color=style.color, alpha=0.12, lw=0)
        axis.axhline(row["mean"], color=style.color, lw=1.4, ls=(0, (6, 2)))


def _kept(chosen: tables.Chosen, table: pd.DataFrame, x: str, fixed: Any) -> list[Any]:
    """The legend entries of solid and dashed lines; none if all lines are solid."""
    if table["kind"].nunique() < 2:
        return []
    best = f"best {' and '.join(map(words, chosen.axes))} of"
    kept = fixed if isinstance(fixed, Mapping) else {}
    first = f"{best} {analysis.label({x: table[x].min(), **kept})}"
    return [palette.mark(f"{best} each"), palette.mark(first, ls="--")]


def _theory(rows: pd.DataFrame, x: str, theory: Any) -> tuple[list[Any], np.ndarray]:
    """The `x` and the values of theory; a function adds whole numbers between them."""
    row, at = rows.iloc[0].to_dict(), list(dict.fromkeys(rows[x].tolist()))
    if callable(theory) and all(float(place).is_integer() for place in at):
        whole = np.union1d(at, np.rint(np.linspace(at[0], at[-1], _ALONG)))
        at = [type(at[0])(place) for place in whole]
    values = np.asarray([formula(theory, row | {x: place}, x) for place in at])
    return at, np.where(np.isfinite(values), values, np.nan)
