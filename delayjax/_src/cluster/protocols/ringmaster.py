"""Ringmaster: gradients below a threshold of staleness."""

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.cluster.protocols.bounded_staleness import (
    Bound,
    at_version,
    bounded_staleness,
    shown,
)


@remembered
def ringmaster(bound: Bound, *, stop: bool = False) -> Protocol:
    """Ringmaster ASGD: a gradient counts if its staleness is below `bound`.

        x_{t+1} = x_t - eta g(x_{t - tau}) if tau < R_t, else the gradient is ignored

    It is `bounded_staleness(R - 1)`. With R = max(1, ceil(sigma^2/eps)) no other method
    has a better time complexity. The adaptive threshold of Ringmaster LMO does not need
    sigma or eps:

        R_t = max(1, floor(sqrt(t)))

    Args:
        bound: R, in updates, at least 1: one number, or a function of t, the version
            that the gradient is applied to (0 at the first update). 1 is SGD on the
            first gradient at each version.
        stop: whether a worker stops as soon as the staleness of its gradient reaches R.

    Example:
        >>> import math
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> workers = Cluster(16, exponential(1.0))
        >>> simulate(workers, ringmaster(4), 99, seed=0).max_staleness
        3
        >>> adaptive = ringmaster(lambda t: max(1, math.isqrt(t)), stop=True)
        >>> simulate(workers, adaptive, 99, seed=0).max_staleness  # R is 9 at the end
        8

    References:
        Maranjyan, Tyurin and Richtarik, Ringmaster ASGD, ICML 2025, arXiv:2501.16168;
        Sadiev, Maranjyan, Ilin and Richtarik, Ringmaster LMO, 2026, arXiv:2605.18174
        (the adaptive threshold, as in its code, which applies R_{t-1} at version t).
    """
    threshold = at_version(bound, at_least=1)
    late = "restart" if stop else "drop"
    same = bounded_staleness(lambda version: threshold(version) - 1, late=late)
    return Protocol(f"ringmaster({shown(bound)}, stop={stop})", same.run)
