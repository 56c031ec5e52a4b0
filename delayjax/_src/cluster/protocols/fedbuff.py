"""FedBuff, and FedAsync: some of many clients train at any time."""

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.ground import kinds


@remembered
def fedbuff(buffer: kinds.PositiveInt, *, concurrency: kinds.PositiveInt) -> Protocol:
    """FedBuff: a server update for every K deltas, from clients drawn at random.

    The clients are the workers of the cluster. C of the P clients train at any time,
    the others idle. When a client is done,

        its delta goes to the buffer
        if K deltas are there:  x_{t+1} = x_t - eta_g (1/K) sum_k s(tau_k) Delta_k
        a client, drawn uniformly from all that idle now, starts from the newest x

    In the long run the mean staleness is (C - 1) / K, whatever the service times. Where
    all clients need a mean time of E T, they train equally often, and there are
    C / (K E T) updates a second. A client that needs r times as long as all others
    trains C / (r C + P - C) times in the time E T, and C / P times at r = 1: where P is
    much larger than r C, slow clients train almost as often as fast ones.

    A buffer of 1 is FedAsync's protocol: each client's model is mixed in at once. Where
    all clients train, C = P, this is `k_batch_async(K)`.

    Args:
        buffer: K, deltas of a server update. 1 for FedAsync; 10 in FLSim's example.
        concurrency: C, 1 .. P, clients that train at any time.

    Returns:
        The protocol; its draws come from the simulation's seed. Train along its trace
        with `local_training`, which makes deltas, and with s as `each=` of `replay`;
        or, for a buffer of 1, with `fedasync` as `tx`.

    Example:
        >>> from delayjax.cluster import Cluster, exponential, simulate
        >>> clients = Cluster(100, exponential(1.0))
        >>> nine = fedbuff(2, concurrency=9)
        >>> trace = simulate(clients, nine, 5000, seed=0)
        >>> round(trace.staleness_law(burn_in=100).mean, 1)  # (9 - 1) / 2
        4.0

    References:
        Nguyen et al., Federated learning with buffered asynchronous aggregation,
        AISTATS 2022, arXiv:2106.06639, algorithm 1, and its code
        facebookresearch/FLSim; Xie, Koyejo and Gupta, Asynchronous federated
        optimization, 2019, arXiv:1903.03934. The staleness and the rates are ours: the
        probability that a certain set of C clients trains at some time is proportional
        to the product of their mean times.
    """

    def run(server):
        server.check_workers("concurrency", concurrency)
        server.leave_out()  # clients are drawn: some may never start
        idle = list(range(server.num_workers))

        def start_one():
            chosen = server.rng.randrange(len(idle))
            idle[chosen], idle[-1] = idle[-1], idle[chosen]
            server.start(idle.pop())

        for _ in range(concurrency):
            start_one()
        for arrival in server:
            server.take(arrival)
            if server.taken == buffer:
                server.update()
            idle.append(arrival.worker)
            start_one()

    return Protocol(f"fedbuff({buffer}, concurrency={concurrency})", run)
