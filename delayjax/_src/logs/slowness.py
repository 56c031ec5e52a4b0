"""What slowness in recorded times lasts with: the clock, or one task alone."""

import math
from typing import Literal

import numpy as np

_CORRELATED = 0.1  # a smaller correlation at lag 1 does not matter
_NOISE = 0.02  # the largest variance of log times within a phase: 14 %


def lasts_with(seconds: np.ndarray) -> Literal["clock", "task"]:
    """With what slowness lasts, by the correlation of successive tasks.

    With x the logarithms of a worker's times, less their mean, a worker stays slow for
    several tasks where

        sum_k x_k x_{k+1} / sum_k x_k^2

    over all workers is above 0.1, and above 2 / sqrt(tasks). Then a task must take as
    long as the next one, but for 14 %: else a short task makes a worker fast for as
    long as it waits, and its mean speed would be wrong by the variance of log times.

    Args:
        seconds: of the tasks, float64 [W, T]; nan is a gap.

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
