"""A model that all workers share, and the queue in which they come to it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from delayjax import base, collectives
from delayjax.averaging import replicas

Turn = Callable[[jax.Array], ArrayLike]
"""step (int32 []) -> this worker's place in the step's queue for the centre, int32 []:
the lower come first, equal ones by rank, and who has a negative one stays away."""

Visit = Callable[[Any, Any, jax.Array, jax.Array], tuple[Any, Any]]
"""(centre, offer, worker int32 [], there bool []) -> (centre, what the worker takes)"""


def round_robin(*, axis_name: str = "workers") -> Turn:
    """Workers come to the centre by rank, each of them once a step.

    Args:
        axis_name: of the workers.

    Returns:
        The `turn` of `easgd` and `downpour`.

    Example:
        >>> turn = round_robin()
        >>> jax.vmap(lambda _: turn(0), axis_name="workers")(jnp.zeros(3))
        Array([0, 1, 2], dtype=int32)

    References:
        Zhang, Choromanska and LeCun (EASGD), NIPS 2015, arXiv:1412.6651, section 4.
    """
    name = replicas.check_axis("averaging.round_robin", axis_name)
    return lambda step: jax.lax.axis_index(name)


def first_come(seconds: ArrayLike, *, axis_name: str = "workers") -> Turn:
    """Workers come to the centre as they arrive: first come, first served.

    Args:
        seconds: float [T, P], when each worker arrives, compared within a step only;
            inf stays away. From its end the table starts anew.
        axis_name: of the P workers.

    Returns:
        The `turn` of `easgd` and `downpour`.

    Raises:
        TypeError: if `seconds` does not hold real numbers.
        ValueError: if it has not two dimensions, is empty or has a nan, or (when asked)
            P is not the number of workers.

    Example:
        >>> turn = first_come([[0.3, 0.1, float("inf")]])
        >>> jax.vmap(lambda _: turn(0), axis_name="workers")(jnp.zeros(3))
        Array([ 1,  0, -1], dtype=int32)

    References:
        You, Buluc and Demmel, SC 2017, arXiv:1708.02983 (FCFS).
    """
    name = replicas.check_axis("averaging.first_come", axis_name)
    table = collectives.check_table("seconds", seconds)
    if np.isnan(table).any():
        raise ValueError("`seconds` must be numbers, got nan: inf stays away.")
    places = np.argsort(np.argsort(table, axis=1, kind="stable"), axis=1)
    queue = jnp.asarray(np.where(np.isinf(table), -1, places), jnp.int32)

    def turn(step):
        row, own = collectives.row_of("seconds", queue, step, name)
        return row[own]

    return turn


def in_turn(
    visit: Visit, centre: Any, offer: Any, turn: Turn, step: jax.Array, axis_name: str
) -> tuple[Any, Any, jax.Array]:
    """Lets every worker come to the centre, one after the other.

    All workers gather all offers and follow the whole queue, so that all agree on the
    centre: a server's part, done everywhere.

    Args:
        visit: one worker's, also called for who is not there, and must then leave the
            centre as it is.
        centre: what all workers share.
        offer: this worker's.
        turn: see `Turn`.
        step: of the schedule.
        axis_name: of the workers.

    Returns:
        The centre after all visits, what this worker took, and whether it was there.
    """
    place = base.check_answer("turn(step)", turn(step), jnp.integer)
    offers, places = gather((offer, place), axis_name)
    queue = jnp.argsort(places)  # stable: equal ones by rank

    def next_one(centre, worker):
        return visit(centre, _row(offers, worker), worker, places[worker] >= 0)

    centre, taken = jax.lax.scan(next_one, centre, queue)
    own = jnp.argsort(queue)[jax.lax.axis_index(axis_name)]
    return centre, _row(taken, own), place >= 0


def gather(tree: Any, axis_name: str) -> Any:
    """Every worker's tree, leaves [P, *shape], the same on all of them."""
    # under `vmap` they are not typed as the same, but no longer batched
    manual = axis_name in jax.sharding.get_abstract_mesh().manual_axes
    to = "invarying" if manual else "varying"
    return jax.tree.map(
        lambda leaf: jax.lax.all_gather(leaf, axis_name, to=to),
        base.as_own(tree, axis_name),
    )


def _row(tree: Any, worker: jax.Array) -> Any:
    return jax.tree.map(
        lambda rows: jax.lax.dynamic_index_in_dim(rows, worker, keepdims=False), tree
    )
