"""K-sync: the first K of P workers make the update."""

from delayjax._src.cluster.protocols.k_scheme import KScheme


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
