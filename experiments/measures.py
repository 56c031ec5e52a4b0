"""What claims measure: numbers of a run's tables."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments import analysis
from experiments.records import Found

Measure = Callable[[Found], float]


def tuned(
    metric: str,
    over: str | Sequence[str] = "learning_rate",
    *,
    by: str = "train_loss",
    **where: Any,
) -> Measure:
    """The mean over seeds of a metric, at the best value of some axes.

    Args:
        metric: a column of the results; the tuned axis means its best value.
        over: the axes; see `analysis.best`.
        by: the metric that decides.
        **where: which settings, {label or axis: value}.
    """

    def measure(found):
        return _mean(analysis.best(_those(found, where), over, by=by), metric)

    return measure


def kept(
    metric: str,
    over: str = "learning_rate",
    *,
    best_at: Mapping[str, Any],
    by: str = "train_loss",
    **where: Any,
) -> Measure:
    """The same at the value of an axis that is best for other settings, `best_at`."""

    def measure(found):
        reference = analysis.best(_those(found, best_at), over, by=by)
        own = _those(found, where)
        rows = own.merge(reference[["seed", over]], on=["seed", over])
        return _mean(rows, metric)

    return measure


def mean(metric: str, **where: Any) -> Measure:
    """The mean of a metric over all cells and seeds of some settings."""
    return lambda found: _mean(_those(found, where), metric)


def largest_stable(over: str = "learning_rate", **where: Any) -> Measure:
    """The largest value such that no seed diverges at it or at a smaller one; or nan.

    A diverged cell ends above the loss that it began with, or is not finite.
    """

    def measure(found):
        diverged = _those(found, where).groupby(over)["diverged"].max().sort_index()
        stable = diverged.index[diverged.cummax() == 0]
        return float(stable.max()) if len(stable) else np.nan

    return measure


def seconds_to(
    metric: str,
    value: float,
    over: str | Sequence[str] | None = "learning_rate",
    **where: Any,
) -> Measure:
    """The mean over seeds of the simulated seconds until a metric falls to a value.

    At the value of the axes that gets there soonest (None: there is no such axis); inf
    where some seed never does.
    """

    def measure(found):
        curves = _chosen(found.curves, where)
        when = analysis.time_to(curves, metric, value).rename("seconds_to_target")
        when.index.names = [*analysis.settings(curves), "seed"]
        rows = when.reset_index()
        if over:
            rows = analysis.best(rows, over, by="seconds_to_target")
        return _mean(rows, "seconds_to_target")

    return measure


def ratio(above: Measure, below: Measure) -> Measure:
    """One number over another."""
    return lambda found: above(found) / below(found)


def difference(this: Measure, other: Measure) -> Measure:
    """One number less another."""
    return lambda found: this(found) - other(found)


def _chosen(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    chosen = analysis.where(frame, **where)
    if chosen.empty:
        raise ValueError(f"no row has {dict(where)}")
    return chosen


def _those(found: Found, where: Mapping[str, Any]) -> pd.DataFrame:
    return analysis.derived(_chosen(found.results, where))


def _mean(rows: pd.DataFrame, metric: str) -> float:
    """The mean of all rows; nan where one diverged and the metric is of its model."""
    if metric not in _FACTS and "diverged" in rows and rows["diverged"].any():
        return np.nan
    return float(rows[metric].mean())


_FACTS = ("seconds", "updates", "examples", "learning_rate")
_FACTS += ("dropped", "dropped_in_row")
_FACTS += ("staleness_mean", "staleness_p99", "staleness_max", "diverged")
"""What does not depend on the model."""
