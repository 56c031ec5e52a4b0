"""What claims measure: numbers of a run's tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.results import analysis
from experiments.results.choice import TimeTo
from experiments.results.estimates import Measure, estimate
from experiments.results.tables import Found


def tuned(metric: str, *, lost: float = np.nan, **where: Any) -> Measure:
    """The mean over seeds of a metric, at the best value of the tuned axes.

    Args:
        metric: a column of the results; a tuned axis means its best value.
        lost: what a seed counts as that ends higher than it began, or diverges; by
            default there is no mean then.
        **where: which settings, {label or axis: value}.
    """
    return lambda found: _mean(_best(found, where), metric, lost)


def kept(
    metric: str, *, best_at: Mapping[str, Any], lost: float = np.nan, **where: Any
) -> Measure:
    """The same at the values that are best for other settings, `best_at`."""

    def measure(found):
        axes = [axis for axis in found.choice.axes if axis in found.results]
        reference = _best(found, best_at)[["seed", *axes]]
        rows = _those(found, where).merge(reference, on=["seed", *axes])
        return _mean(rows, metric, lost)

    return measure


def mean(metric: str, **where: Any) -> Measure:
    """The mean of a metric over all cells and seeds of some settings."""
    return lambda found: _mean(_those(found, where), metric)


def largest_stable(over: str, **where: Any) -> Measure:
    """The largest value up to which no seed ends higher than it began; or nan.

    One that diverges counts as such, too.
    """

    def measure(found):
        rows = _those(found, where)
        unstable = analysis.lost(rows).groupby(rows[over]).max().sort_index()
        stable = unstable.index[unstable.cummax() == 0]
        return float(stable.max()) if len(stable) else np.nan

    return measure


def seconds_to(
    metric: str, value: float, *, along: str = "seconds", **where: Any
) -> Measure:
    """The mean over seeds of the simulated seconds until a metric falls to a value.

    At the best value of the tuned axes, as the experiment chooses it; inf where some
    seed never gets there. `along` is the column of the curves that has the seconds.
    """
    time = TimeTo(metric, value, along)

    def measure(found):
        rows = time.of(_best(found, where), _chosen(found.curves, where))
        return _mean(rows, time.name)

    return measure


def ratio(above: Measure, below: Measure) -> Measure:
    """One number over another; nan where the other is infinite: it never arrives."""

    def measure(found):
        divisor = below(found)
        return above(found) / divisor if np.isfinite(divisor) else np.nan

    return measure


def least(measures: Sequence[Measure]) -> Measure:
    """The number of the measure that is smallest on the tuning seeds.

    So a label is tuned as well.
    """
    return lambda found: measures[smallest(measures, found)](found)


def smallest(measures: Sequence[Measure], found: Found) -> int:
    """Which measure is smallest on the tuning seeds, or else on the reported ones."""
    choice, chooses = found.choice, found
    if choice.results is not None:
        chooses = Found(choice.results, choice.curves, choice)
    values = [own(chooses) for own in measures]
    return int(np.nan_to_num(values, nan=np.inf).argmin())


def difference(this: Measure, other: Measure) -> Measure:
    """One number less another."""
    return lambda found: this(found) - other(found)


def between(
    measure: Measure, found: Found, *, same: float = 1.0, form: str = ".2f"
) -> str:
    """The interval of a comparison as text; it says so if `same` lies within it.

    Example:
        >>> runs = pd.DataFrame({"seed": [0, 1, 2], "loss": [1.0, 1.1, 0.9]})
        >>> found = Found(runs, pd.DataFrame())
        >>> between(mean("loss"), found)
        '0.75 to 1.25 (seeds differ as much)'
        >>> between(mean("loss"), found, same=0.0)
        '0.75 to 1.25'
    """
    low, high = estimate(measure, found).interval()
    if np.isnan(low):
        return f"{measure(found):{form}}"
    text = f"{low:{form}} to {high:{form}}"
    return text + " (seeds differ as much)" * (low <= same <= high)


def _chosen(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    chosen = analysis.where(frame, **where)
    if chosen.empty:
        raise ValueError(f"no row has {dict(where)}")
    return chosen


def _best(found: Found, where: Mapping[str, Any]) -> pd.DataFrame:
    curves = _chosen(found.curves, where) if len(found.curves) else found.curves
    return found.choice.best(_those(found, where), curves)


def _those(found: Found, where: Mapping[str, Any]) -> pd.DataFrame:
    return analysis.derived(_chosen(found.results, where))


def _mean(rows: pd.DataFrame, metric: str, lost: float = np.nan) -> float:
    """The mean of all rows; the metric of a model that is lost counts as `lost`."""
    fact = metric in _FACTS or metric in analysis.settings(rows)
    values = rows[metric]
    if not fact:
        values = values.where(~analysis.lost(rows), lost)
    return float(values.mean(skipna=False))


_FACTS = ("seconds", "updates", "examples", "dropped", "dropped_in_row", "diverged")
_FACTS += ("ended_higher",)
_FACTS += ("staleness_mean", "staleness_p99", "staleness_max")
"""What does not depend on the model."""
