"""How slowness in recorded times lasts: by the clock or by task, and how many steps."""

import math
from typing import Literal

import numpy as np

_CORRELATED = 0.1  # a smaller correlation at lag 1 does not matter
_NOISE = 0.02  # the largest variance of log times within a phase: 14 %


def lasts_with(seconds: np.ndarray) -> Literal["clock", "task"]:
    """Whether slowness lasts with the clock, by the correlation of successive tasks.

    With x the logarithms of a worker's times, less their mean, a worker stays slow for
    several tasks where

        sum_k x_k x_{k+1} / sum_k x_k^2

    over all workers is above 0.1, and above 2 / sqrt(tasks). Then successive tasks must
    differ by at most 14 %: otherwise a short task would make a worker fast for as long
    as it waits, and its mean speed would be wrong by the variance of log times.

    Args:
        seconds: the times of the tasks, float64 [W, T]; nan is a gap.

    Raises:
        ValueError: if slowness lasts for several tasks, and tasks differ by more.
    """
    logs = [np.log(row[~np.isnan(row)]) for row in seconds]
    centered = [row - row.mean() for row in logs]
    above = sum((row[1:] * row[:-1]).sum() for row in centered)
    below, count = sum((row**2).sum() for row in centered), sum(map(len, logs))
    if below <= 1e-12 * count:  # each worker's times are constant
        return "task"
    if above / below <= max(_CORRELATED, 2 / math.sqrt(count)):
        return "task"
    steps = np.concatenate([np.diff(row) for row in logs])
    noise = (np.median(np.abs(steps)) / 0.6745) ** 2 / 2  # 0.6745: of a normal law
    if noise > _NOISE:
        raise ValueError(
            "`seconds` must show whether slowness lasts with the clock or with one"
            f" task, got a correlation of {above / below:.2f} and noise of"
            f" {math.sqrt(2 * noise):.0%}: use slowdowns() (clock) or service() (task)."
        )
    return "clock"


def block_length(series: np.ndarray) -> int:
    """Politis and White's block length for the moving blocks of `Recorded.service`.

    The length b minimizes the mean square error of the variance of a mean, summed over
    the rows of `series`, float64 [W, T].
    """
    size = series.shape[1]
    in_a_row = max(5, math.ceil(math.sqrt(math.log10(size))))
    lags = np.arange(min(math.ceil(math.sqrt(size)) + in_a_row, size - 1) + 1)
    centered = series - series.mean(axis=1, keepdims=True)
    covariances = np.stack(
        [(centered[:, lag:] * centered[:, : size - lag]).sum(axis=1) for lag in lags]
    )  # [lags, W], each times T
    together = covariances.sum(axis=1)
    if not together[0] > 0:  # constant times
        return 1
    bound = 2 * math.sqrt(math.log10(size) / size)
    last = _last_lag(abs(together[1:] / together[0]) > bound, in_a_row)
    weights = np.clip(2 * (1 - lags / max(2 * last, 1)), 0, 1)
    weights[1:] *= 2  # both signs
    slope, sums = (weights * lags) @ covariances, weights @ covariances
    cube = 1.5 * size * (slope**2).sum() / (sums**2).sum()
    most = math.ceil(min(3 * math.sqrt(size), size / 3))
    return max(min(round(cube ** (1 / 3)), most), 1)


def _last_lag(correlated: np.ndarray, in_a_row: int) -> int:
    """The last lag before `in_a_row` successive lags without a correlation."""
    for lag in range(len(correlated)):
        if not correlated[lag : lag + in_a_row].any():
            return lag
    return len(correlated)
