"""IA2SGD: each update takes the newest gradient of each worker."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from delayjax._src.cluster.protocol import Aggregation, zero_rows
from delayjax._src.cluster.server import Server
from delayjax._src.ground import kinds


class IA2SGDState(NamedTuple):
    """State of the aggregation of `ia2sgd`."""

    newest: Any  # the newest gradient of each worker; each leaf [P, *shape]
    total: Any  # their sum


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
        """The `aggregation` of `replay`; its state is P + 1 parameter trees.

            direction = (1/P) sum_i (the newest gradient of worker i)

        A worker that has not delivered adds zeros. A gradient changes the sum by itself
        less the last one of its worker: this reads two trees, not P.

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
            newest = zero_rows(num_workers, params)
            return IA2SGDState(newest, jax.tree.map(lambda leaf: leaf[0], newest))

        def add_fn(state, gradients, workers):
            again = jnp.triu(workers[:, None] == workers[None], 1).any(axis=1)
            row = jnp.where((workers >= 0) & ~again, workers, num_workers)

            # a row beyond the table reads as zeros, and is not written
            def changed(total, rows, values):
                there = (row < num_workers).reshape(-1, *[1] * (values.ndim - 1))
                last = rows.at[row].get(mode="fill", fill_value=0)
                change = values.astype(rows.dtype) - last
                return total + jnp.where(there, change, 0).sum(0)

            def written(rows, values):
                return rows.at[row].set(values.astype(rows.dtype), mode="drop")

            newest, total = state
            return IA2SGDState(
                jax.tree.map(written, newest, gradients),
                jax.tree.map(changed, total, newest, gradients),
            )

        def finish_fn(state):
            return jax.tree.map(lambda leaf: leaf / num_workers, state.total), state

        return Aggregation(init_fn, add_fn, finish_fn, num_workers)


def ia2sgd() -> IA2SGD:
    """IA2SGD: asynchronous SGD along the mean of all workers' newest gradients.

    The server keeps the newest gradient G_i of each worker. It makes the first update
    when each worker has delivered. Then each gradient that arrives replaces the last
    one of its worker, and the server makes an update:

        x <- x - eta (1/P) sum_i G_i

    The data of all workers count equally. A slow worker's gradient stays in the mean
    until its next one arrives: for s (P - 1) + 1 updates among P workers, if the worker
    is s times as slow; forever, if it dies after the first update.

    Returns:
        The protocol. Train along its trace with `aggregation=ia2sgd().aggregation(P)`
        and `chunk=1`. Only the first update has several gradients; each later update
        passes over P - 1 empty places, which takes time if there are many workers. The
        trace's staleness is of the gradients that arrive; older ones stay in the mean.

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
