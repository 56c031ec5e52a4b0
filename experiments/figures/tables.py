"""The numbers that a figure draws, as tables."""

import dataclasses
import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.figures import palette
from experiments.figures.axis_labels import words
from experiments.figures.figure import column as column_of
from experiments.results import analysis
from experiments.results.choice import TimeTo
from experiments.results.runs import Run

_MOST = 6  # series that one panel can hold


class Positions(NamedTuple):
    """Where the values of an axis stand: numbers at themselves, names in a row."""

    values: list[Any]  # in order
    numeric: bool

    def of(self, values: Iterable[Any]) -> list[float]:
        """Their places."""
        if self.numeric:
            return [float(value) for value in values]
        return [float(self.values.index(value)) for value in values]


def positions(values: Iterable[Any]) -> Positions:
    """Numbers ascending; names in the order of the run."""
    found = list(dict.fromkeys(values))
    numeric = all(
        isinstance(value, numbers.Real) and not isinstance(value, bool)
        for value in found
    )
    return Positions(sorted(found) if numeric else found, numeric)


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
        judged = choice.judged(self.best, self.run.curves)
        return lost(judged, choice.column)


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
        ValueError: if the run has no such metric.
    """
    run = dataclasses.replace(
        run,
        results=analysis.where(run.results, **(only or {})),
        curves=analysis.where(run.curves, **(only or {})),
        choice=run.choice.but(*but),
    )
    best, name = run.best, column_of(metric)
    if not isinstance(metric, str):
        best = metric.of(best, run.curves)
        run = dataclasses.replace(run, results=metric.of(run.results, run.curves))
    require(run.results, name)
    axes = [axis for axis in run.choice.axes if axis in run.settings]
    word = "not reached" if isinstance(metric, TimeTo) else fate(run)
    return Chosen(run, name, axes, best, word)


def require(frame: pd.DataFrame, name: str) -> str:
    """The column.

    Raises:
        ValueError: if it is not there, or empty.
    """
    if name not in frame or frame[name].isna().all():
        there = [own for own in frame if not frame[own].isna().all()]
        raise ValueError(f"the run has no {name!r}; it has {', '.join(there)}.")
    return name


def at_fixed_step(
    chosen: Chosen, x: str, series: Sequence[str], where: dict[str, Any]
) -> pd.DataFrame:
    """The rows at the tuned axes' best value for the first `x`, for each seed.

    Args:
        chosen: what is drawn.
        x: the axis.
        series: the settings that tell series apart.
        where: settings whose best value all series keep; of {} each keeps its own.
    """
    first = positions(chosen.best[x].dropna()).values[0]
    start = analysis.where(chosen.best, **where | {x: first})
    own = [name for name in series if name not in where]
    keys = [*own, "seed", *chosen.axes]
    return chosen.run.results.merge(start[keys].drop_duplicates(), on=keys)


def series_of(
    frame: pd.DataFrame, axes: Sequence[str], x: str | None, panels: str | None = None
) -> list[str]:
    """The settings that tell series apart; not a number that follows from `x`."""
    columns = [
        name
        for name in analysis.settings(frame)
        if name not in (*axes, x) or name == panels
    ]
    if x is None:
        return columns
    there = frame[frame[x].notna()]
    each = there.groupby(x)

    def follows(name):
        number = pd.api.types.is_numeric_dtype(there[name])
        return number and each[name].nunique(dropna=False).max() == 1

    if there.empty:
        return columns
    several = [name for name in columns if there[name].nunique(dropna=False) > 1]
    dropped = {name for name in several if name != panels and follows(name)}
    return [name for name in columns if name not in dropped]


def points(frame: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """Mean and interval over seeds; `lost` where a seed is, as `lost` says."""
    if frame.empty:
        return pd.DataFrame(columns=[*by, "mean", "low", "high", "seeds", "lost"])
    table = analysis.spread(frame, metric, by)
    groups = analysis.grouped(frame.assign(lost=lost(frame, metric)), by)
    table["lost"] = [bool(group["lost"].any()) for _, group in groups]
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


class Named(NamedTuple):
    """How series are spread over panels, and named and drawn."""

    # settings -> its panel, and its label
    panel: Callable[[Mapping[str, Any]], str]
    label: Callable[[Mapping[str, Any]], str]
    panels: list[str]
    styles: dict[str, palette.Style]  # by label; one for "" where there is one series

    def lines(
        self, table: pd.DataFrame, panel: str | None = None
    ) -> list[tuple[str, palette.Style, pd.DataFrame]]:
        """Label, style and rows of each series of a table that has any in a panel."""
        rows = table.to_dict("records")
        here = np.asarray([panel in (None, self.panel(row)) for row in rows], bool)
        labels = np.asarray([self.label(row) for row in rows], object)
        parts = [(own, here & (labels == own)) for own in self.styles]
        return [
            (name, self.styles[name], table[own]) for name, own in parts if any(own)
        ]


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
        ValueError: if `panels` or `color` is no such setting.
    """
    for asked in filter(None, (panels, color)):
        if asked not in series:
            raise ValueError(
                f"{asked!r} tells no series apart; there are {', '.join(series)}."
            )
    own = frame[list(series)].drop_duplicates()
    told = [c for c in analysis.told_by(own) if c != panels]
    if panels and len(told) > 1:
        rest = analysis.told_by(own[[c for c in series if c != panels]])
        told = [c for c in told if c in rest] or told
    if panels is None and spread and len(own[told].drop_duplicates()) > _MOST:
        panels = _panels(own, told)
        told = [c for c in told if c != panels]
    if color:
        told = [color, *(c for c in told if c != color)]

    def panel(row):
        return analysis.label({panels: row[panels]}) if panels else ""

    def label(row):
        return analysis.label({c: row[c] for c in told}) if told else ""

    def names(of, rows):
        return list(dict.fromkeys(map(of, rows.to_dict("records"))))

    numeric = len(told) == 1 and pd.api.types.is_numeric_dtype(own[told[0]])
    order = own
    if numeric:
        order = own.sort_values(told)
    elif color:
        first = pd.Series(pd.factorize(own[color], use_na_sentinel=False)[0], own.index)
        order = own.loc[first.sort_values(kind="stable").index]
    styles = palette.styles(names(label, order), ordered=numeric)
    return Named(panel, label, names(panel, own), styles)


def _panels(own: pd.DataFrame, told: Sequence[str]) -> str | None:
    """The setting that spreads series over the fewest panels that can hold them."""
    candidates = []
    for column in told:
        rest = [other for other in told if other != column]
        sizes = own[[*rest, column]].drop_duplicates().groupby(column, dropna=False)
        if rest and sizes.size().max() <= _MOST and len(sizes) <= _MOST:
            candidates.append((len(sizes), column))
    return min(candidates)[1] if candidates else None


def at_ends(chosen: Chosen, axis: str) -> pd.DataFrame:
    """Whether a row of `best` is at an end of what its own setting tried of an axis.

    Not at 0, where a momentum or a strength is off: nothing lies below. Nothing is an
    end where fewer than three numbers were tried.

    Returns:
        bool columns "smallest" and "largest", a row for each of `best`.
    """
    settings = [name for name in chosen.run.settings if name not in chosen.axes]
    keys = [*settings, "seed", axis]
    own, *others = range(len(keys))[::-1]  # in the place of names: any may be a setting
    best, results = (
        table[keys].set_axis(range(len(keys)), axis=1)
        for table in (chosen.best, chosen.run.results)
    )
    if not pd.api.types.is_numeric_dtype(best[own]):
        return pd.DataFrame(False, best.index, ["smallest", "largest"])
    tried = results.groupby(others, dropna=False)[own]
    ends = tried.agg(smallest="min", largest="max", count="nunique").reset_index()
    ends = best.merge(ends, on=others, how="left")
    may_be = (ends["count"] > 2) & (ends[own] != 0)
    return pd.DataFrame(
        {kind: may_be & (ends[own] == ends[kind]) for kind in ("smallest", "largest")}
    )


def edge_notes(chosen: Chosen, label: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """Which series have their best step at an end of what they tried, as sentences.

    A label that is drawn over an axis or in several panels has several best steps.
    Where they are not all at this end, the settings of those that are name them.
    """
    notes = []
    settings = [name for name in chosen.run.settings if name not in chosen.axes]
    told = analysis.told_by(chosen.best[settings])
    labels = np.asarray([label(row) for row in chosen.best.to_dict("records")], object)
    live = ~chosen.unfit.to_numpy()
    for axis in chosen.axes:
        marks = at_ends(chosen, axis)
        for kind in marks:
            marked = marks[kind].to_numpy() & live
            for end in sorted(set(chosen.best[axis][marked])):
                here = marked & (chosen.best[axis] == end).to_numpy()
                elsewhere = set(labels[live & ~here])
                names = [
                    analysis.label({name: row[name] for name in told})
                    if own in elsewhere
                    else own
                    for own, row in zip(
                        labels[here], chosen.best[here].to_dict("records"), strict=True
                    )
                ]
                names = list(dict.fromkeys(filter(None, names)))
                who = f"{'; '.join(names)}: " if names else ""
                notes.append(
                    f"{who}the best {words(axis)} is the {kind} one tried, {end:g}."
                )
    return notes


def formula(theory: Any, row: Mapping[str, Any], key: str) -> float:
    """What a function of settings says, or a table of a value; nan where it does not.

    Args:
        theory: the function, the table, or None.
        row: settings, by the names of the function's arguments.
        key: the setting whose values the table has.
    """
    if theory is None:
        return np.nan
    if not callable(theory):
        return theory.get(row[key], np.nan)
    names = inspect.signature(theory).parameters
    value = theory(**{name: row[name] for name in names if name in row})
    return np.nan if value is None else value


def of_arms(run: Run, theory: Any) -> dict[str, float]:
    """What theory says of each arm with a trace; nan where nothing.

    Raises:
        ValueError: if the run has no traces.
    """
    if not run.trace_labels:
        raise ValueError("the run has no traces.")
    return {
        arm: formula(theory, {"arm": arm, **labels}, "arm")
        for arm, labels in run.trace_labels.items()
    }
