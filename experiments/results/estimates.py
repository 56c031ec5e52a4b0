"""The uncertainty of a number from several seeds."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments.results.tables import Found

Measure = Callable[[Found], float]
"""The tables of a run -> a number."""


class Estimate(NamedTuple):
    """A number and its standard error.

    Attributes:
        value: the number from all seeds.
        error: its standard error; nan with one seed, or if a number is infinite or nan.
        seeds: the number of seeds.
        form: "mean"; "ratio", whose interval is that of its logarithm; or "share" of
            the seeds, whose interval is that of Clopper and Pearson.
    """

    value: float
    error: float
    seeds: int
    form: str = "mean"

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The t interval with seeds - 1 degrees of freedom; nan with one seed.

            value +- t error                           for a mean
            value exp(-+ t error / value)              for a ratio

        Example:
            >>> low, high = Estimate(2.0, 0.5, 5).interval()
            >>> round(low, 3), round(high, 3)
            (0.612, 3.388)
            >>> low, high = Estimate(2.0, 0.5, 5, "ratio").interval()
            >>> round(low, 3), round(high, 3)
            (0.999, 4.004)
            >>> low, high = Estimate(0.0, 0.0, 5, "share").interval()
            >>> round(low, 3), round(high, 3)
            (0.0, 0.522)
        """
        if self.form == "share":
            count = round(self.value * self.seeds)
            both = stats.binomtest(count, self.seeds).proportion_ci(level)
            return float(both.low), float(both.high)
        if self.seeds < 2:
            return np.nan, np.nan
        half = stats.t.ppf(0.5 + level / 2, self.seeds - 1) * self.error
        if self.form == "ratio":
            factor = np.exp(half / abs(self.value)) if half else 1.0
            return float(self.value / factor), float(self.value * factor)
        return float(self.value - half), float(self.value + half)


def estimate(measure: Measure, found: Found) -> Estimate:
    """A number of a run with its standard error, by the jackknife over seeds.

        error^2 = (n - 1) / n sum_i (m_i - mean m)^2

    where m_i is the number without seed i of n. For the mean over seeds this is the
    usual standard error; it also holds for best values and times. For a ratio m is its
    logarithm, and the error is value times the error of m. If tuning seeds choose the
    best values, these values are fixed; otherwise each m_i chooses them with the other
    seeds. If an m_i is not finite, the error is nan. For a share of seeds the error is
    sqrt(value (1 - value) / n).

    Args:
        measure: the tables of a run -> a number; its attribute `form`, if it has one,
            is the form of the estimate.
        found: the tables.

    Raises:
        Exception: any error of `measure` on the whole tables.
    """
    form = getattr(measure, "form", "mean")
    if form == "share":
        value, seeds = float(measure(found)), found.results["seed"].nunique()
        error = np.sqrt(value * (1 - value) / seeds) if seeds > 1 else np.nan
        return Estimate(value, float(error), seeds, form)

    def number(part):
        value = float(measure(part))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.array([np.log(value) if form == "ratio" else value])

    (one,) = jackknife(number, found)
    if form != "ratio":
        return one
    value = float(measure(found))
    return Estimate(value, one.error * value, one.seeds, form)


def jackknife(numbers: Callable[[Found], np.ndarray], found: Found) -> list[Estimate]:
    """Several numbers of the same tables, each as in `estimate`.

    Args:
        numbers: the tables of a run -> float64 [numbers].
        found: the tables.
    """
    value = numbers(found)
    seeds = sorted(set(found.results["seed"]))
    count = len(seeds)
    if count < 2:
        return [Estimate(float(each), np.nan, count) for each in value]
    parts = np.stack([numbers(without(found, seed)) for seed in seeds])
    with np.errstate(invalid="ignore"):
        error = np.sqrt((count - 1) / count * ((parts - parts.mean(0)) ** 2).sum(0))
    error = np.where(np.isfinite(parts).all(0), error, np.nan)
    return [
        Estimate(float(each), float(e), count)
        for each, e in zip(value, error, strict=True)
    ]


def without(found: Found, seed: int) -> Found:
    """The tables without the rows of a seed."""
    results, curves = (
        table[table["seed"] != seed] if "seed" in table else table
        for table in (found.results, found.curves)
    )
    return dataclasses.replace(found, results=results, curves=curves)
