"""Event-triggered upload: a gradient is sent with some probability."""

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.ground import checks


@remembered
def event_triggered(probability: float) -> Protocol:
    """Asynchronous SGD in which each gradient is sent with some probability.

    A worker that does not send drops its gradient, reads and goes on. There are p times
    as many updates, and the mean tau is p (P - 1). This models the trigger of Yu, Chen
    and Poor, arXiv:2406.11159; to decide by a gradient, use `refusing` in `replay`.

    Args:
        probability: p in [1e-5, 1], the probability that a gradient is sent.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> trace = simulate(Cluster(2, constant(1.0)), event_triggered(0.5), 9, seed=0)
        >>> trace.summary().dropped > 0
        True
    """
    # an update takes 1 / probability arrivals: their simulation must end
    probability = checks.check_number("probability", probability, "[1e-5, 1]")

    def run(server):
        server.start_all()
        for arrival in server:
            if server.rng.random() < probability:
                server.take(arrival)
                server.update()
            else:
                server.drop(arrival)
            server.start(arrival.worker)

    return Protocol(f"event_triggered({probability})", run)
