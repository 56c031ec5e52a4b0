"""The best step against an axis of the grid, beside the largest stable one."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.figures import palette, scales, sheets, tables
from experiments.results import analysis
from experiments.results.column_words import with_unit, words
from experiments.results.runs import Run

_RING = {
    "color": palette.NOTE_COLOR,
    "marker": "o",
    "ms": 12,
    "ls": "",
    "mfc": "none",
}


@sheets.STYLED
def draw(run: Run, *, x, axis, limit, panels, color, only, title, x_label) -> Figure:
    """Draws `figures.best_step`."""
    there = [own for own in run.choice.axes if own in run.settings and own != x]
    axis = axis or next(iter(there), "")
    if axis not in there:
        raise ValueError(
            f"the run tunes no {axis!r}; it tunes {', '.join(there) or 'nothing'}."
        )
    chosen = tables.choose(run, axis, only, x)
    tables.require(chosen.run.results, x)
    series = tables.series_of(chosen.run.results, chosen.axes, x, panels)
    table = numbers(chosen, x, axis, series)
    named = tables.name(table, series, panels, color)
    places = scales.positions(table[x])
    handles = palette.handles(named.styles)
    if table["edge"].any():
        handles.append(Line2D([], [], label="on the grid's edge", **_RING))
    if limit is not None:
        handles.append(Line2D([], [], color="0.3", ls=":", label="largest stable step"))
    figure, axes = sheets.sheet(
        title or f"How does the best {words(axis)} change with {words(x)}?",
        named.panels,
        handles,
    )
    for plot, panel in zip(axes, named.panels, strict=True):
        marks = []
        for label, style in named.styles.items():
            line = named.rows(table, panel, label)
            if line.empty:
                continue
            line = line.assign(at=places.of(line[x])).sort_values("at")
            limits = [tables.limit_of(limit, row, x) for row in line.to_dict("records")]
            plot.plot(line["at"], limits, color=style.color, ls=":")
            live = line[~line["lost"]]
            look_of = {"color": style.color, "marker": style.marker}
            plot.plot(live["at"], live["best"], ls=style.dashes, **look_of)
            edge = live[live["edge"]]
            plot.plot(edge["at"], edge["best"], **_RING)
            marks.append((line["at"][line["lost"]].tolist(), style))
        scales.gutter(plot, marks, tables.fate(chosen.run))
        if table["lost"].all():
            sheets.empty(plot, tables.fate(chosen.run))
        elif (table["best"][~table["lost"]] > 0).all():  # a momentum may be 0
            plot.set_yscale("log")
            scales.log_ticks(plot.yaxis, table["best"][~table["lost"]])
        if plot.get_subplotspec().is_first_col():
            plot.set_ylabel(f"best {with_unit(axis)}")
    scales.x_axis(axes, places, x_label or with_unit(x))
    return figure


def numbers(
    chosen: tables.Chosen, x: str, axis: str, series: list[str]
) -> pd.DataFrame:
    """The best value of `axis`: `best`, `lost`, `edge`."""
    edge = tables.at_ends(chosen, axis).any(axis=1).to_numpy()
    frame = chosen.best.assign(unfit=chosen.unfit.to_numpy(), edge=edge)
    frame = frame[frame[x].notna()]
    rows = []
    for key, group in analysis.grouped(frame, [*series, x]):
        best, lost = group[axis].iloc[0], bool(group["unfit"].any())
        rows.append(
            dict(zip([*series, x], key, strict=True))
            | {"best": best, "lost": lost, "edge": group["edge"].any() and not lost}
        )
    return pd.DataFrame(rows)
