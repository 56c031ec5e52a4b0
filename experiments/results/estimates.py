"""The uncertainty of a number from several seeds."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import special, stats

from experiments.results import analysis
from experiments.results.runs import Run

_ROUNDING = 1e-12
"""The rounding of a probability: a sum of binomial ones is compared with 1 - level."""

_EQUAL = 1e-9
"""The largest standard error, as a share of the number, that rounding explains."""

Measure = Callable[[Run], float]
"""The tables of a run -> a number."""


class Estimate(NamedTuple):
    """A number and its standard error.

    Attributes:
        value: the number from all seeds.
        error: its standard error; nan with one seed, or if a number is infinite or nan.
        seeds: the number of seeds.
        form: "mean"; "amount", a mean of one series under whose seeds no number is
            negative, or "ratio": their interval is that of the logarithm; "share" of
            the seeds, whose interval is that of Clopper and Pearson; or "median" over
            the seeds, where a number is infinite or nan.
        ranges: for a median, the lowest and the highest number that are possible by
            the measurement of each seed alone.
        slack: the largest error of a search that chose what was measured: of the
            number, or of the logarithm of an amount or a ratio.
    """

    value: float
    error: float
    seeds: int
    form: str = "mean"
    ranges: tuple[tuple[float, float], ...] = ()
    slack: float = 0.0

    @property
    def varies(self) -> bool:
        """Whether the seeds differ. True for a share, and where the error is nan.

        Example:
            >>> Estimate(2.0, 0.5, 5).varies, Estimate(2.0, 1e-16, 5).varies
            (True, False)
        """
        return self.form == "share" or not self.error <= _EQUAL * abs(self.value)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The t interval with seeds - 1 degrees of freedom; nan with one seed.

            value +- (t error + slack)                 for a mean
            value exp(-+ (t error / value + slack))    for an amount or a ratio

        Shares and medians have no slack. The interval of a median depends on the order
        of the n seeds alone. It is

            from low_(k) to high_(n + 1 - k), the largest k with
            2 P(B < k) <= 1 - level, where B is binomial, n times 1/2

        and nan where no k is large enough: with 5 seeds or fewer at 95 %.

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
            >>> never = Estimate(np.inf, np.nan, 6, "median", ((1.0, np.inf),) * 6)
            >>> never.interval()
            (1.0, inf)
        """
        if self.form == "median":
            tails = 2 * stats.binom.cdf(np.arange(self.seeds), self.seeds, 0.5)
            k = int((tails <= 1 - level + _ROUNDING).sum())
            lows, highs = map(sorted, zip(*self.ranges, strict=True))
            return (lows[k - 1], highs[-k]) if k else (np.nan, np.nan)
        if self.form == "share":
            count = round(self.value * self.seeds)
            both = stats.binomtest(count, self.seeds).proportion_ci(level)
            return float(both.low), float(both.high)
        if self.seeds < 2:
            return np.nan, np.nan
        # the quantile of t; `stats.t.ppf` takes thirty times as long
        half = special.stdtrit(self.seeds - 1, 0.5 + level / 2) * self.error
        if self.form in ("amount", "ratio"):
            factor = np.exp((half / abs(self.value) if half else 0.0) + self.slack)
            return float(self.value / factor), float(self.value * factor)
        half += self.slack
        return float(self.value - half), float(self.value + half)

    def side(self, at_least: float, at_most: float, level: float = 0.95) -> int:
        """1 if the interval is within the bounds, -1 if outside, and 0 otherwise.

        A number that equals a bound is within the bounds.

        Example:
            >>> errors = Estimate(np.inf, np.nan, 6, "median", ((0.0, 0.01),) * 6)
            >>> errors.interval(), errors.side(-np.inf, at_most=0.0)
            ((0.0, 0.01), 0)
        """
        low, high = self.interval(level)
        if at_least <= low and high <= at_most:
            return 1
        return -int(high < at_least or low > at_most)

    def least_alpha(self, at_least: float, at_most: float) -> float:
        """The smallest alpha at which the interval of level 1 - alpha decides.

        It decides if it is within the bounds or outside. The smallest alpha is found by
        bisection, to 1e-15. It is 1 if no alpha decides, and nan with one seed.

        Example:
            >>> alpha = Estimate(2.0, 0.5, 5).least_alpha(1.0, np.inf)
            >>> print(round(alpha, 4), round(2 * stats.t.sf((2.0 - 1.0) / 0.5, 4), 4))
            0.1161 0.1161
        """
        if np.isnan(self.interval(level=0.0)[0]):
            return np.nan
        undecided, decided = 0.0, 1.0
        for _ in range(50):
            alpha = (undecided + decided) / 2
            if self.side(at_least, at_most, 1 - alpha):
                decided = alpha
            else:
                undecided = alpha
        return decided


def estimate(measure: Measure, run: Run) -> Estimate:
    """A number of a run with its standard error, by the jackknife over seeds.

        error^2 = (n - 1) / n sum_i (m_i - mean m)^2

    where m_i is the number without seed i of n. For the mean over seeds this is the
    usual standard error; it also holds for best values and times. For a ratio m is its
    logarithm, and the error is value times the error of m. If tuning seeds choose the
    best values, these values are fixed; otherwise each m_i chooses them with the other
    seeds. For a share of seeds the error is sqrt(value (1 - value) / n). An amount that
    is negative under a seed is a mean.

    "Never" is a value. If an m_i is not finite, as the time to a loss that a seed never
    reaches, the error is nan, and the interval is that of the median over seeds, each
    measured alone. A seed whose number is infinite shows the direction alone, because
    its run ended before the time was known: its ratio is above 1, or below 1 where the
    divisor is infinite, and any other number is above 0, or below 0. A seed whose
    number is nan says nothing.

    Args:
        measure: the tables of a run -> a number; its attribute `form`, if it has one,
            is the form of the estimate.
        run: the tables.

    Raises:
        ValueError: if the cells of the run have different seeds.
        Exception: any error of `measure` on the whole tables.
    """
    cells = analysis.grouped(run.results, analysis.settings(run.results))
    if len({frozenset(cell["seed"]) for _, cell in cells}) > 1:
        raise ValueError("the cells of the run have different seeds: read runs alone.")
    form = getattr(measure, "form", "mean")
    if form == "share":
        value, seeds = float(measure(run)), run.results["seed"].nunique()
        error = np.sqrt(value * (1 - value) / seeds) if seeds > 1 else np.nan
        return Estimate(value, float(error), seeds, form)

    def compared(part):  # on the scale on which the error is computed
        value = float(measure(part))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.array([np.log(value) if form == "ratio" else value])

    (one,) = jackknife(compared, run)
    value = float(measure(run)) if form == "ratio" else one.value
    if one.seeds > 1 and np.isnan(one.error):
        of_seeds = [float(measure(only(run, seed))) for seed in _seeds(run)]
        ranges = tuple(_range(each, form) for each in of_seeds)
        return Estimate(value, np.nan, one.seeds, "median", ranges)
    if form == "ratio":
        return Estimate(value, one.error * value, one.seeds, form)
    if form == "amount":
        of_seeds = [float(measure(only(run, seed))) for seed in _seeds(run)]
        form = "amount" if value > 0 and min(of_seeds) >= 0 else "mean"
    return one._replace(form=form)


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's p-values: for the chance of one false finding in the whole family.

    Sorted p_(1) <= ... <= p_(m): adjusted_(i) = max over j <= i of (m - j + 1) p_(j),
    at most 1 (Holm, 1979).

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).round(3).tolist()
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    ascending = np.minimum(np.maximum.accumulate(factors * p_values[order]), 1.0)
    adjusted = np.empty_like(ascending)
    adjusted[order] = ascending
    return adjusted


def _range(number: float, form: str) -> tuple[float, float]:
    """The lowest and the highest number that are possible, by a seed's number alone.

    A time that is never reached is longer than one that is: equality is not possible.
    """
    if np.isnan(number):
        return -np.inf, np.inf
    middle, lowest = (1.0, 0.0) if form == "ratio" else (0.0, -np.inf)
    if number == np.inf:
        return float(np.nextafter(middle, np.inf)), np.inf
    if number == lowest:
        return lowest, float(np.nextafter(middle, -np.inf))
    return number, number


def jackknife(
    numbers: Callable[[Run], np.ndarray],
    run: Run,
    of_series: Sequence[Sequence[set[int]]] = (),
) -> list[Estimate]:
    """Several numbers of the same tables, each as in `estimate`.

    Args:
        numbers: the tables of a run -> float64 [numbers].
        run: the tables.
        of_series: for each number, the seeds of each series that it compares; by
            default all seeds. If they differ, as in runs that are read together, the
            series with the fewest seeds has the degrees of freedom.
    """
    value, seeds = numbers(run), _seeds(run)
    several = len(seeds) > 1
    parts = {s: numbers(without(run, s)) for s in seeds} if several else {}
    estimates = []
    for i, each in enumerate(value):
        sets = of_series[i] if of_series else [{*seeds}]
        every, fewest = set().union(*sets), min(map(len, sets))
        error = np.nan
        if fewest > 1:
            without_one = np.array([parts[seed][i] for seed in sorted(every)])
            if np.isfinite(without_one).all():
                away = without_one - without_one.mean()
                error = np.sqrt((1 - 1 / len(every)) * (away**2).sum())
        estimates.append(Estimate(float(each), float(error), fewest))
    return estimates


def without(run: Run, seed: int) -> Run:
    """The tables without the rows of a seed."""
    return _rows(run, lambda seeds: seeds != seed)


def only(run: Run, seed: int) -> Run:
    """The rows of a seed alone."""
    return _rows(run, lambda seeds: seeds == seed)


def _rows(run: Run, keep: Callable[[pd.Series], pd.Series]) -> Run:
    results, curves = (
        table[keep(table["seed"])] if "seed" in table else table
        for table in (run.results, run.curves)
    )
    return dataclasses.replace(run, results=results, curves=curves)


def _seeds(run: Run) -> list[int]:
    return sorted(set(run.results["seed"]))
