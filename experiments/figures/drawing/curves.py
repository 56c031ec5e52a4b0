"""Figures of a metric during the training: the best cell of each series."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.figures import findings, palette, tables
from experiments.figures.drawing import over
from experiments.figures.figure import Figure, Only, Theory, beside
from experiments.results import analysis
from experiments.results.column_words import do, loss_unit, with_unit, words
from experiments.results.formulas import formulas
from experiments.results.metrics import less_is_better
from experiments.results.runs import Run

_WIDE = 3.0  # the axis is logarithmic if the ends of series differ by a larger factor
_TARGET = {"color": "0.4", "lw": 1.0, "ls": (0, (2, 2))}


def curves(
    metric: str = "train_loss",
    *,
    against: str = "update",
    panels: str | None = None,
    color: str | None = None,
    only: Only | None = None,
    theory: Theory | None = None,
    target: float | None = None,
    title: str = "",
    name: str = "",
) -> Figure:
    """A figure of a metric during the training: each series at its best tuned values.

    Args:
        metric: a column of the curves.
        against: the horizontal axis: "update", "seconds" or "examples".
        panels: as in `over`.
        color: the setting that labels name first; the lines of one of its values have
            one color and different dashes. A tuned axis here is shown at each value.
        only: as in `over`.
        theory: a function of `against` and settings, or {against: value}; dotted line.
        target: a value of the metric to mark.
        title: as in `over`.
        name: the name of the file.
    """

    def check_curves(run: Run) -> None:
        for column in (against, metric):
            analysis.require(run.curves, column)

    def check(run: Run) -> None:
        check_curves(run)
        tables.check(run, "train_loss", only=only, panels=panels, color=color)

    def draw(run: Run) -> Any:
        from matplotlib.ticker import MaxNLocator

        from experiments.figures import scales, sheets

        check_curves(run)
        chosen = tables.choose(run, "train_loss", only, panels, color)
        series = tables.series_of(chosen.run.results, chosen.axes, None)
        table = numbers(chosen, metric, against, series)
        named = tables.name(table, series, panels, color)
        table = named.tell(table)
        if color:
            group = dict(zip(table["label"], table[color].map(str), strict=True))
            named = named._replace(styles=palette.by_color(named.styles, group))
        ends = [line["at"].max() for _, _, line in named.lines(table)]
        wide = bool(ends) and max(ends) > _WIDE * min(ends) > 0
        if wide:  # a logarithmic axis cannot show 0
            table = table[table["at"] > 0]
        live = {label: line for label, _, line in named.lines(table[~table["lost"]])}
        handles = [
            palette.mark(
                label if label in live else f"{label} ({chosen.fate})",
                **{"color": style.color, "ls": style.dashes},
            )
            for label, style in named.styles.items()
            if label
        ]
        if theory is not None:
            handles.append(palette.mark("theory", **palette.THEORY_LINE))
        if target is not None:
            handles.append(palette.mark(f"target, {target:g}", **_TARGET))
        handles += palette.interval(table)
        last = [line.iloc[[-1]].assign(name=label) for label, line in live.items()]
        best = f", at the best {' and '.join(map(words, chosen.axes))}"
        figure, axes = sheets.sheet(
            title,
            named.panels,
            handles,
            tables.edge_notes(chosen, named.label),
            question=f"How {do(metric)} fall{best * bool(chosen.axes)}?",
            finding=findings.least(pd.concat(last), words(metric), " at the end")
            if last and len(named.panels) == 1 and less_is_better(metric)
            else "",
        )
        shown = table[~table["lost"]]
        for axis, panel in zip(axes, named.panels, strict=True):
            for _, style, line in named.lines(shown, panel):
                over.plot_line(axis, line, style, marker="", ls=style.dashes)
                if theory is not None:
                    rows = line.assign(**{against: line["at"]})
                    values = formulas(theory, rows, against)
                    axis.plot(
                        line["at"], values, color=style.color, **palette.THEORY_LINE
                    )
            if target is not None:
                axis.axhline(target, **_TARGET)
            axis.set_xlabel(with_unit(against))
            if wide:
                axis.set_xscale("log")
                scales.log_ticks(axis.xaxis, table["at"])
            else:
                axis.xaxis.set_major_locator(MaxNLocator(4))  # a panel is narrow
            unit = with_unit(metric, loss_unit(run))
            scales.y_axis(axis, shown["mean"], unit, tables.crowds(metric))
            if not live:
                sheets.empty(axis, chosen.fate)
                axis.set_xticks([])
        return figure

    return Figure(
        name or f"{metric}_over_{against}",
        f"{words(metric).capitalize()} of the best cell of each series against"
        f" {words(against)}: means over seeds with 95 % intervals{beside(theory)}.",
        draw,
        check,
    )


def numbers(
    chosen: tables.Chosen, metric: str, against: str, series: Sequence[str]
) -> pd.DataFrame:
    """A table of best cells: settings, `update`, `at`, mean, low, high, seeds, `lost`.

    Means are over seeds at the same update; `at` is the mean of the column `against`.
    """
    keys = [*chosen.run.settings, "seed"]
    fates = [n for n in ("diverged", "ended_higher") if n in chosen.best]
    rows = chosen.run.curves.merge(chosen.best[[*keys, *fates]], on=keys)
    by = [*series, "update"]
    table = tables.points(rows, metric, by)
    table["at"] = [group[against].mean() for _, group in analysis.grouped(rows, by)]
    return table.sort_values("update", kind="stable")  # in the order of the run
