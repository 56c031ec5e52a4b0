"""K-batch-async: an update for every K gradients."""

from delayjax._src.cluster.protocols.k_scheme import KScheme


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
