"""Metrics: columns of a run's results, and others made of results and curves."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import pandas as pd
from numpy.typing import ArrayLike

from experiments.results import analysis
from experiments.results.formulas import formulas


class Made(Protocol):
    """A metric that is no column of the results, but is made of a run's tables."""

    @property
    def name(self) -> str:
        """The name of its column."""
        ...

    def with_column(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """The results with its column; one row for all values of its axis, if any."""
        ...


FATES = ("diverged", "ended_higher")
"""The columns of lost trainings. A metric that is valid in spite of them drops them."""

Metric = str | Made
"""A column of the results, or a metric that is made."""


def column(metric: Metric) -> str:
    """The name of a metric's column."""
    return metric if isinstance(metric, str) else metric.name


def with_column(
    metric: Metric, results: pd.DataFrame, curves: pd.DataFrame
) -> pd.DataFrame:
    """The results with the column of a metric."""
    if isinstance(metric, str):
        return results
    return metric.with_column(results, curves)


def less_is_better(metric: Metric) -> bool:
    """Whether a metric is a loss, an error or a time: a smaller number is better.

    Example:
        >>> less_is_better("test_error"), less_is_better("lifetime")
        (True, False)
    """
    name = column(metric)
    timed = isinstance(metric, TimeTo) or name == "seconds"
    return timed or name == "gap" or name.endswith(("loss", "error"))


def same_metric(metric: Metric | None, other: Metric) -> bool:
    """Whether metrics are equal; the costs of two times may differ.

    Example:
        >>> time = TimeTo("loss", 0.5, along="update")
        >>> sent = time._replace(cost=Computed("bytes", lambda workers: 8 * workers))
        >>> same_metric(sent, time), same_metric("loss", time)
        (True, False)
    """
    if isinstance(metric, TimeTo) and isinstance(other, TimeTo):
        return metric._replace(cost=None) == other._replace(cost=None)
    return metric == other


class Computed(NamedTuple):
    """A metric that is a function of settings and seed, not a column of the results.

    Attributes:
        name: the name of its column.
        function: a function whose arguments are labels, axes and "seed", by name.

    Example:
        >>> late = Computed("lateness", lambda delay, seed: delay / 2 + seed)
        >>> results = pd.DataFrame({"delay": [2, 4], "seed": [0, 1]})
        >>> late.with_column(results, results).lateness.tolist()
        [1.0, 3.0]
    """

    name: str
    function: Callable[..., float]

    def with_column(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """The results with this column."""
        return results.assign(**{self.name: formulas(self.function, results)})


class TimeTo(NamedTuple):
    """A metric: the time at which another metric first falls to a value.

    Attributes:
        metric: the column of the curves.
        value: the value to reach.
        along: the clock: "seconds", "update" or "examples".
        cost: what a unit of the clock costs; the metric is then the cost of the time.

    Example:
        >>> sent = Computed("bytes", lambda workers: 8.0 * workers)
        >>> bytes_to = TimeTo("loss", 0.5, along="update", cost=sent)
        >>> results = pd.DataFrame({"workers": [2], "seed": [0]})
        >>> curves = pd.concat([results] * 2).assign(update=[0, 4], loss=[1.0, 0.0])
        >>> bytes_to.with_column(results, curves)[bytes_to.name].tolist()
        [32.0]
    """

    metric: str
    value: float
    along: str = "seconds"
    cost: Computed | None = None

    @property
    def name(self) -> str:
        """The name of the column."""
        clock = self.along if self.cost is None else self.cost.name
        return f"{clock}_to_{self.metric}_{self.value:g}"

    def with_column(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """The results with this column; inf if the value is not reached.

        `FATES` are dropped: a cell that reached the value counts even if it diverged
        later.
        """
        when = analysis.time_to(curves, self.metric, self.value, along=self.along)
        keys = list(when.index.names)
        column = when.rename(self.name).reset_index()
        rest = results.drop(columns=self.name, errors="ignore")
        merged = rest.merge(column, on=keys, how="left")
        merged[self.name] *= self._costs(merged)
        return merged.drop(columns=[*FATES], errors="ignore")

    def ends(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.Series:
        """The last time of the clock in the curves of each row of `results`."""
        keys = [*analysis.settings(curves), "seed"]
        last = curves.groupby(keys, dropna=False, sort=False)[self.along].max()
        end = last.rename("end").reset_index()
        ends = results[keys].merge(end, on=keys, how="left")["end"]
        return ends * self._costs(results)

    def _costs(self, rows: pd.DataFrame) -> ArrayLike:
        """What a unit of the clock costs in each row."""
        if self.cost is None:
            return 1.0
        return self.cost.with_column(rows, rows)[self.cost.name].to_numpy(float)


class LargestStable(NamedTuple):
    """A metric: the largest value of an axis up to which training does not fail.

    Attributes:
        axis: the axis, such as the step size; it must be tuned.
        below: {metric: level}: at the end each metric must be below its level too.
    """

    axis: str
    below: Mapping[str, float] = {}

    @property
    def name(self) -> str:
        """The name of the column."""
        return f"largest_stable_{self.axis}"

    def with_column(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """One row per series and seed with this column; 0 if no value is stable."""
        fails = analysis.lost(results)
        for metric, level in self.below.items():
            fails |= ~(results[metric] < level)
        names = [c for c in analysis.settings(results) if c != self.axis]
        rows = results.assign(fails=fails).sort_values(self.axis, kind="stable")
        keys = [*names, "seed"]
        failed = rows.groupby(keys, dropna=False, sort=False)["fails"].cummax()
        rows = rows.assign(**{self.name: rows[self.axis].where(~failed, 0.0)})
        most = rows.groupby(keys, dropna=False, sort=False)[self.name].transform("max")
        rows = rows.assign(**{self.name: most}).drop_duplicates(keys)
        return rows.drop(columns=[self.axis, *FATES, "fails"], errors="ignore")
