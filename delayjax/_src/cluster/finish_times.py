"""The times at which workers that wait for each other begin their next steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from delayjax._src.ground import checks, collectives, kinds

Waits = Callable[[int, int], Any]
"""(step, P) -> bool [P, P]: whether worker i waits for the result of worker j."""


@kinds.checked
def finish_times(
    seconds: ArrayLike,
    waits: Waits,
    *,
    lag: kinds.NonNegativeInt = 0,
    exchange_seconds: Callable[[int], float] | float = 0.0,
) -> np.ndarray:
    """The time at which each worker begins its next step, seconds, float64 [T, P].

        done[t, i] = on[t - 1, i] + seconds[t, i]
        came[t, i] = c + max( came[t - 1, i], sent[t, j] of all j that i waits for )
        on[t, i]   = max( done[t, i], came[t - lag, i] )

    c is the time of an exchange. At lag 0 a worker sends its result at once (sent =
    done), otherwise while it computes the next step (sent = on). A worker that waits
    for no worker at step t has no exchange. With messages of n bytes, b bytes a second,
    latency l, and the functions of `Communication`:

    | method | waits | exchange_seconds |
    |---|---|---|
    | local SGD, EASGD; Allreduce: H = 1 | `waits_for_all(H)` | `all_reduce_seconds` |
    | DaSGD; DGA (H = 1) | `waits_for_all(H)`, `lag=d` | `all_reduce_seconds` |
    | DiLoCo | `waits_for_all(H // F)` | `all_reduce_seconds`, `fragments=F` |
    | `outer(delay=d)` | `waits_for_all(1)`, `lag=1` | the same, `fragments=F * d` |
    | D-PSGD; no overlap: lag 0 | `waits_for_neighbors(1, -1)`, `lag=1` | l + 2 n / b |
    | SGP of 8 workers | `waits_for_neighbors(1, 2, 4, together=False)` | l + n / b |
    | SGP, several peers | `waits_for_neighbors` of the step's hops | l + peers n / b |
    | gossip; AD-PSGD (`lag=1`) | `waits_for_neighbors()` | l + n / b |
    | WAGMA | see `wait_avoiding` | `all_reduce_seconds` |
    | asynchronous EASGD, EA-wild, DOWNPOUR | see `visits_to_rounds` | in the trace |

    Args:
        seconds: the seconds of each worker's steps, float [T, P], as from
            `Cluster.step_seconds`.
        waits: (step, P) -> bool [P, P], whether worker i waits for worker j; for a
            period, `lambda t, workers: waits(t, workers) & (t % 4 == 3)`.
        lag: steps from the start of an exchange to the use of its result. Static.
        exchange_seconds: c, or a function of the step, t -> c.

    Example:
        >>> seconds = [[1.0, 3.0], [3.0, 1.0]]
        >>> finish_times(seconds, waits_for_all(2), exchange_seconds=0.5)[-1]
        array([4.5, 4.5])
    """
    table = check_seconds(seconds)
    steps, workers = table.shape
    takes = seconds_at_each(exchange_seconds, steps)
    came, on = np.zeros_like(table), np.zeros_like(table)
    for t in range(steps):  # at t = 0 the rows t - 1 are zeros
        on[t] = table[t] + on[t - 1]  # done
        if t >= lag > 0:
            on[t] = np.maximum(on[t], came[t - lag])
        needs = np.asarray(waits(t, workers), bool)
        if needs.shape != (workers, workers):
            raise ValueError(f"`waits` must return bool [P, P], got {needs.shape}.")
        begun = np.maximum(came[t - 1], np.where(needs, on[t], 0.0).max(axis=1))
        came[t] = np.where(needs.any(axis=1), takes[t] + begun, came[t - 1])
        if lag == 0:
            on[t] = np.maximum(on[t], came[t])
    return on


@kinds.checked
def waits_for_all(period: kinds.PositiveInt) -> Waits:
    """Workers synchronize at the end of each period, and do not wait in between.

    Args:
        period: H, in steps.

    Example:
        >>> [bool(waits_for_all(4)(step, 3).all()) for step in range(4)]
        [False, False, False, True]
    """
    return lambda step, workers: np.full((workers,) * 2, (step + 1) % period == 0)


def waits_for_neighbors(*hops: int, together: bool = True) -> Waits:
    """Worker i waits for its own message, and for the workers i - hop, modulo P.

    Args:
        hops: 1 and -1 on a ring; 1, 2, 4, ... on an exponential graph; by default none.
        together: whether each step makes all hops, or one of them in turn.

    Example:
        >>> waits_for_neighbors(1)(0, 3).astype(int).tolist()
        [[1, 0, 1], [1, 1, 0], [0, 1, 1]]
    """

    def waits(step, workers):
        made = hops if together or not hops else (hops[step % len(hops)],)
        itself = np.eye(workers, dtype=bool)
        return np.any(
            [itself, *(np.roll(itself, -hop, axis=1) for hop in made)], axis=0
        )

    return waits


def check_seconds(seconds: ArrayLike) -> np.ndarray:
    table = collectives.check_table("seconds", seconds)
    return checks.as_finite(
        "seconds", table, remedy="draw them with Cluster.step_seconds"
    )


def seconds_at_each(seconds: Callable[[int], float] | float, steps: int) -> np.ndarray:
    """The time of the exchange at each step, float64 [T]."""
    times = [seconds(step) if callable(seconds) else seconds for step in range(steps)]
    name = "exchange_seconds({})" if callable(seconds) else "exchange_seconds"
    times = [checks.check_number(name.format(t), time) for t, time in enumerate(times)]
    return np.asarray(times, np.float64)
