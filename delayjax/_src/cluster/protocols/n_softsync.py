"""n-softsync: an update for every P / n gradients."""

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.cluster.protocols.k_batch_async import k_batch_async
from delayjax._src.ground import checks


@remembered
def n_softsync(n: int) -> Protocol:
    """`k_batch_async(K)` with K = floor(P / n): the mean staleness is about n.

        x_{t+1} = x_t - (1/K) sum_l eta(tau_l) g_l(x_{t - tau_l})

    Args:
        n: 1 .. P. 1 waits for P gradients, P is plain asynchronous SGD (Downpour).

    Example:
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> trace = simulate(Cluster(8, exponential(1.0)), n_softsync(2), 5, seed=0)
        >>> trace.staleness.shape
        (5, 4)

    References:
        Zhang et al., IJCAI 2016, arXiv:1511.05950; Gupta et al., arXiv:1509.04210.
    """
    n = checks.check_bound("n", n, at_least=1)

    def run(server):
        server.check_workers("n", n)
        k_batch_async(server.num_workers // n)(server)

    return Protocol(f"n_softsync({n})", run)
