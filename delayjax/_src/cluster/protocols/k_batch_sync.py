"""K-batch-sync: the first K gradients at a version, from any worker."""

from delayjax._src.cluster.protocols.k_scheme import KScheme


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
