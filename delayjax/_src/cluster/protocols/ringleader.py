"""Ringleader: the rounds of its server, and the tables of its training."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from delayjax._src.cluster.protocol import (
    Aggregation,
    Protocol,
    mean_of_rows,
    remembered,
    zero_rows,
)
from delayjax._src.cluster.server import Server
from delayjax._src.ground import kinds


class RingleaderState(NamedTuple):
    """State of `ringleader`; a leading axis `[2]` is this round and the next."""

    sums: Any  # of the gradients of each worker; each leaf [2, P, *shape]
    counts: jax.Array  # gradients of each worker, float32 [2, P]
    owed: jax.Array  # workers without an update in this round, bool [P]
    last: jax.Array  # the worker that arrived last, int32 []


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
    """The `aggregation` of `replay`; its state holds 2 P parameter trees.

        direction = (1/P) sum_i U_i / b_i   (sum and number of worker i's gradients)

    Example:
        >>> tables = ringleader().aggregation(2)
        >>> state = tables.init(jnp.zeros(()))
        >>> gradients = jnp.asarray([1.0, 3.0, 8.0])
        >>> workers = jnp.asarray([0, 0, 1])
        >>> state = tables.add(state, gradients, workers)
        >>> direction, state = tables.finish(state)
        >>> float(direction)  # ((1 + 3) / 2 + 8) / 2
        5.0
    """

    def init_fn(params):
        rows = zero_rows(num_workers, params)
        return RingleaderState(
            sums=jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), rows),
            counts=jnp.zeros((2, num_workers), jnp.float32),
            owed=jnp.ones(num_workers, bool),
            last=jnp.zeros((), jnp.int32),
        )

    def add_fn(state, gradients, workers):
        there = workers >= 0
        table = jnp.where(state.owed[workers], 0, 1)
        row = jnp.where(there, workers, num_workers)  # beyond the table: dropped
        place = jnp.argmax(jnp.where(there, jnp.arange(len(workers)), -1))

        def added(sums, values):
            exact = jnp.asarray(values, sums.dtype)
            return sums.at[table, row].add(exact, mode="drop")

        return state._replace(
            sums=jax.tree.map(added, state.sums, gradients),
            counts=added(state.counts, 1.0),
            last=jnp.where(there.any(), workers[place], state.last),
        )

    def finish_fn(state):
        sums = jax.tree.map(lambda leaf: leaf[0], state.sums)
        direction = mean_of_rows(sums, state.counts[0])
        owed = state.owed.at[state.last].set(False)
        is_over = ~owed.any()

        def turned(table):  # a new round begins with the gradients kept for it
            new = jnp.stack([table[1], jnp.zeros_like(table[1])])
            return jnp.where(is_over, new, table)

        return direction, RingleaderState(
            sums=jax.tree.map(turned, state.sums),
            counts=turned(state.counts),
            owed=owed | is_over,
            last=state.last,
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
