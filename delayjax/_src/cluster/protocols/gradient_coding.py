"""Gradient coding: redundant work, without waiting for the slowest workers."""

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.ground import checks, kinds


@remembered
def gradient_coding(
    num_clusters: kinds.PositiveInt, load: kinds.PositiveInt, *, dynamic: bool = False
) -> Protocol:
    """Clusters whose gradient is complete without their r - 1 slowest workers.

    Each worker computes the gradients of r parts of the data and sends one combination.
    A cluster of n workers is done when n - r + 1 of them have delivered. When all
    clusters are done, the exact gradient makes the update, and all workers start again:

        seconds = max over clusters of (r T)_(n - r + 1 : n),   tau = 0

    Args:
        num_clusters: C; workers are dealt to the clusters in their order.
        load: r; a task takes r times as long as the gradient of one part. 1 is
            `hardsync`.
        dynamic: whether workers are dealt to the clusters again after each update, so
            that all clusters have about equally many late workers; then every worker
            needs the data of every cluster.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(4, constant(1.0), slowdown=[1.0, 9.0, 1.0, 1.0])
        >>> simulate(cluster, gradient_coding(2, 2), 2, seed=0).seconds
        array([2., 4.])

    References:
        Buyukates et al., Gradient coding with dynamic clustering, arXiv:2103.01206.
    """

    def run(server):
        workers = server.num_workers
        server.check_workers("num_clusters", num_clusters)
        each = checks.check_bound(
            "load", load, at_least=1, at_most=workers // num_clusters
        )
        cluster_of = [worker * num_clusters // workers for worker in range(workers)]

        def begin():
            """Starts all workers; returns how many deliveries each cluster needs."""
            missing = [1 - each] * num_clusters
            for worker, cluster in enumerate(cluster_of):
                server.start(worker, work=each)
                missing[cluster] += 1
            return missing

        delivered, missing = {}, begin()
        for arrival in server:
            delivered[arrival.worker] = arrival
            missing[cluster_of[arrival.worker]] -= 1
            if max(missing) > 0:
                continue
            for part in range(workers):  # the server decodes missing gradients too
                arrival_of_part = delivered.get(part)
                server.take(arrival_of_part or server.decode(part, arrival.begun))
            server.update()
            if dynamic:
                slow = [worker for worker in range(workers) if worker not in delivered]
                for place, worker in enumerate([*slow, *delivered]):
                    cluster_of[worker] = place % num_clusters
            delivered, missing = {}, begin()

    return Protocol(f"gradient_coding({num_clusters}, {load}, dynamic={dynamic})", run)
