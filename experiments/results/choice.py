"""Which axes of a run are tuned, by which metric, and on which seeds."""

from typing import NamedTuple

import pandas as pd

from experiments.results import analysis


class TimeTo(NamedTuple):
    """A metric: when another metric first reaches a value.

    Attributes:
        metric: the column of the curves.
        value: that is to be reached.
        along: "seconds", "update" or "examples".
        largest: whether more is better.
    """

    metric: str
    value: float
    along: str = "seconds"
    largest: bool = False

    @property
    def name(self) -> str:
        """The name of the column."""
        return f"{self.along}_to_{self.metric}_{self.value:g}"

    def of(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """The results with this column; inf where the value is not reached.

        Whether a cell diverged or ended higher is left out: it counts whether it got
        there, not what became of it afterwards.
        """
        when = analysis.time_to(
            curves, self.metric, self.value, along=self.along, largest=self.largest
        )
        keys = list(when.index.names)
        column = when.rename(self.name).reset_index()
        rest = results.drop(columns=self.name, errors="ignore")
        found = rest.merge(column, on=keys, how="left")
        return found.drop(columns=["diverged", "ended_higher"], errors="ignore")


class Choice(NamedTuple):
    """Which axes of a run are tuned, by what, and on which seeds.

    Attributes:
        axes: whose best value each series gets.
        by: the metric that decides, the smallest.
        results: of the tuning seeds; None where the seeds that are reported choose.
        curves: of the tuning seeds.
    """

    axes: tuple[str, ...] = ()
    by: str | TimeTo = "train_loss"
    results: pd.DataFrame | None = None
    curves: pd.DataFrame | None = None

    def but(self, *axes: str | None) -> "Choice":
        """The choice where these axes are shown instead of tuned."""
        return self._replace(axes=tuple(a for a in self.axes if a not in axes))

    def best(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """The rows of some results at the chosen values; see `analysis.best`."""
        names = analysis.settings(results)
        axes = [axis for axis in self.axes if axis in names]
        if not axes or results.empty:
            return results
        tuning = None
        if self.results is not None:
            tuning = self.judged(self.results, self.curves)
        judged = self.judged(results, curves)
        rows = analysis.best(judged, axes, by=self.column, tuning=tuning)
        keys = [*names, "seed"]
        return rows[keys].merge(results, on=keys)[[*results]]

    def judged(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """Results with the metric that decides, `column`."""
        return results if isinstance(self.by, str) else self.by.of(results, curves)

    @property
    def column(self) -> str:
        """The name of the metric that decides."""
        return self.by if isinstance(self.by, str) else self.by.name

    @property
    def seeds(self) -> list[int]:
        """The tuning seeds; none where the seeds that are reported choose."""
        return [] if self.results is None else sorted(set(self.results["seed"]))
