"""Who waits for whom, and the time that takes; no gradients in here."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from delayjax import base, collectives

Waits = Callable[[int, int], Any]
"""(step, P) -> bool [P, P]: whether worker i needs what worker j has made at this step
before it goes on."""


class WaitAvoiding(NamedTuple):
    """When each worker has done each step, and how late that is for its group."""

    behind: np.ndarray  # int32 [T, P]: age of what enters a step's sum, in steps
    seconds: np.ndarray  # float64 [T, P]: when a worker goes on to its next step


def finish_times(seconds: ArrayLike, waits: Waits, *, lag: int = 0) -> np.ndarray:
    """When each worker goes on to its next step, in seconds from the start.

        done[t, i] = on[t - 1, i] + seconds[t, i]
        on[t, i]   = max( done[t, i], done[t - lag, j] of all j that i waits for )

    | method | waits |
    |---|---|
    | Allreduce-SGD | `everyone(1)` |
    | local SGD, synchronous EASGD, WAGMA of period H | `everyone(H)` |
    | delayed averages, DGA (H = 1) | `everyone(H)`, `lag=d` |
    | D-PSGD | `neighbours(1, -1)` |
    | SGP of 8 workers | `neighbours(1, 2, 4, together=False)` |
    | asynchronous EASGD, EA-wild, DOWNPOUR, AD-PSGD, gossip | `nobody` |

    Sending takes no time here: add it to `seconds`, bytes over bandwidth, as the
    method's docstring counts them.

    Args:
        seconds: float [T, P], what each step takes each worker, as drawn from a service
            law of `dj.cluster`.
        waits: see `Waits`.
        lag: in steps. Static.

    Returns:
        float64 [T, P].

    Raises:
        TypeError: if `seconds` holds no real numbers or `waits` is no function.
        ValueError: if `seconds` has not two dimensions, is empty, negative or not
            finite, or `lag` is negative.

    Example:
        >>> seconds = [[1.0, 3.0], [3.0, 1.0]]
        >>> finish_times(seconds, everyone(1))[-1]
        array([6., 6.])
        >>> finish_times(seconds, everyone(2))[-1]
        array([4., 4.])
    """
    table = _check_seconds(seconds)
    if not callable(waits):
        raise TypeError(
            f"`waits` must be a function of step and workers, got {waits!r}: pass"
            " averaging.everyone(period), averaging.neighbours(...) or"
            " averaging.nobody."
        )
    lag = base.check_bound("lag", lag)
    steps, workers = table.shape
    done, on = np.zeros_like(table), np.zeros_like(table)
    for t in range(steps):
        done[t] = table[t] + (on[t - 1] if t else 0.0)
        on[t] = done[t]
        if t >= lag:
            waited = np.where(waits(t - lag, workers), done[t - lag], 0.0)
            on[t] = np.maximum(on[t], waited.max(axis=1))
    return on


def everyone(period: int) -> Waits:
    """All wait for all at the end of each period.

    Args:
        period: in steps.

    Raises:
        TypeError: if `period` is no integer.
        ValueError: if it is below 1.

    Example:
        >>> [bool(everyone(2)(step, 3).all()) for step in range(4)]
        [False, True, False, True]
    """
    period = base.check_bound("period", period, at_least=1)
    return lambda step, workers: np.full(
        (workers, workers), (step + 1) % period == 0, bool
    )


def neighbours(*hops: int, together: bool = True) -> Waits:
    """A worker waits for those that send to it over so many ranks.

    Args:
        hops: 1 and -1 on a ring; 1, 2, 4, ... on an exponential graph.
        together: whether all hops are made at each step, or one of them in turn.

    Raises:
        TypeError: if a hop is no integer.

    Example:
        >>> neighbours(1, -1)(0, 4).astype(int)
        array([[1, 1, 0, 1],
               [1, 1, 1, 0],
               [0, 1, 1, 1],
               [1, 0, 1, 1]])
    """
    if not hops or not all(isinstance(hop, int) for hop in hops):
        raise TypeError(f"`hops` must be one or more integers, got {hops!r}.")

    def waits(step, workers):
        made = hops if together else (hops[step % len(hops)],)
        ranks = np.arange(workers)
        matrix = np.eye(workers, dtype=bool)
        for hop in made:
            matrix[ranks, (ranks - hop) % workers] = True
        return matrix

    return waits


def nobody(step: int, workers: int) -> np.ndarray:
    """A worker never waits.

    Args:
        step: of the schedule.
        workers: P.

    Example:
        >>> int(nobody(0, 3).sum())
        0
    """
    del step
    return np.zeros((workers, workers), bool)


def wait_avoiding(
    seconds: ArrayLike, *, period: int = 11, slack_seconds: float = 0.0
) -> WaitAvoiding:
    """How late each worker's model is for WAGMA's sums, from service times.

    The first worker to have done step t starts all sums of that step: into them goes
    what each has done by then. Where `period` divides t + 1 all wait for all.

    Args:
        seconds: float [T, P], what each step takes each worker.
        period: H, that of `wagma`.
        slack_seconds: what the start takes to reach the others: who comes within it is
            on time.

    Returns:
        `behind`, for `late_by`, 0 at the period's end and at most period - 1; and the
        times at which the workers go on, those of `everyone(period)`.

    Raises:
        TypeError, ValueError: as `finish_times` does, or if `period` is below 1 or
            `slack_seconds` negative.

    Example:
        >>> wait_avoiding([[1.0, 2.5], [1.0, 1.0], [1.0, 1.0]], period=3).behind
        array([[0, 1],
               [0, 2],
               [0, 0]], dtype=int32)

    References:
        Li et al. (WAGMA-SGD), 2021, arXiv:2005.00124, for the activation.
    """
    table = _check_seconds(seconds)
    base.check_number("slack_seconds", slack_seconds)
    on = finish_times(table, everyone(period))
    steps, workers = table.shape
    done = np.concatenate([np.zeros((1, workers)), on[:-1]]) + table
    behind = np.zeros(table.shape, np.int32)
    for t in range(steps):
        if (t + 1) % period == 0:
            continue
        starts = done[t].min() + slack_seconds
        first = t - t % period  # all have done what comes before
        behind[t] = (done[first : t + 1] > starts).sum(axis=0)
    return WaitAvoiding(behind, on)


def _check_seconds(seconds: ArrayLike) -> np.ndarray:
    table = collectives.check_table("seconds", seconds)
    if not (np.isfinite(table) & (table >= 0)).all():
        raise ValueError("`seconds` must be finite and non-negative.")
    return table.astype(np.float64)
