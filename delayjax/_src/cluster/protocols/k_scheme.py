"""Schemes that count to K gradients, and the mean seconds of their updates.

Four schemes of Dutta et al. (Slow and stale gradients can win the race, AISTATS 2018,
arXiv:1803.01113) take K gradients an update; the mean tau holds for all service times:

    scheme          the update takes        the others     early workers     mean tau
    k_sync          K different workers     start anew     idle              0
    k_batch_sync    any K at this version   start anew     compute one more  0
    k_async         K different workers     go on, stale   idle              P/K - 1
    k_batch_async   any K                   go on, stale   compute one more  (P - 1)/K
"""

import dataclasses
import math

import numpy as np
import scipy

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.cluster.server import Server
from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.ground import checks, kinds

_COARSE, _FINE = 256, 4096  # points of a grid of seconds
_NOTHING = 1e-6  # share of a mean that counts as 0


@kinds.checked
@dataclasses.dataclass(frozen=True, repr=False)
class KScheme:
    """One of the four schemes with its K: a protocol with known mean seconds."""

    name: str  # the name of its factory
    k: kinds.PositiveInt  # gradients of an update, at most P
    restarts: bool  # whether all workers start anew at an update, or go on, stale
    repeats: bool  # whether an early worker computes one more gradient, or idles

    def __repr__(self) -> str:
        return f"{self.name}({self.k})"

    def __call__(self, server: Server) -> None:
        server.check_workers("k", self.k)
        server.start_all()
        idle = []
        for arrival in server:
            server.take(arrival)
            idle.append(arrival.worker)
            if server.taken == self.k:
                server.update()
                server.start_all(None if self.restarts else idle)
                idle = []
            elif self.repeats:
                server.start(idle.pop())

    def update_seconds(
        self, workers: kinds.PositiveInt, service_time: ServiceTime
    ) -> float:
        """Mean seconds of an update of P equal workers.

            k_sync          E T_{K:P}
            k_batch_async   K E T / P; no scheme is faster
            k_async         E T / P if K = 1; E T_{K:P} if K = P or T is memoryless
            k_batch_sync    int_0^inf P(N_1(t) + ... + N_P(t) < K) dt

        N_i(t) counts the gradients of worker i until t: P(N_i(t) >= n) = F^{*n}(t), a
        convolution on a grid (accurate to 1e-4; 5 ms for K = 8, 0.1 s for 64). For
        other K and T, `k_async` takes longer than `k_batch_async`, and less than
        `k_sync` if a task that has begun ends sooner than a new task.

        Args:
            workers: P.
            service_time: T, the same for all workers; the result may be `inf`.

        Example:
            >>> from delayjax.cluster import exponential
            >>> from delayjax.cluster.protocols import k_sync
            >>> round(k_sync(2).update_seconds(8, exponential(1.0)), 6)  # 1/8 + 1/7
            0.267857
        """
        k = checks.check_bound("k", self.k, at_least=1, at_most=workers)
        memoryless = service_time.stages == 1
        if self.repeats and (memoryless or not self.restarts):
            return k * service_time.mean / workers
        if self.repeats and k > 1:
            return _any_k_seconds(k, workers, service_time)
        if self.restarts or memoryless or k == workers:
            return service_time.kth_mean(k, workers)
        if k == 1:
            return service_time.mean / workers
        raise ValueError(
            f"`service_time` must be memoryless, got {service_time}: simulate {self}."
        )


def k_sync(k: int) -> KScheme:
    """The first K of P workers make the update; the others start a new gradient.

        x_{t+1} = x_t - (eta/K) sum_{l=1..K} g_l(x_t),   tau = 0

    Args:
        k: 1 .. P.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(3, constant(1.0), slowdown=[1.0, 2.0, 9.0])
        >>> simulate(cluster, k_sync(2), 3, seed=0).seconds
        array([2., 4., 6.])
    """
    return KScheme("k_sync", k, restarts=True, repeats=False)


def k_batch_sync(k: int) -> KScheme:
    """The first K gradients at the current version make the update, from any worker.

    Args:
        k: 1 .. P; tau = 0.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(3, constant(1.0), slowdown=[1.0, 9.0, 9.0])
        >>> simulate(cluster, k_batch_sync(2), 2, seed=0).workers.tolist()
        [[0, 0], [0, 0]]
    """
    return KScheme("k_batch_sync", k, restarts=True, repeats=True)


def k_async(k: int) -> KScheme:
    """The next K different workers make the update; the others go on, stale.

        x_{t+1} = x_t - (eta/K) sum_{l=1..K} g_l(x_{t - tau_l}),   mean tau = P/K - 1

    Args:
        k: 1 .. P. 1 is plain asynchronous SGD, P is synchronous.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(3, constant(1.0), slowdown=[1.0, 1.0, 2.5])
        >>> simulate(cluster, k_async(2), 3, seed=0).staleness.tolist()
        [[0, 0], [0, 0], [2, 0]]
    """
    return KScheme("k_async", k, restarts=False, repeats=False)


def k_batch_async(k: int) -> KScheme:
    """An update for every K gradients; workers never wait: mean tau = (P - 1) / K.

    Args:
        k: 1 .. P.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> trace = simulate(Cluster(4, constant(1.0)), k_batch_async(2), 4, seed=0)
        >>> trace.staleness.tolist()
        [[0, 0], [1, 1], [2, 1], [2, 1]]
    """
    return KScheme("k_batch_async", k, restarts=False, repeats=True)


@remembered
def hardsync() -> Protocol:
    """Synchronous SGD: an update waits for one gradient of each worker.

        x_{t+1} = x_t - eta (1/P) sum_i g_i(x_t),   tau = 0

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> simulate(Cluster(3, constant(1.0)), hardsync(), 2, seed=0).seconds
        array([1., 2.])
    """

    def run(server):
        k_sync(server.num_workers)(server)

    return Protocol("hardsync()", run)


@remembered
def n_softsync(n: kinds.PositiveInt) -> Protocol:
    """`k_batch_async(K)` with K = floor(P / n): the mean staleness is about n.

        x_{t+1} = x_t - (1/K) sum_l eta(tau_l) g_l(x_{t - tau_l})

    Args:
        n: 1 .. P. 1 waits for P gradients, P is plain asynchronous SGD (Downpour).

    Example:
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> trace = simulate(Cluster(8, exponential(1.0)), n_softsync(2), 5, seed=0)
        >>> trace.staleness.shape
        (5, 4)

    References:
        Zhang et al., IJCAI 2016, arXiv:1511.05950; Gupta et al., arXiv:1509.04210.
    """

    def run(server):
        server.check_workers("n", n)
        k_batch_async(server.num_workers // n)(server)

    return Protocol(f"n_softsync({n})", run)


def _any_k_seconds(k: int, workers: int, service_time: ServiceTime) -> float:
    """The integral of P(N_1 + ... + N_P < K) over time."""
    first = service_time.kth_mean(1, workers)
    if first == math.inf:
        return math.inf

    def short(horizon, points):
        """P(fewer than K gradients are there) on a grid up to `horizon`."""
        # times are rounded to the nearest point, which keeps their mean
        edges = (np.arange(points + 1) - 0.5) * horizon / points
        one = np.fft.rfft(-np.diff(service_time.survival(edges)), 2 * points)
        delivered = np.ones((k + 1, points))  # P(N >= n), n = 0 .. K
        power = np.ones_like(one)
        for n in range(1, k + 1):
            density = np.fft.irfft(power * one)[:points]
            power = np.fft.rfft(density, 2 * points)  # padded against wrapping
            delivered[n] = np.cumsum(density)
        total = one_worker = -np.diff(delivered, axis=0)  # P(N = n), n < K
        for bit in f"{workers:b}"[1:]:  # the sum of P workers: double it, or add one
            total = scipy.signal.fftconvolve(total, total, axes=0)[:k]
            if bit == "1":
                total = scipy.signal.fftconvolve(total, one_worker, axes=0)[:k]
        return np.maximum(total.sum(axis=0), 0.0)

    horizon = 2 * first
    while short(horizon, _COARSE)[-1] * horizon > _NOTHING * first:
        horizon *= 1.5
        if horizon > _FINE / 20 * first:
            raise ValueError(
                f"`service_time` must have a lighter tail, got {service_time}: simulate"
                " it."
            )
    return float(short(horizon, _FINE).sum() * horizon / _FINE)
