"""How sure a number is that is made of several seeds."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments.results.tables import Found

Measure = Callable[[Found], float]
"""The tables of a run -> a number."""


class Estimate(NamedTuple):
    """A number and how far it may be off.

    Attributes:
        value: the number of all seeds together.
        error: its standard error; nan where there is one seed, and where a number is
            infinite or nan: it has no spread.
        seeds: how many there are.
    """

    value: float
    error: float
    seeds: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The t interval with seeds - 1 degrees of freedom; nan of one seed.

        Example:
            >>> low, high = Estimate(2.0, 0.5, 5).interval()
            >>> round(low, 3), round(high, 3)
            (0.612, 3.388)
        """
        if self.seeds < 2:
            return np.nan, np.nan
        half = stats.t.ppf(0.5 + level / 2, self.seeds - 1) * self.error
        return float(self.value - half), float(self.value + half)


def estimate(measure: Measure, found: Found) -> Estimate:
    """A number of a run with its standard error, by the jackknife over seeds.

        error^2 = (n - 1) / n sum_i (m_i - mean m)^2

    where m_i is the number without seed i of n. For the mean over seeds this is the
    usual standard error; it also holds for ratios, best values and times. Where seeds
    of their own choose the best values, they stay as they are; else each m_i chooses
    among the seeds that are left. Where some m_i is not finite the error is nan.

    Args:
        measure: the tables of a run -> a number.
        found: the tables.

    Raises:
        Exception: what `measure` raises of the whole tables.
    """
    value = float(measure(found))
    seeds = sorted(set(found.results["seed"]))
    if len(seeds) < 2:
        return Estimate(value, np.nan, len(seeds))
    each = np.asarray([_without(measure, found, seed) for seed in seeds])
    if not np.isfinite(each).all():
        return Estimate(value, np.nan, len(seeds))
    share = (len(seeds) - 1) / len(seeds)
    error = np.sqrt(share * np.sum((each - each.mean()) ** 2))
    return Estimate(value, float(error), len(seeds))


def _without(measure: Measure, found: Found, seed: int) -> float:
    """The number without a seed."""
    left = [
        table[table["seed"] != seed] if "seed" in table else table
        for table in (found.results, found.curves)
    ]
    return float(measure(Found(*left, found.choice)))
