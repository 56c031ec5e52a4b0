"""Malenia SGD: rounds at one version, in which all workers have equal weight."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from delayjax._src.cluster.protocol import (
    Aggregation,
    Protocol,
    remembered,
    zero_rows,
)
from delayjax._src.ground import kinds

_ROUNDING = 1e-9  # relative tolerance of the harmonic mean


class MaleniaState(NamedTuple):
    """State of the aggregation of `malenia`."""

    sums: Any  # of each worker's gradients in this round; each leaf [P, *shape]
    counts: jax.Array  # the numbers of these gradients, float32 [P]


def _mean_of_rows(sums: Any, counts: jax.Array) -> Any:
    """(1/P) sum_i sums_i / counts_i; a worker without gradients adds zeros."""
    weights = 1.0 / (len(counts) * jnp.maximum(counts, 1.0))

    def mean(rows):
        exact = weights.astype(rows.dtype)
        return jnp.tensordot(exact, rows, axes=1, precision="highest")

    return jax.tree.map(mean, sums)


@kinds.checked
def _means(num_workers: kinds.PositiveInt) -> Aggregation:
    """The `aggregation` of `replay`; its state holds P parameter trees.

        direction = (1/P) sum_i (mean of the gradients of worker i in this update)

    A worker without a gradient adds zeros, and P stays the divisor.

    Example:
        >>> means = malenia(1.0).aggregation(2)
        >>> state = means.init(jnp.zeros(()))
        >>> gradients = jnp.asarray([1.0, 3.0, 8.0])
        >>> state = means.add(state, gradients, jnp.asarray([0, 0, 1]))
        >>> direction, state = means.finish(state, last=1)
        >>> float(direction)  # ((1 + 3) / 2 + 8) / 2
        5.0
    """

    def init_fn(params):
        counts = jnp.zeros(num_workers, jnp.float32)
        return MaleniaState(zero_rows(num_workers, params), counts)

    def add_fn(state, gradients, workers):
        row = jnp.where(workers >= 0, workers, num_workers)  # beyond: dropped

        def added(sums, values):
            return sums.at[row].add(jnp.asarray(values, sums.dtype), mode="drop")

        sums = jax.tree.map(added, state.sums, gradients)
        return MaleniaState(sums, added(state.counts, 1.0))

    def finish_fn(state, last):
        del last
        return _mean_of_rows(*state), jax.tree.map(jnp.zeros_like, state)

    return Aggregation(init_fn, add_fn, finish_fn, num_workers)


@remembered
def malenia(harmonic_mean: kinds.PositiveFloat) -> Protocol:
    """Malenia SGD: rounds without staleness, in which all workers' data count equally.

    Each worker computes one gradient after another at the version that it read when the
    round began. The server updates as soon as the numbers b_i of the workers' gradients
    have a harmonic mean of at least h:

        x <- x - eta (1/P) sum_i (1/b_i) sum_j g_ij,    P / sum_i (1/b_i) >= h

    Then all workers stop, and read. Unlike in Ringleader, gradients that are unfinished
    at an update are lost. If a worker dies, or is slower by a factor of a million, the
    simulation is refused.

    Args:
        harmonic_mean: h, in gradients. With h <= 1 an update needs one gradient of each
            worker; a larger h needs more.

    Returns:
        The protocol. Train along its trace with
        `aggregation=malenia(1.0).aggregation(P)`.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(2, constant(1.0), slowdown=[1.0, 3.25])
        >>> trace = simulate(cluster, malenia(1.0), 3, seed=0)
        >>> trace.counts, trace.seconds
        (array([4, 4, 4]), array([3.25, 6.5 , 9.75]))

    References:
        Tyurin and Richtarik, Optimal time complexities of parallel stochastic
        optimization methods, NeurIPS 2023, arXiv:2305.12387, Method 6, where h = S / P
        (there a worker first ends its old gradient, which is dropped).
    """

    def run(server):
        workers = server.num_workers
        enough = workers / harmonic_mean * (1 + _ROUNDING)  # of sum_i 1 / b_i
        counts, missing, inverses = [0] * workers, workers, 0.0
        server.start_all()
        for arrival in server:
            server.take(arrival)
            before = counts[arrival.worker]
            counts[arrival.worker] = before + 1
            missing -= not before
            inverses += 1 / (before + 1) - (1 / before if before else 0.0)
            if missing == 0 and inverses <= enough:
                server.update()
                counts, missing, inverses = [0] * workers, workers, 0.0
                server.start_all()
            else:
                server.start(arrival.worker, read_version=arrival.read_version)

    return Protocol(f"malenia({harmonic_mean})", run, _means)
