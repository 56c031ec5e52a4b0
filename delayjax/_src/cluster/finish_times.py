"""Workers that wait for each other without a server, and the time of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from delayjax._src.ground import checks, collectives
from delayjax._src.ground.checks import as_seconds

Waits = Callable[[int, int], Any]
"""(step, P) -> bool [P, P]: whether worker i waits for worker j's result of it."""


class WaitAvoiding(NamedTuple):
    """The result of `wait_avoiding`."""

    behind: np.ndarray  # int32 [T, P]: age of its model in a step's sum, in steps
    seconds: np.ndarray  # float64 [T, P]: when a worker goes on to its next step


def finish_times(
    seconds: ArrayLike,
    waits: Waits,
    *,
    lag: int = 0,
    exchange_seconds: Callable[[int], float] | float = 0.0,
) -> np.ndarray:
    """When each worker goes on to its next step, in seconds, float64 [T, P].

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
    | D-PSGD; no overlap: lag 0 | `waits_for_neighbors(1, -1)`, `lag=1` | l + 2 n / b |
    | SGP of 8 workers | `waits_for_neighbors(1, 2, 4, together=False)` | l + n / b |
    | SGP, several peers | `waits_for_neighbors` of the step's hops | l + peers n / b |
    | gossip; AD-PSGD (`lag=1`) | `waits_for_self` | l + n / b |
    | WAGMA | see `wait_avoiding` | `group_seconds`, `all_reduce_seconds` |
    | asynchronous EASGD, EA-wild, DOWNPOUR | see `visits_to_rounds` | the cluster's |

    Args:
        seconds: float [T, P], of each worker's steps, as `Cluster.draw` draws them.
        waits: (step, P) -> bool [P, P], whether worker i waits for worker j; for a
            period, `lambda t, workers: waits_for_self(t, workers) & (t % 4 == 3)`.
        lag: steps from the start of an exchange to the use of its result. Static.
        exchange_seconds: c, or a function of the step, t -> c.

    Example:
        >>> seconds = [[1.0, 3.0], [3.0, 1.0]]
        >>> finish_times(seconds, waits_for_all(2), exchange_seconds=0.5)[-1]
        array([4.5, 4.5])
    """
    checks.check_function("waits", waits)
    table = _check_seconds(seconds)
    lag = checks.check_bound("lag", lag)
    steps, workers = table.shape
    takes = _at_each(exchange_seconds, steps)
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


def waits_for_all(period: int) -> Waits:
    """All workers wait for all at the end of each period.

    Args:
        period: in steps.

    Example:
        >>> [bool(waits_for_all(2)(step, 3).all()) for step in range(4)]
        [False, True, False, True]
    """
    period = checks.check_bound("period", period, at_least=1)
    return lambda step, workers: np.full((workers,) * 2, (step + 1) % period == 0)


def waits_for_neighbors(*hops: int, together: bool = True) -> Waits:
    """Worker i waits for the workers i - hop, modulo P.

    Args:
        hops: 1 and -1 on a ring; 1, 2, 4, ... on an exponential graph.
        together: whether each step makes all hops, or one of them in turn.

    Example:
        >>> waits_for_neighbors(1)(0, 3).astype(int).tolist()
        [[1, 0, 1], [1, 1, 0], [0, 1, 1]]
    """

    def waits(step, workers):
        made = hops if together else (hops[step % len(hops)],)
        own = np.eye(workers, dtype=bool)
        return np.any([own, *(np.roll(own, -hop, axis=1) for hop in made)], axis=0)

    return waits


def waits_for_self(step: int, workers: int) -> np.ndarray:
    """A worker waits for its own message only.

    Args:
        step: any.
        workers: P.

    Example:
        >>> waits_for_self(0, 2).astype(int).tolist()
        [[1, 0], [0, 1]]
    """
    del step
    return np.eye(workers, dtype=bool)


def wait_avoiding(
    seconds: ArrayLike,
    *,
    period: int = 11,
    slack_seconds: float = 0.0,
    exchange_seconds: Callable[[int], float] | float = 0.0,
) -> WaitAvoiding:
    """How late each worker's model is for WAGMA's sums (Li et al., arXiv:2005.00124).

        made[t, i] = on[t - 1, i] + seconds[t, i]
        on[t, i]   = made[t, i] + c(t)                 within a period
        on[t, i]   = max over j of made[t, j] + c(t)   where `period` divides t + 1

    The first worker that has made its model of step t starts all sums of that step.
    `behind[t, i]` counts the models up to step t that worker i has yet to make then. At
    the period's end all enter one all-reduce. Waits for partners are left out.

    Args:
        seconds: float [T, P], of each worker's steps.
        period: H of `averaging.wagma`.
        slack_seconds: how long the start of a sum takes to reach the others.
        exchange_seconds: c, the time of an exchange, or a function of the step: `lambda
            t: link.all_reduce_seconds(P) if t % H == H - 1 else link.group_seconds(S)`.

    Returns:
        `behind`, for `delays.per_worker`, int32 [T, P], at most period - 1; and
        `seconds`, which is on, float64 [T, P].

    Example:
        >>> late = wait_avoiding([[1.0, 2.5], [1.0, 1.0], [1.0, 1.0]], period=3)
        >>> late.behind.tolist()
        [[0, 1], [0, 2], [0, 0]]
    """
    table = _check_seconds(seconds)
    slack_seconds = checks.check_number("slack_seconds", slack_seconds)
    period = checks.check_bound("period", period, at_least=1)
    steps, workers = table.shape
    ends = (np.arange(steps) + 1) % period == 0
    takes = _at_each(exchange_seconds, steps)
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


def visits_to_rounds(workers: ArrayLike, num_workers: int) -> np.ndarray:
    """Cuts visits to a center into rounds in which each worker comes at most once.

    Training round by round equals training visit by visit. Asynchronous EASGD along the
    trace of `k_async(1)`:

        visits = visits_to_rounds(trace.worker, trace.num_workers)
        order = averaging.first_come(visits)
        tx = averaging.easgd(averaging.only_on_visit(inner, order), order=order)

    For H local steps between visits pass np.repeat(visits, H, axis=0) to `first_come`
    and period=H to the method; a gradient of the trace then takes the time of H.

    Args:
        workers: int [n], the worker of visit 0, 1, 2, ...
        num_workers: P.

    Returns:
        float64 [R, P]: the number of the visit that worker p makes in round r, inf
        where it makes none. A round computes P gradients and uses one for each visit:
        P for workers of one speed, about sqrt(pi P / 2) for exponential times.

    Example:
        >>> visits_to_rounds([0, 1, 0, 0, 2, 1], 3)
        array([[ 0.,  1., inf],
               [ 2., inf, inf],
               [ 3.,  5.,  4.]])
    """
    num_workers = checks.check_bound("num_workers", num_workers, at_least=1)
    came = np.asarray(checks.as_array("workers", workers))
    whole = came.ndim == 1 and came.size > 0 and came.dtype.kind in "iu"
    if not whole or came.min() < 0 or came.max() >= num_workers:
        raise ValueError(
            f"`workers` must be a vector of integers in 0 .. {num_workers - 1}, got"
            f" {workers!r}: pass trace.worker."
        )
    table: list[np.ndarray] = []
    for visit, worker in enumerate(came.tolist()):
        if not table or np.isfinite(table[-1][worker]):
            table.append(np.full(num_workers, np.inf))
        table[-1][worker] = visit
    return np.stack(table)


def _check_seconds(seconds: ArrayLike) -> np.ndarray:
    table = collectives.check_table("seconds", seconds)
    return as_seconds("seconds", table, remedy="draw them with Cluster.draw")


def _at_each(seconds: Callable[[int], float] | float, steps: int) -> np.ndarray:
    """The time of the exchange at each step, float64 [T]."""
    times = [seconds(step) if callable(seconds) else seconds for step in range(steps)]
    name = "exchange_seconds({})" if callable(seconds) else "exchange_seconds"
    for step, time in enumerate(times):
        checks.check_number(name.format(step), time)
    return np.asarray(times, np.float64)
