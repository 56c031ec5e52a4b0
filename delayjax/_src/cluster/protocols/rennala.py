"""Rennala: a batch of gradients at the current version."""

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.cluster.protocols.bounded_staleness import bounded_staleness


@remembered
def rennala(batch: int) -> Protocol:
    """Rennala SGD: a batch of gradients at the current version, from fast workers.

        x_{t+1} = x_t - eta (1/S) sum_{l=1..S} g_l(x_t)

    It is `bounded_staleness(0, batch=S)`: gradients at an older version are dropped.
    With S = max(ceil(sigma^2 / eps), 1) no other method reaches a gradient of squared
    norm eps with a better time complexity.

    Args:
        batch: gradients an update, S; tau = 0.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(2, constant(1.0), slowdown=[1.0, 2.5])
        >>> trace = simulate(cluster, rennala(2), 3, seed=0)
        >>> trace.seconds, trace.summary().dropped
        (array([2., 4., 6.]), 2)

    References:
        Tyurin and Richtarik, Optimal time complexities, NeurIPS 2023, arXiv:2305.12387.
    """
    same = bounded_staleness(0, batch=batch)
    return Protocol(f"rennala({batch})", same.run)
