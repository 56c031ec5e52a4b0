"""Seconds between the updates of the K-sync family of servers."""

import math

import numpy as np

from delayjax import base
from delayjax.stability.service_times import ServiceTimes

_COARSE, _FINE = 256, 4096  # points of a grid of seconds
_NOTHING = 1e-6  # of a mean


def k_sync_seconds(k: int, workers: int, times: ServiceTimes) -> float:
    """Mean seconds of an update that takes the first K of P workers, and all restart.

        E T_{K:P}

    K = P is the fully synchronous server. For K-async, where the others go on, see
    `k_async_seconds`.

    Args:
        k: 1 .. P.
        workers: P.
        times: of `service_times`.

    Returns:
        float64; `inf` where the K-th of P has no finite mean.

    Raises:
        TypeError: if `k` or `workers` is no integer, or `times` of another kind, as a
            law of `cluster` or a `DelayLaw`.
        ValueError: if `k` is not in 1 .. P.

    Example:
        >>> from delayjax.stability import service_times
        >>> round(k_sync_seconds(2, 8, service_times.exponential(1.0)), 6)  # 1/8 + 1/7
        0.267857

    References:
        Dutta et al., AISTATS 2018, arXiv:1803.01113, on K-sync SGD.
    """
    _check(k, workers, times)
    return float(times.kth(k, workers))


def k_batch_async_seconds(k: int, workers: int, times: ServiceTimes) -> float:
    """Mean seconds of an update that takes any K gradients, while nobody ever waits.

        K E T / P,

    for any law of the times, by renewal: also n-softsync's, with K = P // n, and plain
    asynchronous SGD's, with K = 1. No K-scheme of P workers is faster.

    Args:
        k: 1 .. P.
        workers: P.
        times: of `service_times`.

    Returns:
        float64; `inf` where the times have no finite mean.

    Raises:
        TypeError, ValueError: as `k_sync_seconds` does.

    Example:
        >>> from delayjax.stability import service_times
        >>> k_batch_async_seconds(2, 8, service_times.uniform(1.0, 3.0))
        0.5

    References:
        Dutta et al., AISTATS 2018, arXiv:1803.01113, on K-batch-async SGD.
    """
    _check(k, workers, times)
    return k * float(times.mean_seconds) / workers


def k_async_seconds(k: int, workers: int, times: ServiceTimes) -> float:
    """Mean seconds of an update of K different workers, while the others go on.

        K = 1:             E T / P, nobody waits
        K = P:             E T_{P:P}, there are no stragglers
        memoryless times:  E T_{K:P}, stragglers are as good as new

    Otherwise there is no closed form. It then lies above `k_batch_async_seconds`, and
    below `k_sync_seconds` if a used task is sooner done than a new one, P(T > t + u | T
    > t) <= P(T > u), as of shifted exponential and uniform times but not of Pareto's.

    Args:
        k: 1 .. P.
        workers: P.
        times: of `service_times`.

    Returns:
        float64.

    Raises:
        TypeError: as `k_sync_seconds` does.
        ValueError: as `k_sync_seconds` does; or where there is no closed form.

    Example:
        >>> from delayjax.stability import service_times
        >>> k_async_seconds(1, 8, service_times.uniform(1.0, 3.0))
        0.25

    References:
        Dutta et al., AISTATS 2018, arXiv:1803.01113, on K-async SGD.
    """
    _check(k, workers, times)
    if k == 1:
        return k_batch_async_seconds(k, workers, times)
    if k == workers or times.memoryless:
        return k_sync_seconds(k, workers, times)
    raise ValueError(
        f"`times` must be memoryless for 1 < `k` < `workers`, got k = {k} of {workers}"
        " with others: simulate cluster.protocols.k_async, or take k_sync_seconds and"
        " k_batch_async_seconds as bounds."
    )


def k_batch_sync_seconds(k: int, workers: int, times: ServiceTimes) -> float:
    """Mean seconds of an update of any K gradients at one version; all then restart.

    With N_i(t) the gradients that worker i delivers until t,

        int_0^inf P(N_1(t) + ... + N_P(t) < K) dt,    P(N_i(t) >= n) = F^{*n}(t),

    which is K E T / P for memoryless times. Otherwise the n-fold convolutions F^{*n}
    are taken on a grid of times.

    Args:
        k: 1 .. P.
        workers: P.
        times: of `service_times`.

    Returns:
        float64; exact for memoryless times and K = 1, else to about 1e-4, and `inf`
        where not even the first of P workers has a finite mean. Costs O(K^2 log P) for
        each point of the grid: 5 ms for K = 8, 0.1 s for 64.

    Raises:
        TypeError, ValueError: as `k_sync_seconds` does; ValueError also where the first
            of P workers may take so long that the grid is too coarse.

    Example:
        >>> from delayjax.stability import service_times
        >>> k_batch_sync_seconds(4, 8, service_times.exponential(1.0))
        0.5
        >>> either = service_times.empirical([1.0, 3.0])  # or 1, or 2 or 3, or 3
        >>> round(k_batch_sync_seconds(2, 2, either), 2)  # (1 + 2.5 + 2.5 + 3) / 4
        2.25

    References:
        Dutta et al., AISTATS 2018, arXiv:1803.01113, on K-batch-sync SGD; the integral
        is renewal theory's.
    """
    _check(k, workers, times)
    if times.memoryless:
        return k_batch_async_seconds(k, workers, times)
    if k == 1:
        return k_sync_seconds(k, workers, times)
    first = times.kth(1, workers)
    if first == math.inf:
        return math.inf
    horizon = 2 * first
    while _short_of(k, workers, times, horizon, _COARSE)[-1] * horizon > (
        _NOTHING * first
    ):
        horizon *= 1.5
        if horizon > _FINE / 20 * first:
            raise ValueError(
                "`times` must not have so heavy a tail, or `k` be smaller: the grid of"
                f" {_FINE} points cannot hold {k} gradients of {workers} workers;"
                " simulate cluster.protocols.k_batch_sync."
            )
    return float(_short_of(k, workers, times, horizon, _FINE).sum() * horizon / _FINE)


def _short_of(
    k: int, workers: int, times: ServiceTimes, horizon: float, points: int
) -> np.ndarray:
    """P(fewer than K gradients are there) on a grid up to `horizon`, float64 [points].

    Times are rounded to the grid, by half of a cell up or down, which keeps their mean.
    """
    edges = (np.arange(points + 1) - 0.5) * horizon / points
    beyond = times.beyond(edges)
    one = np.fft.rfft(-np.diff(beyond), 2 * points)
    delivered = np.ones((k + 1, points))  # P(N >= n), n = 0 .. K
    power = np.ones_like(one)
    for n in range(1, k + 1):
        density = np.fft.irfft(power * one)[:points]
        power = np.fft.rfft(density, 2 * points)  # what is beyond must not come back
        delivered[n] = np.cumsum(density)
    own = -np.diff(delivered, axis=0)  # P(N = n), n < K
    total = np.zeros_like(own)
    total[0] = 1.0
    for bit in f"{workers:b}":
        total = _added(total, total)
        if bit == "1":
            total = _added(total, own)
    return np.maximum(total.sum(axis=0), 0.0)


def _added(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The law of a sum, up to K - 1, at each time."""
    total = np.zeros_like(left)
    for n in range(len(left)):
        total[n:] += left[n] * right[: len(right) - n]
    return total


def _check(k: int, workers: int, times: ServiceTimes) -> None:
    if not isinstance(times, ServiceTimes):
        raise TypeError(
            "`times` must be of stability.service_times, such as"
            f" service_times.exponential(1.0), got {times!r}."
        )
    workers = base.check_bound("workers", workers, at_least=1)
    if base.check_bound("k", k, at_least=1) > workers:
        raise ValueError(
            f"`k` must lie in 1 .. {workers}, the number of workers, got {k}."
        )
