"""Workers that wait for each other without a server, and the time that takes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from delayjax._src import base, collectives

Waits = Callable[[int, int], Any]
"""(step, P) -> bool [P, P]: whether worker i needs what worker j has made at this step
before it goes on."""

Seconds = Callable[[int], float]
"""step -> what the exchange of that step takes."""


class WaitAvoiding(NamedTuple):
    """When each worker has done each step, and how late that is for its group."""

    behind: np.ndarray  # int32 [T, P]: age of what enters a step's sum, in steps
    seconds: np.ndarray  # float64 [T, P]: when a worker goes on to its next step


def finish_times(
    seconds: ArrayLike,
    waits: Waits,
    *,
    lag: int = 0,
    exchange_seconds: Seconds | float = 0.0,
) -> np.ndarray:
    """When each worker goes on to its next step, in seconds from the start.

        done[t, i] = on[t - 1, i] + seconds[t, i]
        came[t, i] = c + max( came[t - 1, i], sent[t, j] of all j that i waits for )
        on[t, i]   = max( done[t, i], came[t - lag, i] )

    At lag 0 sent = done; else sent = on, for what is used later is sent when its worker
    goes on, beside the next step. c is what an exchange takes; those of a worker follow
    each other, for its link carries one at a time. A worker that waits for none at a
    step has no exchange in it: came stays as it was, and holds it up no second time.

    For messages of n bytes at b bytes a second and a latency l, with the functions of
    `Communication`:

    | method | waits | exchange_seconds |
    |---|---|---|
    | Allreduce-SGD | `waits_for_all(1)` | `all_reduce_seconds` |
    | local SGD, sync. EASGD, period H | `waits_for_all(H)` | `all_reduce_seconds` |
    | DaSGD; DGA (H = 1) | `waits_for_all(H)`, `lag=d` | `all_reduce_seconds` |
    | D-PSGD | `waits_for_neighbors(1, -1)`, `lag=1` | l + 2 n / b |
    | D-PSGD, `overlap=False` | `waits_for_neighbors(1, -1)` | l + 2 n / b |
    | SGP of 8 workers | `waits_for_neighbors(1, 2, 4, together=False)` | l + n / b |
    | SGP, several peers | `waits_for_neighbors` of the step's hops | l + peers n / b |
    | AD-PSGD | `waits_for_self`, `lag=1` | l + n / b |
    | gossip | `waits_for_self` | l + n / b |
    | WAGMA | see `wait_avoiding` | `group_seconds`, `all_reduce_seconds` |
    | asynchronous EASGD, EA-wild, DOWNPOUR | see `visits_to_rounds` | the cluster's |

    Args:
        seconds: float [T, P], of each worker's steps, as `Cluster.draw` draws them.
        waits: see `Waits`. A function of your own where exchanges have a period, say
            `lambda t, workers: waits_for_self(t, workers) & ((t + 1) % 4 == 0)`.
        lag: steps from an exchange's start to its use. Static.
        exchange_seconds: c, or a function of the step, t -> c.

    Returns:
        float64 [T, P].

    Raises:
        TypeError, ValueError: if `seconds` is no table of finite times, `waits` answers
            with no matrix [P, P], or `lag` or an exchange's time is negative.

    Example:
        >>> seconds = [[1.0, 3.0], [3.0, 1.0]]
        >>> finish_times(seconds, waits_for_all(1))[-1]
        array([6., 6.])
        >>> finish_times(seconds, waits_for_all(2), exchange_seconds=0.5)[-1]
        array([4.5, 4.5])

    References:
        Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, for time as latency and
        bytes over bandwidth; the queue of a worker's exchanges is ours.
    """
    table = _check_seconds(seconds)
    if not callable(waits):
        raise TypeError(
            f"`waits` must be a function of step and workers, got {waits!r}: pass"
            " cluster.waits_for_all(period), waits_for_neighbors(...) or"
            " waits_for_self."
        )
    lag = base.check_bound("lag", lag)
    steps, workers = table.shape
    takes = _at_each("exchange_seconds", exchange_seconds, steps)
    came, on = np.zeros_like(table), np.zeros_like(table)

    def exchange(t, sent):
        needs = _check_waits(waits(t, workers), workers)
        before = came[t - 1] if t else np.zeros(workers)
        begun = np.maximum(before, np.where(needs, sent, 0.0).max(axis=1))
        came[t] = np.where(needs.any(axis=1), takes[t] + begun, before)

    for t in range(steps):
        done = table[t] + (on[t - 1] if t else 0.0)
        if lag == 0:
            exchange(t, done)
        on[t] = done
        if t >= lag:
            on[t] = np.maximum(done, came[t - lag])
        if lag > 0:
            exchange(t, on[t])
    return on


def waits_for_all(period: int) -> Waits:
    """All workers wait for all at the end of each period.

    Args:
        period: in steps.

    Example:
        >>> [bool(waits_for_all(2)(step, 3).all()) for step in range(4)]
        [False, True, False, True]
    """
    period = base.check_bound("period", period, at_least=1)
    return lambda step, workers: np.full(
        (workers, workers), (step + 1) % period == 0, bool
    )


def waits_for_neighbors(*hops: int, together: bool = True) -> Waits:
    """A worker waits for the workers that send to it over so many ranks.

    Args:
        hops: 1 and -1 on a ring; 1, 2, 4, ... on an exponential graph.
        together: whether all hops are made at each step, or one of them in turn.

    Example:
        >>> waits_for_neighbors(1, -1)(0, 4).astype(int)
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


def waits_for_self(step: int, workers: int) -> np.ndarray:
    """A worker waits for its own message only, and for no other worker's step.

    With a lag its message is under way beside the next steps, and holds it up where it
    takes longer than these steps.

    Args:
        step: of the schedule.
        workers: P.

    Example:
        >>> waits_for_self(0, 2).astype(int)
        array([[1, 0],
               [0, 1]])
    """
    del step
    return np.eye(workers, dtype=bool)


def wait_avoiding(
    seconds: ArrayLike,
    *,
    period: int = 11,
    slack_seconds: float = 0.0,
    exchange_seconds: Seconds | float = 0.0,
) -> WaitAvoiding:
    """How late each worker's model is for WAGMA's sums, from service times.

        made[t, i] = on[t - 1, i] + seconds[t, i]
        on[t, i]   = made[t, i] + c(t)                 within a period
        on[t, i]   = max over j of made[t, j] + c(t)   where `period` divides t + 1

    The first worker to have made its model of step t starts all sums of that step: into
    them goes what each has made by then. It is behind by the models of this step and of
    those before it that it makes later. c(t) is what the exchange of step t takes. Each
    worker pays for a group's exchange once its own model is made, late or not, for its
    log2 S messages are its own. Left out: that it waits for its partners' messages, and
    that a late worker's messages may have been sent meanwhile. At the period's end all
    enter one all-reduce.

    Args:
        seconds: float [T, P], what each step takes each worker.
        period: H of `averaging.wagma`.
        slack_seconds: what the start takes to reach the others: a worker that is done
            within it is on time.
        exchange_seconds: c, or a function of the step: `lambda t:
            link.all_reduce_seconds(P) if (t + 1) % H == 0 else link.group_seconds(S)`.

    Returns:
        `behind`, for `delays.per_worker`, 0 at the period's end and at most
        period - 1; and the times at which the workers go on, as with
        `waits_for_all(period)` where exchanges take no time.

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
    period = base.check_bound("period", period, at_least=1)
    steps, workers = table.shape
    ends = (np.arange(steps) + 1) % period == 0
    takes = _at_each("exchange_seconds", exchange_seconds, steps)
    on = finish_times(
        table + np.where(ends, 0.0, takes)[:, None],
        waits_for_all(period),
        exchange_seconds=lambda step: takes[step],
    )
    made = np.concatenate([np.zeros((1, workers)), on[:-1]]) + table
    behind = np.zeros(table.shape, np.int32)
    for t in np.flatnonzero(~ends):
        starts = made[t].min() + slack_seconds
        first = t - t % period  # all have made what comes before
        behind[t] = (made[first : t + 1] > starts).sum(axis=0)
    return WaitAvoiding(behind, on)


def visits_to_rounds(workers: ArrayLike, num_workers: int) -> np.ndarray:
    """Cuts visits to a center into rounds in which each worker comes at most once.

    A round ends before the first worker that would come a second time. Between two
    visits a worker's model depends on itself alone, so to train round by round is to
    train visit by visit: asynchronous EASGD and DOWNPOUR along a trace, exactly.

        trace = simulate(cluster, protocols.k_async(1), n, seed=0)
        visits = visits_to_rounds(trace.worker, trace.num_workers)
        order = averaging.first_come(visits)
        tx = averaging.easgd(averaging.only_on_visit(inner, order), order=order)

    Round r is over at trace.seconds[last], `last` the largest finite entry of row r. A
    worker's k-th step takes the batch of its k-th finite entry. For H local steps
    between two visits let a gradient of the trace take the time of H, and pass
    np.repeat(visits, H, axis=0) to `first_come` and period=H to the method.

    Args:
        workers: int [n], who came to the center at visit 0, 1, 2, ...: the `worker` of
            a trace with one gradient an update.
        num_workers: P.

    Returns:
        float64 [R, P]: the number of the visit that worker p makes in round r, inf
        where it makes none. A round of training computes P gradients and uses one for
        each visit: P for workers of one speed, but sqrt(pi P / 2), at large P, where
        times are exponential.

    Raises:
        TypeError, ValueError: if `workers` is no row of integers in 0 .. P - 1.

    Example:
        >>> visits_to_rounds([0, 1, 0, 0, 2, 1], 3)
        array([[ 0.,  1., inf],
               [ 2., inf, inf],
               [ 3.,  5.,  4.]])
    """
    num_workers = base.check_bound("num_workers", num_workers, at_least=1)
    came = np.asarray(base.as_array("workers", workers))
    if came.ndim != 1 or came.size == 0:
        raise ValueError(
            "`workers` must have shape [n], a worker for each visit, got"
            f" {came.shape}: pass trace.worker."
        )
    if came.dtype.kind not in "iu":
        raise TypeError(f"`workers` must hold integers, got {came.dtype}.")
    if came.min() < 0 or came.max() >= num_workers:
        raise ValueError(
            f"`workers` must lie in 0 .. {num_workers - 1}, got {came.min()} and"
            f" {came.max()}."
        )
    table: list[np.ndarray] = []
    for visit, worker in enumerate(came.tolist()):
        if not table or np.isfinite(table[-1][worker]):
            table.append(np.full(num_workers, np.inf))
        table[-1][worker] = visit
    return np.stack(table)


def _check_seconds(seconds: ArrayLike) -> np.ndarray:
    table = collectives.check_table("seconds", seconds)
    if not (np.isfinite(table) & (table >= 0)).all():
        raise ValueError("`seconds` must be finite and non-negative.")
    return table.astype(np.float64)


def _at_each(name: str, value: Any, steps: int) -> np.ndarray:
    """A time, or a function of the step, at each of so many steps, float64 [T]."""
    if not callable(value):
        base.check_number(name, value)
        return np.full(steps, float(value))
    times = [value(step) for step in range(steps)]
    for step, time in enumerate(times):
        base.check_number(f"{name}({step})", time)
    return np.asarray(times, np.float64)


def _check_waits(answer: Any, workers: int) -> np.ndarray:
    needs = np.asarray(answer, bool)
    if needs.shape != (workers, workers):
        raise ValueError(
            "`waits` must answer with a matrix [P, P], who waits for whom, of the"
            f" {workers} workers, got shape {needs.shape}."
        )
    return needs
