"""SSP: how far a worker may run ahead of the others."""

import math

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.ground import checks


@remembered
def ssp(bound: float) -> Protocol:
    """Stale synchronous parallel: no worker is more than `bound` tasks ahead.

    A worker that has completed c tasks begins the next one if c - min_i c_i <= bound.
    It then reads parameters with all of its own updates and all updates of tasks up to
    c - bound - 1.

    Args:
        bound: slack in tasks, s: 0 is bulk synchronous (BSP), `math.inf` asynchronous
            (ASP). BSP makes P updates a round; with SGD they add up to `hardsync`'s
            with P times the step.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(2, constant(1.0), slowdown=[1.0, 4.0])
        >>> simulate(cluster, ssp(1), 6, seed=0).seconds
        array([1., 2., 4., 5., 8., 9.])

    References:
        Ho et al., A stale synchronous parallel parameter server, NIPS 2013.
    """
    bound = checks.known(bound)
    if bound != math.inf:
        bound = checks.check_bound("bound", bound)

    def run(server):
        completed = [0] * server.num_workers
        at = {0: server.num_workers}  # how many workers have completed so many tasks
        slowest = 0
        blocked = {}  # completed tasks -> workers held at that
        server.start_all()
        for arrival in server:
            server.take(arrival)
            server.update()
            worker = arrival.worker
            at[completed[worker]] -= 1
            completed[worker] += 1
            at[completed[worker]] = at.get(completed[worker], 0) + 1
            while not at.get(slowest):
                at.pop(slowest, None)
                slowest += 1
                server.start_all(blocked.pop(slowest + bound, ()))
            if completed[worker] - slowest <= bound:
                server.start(worker)
            else:
                blocked.setdefault(completed[worker], []).append(worker)

    return Protocol(f"ssp({bound})", run)
