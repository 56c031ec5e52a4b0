"""The measures of claims: numbers from a run's tables."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.results import analysis
from experiments.results.estimates import Measure
from experiments.results.metrics import Metric, TimeTo, column, with_column
from experiments.results.runs import Run


def tuned(metric: Metric, *, lost: float = np.nan, **where: Any) -> Measure:
    """The mean over seeds of a metric, at the best value of the tuned axes.

    Args:
        metric: a column of the results, or one of `metrics`. The column of a tuned axis
            has its best value. A `TimeTo` is inf if a seed never reaches the value; a
            `LargestStable` is 0 if no value is stable.
        lost: the value of a seed that ends higher than it began, or diverges; by
            default the mean is then nan.
        **where: {label or axis: value}: the settings that count.
    """

    def measure(run):
        part = run.where(**where)
        best = part.selection.judged_by(metric).best(part.results, part.curves)
        rows = with_column(metric, best, part.curves)
        return _mean(rows, column(metric), lost)

    return Formed(measure, "amount", metric)


def soonest(time: TimeTo, **where: Any) -> Measure:
    """The mean over seeds of a time, at the tuned values at which it is least.

    Args:
        time: the time to a value; it chooses, whatever the experiment is tuned by,
            except where numbers were searched.
        **where: {label or axis: value}: the settings that count.
    """

    def measure(run):
        part = run.where(**where)
        selection = part.selection._replace(by=time)
        return tuned(time)(dataclasses.replace(part, selection=selection))

    return Formed(measure, "amount", time)


def kept(
    metric: str, *, best_at: Mapping[str, Any], lost: float = np.nan, **where: Any
) -> Measure:
    """`tuned`, but at the values that are best for the settings `best_at`."""

    def measure(run):
        reference, part = run.where(**best_at).best, run.where(**where)
        rows = part.selection.kept(part.results, reference)
        return _mean(rows, metric, lost)

    return Formed(measure, "amount")


def mean(metric: str, **where: Any) -> Measure:
    """The mean of a metric over all cells and seeds of some settings."""
    return Formed(lambda run: _mean(run.where(**where).results, metric), "amount")


class Formed(NamedTuple):
    """A measure with a form, which defines its interval; see `Estimate`.

    Attributes:
        value: the measure.
        form: the form of its estimate.
        metric: the metric of all its numbers, if each is at the best value of the tuned
            axes; None if the numbers differ in this.
    """

    value: Measure
    form: str
    metric: Metric | None = None

    def __call__(self, run: Run) -> float:
        """The number."""
        return self.value(run)


def _common_metric(measures: Sequence[Measure]) -> Metric | None:
    first, *others = (getattr(measure, "metric", None) for measure in measures)
    return first if all(other == first for other in others) else None


def ratio(above: Measure, below: Measure) -> Measure:
    """One number over another; its interval is that of its logarithm.

    The time to a value that is never reached is infinite. The ratio is then infinite,
    or 0, and `estimates.estimate` takes its direction alone; it is nan if both times
    are infinite, or if a number is negative.
    """

    def measure(run):
        numbers = float(above(run)), float(below(run))
        return numbers[0] / numbers[1] if min(numbers) >= 0 else np.nan

    return Formed(measure, "ratio", _common_metric([above, below]))


def share(fate: str, **where: Any) -> Measure:
    """The share of seeds that have a fate in a cell of these settings.

    Args:
        fate: "diverged", "ended_higher", or a column of the results that is 0 or 1.
        **where: {label or axis: value}: the settings that count.
    """

    def measure(run):
        rows = run.where(**where).results
        return float((rows.groupby("seed")[fate].max() > 0).mean())

    return Formed(measure, "share")


def least(measures: Sequence[Measure]) -> Measure:
    """The number of the smallest measure, for a label that is tuned as an axis is.

    Other seeds than the reported ones choose it: the tuning seeds, if there are any.
    Else the even seeds choose for the odd ones, the odd seeds for the even ones, and
    the number is the mean over both: the smallest of several means over the same seeds
    would be too small. If all seeds are even, or all odd, it is this smallest mean.
    """
    forms = {getattr(measure, "form", "mean") for measure in measures}
    form = forms.pop() if len(forms) == 1 else "mean"

    def measure(run):
        # even and odd seeds: if one seed is left out, all others stay in their half
        halves = [tuple(s for s in run.seeds if s % 2 == i) for i in (0, 1)]
        if not all(halves) or run.tuning is not run:
            return measures[smallest(measures, run)](run)
        halves = [run.where(seed=half) for half in halves]
        numbers = [
            measures[smallest(measures, other)](half)
            for half, other in (halves, halves[::-1])
        ]
        return float(np.average(numbers, weights=[len(half.seeds) for half in halves]))

    return Formed(measure, form, _common_metric(measures))


def smallest(measures: Sequence[Measure], run: Run) -> int:
    """The index of the smallest measure on the tuning seeds, or the reported ones."""
    values = [measure(run.tuning) for measure in measures]
    return int(np.nan_to_num(values, nan=np.inf).argmin())


def extreme(
    choose: Callable[[Sequence[float]], Any], measures: Sequence[Measure]
) -> Measure:
    """The largest or the smallest number of several measures; nan if one is nan.

    If all are ratios, its interval is also that of the logarithm.

    Args:
        choose: `np.max` or `np.min`.
        measures: the measures.

    Example:
        >>> extreme(np.max, [lambda run: 2.0, lambda run: 3.0])(None)
        3.0
    """

    def measure(run):
        return float(choose([one(run) for one in measures]))

    are_ratios = all(getattr(one, "form", "mean") == "ratio" for one in measures)
    form = "ratio" if are_ratios else "mean"
    return Formed(measure, form, _common_metric(measures))


def difference(this: Measure, other: Measure) -> Measure:
    """One number less another."""

    def measure(run):
        return this(run) - other(run)

    return Formed(measure, "mean", _common_metric([this, other]))


def _mean(rows: pd.DataFrame, metric: str, lost: float = np.nan) -> float:
    """The mean of all rows; a model that is lost counts with the value `lost`."""
    values = rows[metric]
    if not analysis.is_fact(metric, rows):
        values = values.where(~analysis.lost(rows), lost)
    return float(values.mean(skipna=False))
