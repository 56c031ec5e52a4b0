"""The numbers that a figure draws, as tables."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.figures import palette
from experiments.results import analysis, metrics
from experiments.results.analysis import AbsentError
from experiments.results.choice import Choice
from experiments.results.column_words import words
from experiments.results.formulas import formulas
from experiments.results.metrics import TimeTo
from experiments.results.runs import Run
from experiments.results.tables import Found

_MOST = 6  # series that one panel can hold


class Chosen(NamedTuple):
    """What a figure shows of a run.

    `best` has the rows at the best values of the tuned axes.
    """

    run: Run
    metric: str
    axes: list[str]  # that are tuned
    best: pd.DataFrame
    fate: str  # the word for what has no place on a scale

    @property
    def unfit(self) -> pd.Series:
        """Whether a row of `best` is no best: it is lost, or never got there."""
        choice = self.run.choice
        return lost(choice.judged(self.best, self.run.curves), choice.column)

    def kept(
        self, x: str, series: Sequence[str], where: Mapping[str, Any]
    ) -> pd.DataFrame:
        """The rows at the tuned axes' best value for the first `x`, for each seed.

        Of the series with the settings `where`, or of each series its own.
        """
        start = analysis.where(self.best, **{**where, x: self.best[x].min()})
        keys = [*(name for name in series if name not in where), "seed", *self.axes]
        return self.run.results.merge(start[keys].drop_duplicates(), on=keys)


def choose(
    run: Run, metric: Any, only: Mapping[str, Any] | None, *but: str | None
) -> Chosen:
    """The rows shown, each at the best value of the tuned axes.

    Args:
        run: any.
        metric: that is shown: a column, or an object that makes one of the curves.
        only: {setting: the values shown}.
        *but: axes that are shown, and not tuned therefore.

    Raises:
        AbsentError: if the run has no such metric.
    """
    choice = run.choice.but(*but)
    axes = [axis for axis in choice.axes if axis in run.settings]
    results = analysis.where(run.results, **(only or {}))
    run = dataclasses.replace(
        run,
        results=_with_ends(results, axes, choice),
        curves=analysis.where(run.curves, **(only or {})),
        choice=choice,
    )
    best = metrics.with_column(metric, run.best, run.curves)
    results = metrics.with_column(metric, run.results, run.curves)
    run, name = dataclasses.replace(run, results=results), metrics.column(metric)
    analysis.require(run.results, name)
    word = "not reached" if isinstance(metric, TimeTo) else fate(run)
    return Chosen(run, name, axes, best, word)


def check(
    found: Found,
    metric: metrics.Metric,
    *,
    only: Mapping[str, Any] | None,
    fixed: Any = None,
    **shown: str | None,
) -> None:
    """Checks that tables have what a figure shows.

    Args:
        found: the tables.
        metric: a column of the results, or a metric that is made.
        only: {setting: the values shown}.
        fixed: {setting: value}, or anything else.
        **shown: {argument: the setting that it names}.

    Raises:
        AbsentError: naming the argument.
    """
    kept = fixed if isinstance(fixed, Mapping) else {}
    one_each = {argument: {name: ()} for argument, name in shown.items() if name}
    for argument, settings in {"only": only or {}, "fixed": kept, **one_each}.items():
        analysis.check_settings(argument, found.results, settings)
    rows = metrics.with_column(metric, found.results, found.curves)
    if isinstance(metric, str):  # a metric that is made may be nan of a short curve
        analysis.require(rows, metric)


def numeric(values: pd.Series) -> bool:
    """Whether all are numbers, and none a truth."""
    number = pd.api.types.is_numeric_dtype(values)
    return number and not pd.api.types.is_bool_dtype(values)


def series_of(
    frame: pd.DataFrame, axes: Sequence[str], x: str | None, panels: str | None = None
) -> list[str]:
    """The settings that tell series apart; not a number that follows from `x`."""
    columns = [
        name
        for name in analysis.settings(frame)
        if name not in (*axes, x) or name == panels
    ]
    if x is None or frame[x].isna().all():
        return columns
    there = frame[frame[x].notna()]

    def follows(name):
        few = there.groupby(x)[name].nunique(dropna=False).max() == 1
        varied = there[name].nunique(dropna=False) > 1
        return name != panels and varied and few and numeric(there[name])

    return [name for name in columns if not follows(name)]


def points(frame: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """Mean and interval over seeds; `lost` where a seed is, and `edge`, if marked."""
    table = analysis.spread(frame, metric, by)
    marks = pd.DataFrame({"lost": lost(frame, metric), "edge": False}, frame.index)
    marks.update(frame[[name for name in marks if name in frame]])
    groups = analysis.grouped(frame, by)
    for name in marks:
        table[name] = [bool(marks[name][group.index].any()) for _, group in groups]
    return table


def lost(frame: pd.DataFrame, metric: str) -> pd.Series:
    """Whether a row has no place on a scale.

    It ended higher than it began, diverged, or the metric is not finite.
    """
    return ~np.isfinite(frame[metric]) | analysis.lost(frame)


def fate(run: Run) -> str:
    """The word for a run's rows that are lost: "diverged" where all of them did."""
    rows = run.results
    bounded = analysis.lost(rows) & np.isfinite(rows["train_loss"])
    if "diverged" in rows:
        bounded &= rows["diverged"] == 0
    return "ended higher" if bounded.any() else "diverged"


def crowds(column: str) -> float:
    """The factor from which on a metric is shown on a logarithmic axis."""
    return 4.0 if column.endswith("error") else 10.0


class Named(NamedTuple):
    """How series are spread over panels, and named and drawn."""

    # settings -> its panel, and its label
    panel: Callable[[Mapping[str, Any]], str]
    label: Callable[[Mapping[str, Any]], str]
    panels: list[str]
    styles: dict[str, palette.Style]  # by label; one for "" where there is one series

    def tell(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table with the columns `panel` and `label`."""
        rows = table.to_dict("records")
        labels = [self.label(row) for row in rows]
        return table.assign(panel=[self.panel(row) for row in rows], label=labels)

    def lines(
        self, named: pd.DataFrame, panel: str | None = None
    ) -> list[tuple[str, palette.Style, pd.DataFrame]]:
        """Label, style and rows of each series that a panel has, of a `tell` table."""
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
    """Names series after what tells them apart.

    Args:
        frame: with columns `series`.
        series: that tell rows apart.
        panels: the setting of the panels; found out where series are too many.
        color: the setting that comes first in labels.
        spread: whether many series may be spread over panels.

    Raises:
        AbsentError: if `panels` or `color` is no such setting.
    """
    for asked in {panels, color} - {None, *series}:
        there = ", ".join(series)
        raise AbsentError(f"{asked!r} tells no series apart; there are {there}.")
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
    """The setting that spreads series over the fewest panels that can hold them."""
    rows = settings[[*varied]].drop_duplicates()
    sizes = {column: rows[column].value_counts(dropna=False) for column in varied}
    fit = [(len(n), c) for c, n in sizes.items() if n.max() <= _MOST >= len(n)]
    return min(fit)[1] if fit and len(varied) > 1 else None


def _with_ends(
    results: pd.DataFrame, axes: Sequence[str], choice: Choice
) -> pd.DataFrame:
    """The results with a column `end_of(axis)` for each tuned axis.

    It is "smallest" or "largest" where the value is that of all numbers that the
    settings of the row tried; "limit" at a limit of a searched range; else "". Not at
    0, where a momentum or a strength is off: nothing lies below. Nothing is an end
    where fewer than three numbers were tried, and no other value of a search is one.
    """
    settings = [name for name in analysis.settings(results) if name not in axes]
    marks = {end_of(axis): "" for axis in axes}
    for axis in filter(lambda axis: numeric(results[axis]), axes):
        value = results[axis]
        tried = results.groupby([*settings, "seed"], dropna=False)[axis]
        may_be = (tried.transform("nunique") > 2) & (value != 0)
        if choice.optima is not None and axis in choice.optima:
            may_be &= ~choice.are_searched(results)  # the search tried others too
        ends = [may_be & (value == tried.transform(end)) for end in ("min", "max")]
        ends.append(choice.at_limit(results, axis))
        marks[end_of(axis)] = np.select(ends, ["smallest", "largest", "limit"], "")
    return results.assign(**marks)


def end_of(axis: str) -> str:
    """The column that says whether a value is an end of an axis; no setting has it."""
    return f"end of {axis}"


def edge_notes(chosen: Chosen, label: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """Which series have their best step at an end of what they tried, as sentences.

    A label that is drawn over an axis or in several panels has several best steps.
    Where they are not all at this end, the settings of those that are name them.
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
    """What theory says of each arm that has a trace.

    Raises:
        ValueError: if none has.
    """
    arms = [{"arm": arm, **labels} for arm, labels in run.trace_labels.items()]
    if not arms:
        raise ValueError("the run has no traces.")
    return formulas(theory, pd.DataFrame(arms), "arm")
