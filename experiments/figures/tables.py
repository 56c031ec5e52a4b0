"""The numbers that a figure draws, as tables."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.figures import palette
from experiments.results import analysis, metrics
from experiments.results.analysis import AbsentError
from experiments.results.column_words import words
from experiments.results.formulas import formulas
from experiments.results.metrics import TimeTo
from experiments.results.runs import Run
from experiments.results.selection import Selection

_MOST = 6  # series that one panel can hold


class Chosen(NamedTuple):
    """The part of a run that a figure shows.

    `best` has the rows at the best values of the tuned axes.
    """

    run: Run
    metric: str
    axes: list[str]  # the tuned axes
    best: pd.DataFrame
    fate: str  # the word for rows that are off the scale, such as "diverged"

    @property
    def unfit(self) -> pd.Series:
        """Whether each row of `best` is lost, by the metric that tunes the axes."""
        selection = self.run.selection
        return lost(selection.judged(self.best, self.run.curves), selection.column)

    def kept(
        self, x: str, series: Sequence[str], where: Mapping[str, Any]
    ) -> pd.DataFrame:
        """The results of each seed at the tuned values that are best at the least `x`.

        All series take the tuned values of the series with the settings `where`;
        without `where`, each series takes its own tuned values.
        """
        start = analysis.where(self.best, **{**where, x: self.best[x].min()})
        keys = [*(name for name in series if name not in where), "seed", *self.axes]
        return self.run.results.merge(start[keys].drop_duplicates(), on=keys)


def choose(
    run: Run, metric: Any, only: Mapping[str, Any] | None, *but: str | None
) -> Chosen:
    """The rows that a figure shows, each at the best values of the tuned axes.

    Args:
        run: the run to show.
        metric: a column of the results, or an object that makes a column from curves.
        only: {setting: the values shown}.
        *but: axes that the figure shows, so that they are not tuned.

    Raises:
        AbsentError: if the run has no such metric.
    """
    selection = run.selection.but(*but)
    axes = [axis for axis in selection.axes if axis in run.settings]
    results = analysis.where(run.results, **(only or {}))
    run = dataclasses.replace(
        run,
        results=_with_ends(results, axes, selection),
        curves=analysis.where(run.curves, **(only or {})),
        selection=selection,
    )
    best = metrics.with_column(metric, run.best, run.curves)
    results = metrics.with_column(metric, run.results, run.curves)
    run, name = dataclasses.replace(run, results=results), metrics.column(metric)
    analysis.require(run.results, name)
    word = "not reached" if isinstance(metric, TimeTo) else fate(run)
    return Chosen(run, name, axes, best, word)


def check(
    run: Run,
    metric: metrics.Metric,
    *,
    only: Mapping[str, Any] | None,
    fixed: Any = None,
    **shown: str | None,
) -> None:
    """Checks that tables have the settings, values and metric that a figure shows.

    Args:
        run: the tables.
        metric: a column of the results, or a metric that is computed.
        only: {setting: the values shown}.
        fixed: {setting: value}; other types are ignored.
        **shown: {argument: the setting that it names}.

    Raises:
        AbsentError: if something is missing; the text names the argument.
    """
    kept = fixed if isinstance(fixed, Mapping) else {}
    one_each = {argument: {name: ()} for argument, name in shown.items() if name}
    for argument, settings in {"only": only or {}, "fixed": kept, **one_each}.items():
        analysis.check_settings(argument, run.results, settings)
    x = shown.get("x")
    if x is not None and numeric(run.results[x].dropna()):  # names are rows of bars
        for argument in ("panels", "color"):
            if shown.get(argument) == x:
                raise AbsentError(
                    f"`{argument}` names {x!r}, which is on the horizontal axis: choose"
                    " another setting."
                )
    rows = metrics.with_column(metric, run.results, run.curves)
    if isinstance(metric, str):  # a computed metric may be nan for a short curve
        analysis.require(rows, metric)


def numeric(values: pd.Series) -> bool:
    """Whether all values are numbers, and not booleans."""
    number = pd.api.types.is_numeric_dtype(values)
    return number and not pd.api.types.is_bool_dtype(values)


def series_of(
    frame: pd.DataFrame, axes: Sequence[str], x: str | None, panels: str | None = None
) -> list[str]:
    """The settings that distinguish series, without numbers that `x` determines."""
    columns = [
        name
        for name in analysis.settings(frame)
        if name not in (*axes, x) or name == panels
    ]
    if x is None or frame[x].isna().all():
        return columns
    rows = frame[frame[x].notna()]

    def follows(name):
        single = rows.groupby(x)[name].nunique(dropna=False).max() == 1
        varied = rows[name].nunique(dropna=False) > 1
        return name != panels and varied and single and numeric(rows[name])

    return [name for name in columns if not follows(name)]


def points(frame: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """Means and intervals over seeds; `lost` or `edge` is true if any seed has it."""
    table = analysis.spread(frame, metric, by)
    marks = pd.DataFrame({"lost": lost(frame, metric), "edge": False}, frame.index)
    marks.update(frame[[name for name in marks if name in frame]])
    groups = analysis.grouped(frame, by)
    for name in marks:
        table[name] = [bool(marks[name][group.index].any()) for _, group in groups]
    return table


def lost(frame: pd.DataFrame, metric: str) -> pd.Series:
    """Whether each row is lost: a figure shows it beside the scale.

    A lost row diverged, ended higher than it began, or its metric is not finite.
    """
    return ~np.isfinite(frame[metric]) | analysis.lost(frame)


def fate(run: Run) -> str:
    """The word for the lost rows of a run: "diverged" if all of them diverged."""
    rows = run.results
    bounded = analysis.lost(rows) & np.isfinite(rows["train_loss"])
    if "diverged" in rows:
        bounded &= rows["diverged"] == 0
    return "ended higher" if bounded.any() else "diverged"


def crowds(column: str) -> float:
    """The largest factor between two values of a metric on a linear axis."""
    return 4.0 if column.endswith("error") else 10.0


class Named(NamedTuple):
    """The panels, labels and styles of series."""

    # the settings of a series -> its panel, and its label
    panel: Callable[[Mapping[str, Any]], str]
    label: Callable[[Mapping[str, Any]], str]
    panels: list[str]
    styles: dict[str, palette.Style]  # by label; a single series has the label ""

    def tell(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table with the columns `panel` and `label`."""
        rows = table.to_dict("records")
        labels = [self.label(row) for row in rows]
        return table.assign(panel=[self.panel(row) for row in rows], label=labels)

    def lines(
        self, named: pd.DataFrame, panel: str | None = None
    ) -> list[tuple[str, palette.Style, pd.DataFrame]]:
        """Label, style and rows of each series in a panel; `named` is from `tell`."""
        here = named if panel is None else named[named["panel"] == panel]
        parts = [(label, here[here["label"] == label]) for label in self.styles]
        return [(label, self.styles[label], rows) for label, rows in parts if len(rows)]


def name(
    frame: pd.DataFrame,
    series: Sequence[str],
    panels: str | None = None,
    color: str | None = None,
    *,
    spread: bool = True,
) -> Named:
    """Names series by the settings that distinguish them.

    Args:
        frame: a table with the columns `series`.
        series: the settings that distinguish rows.
        panels: the setting of the panels; by default chosen if series are too many.
        color: the setting that comes first in labels.
        spread: whether many series may be spread over panels.

    Raises:
        AbsentError: if `panels` or `color` is not in `series`.
    """
    for asked in {panels, color} - {None, *series}:
        others = ", ".join(series)
        raise AbsentError(f"{asked!r} distinguishes no series; these do: {others}.")
    settings = frame[list(series)].drop_duplicates()
    varied = [c for c in analysis.distinguishing(settings) if c != panels]
    if panels and len(varied) > 1:
        rest = analysis.distinguishing(settings[[c for c in series if c != panels]])
        varied = [c for c in varied if c in rest] or varied
    if panels is None and spread and len(settings[varied].drop_duplicates()) > _MOST:
        panels = _panels(settings, varied)
        varied = [c for c in varied if c != panels]
    if color:
        varied = [color, *(c for c in varied if c != color)]

    def panel(row):
        return analysis.label({panels: row[panels]}) if panels else ""

    def label(row):
        return analysis.label({c: row[c] for c in varied}) if varied else ""

    def names(of, rows):
        return list(dict.fromkeys(map(of, rows.to_dict("records"))))

    ordered = len(varied) == 1 and pd.api.types.is_numeric_dtype(settings[varied[0]])
    rows = settings
    if ordered:
        rows = settings.sort_values(varied)
    elif color:
        order = pd.Series(
            pd.factorize(settings[color], use_na_sentinel=False)[0], settings.index
        )
        rows = settings.loc[order.sort_values(kind="stable").index]
    styles = palette.styles(names(label, rows), ordered=ordered)
    return Named(panel, label, names(panel, settings), styles)


def _panels(settings: pd.DataFrame, varied: Sequence[str]) -> str | None:
    """The setting with the fewest panels that can hold all series, or None."""
    rows = settings[[*varied]].drop_duplicates()
    sizes = {column: rows[column].value_counts(dropna=False) for column in varied}
    fit = [(len(n), c) for c, n in sizes.items() if n.max() <= _MOST >= len(n)]
    return min(fit)[1] if fit and len(varied) > 1 else None


def _with_ends(
    results: pd.DataFrame, axes: Sequence[str], selection: Selection
) -> pd.DataFrame:
    """The results with a column `end_of(axis)` for each tuned axis.

    It is "smallest" or "largest" if the value is the smallest or the largest number
    that was tried with the settings of the row; "limit" if it is at a limit of a
    searched range; else "". A value of 0 is no end: it turns a momentum or a strength
    off, and no smaller value makes sense. Where fewer than three numbers were tried, no
    value is an end. A searched value is an end only at a limit.
    """
    settings = [name for name in analysis.settings(results) if name not in axes]
    marks = {end_of(axis): "" for axis in axes}
    for axis in filter(lambda axis: numeric(results[axis]), axes):
        value = results[axis]
        tried = results.groupby([*settings, "seed"], dropna=False)[axis]
        may_be = (tried.transform("nunique") > 2) & (value != 0)
        if selection.optima is not None and axis in selection.optima:
            may_be &= ~selection.are_searched(results)  # the search tried others too
        ends = [may_be & (value == tried.transform(end)) for end in ("min", "max")]
        ends.append(selection.at_limit(results, axis))
        marks[end_of(axis)] = np.select(ends, ["smallest", "largest", "limit"], "")
    return results.assign(**marks)


def end_of(axis: str) -> str:
    """The name of the column that marks ends of an axis; no setting has this name."""
    return f"end of {axis}"


def edge_notes(chosen: Chosen, label: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """Sentences that name the series whose best step is an end of the steps tried.

    A label that is drawn over an axis or in several panels has several best steps. If
    only some of them are at this end, the sentence names them by all their settings.
    """
    notes, best = [], chosen.best
    settings = [name for name in chosen.run.settings if name not in chosen.axes]
    varied = analysis.distinguishing(best[settings])
    rows = best.to_dict("records")
    labels = np.asarray([label(row) for row in rows], object)
    longer = np.asarray([analysis.label({c: row[c] for c in varied}) for row in rows])
    live = ~chosen.unfit.to_numpy()
    for axis in chosen.axes:
        for kind in ("smallest", "largest", "limit"):
            marked = (best[end_of(axis)] == kind).to_numpy() & live
            for end in sorted(set(best[axis][marked])):
                here = marked & (best[axis] == end).to_numpy()
                mixed = np.isin(labels, [*set(labels[live & ~here])])
                names = dict.fromkeys(np.where(mixed, longer, labels)[here])
                who = "; ".join(filter(None, names))
                text = f"the best {words(axis)} is the {kind} one tried, {end:g}."
                if kind == "limit":
                    text = f"the best {words(axis)} is at its limit, {end:g}."
                notes.append(f"{who}: {text}" if who else text)
    return notes


def theory_of_arms(theory: Any, run: Run) -> list[float]:
    """The theoretical value of each trace of a run.

    Raises:
        ValueError: if the run has no trace.
    """
    arms = [{"arm": arm, **labels} for arm, labels in run.trace_labels.items()]
    if not arms:
        raise ValueError("the run has no traces.")
    return formulas(theory, pd.DataFrame(arms), "arm")
