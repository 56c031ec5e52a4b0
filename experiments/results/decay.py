"""How fast an error dies out in simulated time."""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from experiments.results import analysis

_LEAST = 1e-30  # of the first loss: float32 resolves what is above, and below 1 / it
_BURN_IN = 1 / 3  # of the time, until the slowest mode is alone and workers are apart
_FEWEST = 3  # evaluations of a slope


class DecayRate(NamedTuple):
    """A metric: the rate at which an error dies out, 1 / simulated seconds.

    Attributes:
        metric: a loss, the sum of the squares of the error; a column of the curves.
        least: the least loss that there is.
    """

    metric: str = "train_loss"
    least: float = 0.0

    name = "decay_rate"

    def of(self, results: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
        """The results with this column; below 0 where the error grows.

        Whether a cell diverged or ended higher is left out: the rate says it.

        Raises:
            ValueError: if the run has no simulated time.
        """
        if "seconds" not in curves:
            raise ValueError("the curves of the run have no 'seconds'.")
        keys = [*analysis.settings(curves), "seed"]
        rows = []
        for key, path in analysis.grouped(curves, keys):
            path = path.sort_values("seconds")
            found = rate(path["seconds"], path[self.metric] - self.least)
            rows.append((*key, found))
        column = pd.DataFrame(rows, columns=[*keys, self.name])
        fates = ["diverged", "ended_higher", self.name]
        return results.drop(columns=fates, errors="ignore").merge(column, on=keys)


def rate(seconds: ArrayLike, loss: ArrayLike) -> float:
    """The rate at which an error dies out whose loss is the sum of its squares.

    Half the slope of the logarithm of the loss, by least squares over the last two
    thirds of the time until float32 has no digits left for it.

    Args:
        seconds: ascending [n].
        loss: less the least one that there is [n].

    Returns:
        1/seconds; below 0 where the error grows, nan with fewer than three points.

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
