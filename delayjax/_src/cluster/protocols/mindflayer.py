"""MindFlayer: trials of limited time."""

import math
import reprlib
from collections.abc import Sequence

import numpy as np

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.ground import checks


@remembered
def mindflayer(
    trials: int | Sequence[int], allotted_seconds: float | Sequence[float]
) -> Protocol:
    """MindFlayer SGD: every worker has a number of trials, each of limited time.

        x_{t+1} = x_t - (eta/B) sum of the gradients of the trials that succeeded
        B = sum_i p_i B_i,   p_i = P(T_i <= c_i),   tau = 0

    A worker abandons a trial that takes longer than c_i. So a task that never ends, or
    a dead worker, costs only c_i. The division by the expected number B keeps the
    update unbiased.

    Args:
        trials: B_i, the trials of a worker in an update: one number, or P numbers.
        allotted_seconds: c_i, the time of a trial: one number, or P numbers.

    Returns:
        The protocol. The trace's `divisor` is B, with p_i from 10,000 draws of the
        worker's service at the trial's speed. An update may have no gradient.

    Example:
        >>> from delayjax.cluster import Cluster, infinite_bernoulli, simulate
        >>> cluster = Cluster(2, infinite_bernoulli(1.0, 0.5))
        >>> simulate(cluster, mindflayer(2, 1.0), 3, seed=0).seconds
        array([2., 4., 6.])

    References:
        Maranjyan, Omar and Richtarik, MindFlayer SGD, UAI 2025, arXiv:2410.04285.
    """
    counts = checks.as_counts("trials", trials)
    allotted = checks.as_reals("allotted_seconds", allotted_seconds)
    if not counts.any():
        raise ValueError(f"`trials` must not all be 0, got {trials}.")
    if not (allotted > 0).all():
        raise ValueError(f"`allotted_seconds` must be positive, got {allotted}.")

    def run(server):
        workers = server.num_workers
        tries = np.broadcast_to(counts, workers).tolist()
        limits = np.broadcast_to(allotted, workers).tolist()
        left = [0] * workers  # trials of this update that are not done

        def begin():
            for worker in range(workers):
                left[worker] = tries[worker]
                if left[worker]:
                    server.start(worker, limit=limits[worker])

        server.leave_out(worker for worker in range(workers) if not tries[worker])
        begin()
        total = sum(tries)
        begun, chances = server.now, []  # of this update's trials
        for arrival in server:
            worker = arrival.worker
            chances.append(server.success_probability(worker))
            if not arrival.failed:
                server.take(arrival)
            left[worker] -= 1
            if left[worker]:
                server.start(worker, limit=limits[worker])
            if len(chances) < total:
                continue
            expected = math.fsum(chances)
            if expected > 0:
                server.update(divisor=expected)
            elif server.taken or server.is_steady_from(begun):
                raise ValueError(
                    "`allotted_seconds` must let some trial succeed, got"
                    f" {allotted_seconds}: give more."
                )
            begin()
            begun, chances = server.now, []

    # shortened, because there may be many workers
    given = f"{reprlib.repr(trials)}, {reprlib.repr(allotted_seconds)}"
    return Protocol(f"mindflayer({given})", run)
