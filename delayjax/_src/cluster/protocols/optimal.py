"""Servers of optimal time complexity: Rennala and MindFlayer."""

import math
from collections.abc import Sequence

import numpy as np

from delayjax._src import base
from delayjax._src.cluster.server import Protocol


def rennala(batch: int) -> Protocol:
    """Rennala SGD: a batch of gradients of the current version, from whoever is fast.

        x_{t+1} = x_t - eta (1/S) sum_{l=1..S} g_l(x_t)

    A gradient of an older version is dropped. Slow workers never hold the server up;
    with S = max(ceil(sigma^2 / eps), 1) no method is faster to a gradient of squared
    norm eps.

    Args:
        batch: gradients an update, S.

    Returns:
        The rule; tau = 0.

    Raises:
        TypeError, ValueError: if `batch` is below 1.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(2, constant(1.0), slowdown=[1.0, 2.5])
        >>> trace = simulate(cluster, rennala(2), 3, seed=0)
        >>> trace.seconds, trace.summary().dropped
        (array([2., 4., 6.]), 2)

    References:
        Tyurin and Richtarik, Optimal time complexities of parallel stochastic
        optimization methods, NeurIPS 2023, arXiv:2305.12387.
    """
    batch = base.check_bound("batch", batch, at_least=1)

    def rule(server):
        server.start_all()
        for arrival in server:
            if arrival.read_version == server.version:
                server.take(arrival)
                if server.taken == batch:
                    server.update()
            else:
                server.drop(arrival)
            server.start(arrival.worker)

    return rule


def mindflayer(
    trials: int | Sequence[int], allotted_seconds: float | Sequence[float]
) -> Protocol:
    """MindFlayer SGD: every worker gets so many trials of so much time.

        x_{t+1} = x_t - (eta/B) sum of the gradients of the trials that succeeded
        B = sum_i p_i B_i,   p_i = P(T_i <= c_i)

    A trial that takes longer is abandoned, so that tasks which never end and workers
    that die cost c_i and not the run. Dividing by the expected number keeps the update
    unbiased. Where `Slowdown`s begin or end, p_i changes with them: B sums the p_i of
    the update's trials, each at the speed that the worker had while it ran.

    Args:
        trials: of each worker and update, B_i: one number for all or P of them. A
            worker may have none.
        allotted_seconds: for a trial of computing, c_i: one number for all or P.

    Returns:
        The rule; tau = 0. `divisor` of the trace is B, with p_i estimated from 10,000
        draws of the worker's law. An update may have no gradient. While no trial can
        succeed (B = 0, all workers may be dead for a while) there is no update.

    Raises:
        TypeError, ValueError: if a number is negative, there is none for some worker,
            or no trial can succeed any more.

    Example:
        >>> from delayjax.cluster import Cluster, infinite_bernoulli, simulate
        >>> cluster = Cluster(2, infinite_bernoulli(1.0, 0.5))
        >>> trace = simulate(cluster, mindflayer(2, 1.0), 3, seed=0)
        >>> trace.seconds, trace.counts.max() <= 4
        (array([2., 4., 6.]), np.True_)

    References:
        Maranjyan, Omar and Richtarik, MindFlayer, arXiv:2410.04285.
    """
    counts = np.asarray(trials)
    allotted = base.as_reals("allotted_seconds", allotted_seconds)
    if not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
        raise ValueError(f"`trials` must be non-negative integers, got {trials}.")
    if not counts.any():
        raise ValueError(f"`trials` must not all be 0, got {trials}.")
    if not (allotted > 0).all():
        raise ValueError(
            f"`allotted_seconds` must be positive, got {allotted_seconds}."
        )

    def rule(server):
        workers = server.num_workers
        for name, value in (("trials", counts), ("allotted_seconds", allotted)):
            if value.shape not in ((), (workers,)):
                raise ValueError(
                    f"`{name}` must be one number or one for each of the {workers}"
                    f" workers, got shape {value.shape}."
                )
        tries = np.broadcast_to(counts, workers).tolist()
        limits = np.broadcast_to(allotted, workers).tolist()
        left = [0] * workers  # trials of this update

        def begin():
            for worker in range(workers):
                left[worker] = tries[worker]
                if left[worker]:
                    server.start(worker, limit=limits[worker])

        begin()
        busy = able = sum(count > 0 for count in tries)
        begun, chances = server.now, []  # of this update's trials
        for arrival in server:
            worker = arrival.worker
            chances.append(server.success_probability(worker))
            if not arrival.failed:
                server.take(arrival)
            left[worker] -= 1
            if left[worker]:
                server.start(worker, limit=limits[worker])
                continue
            busy -= 1
            if busy:
                continue
            expected = math.fsum(chances)
            if expected > 0:
                server.update(divisor=expected)
            elif server.taken or server.is_steady_from(begun):
                raise ValueError(
                    "`allotted_seconds` must let some trial succeed, got"
                    f" {allotted_seconds}: none of the workers' times that were drawn"
                    " was that short, give more."
                )
            begin()
            busy, begun, chances = able, server.now, []

    return rule
