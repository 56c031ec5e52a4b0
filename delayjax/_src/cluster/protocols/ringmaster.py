"""Ringmaster: gradients below a threshold of staleness."""

from delayjax._src.cluster.protocol import Protocol
from delayjax._src.cluster.protocols.bounded_staleness import bounded_staleness
from delayjax._src.ground import checks


def ringmaster(bound: int, *, stop: bool = False) -> Protocol:
    """Ringmaster ASGD: a gradient counts if its staleness is below `bound`.

        x_{t+1} = x_t - eta g(x_{t - tau}) if tau < R, else the gradient is ignored

    It is `bounded_staleness(R - 1)`. With R = max(1, ceil(sigma^2/eps)) no other method
    has a better time complexity.

    Args:
        bound: R, in updates. 1 is SGD on the first gradient at each version.
        stop: whether a worker stops as soon as the staleness of its gradient reaches R.

    Example:
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> workers = Cluster(16, exponential(1.0))
        >>> simulate(workers, ringmaster(4), 99, seed=0).max_staleness
        3

    References:
        Maranjyan, Tyurin and Richtarik, Ringmaster ASGD, ICML 2025, arXiv:2501.16168.
    """
    bound = checks.check_bound("bound", bound, at_least=1)
    same = bounded_staleness(bound - 1, late="restart" if stop else "drop")
    return Protocol(f"ringmaster({bound}, stop={stop})", same.run)
