"""K-async: the next K different workers make the update; ASGD where K = 1."""

from delayjax._src.cluster.protocols.k_scheme import KScheme


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
