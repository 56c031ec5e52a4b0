"""How slowness in recorded times lasts: by the clock or by task, and how many steps."""

import math
from typing import Literal

import numpy as np

_CORRELATED = 0.1  # a smaller correlation at lag 1 does not matter
_SURE = 3.0  # standard deviations of the correlation of independent steps
_NOISE = 0.02  # the largest variance of log times within a phase: 14 %


def lasts_with(seconds: np.ndarray) -> Literal["clock", "task"]:
    """With what slowness lasts, by the correlation of successive tasks.

    With x the logarithms of a worker's times, less their mean, a worker stays slow for
    several tasks where

        sum_k x_k x_{k+1} / sum_k x_k^2

    over all workers is above 0.1, and above 3 / sqrt(n). n counts the times that vary
    independently: workers that are slow in the same steps count once. If no worker's
    times vary by over 14 %, both answers are about the same. A task must take as long
    as the next one, but for 14 %: else a short task makes a worker fast for as long as
    it waits, and its mean speed would be wrong by the variance of log times.

    Args:
        seconds: of the tasks, float64 [W, T]; nan is a gap.

    Raises:
        ValueError: if slowness lasts for several tasks, and tasks differ by more.
    """
    correlation, chance = _correlation(seconds)
    if correlation <= max(_CORRELATED, _SURE * chance):
        return "task"
    logs = [np.log(row[~np.isnan(row)]) for row in seconds]
    steps = np.concatenate([np.diff(row) for row in logs])
    noise = (np.median(np.abs(steps)) / 0.6745) ** 2 / 2  # 0.6745: of a normal law
    if noise > _NOISE:
        raise ValueError(
            "`seconds` must show whether slowness lasts with the clock or with one"
            f" task, got a correlation of {correlation:.2f} and noise of"
            f" {math.sqrt(2 * noise):.0%}: use slowdowns() (clock) or service() (task)."
        )
    return "clock"


def _correlation(seconds: np.ndarray) -> tuple[float, float]:
    """The correlation of successive log times, and its standard deviation by chance."""
    logs = np.log(seconds)
    logs -= np.nanmean(logs, axis=1, keepdims=True)
    if np.nanvar(logs, axis=1).max() <= _NOISE:
        return 0.0, 0.0
    rows = [row[~np.isnan(row)] for row in logs]
    count, table = sum(map(len, rows)), np.nan_to_num(logs)
    products = table @ table.T
    total = products.trace()
    independent = count / len(rows) * total**2 / (products**2).sum()
    above = sum((row[1:] * row[:-1]).sum() for row in rows)
    return above / total, 1 / math.sqrt(independent)


def block_length(series: np.ndarray) -> int:
    """Politis and White's choice for the moving blocks of `Recorded.service`.

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
    """The last lag before that many lags in a row without a correlation."""
    for lag in range(len(correlated)):
        if not correlated[lag : lag + in_a_row].any():
            return lag
    return len(correlated)
