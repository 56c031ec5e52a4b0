"""The ages of the models in WAGMA's sums, in which workers do not wait."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

from delayjax._src.cluster.finish_times import (
    check_seconds,
    finish_times,
    seconds_at_each,
    waits_for_all,
)
from delayjax._src.ground import kinds


class WaitAvoiding(NamedTuple):
    """The result of `wait_avoiding`."""

    behind: np.ndarray  # int32 [T, P]: age of a worker's model in the sum, in steps
    seconds: np.ndarray  # float64 [T, P]: when a worker goes on to its next step


@kinds.checked
def wait_avoiding(
    seconds: ArrayLike,
    *,
    period: kinds.PositiveInt = 11,
    slack_seconds: kinds.NonNegativeFloat = 0.0,
    exchange_seconds: Callable[[int], float] | float = 0.0,
) -> WaitAvoiding:
    """How late each worker's model is for WAGMA's sums.

        made[t, i] = on[t - 1, i] + seconds[t, i]
        on[t, i]   = made[t, i] + c(t)                 within a period
        on[t, i]   = max over j of made[t, j] + c(t)   where `period` divides t + 1

    The first worker that has made its model of step t starts all sums of that step.
    `behind[t, i]` counts the models up to step t that worker i has not made at that
    time. At the end of a period all workers enter one all-reduce. The times in which
    partners wait for each other are not simulated.

    Args:
        seconds: the seconds of each worker's steps, float [T, P].
        period: H of `averaging.wagma`.
        slack_seconds: how long the start of a sum takes to reach the others.
        exchange_seconds: c, the time of an exchange, or a function of the step: `lambda
            t: link.all_reduce_seconds(P if t % H == H - 1 else S)`.

    Returns:
        `behind`, for `delays.per_worker`, int32 [T, P], at most period - 1; and
        `seconds`, the times on[t, i], float64 [T, P].

    Example:
        >>> late = wait_avoiding([[1.0, 2.5], [1.0, 1.0], [1.0, 1.0]], period=3)
        >>> late.behind.tolist()
        [[0, 1], [0, 2], [0, 0]]

    References:
        Li et al., WAGMA-SGD, arXiv:2005.00124.
    """
    table = check_seconds(seconds)
    steps, workers = table.shape
    ends = (np.arange(steps) + 1) % period == 0
    takes = seconds_at_each(exchange_seconds, steps)
    on = finish_times(
        table + np.where(ends, 0.0, takes)[:, None],
        waits_for_all(period),
        exchange_seconds=lambda step: takes[step],
    )
    made = np.concatenate([np.zeros((1, workers)), on[:-1]]) + table
    behind = np.zeros(table.shape, np.int32)
    for t in np.flatnonzero(~ends):
        starts = made[t].min() + slack_seconds
        first = t - t % period  # models of earlier steps are all made
        behind[t] = (made[first : t + 1] > starts).sum(axis=0)
    return WaitAvoiding(behind, on)
