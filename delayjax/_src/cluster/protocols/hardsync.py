"""Hardsync: an update waits for all workers."""

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.cluster.protocols.k_sync import k_sync


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
