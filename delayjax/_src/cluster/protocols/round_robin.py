"""Round robin: the workers' gradients in turn."""

from delayjax._src.cluster.protocol import Protocol, remembered


@remembered
def round_robin() -> Protocol:
    """Update t takes the gradient of worker t mod P: tau = P - 1 after P - 1 updates.

    Example:
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> trace = simulate(Cluster(3, exponential(1.0)), round_robin(), 5, seed=0)
        >>> trace.staleness[:, 0]
        array([0, 1, 2, 2, 2], dtype=int32)

    References:
        Langford, Smola and Zinkevich, Slow learners are fast, arXiv:0911.0491.
    """

    def run(server):
        server.start_all()
        early = {}
        for arrival in server:
            early[arrival.worker] = arrival
            while (turn := server.version % server.num_workers) in early:
                server.take(early.pop(turn))
                server.update()
                server.start(turn)

    return Protocol("round_robin()", run)
