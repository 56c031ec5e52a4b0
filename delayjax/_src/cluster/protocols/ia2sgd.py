"""IA2SGD: each update takes the newest gradient of each worker."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from delayjax._src.cluster.protocol import (
    Aggregation,
    Protocol,
    remembered,
    zero_rows,
)
from delayjax._src.cluster.server import Server
from delayjax._src.ground import kinds


class IA2SGDState(NamedTuple):
    """State of the aggregation of `ia2sgd`."""

    rows: Any  # the newest gradients, and one free row; each leaf [P + 1, *shape]
    total: Any  # the sum of the newest gradients
    age: jax.Array  # updates since all rows were summed, int32 []
    place: jax.Array  # the row of each worker's newest gradient, int32 [P]
    free: jax.Array  # the free row, int32 []


def _serve(server: Server) -> None:
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


@kinds.checked
def _table(num_workers: kinds.PositiveInt) -> Aggregation:
    """The `aggregation` of `replay`; its state is P + 2 parameter trees.

        direction = (1/P) sum_i (the newest gradient of worker i)

    A worker that has not delivered adds zeros. A gradient changes the sum by itself
    less the last one of its worker. All rows are summed anew once in P updates, so that
    roundings do not grow, and after each update whose sum is not finite.

    Example:
        >>> table = ia2sgd().aggregation(2)
        >>> state = table.init(jnp.zeros(()))
        >>> state = table.add(state, jnp.asarray([1.0, 8.0]), jnp.asarray([0, 1]))
        >>> direction, state = table.finish(state, last=1)  # (1 + 8) / 2
        >>> state = table.add(state, jnp.asarray([3.0]), jnp.asarray([0]))
        >>> float(table.finish(state, last=0)[0])  # (3 + 8) / 2
        5.5
    """

    def init_fn(params):
        rows = zero_rows(num_workers + 1, params)
        return IA2SGDState(
            rows=rows,
            total=jax.tree.map(lambda leaf: leaf[0], rows),
            age=jnp.zeros((), jnp.int32),
            place=jnp.arange(num_workers, dtype=jnp.int32),
            free=jnp.asarray(num_workers, jnp.int32),
        )

    def add_one(state, gradient, worker):
        is_there, old = worker >= 0, state.place[worker]

        def write(rows, value):
            return rows.at[state.free].set(value.astype(rows.dtype))

        # write, then read: a read before the write would copy all rows
        rows = jax.tree.map(write, state.rows, gradient)

        def change(total, rows):
            return total + jnp.where(is_there, rows[state.free] - rows[old], 0)

        return state._replace(
            rows=rows,
            total=jax.tree.map(change, state.total, rows),
            place=state.place.at[worker].set(jnp.where(is_there, state.free, old)),
            free=jnp.where(is_there, old, state.free),
        )

    def add_fn(state, gradients, workers):
        def step(state, row):
            return add_one(state, *row), None

        return jax.lax.scan(step, state, (gradients, workers))[0]

    def finish_fn(state, last):
        del last

        is_finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.total)]
        is_old = (state.age >= num_workers) | ~jnp.stack(is_finite).all()

        def add_row(worker, total):  # row after row: a sum of all would copy them
            def add(total, rows):
                return jnp.where(worker > 0, total, 0) + rows[state.place[worker]]

            return jax.tree.map(add, total, state.rows)

        # without a turn the sum stays
        total = jax.lax.fori_loop(0, is_old * num_workers, add_row, state.total)
        state = state._replace(total=total, age=jnp.where(is_old, 0, state.age + 1))
        return jax.tree.map(lambda leaf: leaf / num_workers, total), state

    return Aggregation(init_fn, add_fn, finish_fn, num_workers)


@remembered
def ia2sgd() -> Protocol:
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
        and `chunk=1`: only the first update has several gradients. The trace's
        staleness is of the gradients that arrive; older ones stay in the mean.

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
    return Protocol("ia2sgd()", _serve, _table)
