"""How slowness in recorded times lasts: by the clock or by task, and how many steps."""

import math
from typing import Literal

import numpy as np
import scipy

_CORRELATED = 0.1  # a smaller correlation at lag 1 does not matter
_SURE = 3.0  # standard deviations of the correlation of independent steps
_WAITING = 0.01  # a smaller share of the time does not matter
_NOISE, _JITTER = 0.02, 0.1  # the largest variances of log times within a phase
_LARGE = 6.0  # times the noise
_CHANCE = 1e-3  # how often the rank test is wrong

Lasts = Literal["clock", "task"]


def lasts_with(
    seconds: np.ndarray, starts: np.ndarray, choice: Lasts | None = None
) -> Lasts:
    """Whether slowness lasts with the clock, or for one task.

    With x the logarithms of a worker's times, less their mean, a worker stays slow for
    several tasks where

        sum_k x_k x_{k+1} / sum_k x_k^2

    over all workers is above 0.1, and above 3 / sqrt(n). n counts the times that vary
    independently: workers that are slow in the same steps count once. If no worker's
    times vary by over 14 %, both answers are about the same.

    If workers do not wait, the log has their speeds by the clock. Nobody sees how fast
    a worker is while it waits. A slow phase of the clock begins unseen, while a fast
    worker waits, but ends within a slow task, whose time then is between the two. So
    log times increase at once and decrease in two parts: a rank test finds that the
    increases are larger. Without this sign the phases may be of the clock or of tasks.

    A task must take as long as the next one, but for 14 %: else a short task makes a
    worker fast for as long as it waits, and its mean speed would be wrong by the
    variance of log times. Without waits 32 % do no harm.

    Args:
        seconds: of the tasks, float64 [W, T]; nan is a gap.
        starts: of the tasks, likewise.
        choice: the answer, where the log does not show it.

    Raises:
        ValueError: if slowness lasts for several tasks, and tasks differ by more, or
            workers wait, and the log does not show that it lasts with the clock.
    """
    correlation, chance = _correlation(seconds)
    lasts = correlation > max(_CORRELATED, _SURE * chance)
    if choice == "task" or not (choice or lasts):
        return "task"
    waiting = waiting_share(seconds, starts)
    logs = [np.log(row[~np.isnan(row)]) for row in seconds]
    steps = np.concatenate([np.diff(row) for row in logs])
    # 0.6745: of a normal law, and of the difference of two tasks
    noise = np.median(np.abs(steps)) / 0.6745 / math.sqrt(2)
    if noise**2 > (_NOISE if waiting else _JITTER):
        got = f"tasks that differ by {noise:.0%}"
        remedy = (
            'service("block") (task), or slowdowns() of a log without waits (clock)'
        )
    elif waiting and not (choice or _by_clock(seconds, noise)):
        got = f"workers that wait for {waiting:.0%} of the time"
        remedy = (
            'cluster(lasts="clock") if machines are slow or service("block") if data'
            " are, or log a run without waits, with `starts`"
        )
    else:
        return "clock"
    raise ValueError(
        "`seconds` must show whether slowness lasts with the clock or with tasks, got a"
        f" correlation of {correlation:.2f} and {got}: use {remedy}."
    )


def waiting_share(seconds: np.ndarray, starts: np.ndarray) -> float:
    """The share of the workers' time between their tasks; 0 if it is below 1 %."""
    begun = starts + 0.0 * seconds  # nan in gaps
    ended = np.fmax.accumulate(starts + seconds, axis=1)
    waits = np.nansum(np.maximum(begun[:, 1:] - ended[:, :-1], 0.0))
    share = waits / (ended[:, -1] - np.nanmin(begun, axis=1)).sum()
    return float(share) if share > _WAITING else 0.0


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


def _by_clock(seconds: np.ndarray, noise: float) -> bool:
    """Whether large increases of log times are larger than large decreases."""
    changes = np.nan_to_num(np.diff(np.log(seconds), axis=1))
    # of each step: workers that change together count once
    up, down = changes.max(axis=0), -changes.min(axis=0)
    large = max(_LARGE * noise, 0.1)
    up, down = up[up > large], down[down > large]
    if not up.size or not down.size:
        return False
    test = scipy.stats.mannwhitneyu(up, down, alternative="greater")
    return test.pvalue < _CHANCE


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
