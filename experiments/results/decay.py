"""The rate at which an error decays in simulated time."""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from experiments.results import analysis

# losses from this to its inverse, times the first loss, are resolved by float32
_LEAST = 1e-30
_BURN_IN = 1 / 3  # the share of the time after which only the slowest mode is left
_FEWEST = 3  # the fewest evaluations for a slope


class DecayRate(NamedTuple):
    """A metric: the rate at which an error decays, 1 / simulated seconds.

    The training loss is the sum of the squares of the error.
    """

    name: str = "decay_rate"

    def with_column(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """The results with this column; below 0 if the error grows.

        `metrics.FATES` are dropped, because the rate shows whether a run diverges.
        """
        keys = [*analysis.settings(curves), "seed"]
        rows = []
        for key, path in analysis.grouped(curves, keys):
            path = path.sort_values("seconds")
            rows.append((*key, rate(path["seconds"], path["train_loss"])))
        column = pd.DataFrame(rows, columns=[*keys, self.name])
        fates = ["diverged", "ended_higher", self.name]
        return results.drop(columns=fates, errors="ignore").merge(column, on=keys)


def rate(seconds: ArrayLike, loss: ArrayLike) -> float:
    """The rate at which an error decays if the loss is the sum of its squares.

    It is half the negative slope of the logarithm of the loss, fitted by least squares
    over the last two thirds of the time in which float32 resolves the loss.

    Args:
        seconds: the times, ascending [n].
        loss: the loss minus its minimum [n].

    Returns:
        1/seconds; below 0 if the error grows, nan with fewer than three points.

    Example:
        >>> seconds = np.arange(10.0)
        >>> round(rate(seconds, np.exp(-seconds)), 6)
        0.5
    """
    seconds, share = np.asarray(seconds), np.asarray(loss) / np.asarray(loss)[0]
    outside = np.flatnonzero(~((share > _LEAST) & (share < 1 / _LEAST)))
    end = outside[0] if outside.size else len(share)
    late = np.flatnonzero(seconds[:end] >= _BURN_IN * seconds[end - 1])
    if late.size < _FEWEST:
        return math.nan
    return -float(np.polyfit(seconds[late], np.log(share[late]), 1)[0]) / 2
