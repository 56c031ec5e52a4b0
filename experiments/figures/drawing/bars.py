"""A row for each label, or for each arm: a dot and an interval."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

import delayjax as dj
from experiments.figures import findings, palette, tables
from experiments.figures.axis_labels import loss_unit, with_unit, words
from experiments.figures.figure import Figure, Metric, Only, Theory, beside, column
from experiments.results.runs import Run

_BAND = "0.955"  # the color behind every other row
_GUTTER = 1.03  # the place of what is not on the scale
_SHARES = (0.05, 0.95)  # quantiles between which most updates lie


def bars(
    metric: Metric = "test_error",
    *,
    fixed: bool = False,
    panels: str | None = None,
    color: str | None = None,
    only: Only | None = None,
    theory: Theory | None = None,
    title: str = "",
    name: str = "",
) -> Figure:
    """How each label ends: a row for each, a dot and an interval.

    Args:
        metric: as in `over`.
        fixed: whether to show as well, hollow, the best value of the first row.
        panels: as in `over`.
        color: a setting whose values share a row, in colors.
        only: as in `over`.
        theory: a function of settings, or {row: value}; a diamond.
        title: as in `over`.
        name: of the file.
    """

    def draw(run: Run) -> Any:
        from experiments.figures import scales

        chosen = tables.choose(run, metric, only, panels, color)
        series = tables.series_of(chosen.run.results, chosen.axes, None)
        table = numbers(chosen, series, fixed=fixed)
        by = [own for own in series if own != color]
        rows = tables.name(table, by, panels, spread=False)
        colors = tables.name(table, [color] if color else [], spread=False)
        table = _named(table, rows.panel, "panel")
        table = _named(table, lambda row: rows.label(row) or words(of), "row")
        table = _named(table, colors.label, "color")
        table = _named(table, lambda row: tables.formula(theory, row, "row"), "theory")
        handles = palette.handles(colors.styles, lines=False)
        if (table["kind"] == "fixed").any():
            what = f"{' and '.join(map(words, chosen.axes))} of the first row"
            handles.append(palette.hollow(what))
        if table["seeds"].max() > 1:
            handles.append(palette.interval(alpha=0.4))
        single = len(rows.panels) == len(colors.styles) == 1
        alone = table[table["kind"] == "tuned"].assign(name=table["row"])
        return plot(
            table,
            rows.panels,
            handles,
            title=title,
            styles=colors.styles,
            notes=tables.edge_notes(chosen, rows.label),
            question=f"Which has the least {words(of)}?",
            finding=findings.least(alone, words(of)) if single else "",
            lost=chosen.fate,
            label=with_unit(of, loss_unit(run)),
            wide=scales.crowds(of),
        )

    of = column(metric)
    return Figure(
        name or f"{of}_bars",
        f"{words(of).capitalize()} at the end, a row for each label: means over seeds"
        f" with 95 % intervals{beside(theory)}. The table below has the numbers.",
        draw,
    )


def update_times(
    *, theory: Theory | None = None, title: str = "", name: str = "update_times"
) -> Figure:
    """How long the updates of each arm took, under the first seed.

    Args:
        theory: the mean in seconds, a function of labels or {arm: mean}.
        title: the question.
        name: of the file.
    """

    def draw(run: Run) -> Any:
        table = times(run.traces, tables.of_arms(run, theory))
        return plot(
            table.assign(panel="", color="", kind="tuned"),
            [""],
            [
                palette.interval("9 of 10 updates", alpha=0.4),
                palette.mark("mean", color=palette.COLORS[0], marker="o", ls=""),
            ],
            title=title,
            question="How long does an update take?",
            lost="none",
            label="time since the update before (simulated s)",
            wide=100.0,
            from_zero=True,
        )

    caption = "The time between updates of each arm: where nine of ten lie, and their"
    return Figure(name, f"{caption} mean.", draw)


def numbers(
    chosen: tables.Chosen, series: Sequence[str], *, fixed: bool
) -> pd.DataFrame:
    """What is drawn: settings, `kind`, mean, low, high, seeds and `lost`."""
    table = tables.points(chosen.best, chosen.metric, series).assign(kind="tuned")
    if not (fixed and chosen.axes):
        return table
    first = chosen.best[[*series]].iloc[[0]]
    start = chosen.best.merge(first, on=[*series]) if series else chosen.best
    rows = chosen.run.results.merge(start[["seed", *chosen.axes]])
    other = tables.points(rows, chosen.metric, series).assign(kind="fixed")
    return pd.concat([other, table], ignore_index=True)


def times(
    traces: Mapping[str, dj.cluster.Trace], theory: Mapping[str, float]
) -> pd.DataFrame:
    """Seconds between the updates of each arm: mean, and where most of them lie."""
    rows = []
    for arm, trace in traces.items():
        seconds = np.diff(trace.seconds, prepend=0.0)
        none = not len(seconds)
        own = [np.nan] if none else seconds
        rows.append((arm, np.mean(own), *np.quantile(own, _SHARES), none, theory[arm]))
    return pd.DataFrame(rows, columns=["row", "mean", "low", "high", "lost", "theory"])


def plot(
    table: pd.DataFrame,
    panels: list[str],
    handles: list[Any],
    *,
    title: str,
    styles: Mapping[str, palette.Style] | None = None,
    lost: str,
    label: str,
    wide: float,
    from_zero: bool = False,
    **texts: Any,
) -> Any:
    """A sheet with a row for each name; means are written beside single dots.

    Args:
        table: columns `panel`, `row`, `color`, `kind`, mean, low, high, `lost` and
            `theory`.
        panels: their names.
        handles: of the legend.
        title: of the sheet.
        styles: by color.
        lost: the word for what has no place on the scale.
        label: of the scale.
        wide: the factor from which on the scale is logarithmic.
        from_zero: whether it begins at 0 else.
        **texts: the notes, the question and the finding of the sheet.
    """
    from matplotlib.ticker import MaxNLocator

    from experiments.figures import scales, sheets

    styles = styles or palette.styles([""])
    known = bool(np.isfinite(table["theory"]).any())
    handles = [*handles, *[palette.mark("theory", **palette.THEORY)] * known]
    names, colors = list(dict.fromkeys(table["row"])), list(styles)
    figure, axes = sheets.rows(
        names, title, panels, handles, least=0.12 + 0.13 * len(styles), **texts
    )
    written = len(panels) == len(styles) == 1
    for axis, panel in zip(axes, panels, strict=True):
        for i in range(1, len(names), 2):
            axis.axhspan(i - 0.5, i + 0.5, color=_BAND, zorder=0)
        own = table[table["panel"] == panel]
        for row in own.to_dict("records"):
            shift = (colors.index(row["color"]) + 1) / (len(colors) + 1) - 0.5
            at = names.index(row["row"]) + 0.8 * shift
            _dot(axis, row, at, styles[row["color"]])
            axis.plot(row["theory"], at, **palette.THEORY)
            if written and row["kind"] == "tuned":
                mean = lost if row["lost"] else row["mean"]
                sheets.beside(axis, at, mean, row["theory"])
        axis.set_xlabel(label)
        live = own[~own["lost"]]
        shown = [*live["mean"], *live["low"][live["low"] > 0], *live["theory"]]
        if not scales.log_if_wide(axis.xaxis, shown, wide):
            axis.xaxis.set_major_locator(MaxNLocator(4))
            axis.set_xlim(left=0.0 if from_zero else None)
        if live.empty:
            axis.set_xticks([])
        if own["lost"].any() and not written:
            place = {"ha": "center", "va": "bottom", "transform": axis.transAxes}
            axis.text(_GUTTER, 1.01, lost, **place)
    if written:
        sheets.head(axes[0], known)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def _named(table: pd.DataFrame, of: Any, column: str) -> pd.DataFrame:
    return table.assign(**{column: [of(row) for row in table.to_dict("records")]})


def _dot(axis: Any, row: Mapping[str, Any], at: float, style: palette.Style) -> None:
    fixed = row["kind"] == "fixed"
    own = {"color": style.color} | ({"mfc": "white", "ms": 5} if fixed else {})
    if row["lost"]:  # in the gutter, right of the scale
        place = axis.get_yaxis_transform()
        axis.plot(_GUTTER, at, "x", mew=1.8, clip_on=False, transform=place, **own)
        return
    axis.plot([row["low"], row["high"]], [at, at], color=style.color, alpha=0.4, lw=4)
    axis.plot(row["mean"], at, style.marker, zorder=2.5 if fixed else 3, **own)
