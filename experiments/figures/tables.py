"""The numbers that a figure draws, as tables."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.figures import palette, scales
from experiments.results import analysis
from experiments.results.choice import TimeTo
from experiments.results.column_words import words
from experiments.results.runs import Run

_MOST = 6  # series that one panel can hold


class Chosen(NamedTuple):
    """What a figure shows of a run.

    `best` has the rows at the best values of the tuned axes.
    """

    run: Run
    metric: str
    axes: list[str]  # that are tuned
    best: pd.DataFrame

    @property
    def unfit(self) -> pd.Series:
        """Whether a row of `best` is no best: it is lost, or never got there."""
        choice = self.run.choice
        judged = choice.judged(self.best, self.run.curves)
        return lost(judged, choice.column)


def choose(
    run: Run, metric: str | TimeTo, only: Mapping[str, Any] | None, *but: str
) -> Chosen:
    """The rows shown, each at the best value of the tuned axes.

    Args:
        run: any.
        metric: that is shown.
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
    best = run.best
    if isinstance(metric, TimeTo):
        best = metric.of(best, run.curves)
        run = dataclasses.replace(run, results=metric.of(run.results, run.curves))
        metric = metric.name
    require(run.results, metric)
    axes = [axis for axis in run.choice.axes if axis in run.settings]
    return Chosen(run, metric, axes, best)


def require(frame: pd.DataFrame, column: str) -> str:
    """The column.

    Raises:
        ValueError: if it is not there, or empty.
    """
    if column not in frame or frame[column].isna().all():
        there = [name for name in frame if not frame[name].isna().all()]
        raise ValueError(f"the run has no {column!r}; it has {', '.join(there)}.")
    return column


def at_fixed_step(
    chosen: Chosen, x: str, series: Sequence[str], where: Mapping[str, Any]
) -> pd.DataFrame:
    """The rows at the tuned axes' best value for the first `x`, for each seed.

    Args:
        chosen: what is drawn.
        x: the axis.
        series: the settings that tell series apart.
        where: settings whose best value all series keep; of {} each keeps its own.
    """
    first = scales.positions(chosen.best[x].dropna()).values[0]
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

    def rows(self, table: pd.DataFrame, panel: str, label: str) -> pd.DataFrame:
        """The rows of a table that are of this panel and label."""
        own = table.to_dict("records")
        there = [(self.panel(row), self.label(row)) == (panel, label) for row in own]
        return table[np.asarray(there, bool)]


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

    rows = own.to_dict("records")
    if color:
        order = list(dict.fromkeys(own[color]))
        rows.sort(key=lambda row: order.index(row[color]))
    labels = list(dict.fromkeys(map(label, rows)))
    numeric = len(told) == 1 and pd.api.types.is_numeric_dtype(own[told[0]])
    if numeric:
        labels = list(
            dict.fromkeys(map(label, own.sort_values(told).to_dict("records")))
        )
    found = list(dict.fromkeys(map(panel, own.to_dict("records"))))
    return Named(panel, label, found, palette.styles(labels, ordered=numeric))


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


def formula(
    theory: Callable[..., Any] | Mapping[Any, Any], row: Mapping[str, Any]
) -> Any:
    """What a function of settings says; nan for None."""
    names = inspect.signature(theory).parameters
    value = theory(**{key: row[key] for key in names if key in row})
    return np.nan if value is None else value


def of_arms(run: Run, theory: Callable[..., Any] | None) -> dict[str, float]:
    """What a function of labels says of each arm with a trace; nan where nothing.

    Raises:
        ValueError: if the run has no traces.
    """
    if not run.trace_labels:
        raise ValueError("the run has no traces.")
    return {
        arm: formula(theory, labels) if theory else np.nan
        for arm, labels in run.trace_labels.items()
    }


def limit_of(limit: Any, row: Mapping[str, Any], x: str) -> float:
    """A limit at a value of `x`, from a function or a table; nan if there is none."""
    if limit is None:
        return np.nan
    if callable(limit):
        return formula(limit, row)
    return limit.get(row[x], np.nan)
