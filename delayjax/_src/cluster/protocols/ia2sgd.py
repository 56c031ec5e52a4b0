"""IA2SGD: each update takes the newest gradient of each worker."""

import dataclasses

import jax
import jax.numpy as jnp

from delayjax._src.cluster.protocol import Aggregation
from delayjax._src.cluster.server import Server
from delayjax._src.ground import kinds


@kinds.checked
@dataclasses.dataclass(frozen=True, repr=False)
class IA2SGD:
    """The protocol of `ia2sgd`, and the aggregation with which `replay` trains."""

    def __repr__(self) -> str:
        return "ia2sgd()"

    def __call__(self, server: Server) -> None:
        newest = {}  # the newest gradient of each worker, before the first update
        server.start_all()
        for arrival in server:
            if server.version:
                server.take(arrival)
                server.update()
            else:
                if arrival.worker in newest:
                    server.drop(newest[arrival.worker])
                newest[arrival.worker] = arrival
                if len(newest) == server.num_workers:
                    for gradient in newest.values():
                        server.take(gradient)
                    server.update()
            server.start(arrival.worker)

    def aggregation(self, num_workers: kinds.PositiveInt) -> Aggregation:
        """The `aggregation` of `replay`; its state is P parameter trees.

            direction = (1/P) sum_i (the newest gradient of worker i)

        A worker that has not delivered counts with zeros.

        Example:
            >>> table = ia2sgd().aggregation(2)
            >>> state = table.init(jnp.zeros(()))
            >>> state = table.add(state, jnp.asarray([1.0, 8.0]), jnp.asarray([0, 1]))
            >>> direction, state = table.finish(state)  # (1 + 8) / 2
            >>> state = table.add(state, jnp.asarray([3.0]), jnp.asarray([0]))
            >>> float(table.finish(state)[0])  # (3 + 8) / 2
            5.5
        """

        def init_fn(params):
            return jax.tree.map(
                lambda leaf: jnp.zeros((num_workers, *leaf.shape), leaf.dtype), params
            )

        def add_fn(table, gradients, workers):
            again = jnp.triu(workers[:, None] == workers[None], 1).any(axis=1)
            row = jnp.where((workers >= 0) & ~again, workers, num_workers)
            return jax.tree.map(  # a row beyond the table is dropped
                lambda rows, values: rows.at[row].set(values, mode="drop"),
                table,
                gradients,
            )

        def finish_fn(table):
            return jax.tree.map(lambda rows: rows.mean(axis=0), table), table

        return Aggregation(init_fn, add_fn, finish_fn)


def ia2sgd() -> IA2SGD:
    """IA2SGD: asynchronous SGD along the mean of all workers' newest gradients.

    The server keeps the newest gradient G_i of each worker. The first update follows
    when each worker has delivered. Then each arrival replaces its worker's gradient,
    and makes an update:

        x <- x - eta (1/P) sum_i G_i

    The data of all workers count equally. A worker that needs many times the seconds of
    the others leaves its gradient in as many updates, at any age.

    Returns:
        The protocol. Train along its trace with `aggregation=ia2sgd().aggregation(P)`.
        The trace's staleness is that of the gradients that arrive.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(2, constant(1.0), slowdown=[1.0, 3.25])
        >>> trace = simulate(cluster, ia2sgd(), 4, seed=0)
        >>> trace.counts, trace.seconds
        (array([2, 1, 1, 1]), array([3.25, 4.  , 5.  , 6.  ]))

    References:
        Wang, Sun, Wai and Zhang, Incremental aggregated asynchronous SGD for
        arbitrarily heterogeneous data, 2024.
    """
    return IA2SGD()
