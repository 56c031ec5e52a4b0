"""The order in which workers visit a center."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from delayjax._src.ground import collectives

ArrivalOrder = Callable[[jax.Array], ArrayLike]
"""step (int32 []) -> this worker's place in the queue of the step, int32 []. Lower
places come first, equal places by rank. A worker with a negative place stays away."""


def by_rank(*, axis_name: str = "workers") -> ArrivalOrder:
    """The `order` of `easgd` and `downpour` in which workers visit by their ranks.

    Args:
        axis_name: the workers' axis.

    Example:
        >>> order = by_rank()
        >>> jax.vmap(lambda _: order(0), axis_name="workers")(jnp.zeros(3))
        Array([0, 1, 2], dtype=int32)

    References:
        Zhang, Choromanska and LeCun (EASGD), NIPS 2015, arXiv:1412.6651, section 4.
    """
    return lambda step: jax.lax.axis_index(axis_name)


def first_come(seconds: ArrayLike, *, axis_name: str = "workers") -> ArrivalOrder:
    """The `order` of `easgd` and `downpour` in which workers visit as they arrive.

    Args:
        seconds: float [T, P], the arrival time of each worker, inf for a worker that
            stays away. Only times of the same step are compared. After T steps the
            table starts again. `cluster.visits_to_rounds` makes such a table from a
            trace.
        axis_name: the axis of the P workers.

    Example:
        >>> order = first_come([[0.3, 0.1, float("inf")]])
        >>> jax.vmap(lambda _: order(0), axis_name="workers")(jnp.zeros(3))
        Array([ 1,  0, -1], dtype=int32)

    References:
        You, Buluc and Demmel, SC 2017, arXiv:1708.02983 (FCFS).
    """
    table = collectives.check_table("seconds", seconds)
    if np.isnan(table).any():
        raise ValueError("`seconds` must be numbers, got nan: use inf to stay away.")
    places = np.argsort(np.argsort(table, axis=1, kind="stable"), axis=1)
    queue = jnp.asarray(np.where(np.isinf(table), -1, places), jnp.int32)

    def order(step):
        row, worker = collectives.row_of("seconds", queue, step, axis_name)
        return row[worker]

    return order
