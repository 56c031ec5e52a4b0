"""The tuned axes of a run, with the metric and the seeds that choose."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.results import analysis, metrics
from experiments.results.metrics import Metric
from experiments.training.ranges import AT_LIMIT


class Selection(NamedTuple):
    """The tuned axes of a run, with the metric and the seeds that choose.

    Attributes:
        axes: the tuned axes: each series gets their best value.
        by: the metric whose smallest value is best.
        results: the results of the tuning seeds; None if the reported seeds choose.
        curves: the curves of the tuning seeds.
        optima: one row per series with searched numbers; None if nothing was searched.
            The columns: the series; the optimum; `score`, the mean under seeds of the
            search, which differ between arms; whether it is found, and why; the number
            of trainings; `reported`, the mean of the metric over the reported seeds,
            which are the same in all rows. Without tuning seeds the scores choose the
            other axes of these series.
    """

    axes: tuple[str, ...] = ()
    by: Metric = "train_loss"
    results: pd.DataFrame | None = None
    curves: pd.DataFrame | None = None
    optima: pd.DataFrame | None = None

    def but(self, *axes: str | None) -> "Selection":
        """The selection in which these axes are settings, and are not tuned."""
        return self._replace(axes=tuple(a for a in self.axes if a not in axes))

    def judged_by(self, metric: Metric) -> "Selection":
        """The selection that keeps all values of the axis that a metric judges."""
        return self.but(getattr(metric, "axis", None))

    def best(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """The rows of `results` at the chosen values; see `analysis.best`."""
        names = analysis.settings(results)
        axes = [axis for axis in self.axes if axis in names]
        if not axes or results.empty:
            return results
        if self.optima is not None:
            results = self._at_optima(results, names)
        judged = self.judged(results, curves)
        if self.results is None:
            tuning = self._scored(judged)
        else:
            tuning = self.judged(self.results, self.curves)
        rows = analysis.best(judged, axes, by=self.column, tuning=tuning)
        if judged is results:
            return rows
        keys = [*names, "seed"]
        return rows[keys].merge(results, on=keys)[[*results]]

    def kept(self, results: pd.DataFrame, reference: pd.DataFrame) -> pd.DataFrame:
        """The rows of `results` at the tuned values of `reference`, seed by seed.

        If `reference` has several series, as two rules without delay, each row gets the
        values of the series that equals it in the settings that distinguish them.
        """
        axes = [axis for axis in self.axes if axis in results]
        varied = [
            name
            for name in self._series(reference)
            if reference[name].nunique(dropna=False) > 1
        ]
        keys = ["seed", *varied, *axes]
        return results.merge(reference[keys], on=keys)

    def are_found(self, rows: pd.DataFrame) -> pd.Series:
        """Whether the optimum of each row's series is found; True if none is searched.

        Args:
            rows: rows of the results.
        """
        if self.optima is None:
            return pd.Series(True, rows.index)
        without = self.optima[~self.optima["found"].astype(bool)]
        return ~_are_in(without, rows, self._series(rows))

    def are_searched(self, rows: pd.DataFrame) -> pd.Series:
        """Whether each row belongs to a series with searched numbers."""
        if self.optima is None:
            return pd.Series(False, rows.index)
        return _are_in(self.optima, rows, self._series(rows))

    def at_limit(self, rows: pd.DataFrame, axis: str) -> pd.Series:
        """Whether each row is an optimum at a limit of the range of an axis."""
        if self.optima is None:
            return pd.Series(False, rows.index)
        there = [
            reason.startswith(AT_LIMIT)
            and axis in reason.removeprefix(AT_LIMIT).split(", ")
            for reason in self.optima["why"]
        ]
        columns = [name for name in analysis.settings(rows) if name in self.optima]
        return _are_in(self.optima[there], rows, columns)

    def _series(self, rows: pd.DataFrame) -> list[str]:
        """The settings that distinguish series."""
        return [name for name in analysis.settings(rows) if name not in self.axes]

    def _at_optima(self, results: pd.DataFrame, names: list[str]) -> pd.DataFrame:
        """The rows at the optimum of their series; all rows if none was searched."""
        columns = [name for name in names if name in self.optima]
        are_optima = _are_in(self.optima, results, columns)
        return results[~self.are_searched(results) | are_optima]

    def _scored(self, judged: pd.DataFrame) -> pd.DataFrame | None:
        """The rows; at optima the scores of the searches replace the metric."""
        if self.optima is None:
            return None
        columns = [c for c in analysis.settings(judged) if c in self.optima]
        scores = dict(
            zip(_keys(self.optima, columns), self.optima["score"], strict=True)
        )
        of_rows = [scores.get(place) for place in _keys(judged, columns)]
        score = pd.Series(of_rows, judged.index, dtype=float)
        searched = self.are_searched(judged)
        new = {self.column: judged[self.column].where(~searched, score)}
        for fate in {*metrics.FATES} & {*judged}:  # the reported seeds choose nothing
            new[fate] = judged[fate].where(~searched, 0)
        return judged.assign(**new)

    def with_reported(self, results: pd.DataFrame, curves: pd.DataFrame) -> "Selection":
        """The selection whose optima have the column `reported`."""
        if self.optima is None:
            return self
        judged = self.judged(results, curves)
        columns = [name for name in analysis.settings(judged) if name in self.optima]
        values: dict[Any, list[float]] = {}
        for place, value in zip(
            _keys(judged, columns), judged[self.column], strict=True
        ):
            values.setdefault(place, []).append(value)
        means = [float(np.mean(values[one])) for one in _keys(self.optima, columns)]
        return self._replace(optima=self.optima.assign(reported=means))

    def judged(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """The results with the column of the metric that decides."""
        return metrics.with_column(self.by, results, curves)

    @property
    def column(self) -> str:
        """The name of the metric that decides."""
        return metrics.column(self.by)

    @property
    def seeds(self) -> list[int]:
        """The tuning seeds; none if the reported seeds choose."""
        return [] if self.results is None else sorted(set(self.results["seed"]))


def _are_in(
    table: pd.DataFrame, rows: pd.DataFrame, columns: Sequence[str]
) -> pd.Series:
    """Whether each of the rows has the values that a row of the table has."""
    keys = {*_keys(table, columns)}
    are_in = [key in keys for key in _keys(rows, columns)]
    return pd.Series(are_in, rows.index, dtype=bool)


def _keys(table: pd.DataFrame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The values of these columns in each row; 4, 4.0 and "4" become equal.

    A column that the table lacks is empty in all rows.
    """
    parts = []
    for name in columns:
        values = table[name] if name in table else pd.Series(None, table.index, object)
        if values.dtype in (np.int64, np.float64):  # text of them is the same numbers
            parts.append(values.astype(object).where(values.notna(), ""))
            continue
        text = values.astype(str).where(values.notna(), "")
        numbers = pd.to_numeric(text, errors="coerce").astype(object)
        parts.append(numbers.where(numbers.notna(), text))
    return list(zip(*parts, strict=True)) if parts else [()] * len(table)
