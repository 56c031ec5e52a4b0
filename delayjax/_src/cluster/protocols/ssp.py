"""SSP and PSP: how far a worker may run ahead of the others, or of a sample."""

import math

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.ground import checks, kinds


@remembered
def ssp(bound: float) -> Protocol:
    """Stale synchronous parallel: no worker is more than `bound` tasks ahead.

    A worker that has completed c tasks begins the next one if c - min_i c_i <= bound.
    It then reads parameters with all of its own updates and all updates of tasks up to
    c - bound - 1.

    Args:
        bound: slack in tasks, s: 0 is bulk synchronous (BSP), `math.inf` asynchronous
            (ASP). BSP makes P updates a round; with SGD their sum is the update of
            `hardsync` at P times the step size.

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
        at = {0: server.num_workers}  # completed tasks -> the number of workers
        slowest = 0
        blocked = {}  # completed tasks -> workers that wait
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


@remembered
def psp(
    sample: kinds.NonNegativeInt,
    bound: float,
    *,
    poll_seconds: kinds.PositiveOrInfFloat = math.inf,
) -> Protocol:
    """Probabilistic synchronous parallel: the barrier looks at a sample of workers.

    A worker that has completed c tasks draws `sample` other workers without replacement
    and begins the next task when c - min c_i <= bound over the sample.

    Args:
        sample: how many other workers it looks at, b. 0 is ASP; P - 1 or P, all of
            them, is `ssp(bound)`.
        bound: slack in tasks, s; the paper's pBSP has 0, its pSSP more.
        poll_seconds: the time until a waiting worker draws another sample; by default
            it keeps its first. The paper leaves this open; a short time makes the
            barrier much weaker. A poll costs the host as much as a gradient.

    Example:
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> workers = Cluster(8, exponential(1.0))
        >>> runs = [simulate(workers, psp(b, 0), 999, seed=0) for b in (4, 1)]
        >>> bool(runs[1].seconds[-1] < runs[0].seconds[-1])
        True

    References:
        Wang et al., Probabilistic synchronous parallel, arXiv:1709.07772.
    """
    all_others, bound = ssp(bound), checks.known(bound)

    def run(server):
        asked = checks.check_bound("sample", sample, at_most=server.num_workers)
        if asked >= server.num_workers - 1:  # every sample has all other workers
            all_others(server)
            return
        completed = [0] * server.num_workers
        lagging = [0] * server.num_workers  # lagging workers in a worker's sample
        draws = [0] * server.num_workers  # samples that the worker has drawn
        # (worker, its completed tasks) -> (worker that waits for them, its draw)
        watchers = {}
        server.start_all()
        for arrival in server:
            worker = arrival.worker
            if not arrival.failed:
                server.take(arrival)
                server.update()
                completed[worker] += 1
                for watcher, draw in watchers.pop((worker, completed[worker]), ()):
                    if draws[watcher] != draw:
                        continue  # it has another sample
                    lagging[watcher] -= 1
                    if not lagging[watcher]:
                        server.start(watcher)
            draws[worker] += 1
            lagging[worker] = 0
            needed = completed[worker] - bound
            for other in server.rng.sample(range(server.num_workers - 1), sample):
                other += other >= worker  # all workers but this one
                if completed[other] < needed:
                    lagging[worker] += 1
                    watched = watchers.setdefault((other, needed), [])
                    watched.append((worker, draws[worker]))
            if not lagging[worker]:
                server.start(worker)
            elif poll_seconds < math.inf:
                server.wake(worker, poll_seconds)

    return Protocol(f"psp({sample}, {bound}, poll_seconds={poll_seconds})", run)
