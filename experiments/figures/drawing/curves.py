"""A metric on its way: the best cell of each series."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib import patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from experiments.figures import palette, scales, sheets, tables
from experiments.figures.drawing import over
from experiments.results import analysis
from experiments.results.column_words import do, loss_unit, with_unit, words
from experiments.results.runs import Run

_WIDE = 3.0  # a factor between the ends of series that takes a logarithmic axis
_TARGET = {"color": "0.4", "linewidth": 1.0, "linestyle": (0, (2, 2))}
_LABELED = 8  # lines that can be named at their ends


@sheets.STYLED
def draw(run: Run, *, metric, against, panels, color, only, target, title) -> Figure:
    """Draws `figures.curves`."""
    if against not in run.curves:
        raise ValueError(f"the curves of the run have no {against!r}.")
    tables.require(run.curves, metric)
    chosen = tables.choose(run, "train_loss", only)
    series = tables.series_of(chosen.run.results, chosen.axes, None)
    table = numbers(chosen, metric, against, series)
    named = tables.name(table, series, panels, color)
    lines = {
        (panel, label): line
        for panel in named.panels
        for label in named.styles
        if not (line := named.rows(table, panel, label)).empty
    }
    ends = [line["at"].max() for line in lines.values()]
    wide = bool(ends) and max(ends) > _WIDE * min(ends) > 0
    if wide:  # a logarithmic axis has no place for 0
        lines = {key: line[line["at"] > 0] for key, line in lines.items()}
    at_ends = len(named.panels) == 1 and 1 < len(named.styles) <= _LABELED
    live = {label for (_, label), line in lines.items() if not line["lost"].all()}
    handles = [
        Line2D(
            [],
            [],
            color=style.color,
            ls=style.dashes,
            label=label if label in live else f"{label} ({tables.fate(chosen.run)})",
        )
        for label, style in named.styles.items()
        if label and not (at_ends and label in live)
    ]
    if target is not None:
        handles.append(Line2D([], [], label=f"target, {target:g}", **_TARGET))
    if table["seeds"].max() > 1:
        handles.append(patches.Patch(**over.INTERVAL))
    best = f", at the best {' and '.join(map(words, chosen.axes))}" * bool(chosen.axes)
    figure, axes = sheets.sheet(
        title or f"How {do(metric)} fall{best}?",
        named.panels,
        handles,
        tables.edge_notes(chosen, named.label),
    )
    for axis, panel in zip(axes, named.panels, strict=True):
        # bands of many lines would hide each other
        alpha = 0.15 if len(lines) <= 4 * len(axes) else 0.06
        for label, style in named.styles.items():
            if (panel, label) in lines:
                _plot(axis, lines[panel, label], style, alpha)
        if target is not None:
            axis.axhline(target, **_TARGET)
        axis.set_xlabel(with_unit(against))
        if axis.get_subplotspec().is_first_col():
            scales.y_label(axis, with_unit(metric, loss_unit(run)))
        _scales(axis, list(lines.values()), metric, wide=wide)
        if not live:
            sheets.empty(axis, tables.fate(chosen.run))
            axis.set_xticks([])
    if at_ends:
        _name_ends(
            axes[0],
            {
                label: (float(line["mean"].iloc[-1]), named.styles[label].color)
                for (_, label), line in lines.items()
                if label in live
            },
        )
    return figure


def numbers(
    chosen: tables.Chosen, metric: str, against: str, series: Sequence[str]
) -> pd.DataFrame:
    """Settings, `update`, `at`, mean, low, high, seeds and `lost` of the best cells.

    Seeds are compared at equal numbers of updates; `at` is the mean over seeds.
    """
    keys = [*chosen.run.settings, "seed"]
    fates = [n for n in ("diverged", "ended_higher") if n in chosen.best]
    columns = [*keys, *fates]
    rows = chosen.run.curves.merge(chosen.best[columns], on=keys)
    by = [*series, "update"]
    table = tables.points(rows, metric, by)
    table["at"] = [group[against].mean() for _, group in analysis.grouped(rows, by)]
    return table.sort_values("update", kind="stable")  # in the order of the run


def _plot(axis: Axes, line: pd.DataFrame, style: palette.Style, alpha: float) -> None:
    line = line[~line["lost"]]
    at, mean, low, high = (
        line[name].to_numpy(float) for name in ("at", "mean", "low", "high")
    )
    axis.fill_between(at, low, high, color=style.color, alpha=alpha, linewidth=0)
    axis.plot(at, mean, color=style.color, linestyle=style.dashes, zorder=3)


def _scales(
    axis: Axes, lines: Sequence[pd.DataFrame], metric: str, *, wide: bool
) -> None:
    """Logarithmic where series end far apart, or where a metric moves far."""
    if wide:
        axis.set_xscale("log")
        scales.log_ticks(axis.xaxis, [x for line in lines for x in line["at"]])
    else:
        axis.xaxis.set_major_locator(MaxNLocator(4))  # a panel is narrow
    shown = [y for line in lines for y in line["mean"][~line["lost"]]]
    scales.log_if_wide(axis.yaxis, shown, scales.crowds(metric))


def _name_ends(axis: Axes, ends: Mapping[str, tuple[float, str]]) -> None:
    """Names beside the ends of lines, moved apart where they would overlap."""
    low, high = axis.get_ylim()
    log = axis.get_yscale() == "log"

    def share(value):
        if log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    names = sorted(ends, key=lambda name: ends[name][0])
    places = np.asarray([share(ends[name][0]) for name in names])
    apart = (
        0.2 / axis.get_figure(root=True).get_size_inches()[1] * 1.5
    )  # of two lines of text
    for _ in range(100):  # each pair pushes itself apart, until none overlaps
        gaps = np.diff(places)
        push = np.maximum(apart - gaps, 0.0) / 2
        places[:-1] -= push
        places[1:] += push
        places = np.clip(places, 0.0, 1.0)
    for name, place in zip(names, places, strict=True):
        axis.text(
            *(1.02, place, name),
            color=ends[name][1],
            va="center",
            transform=axis.transAxes,
        )
