"""Ringleader: the rounds of its server, and the tables of its training."""

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


class RingleaderState(NamedTuple):
    """State of the aggregation of `ringleader`: tables of this round and the next."""

    sums: Any  # of each worker's gradients, by table; each leaf [2 P, *shape]
    counts: jax.Array  # the numbers of these gradients, float32 [2 P]
    totals: Any  # the sum of a table's means, by table; each leaf [2, *shape]
    now: jax.Array  # the table of this round, 0 or 1, int32 []
    owed: jax.Array  # workers without an update in this round, bool [P]


def _serve(server: Server) -> None:
    workers = set(range(server.num_workers))
    delivered, kept = set(), set()  # workers in the sums of this round, of the next
    owed = set(workers)  # workers without an update in this round
    server.start_all()
    for arrival in server:
        worker = arrival.worker
        server.take(arrival)
        (delivered if worker in owed else kept).add(worker)
        if worker in owed and len(delivered) == len(workers):
            server.update()
            server.start(worker)
            owed.remove(worker)
            if not owed:
                delivered, kept, owed = kept, set(), set(workers)
        else:
            server.start(worker, read_version=arrival.read_version)


@kinds.checked
def _tables(num_workers: kinds.PositiveInt) -> Aggregation:
    """The `aggregation` of `replay`; its state holds 2 P + 2 parameter trees.

        direction = (1/P) sum_i U_i / b_i   (sum and number of worker i's gradients)

    A gradient changes this sum by the change of its worker's mean, so it costs as much
    for any number of workers.

    Example:
        >>> tables = ringleader().aggregation(2)
        >>> state = tables.init(jnp.zeros(()))
        >>> gradients = jnp.asarray([1.0, 3.0, 8.0])
        >>> workers = jnp.asarray([0, 0, 1])
        >>> state = tables.add(state, gradients, workers)
        >>> direction, state = tables.finish(state, last=1)
        >>> float(direction)  # ((1 + 3) / 2 + 8) / 2
        5.0
    """

    def init_fn(params):
        return RingleaderState(
            sums=zero_rows(2 * num_workers, params),
            counts=jnp.zeros(2 * num_workers, jnp.float32),
            totals=zero_rows(2, params),
            now=jnp.zeros((), jnp.int32),
            owed=jnp.ones(num_workers, bool),
        )

    def add_one(state, gradient, worker):
        is_there = worker >= 0
        table = jnp.where(state.owed[worker], state.now, 1 - state.now)
        row = table * num_workers + worker
        before = state.counts[row]  # with 0 the row holds a sum of an earlier round
        after = before + 1

        def write(sums, value):
            rest = jnp.where(before == 0, 0, sums[row])
            value = rest + value.astype(sums.dtype)
            return sums.at[row].set(jnp.where(is_there, value, sums[row]))

        # write, then read: another read before the write would copy all rows
        sums = jax.tree.map(write, state.sums, gradient)

        def change(totals, sums, value):
            mean = sums[row] / after.astype(sums.dtype)
            step = (value - mean) / jnp.maximum(before, 1).astype(sums.dtype)
            step = jnp.where(before == 0, mean, step)
            return totals.at[table].add(jnp.where(is_there, step, 0))

        return state._replace(
            sums=sums,
            counts=state.counts.at[row].set(jnp.where(is_there, after, before)),
            totals=jax.tree.map(change, state.totals, sums, gradient),
        )

    def add_fn(state, gradients, workers):
        def step(state, row):
            return add_one(state, *row), None

        return jax.lax.scan(step, state, (gradients, workers))[0]

    def finish_fn(state, last):
        direction = jax.tree.map(
            lambda totals: totals[state.now] / num_workers, state.totals
        )
        owed = state.owed & (jnp.arange(num_workers) != last)
        is_over = ~owed.any()
        is_finished = is_over & (jnp.arange(2) == state.now)

        def emptied(table):  # [2, *shape]: the finished round's part becomes zero
            return jnp.where(
                jnp.expand_dims(is_finished, range(1, table.ndim)), 0, table
            )

        return direction, state._replace(
            counts=emptied(state.counts.reshape(2, -1)).reshape(-1),
            totals=jax.tree.map(emptied, state.totals),
            now=jnp.where(is_over, 1 - state.now, state.now),
            owed=owed | is_over,
        )

    return Aggregation(init_fn, add_fn, finish_fn, num_workers)


@remembered
def ringleader() -> Protocol:
    """Ringleader ASGD: the data of slow workers count as much as those of fast workers.

    The server keeps the sum U_i and the number b_i of each worker's gradients. It
    collects until every worker has delivered, and then makes a round of P updates

        x <- x - eta (1/P) sum_i U_i / b_i,    tau <= 2 P - 2

    The first update of a round follows at once, for the worker that delivered last.
    Each further update follows when a worker arrives that has had no update in this
    round: its gradient joins its sum, and the worker reads. Other gradients count for
    the next round: their workers go on at the parameters that they have.

    Returns:
        The protocol. Train along its trace with
        `aggregation=ringleader().aggregation(P)`.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(2, constant(1.0), slowdown=[1.0, 3.25])
        >>> trace = simulate(cluster, ringleader(), 4, seed=0)
        >>> trace.counts, trace.seconds
        (array([4, 1, 3, 1]), array([3.25, 4.  , 6.5 , 7.  ]))

    References:
        Maranjyan and Richtarik, Ringleader ASGD, ICLR 2026, arXiv:2509.22860.
    """
    return Protocol("ringleader()", _serve, _tables)
