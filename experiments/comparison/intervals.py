"""Intervals over searches and seeds, and what many comparisons at once may say."""

from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """A mean with its interval, and the chance of such a mean if the truth is 0."""

    mean: float
    low: float
    high: float
    p_value: float


def two_way(values: np.ndarray) -> Interval:
    """A t interval of 95 % of the mean of [searches, seeds], both drawn at random.

    A value is mean + search_i + seed_j + rest_ij. With the mean squares A of searches,
    B of seeds and E of the rest, of S searches and J seeds,

        variance of the mean  v = (A + B - E) / (S J)
        degrees of freedom    (A + B - E)^2
                              / (A^2/(S-1) + B^2/(J-1) + E^2/((S-1)(J-1)))

    (Satterthwaite.) Where A + B - E is smaller than A or B, the larger one takes its
    place, with its own degrees of freedom. So no interval is shorter than an interval
    over searches alone, or over seeds alone. With one search, it is over seeds alone.

    Example:
        >>> two_way(np.array([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])).mean
        3.0
    """
    searches, seeds = values.shape
    if seeds < 2:
        raise ValueError(f"`values` must have at least 2 seeds, got {seeds}.")
    mean = values.mean()
    by_seed = values.mean(axis=0) - mean
    squares_b = searches * (by_seed**2).sum() / (seeds - 1)
    total, free = squares_b, float(seeds - 1)
    if searches > 1:
        by_search = values.mean(axis=1) - mean
        squares_a = seeds * (by_search**2).sum() / (searches - 1)
        rest = values - mean - by_search[:, None] - by_seed
        free_rest = (searches - 1) * (seeds - 1)
        squares_e = (rest**2).sum() / free_rest
        total = squares_a + squares_b - squares_e
        one_way = max((squares_a, searches - 1.0), (squares_b, seeds - 1.0))
        if total < one_way[0]:
            total, free = one_way
        elif total > 0:
            free = total**2 / (
                squares_a**2 / (searches - 1)
                + squares_b**2 / (seeds - 1)
                + squares_e**2 / free_rest
            )
    error = float(np.sqrt(total / values.size))
    half = float(stats.t.ppf(0.975, free)) * error
    chance = (
        2 * float(stats.t.sf(abs(mean) / error, free)) if error else float(mean == 0)
    )
    return Interval(float(mean), float(mean - half), float(mean + half), chance)


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values: the chance of one false finding in the whole family.

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
