"""A model that all workers share, and the queue in which they come to it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src import base, buffers, collectives
from delayjax._src.averaging import replicas

ArrivalOrder = Callable[[jax.Array], ArrayLike]
"""step (int32 []) -> this worker's place in the step's queue for the center, int32 []:
the lower come first, equal ones by rank, and who has a negative one stays away."""

Visit = Callable[[Any, Any, jax.Array, jax.Array], tuple[Any, Any]]
"""(center, offer, worker int32 [], there bool []) -> (center, what the worker takes)"""


class OnlyOnVisitState(NamedTuple):
    """State of `only_on_visit`."""

    step: jax.Array  # rounds done, int32 []
    inner_state: Any  # the worker's own, since it was last there


def round_robin(*, axis_name: str = "workers") -> ArrivalOrder:
    """Workers come to the center by rank, each of them once a step.

    Args:
        axis_name: of the workers.

    Returns:
        The `order` of `easgd` and `downpour`.

    Example:
        >>> order = round_robin()
        >>> jax.vmap(lambda _: order(0), axis_name="workers")(jnp.zeros(3))
        Array([0, 1, 2], dtype=int32)

    References:
        Zhang, Choromanska and LeCun (EASGD), NIPS 2015, arXiv:1412.6651, section 4.
    """
    name = replicas.check_axis("averaging.round_robin", axis_name)
    return lambda step: jax.lax.axis_index(name)


def first_come(seconds: ArrayLike, *, axis_name: str = "workers") -> ArrivalOrder:
    """Workers come to the center as they arrive: first come, first served.

    Args:
        seconds: float [T, P], when each worker arrives, compared within a step only;
            inf stays away. From its end the table starts anew. For a cluster's trace
            see `cluster.visits_to_rounds`.
        axis_name: of the P workers.

    Returns:
        The `order` of `easgd` and `downpour`.

    Raises:
        TypeError: if `seconds` does not hold real numbers.
        ValueError: if it has not two dimensions, is empty or has a nan, or (when asked)
            P is not the number of workers.

    Example:
        >>> order = first_come([[0.3, 0.1, float("inf")]])
        >>> jax.vmap(lambda _: order(0), axis_name="workers")(jnp.zeros(3))
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

    def order(step):
        row, own = collectives.row_of("seconds", queue, step, name)
        return row[own]

    return order


def only_on_visit(
    inner: optax.GradientTransformation,
    order: ArrivalOrder,
    *,
    axis_name: str = "workers",
) -> optax.GradientTransformation:
    """A worker's own optimizer that takes a step only when the worker comes.

        u = U(g^i) where order(t) >= 0, else 0, and the state of U stays as it is

    With the `order` of the method around it, a worker's clock counts its own visits:
    see `cluster.visits_to_rounds`. (`optax.transforms.conditionally_mask` does the same
    where no types are checked; a state that is shared at first it cannot turn into the
    workers' own.)

    Args:
        inner: the worker's own optimizer. It is also called where the worker stays
            away, to no effect.
        order: as in `easgd` and `downpour`.
        axis_name: of the workers.

    Returns:
        The `inner` of `easgd` and `downpour`. Its state holds the state of `inner`, of
        each worker, and the number of rounds done. A step selects between the states
        before and after: a state with a history costs its whole size each time.

    Example:
        >>> order = first_come([[0.0, float("inf")]])
        >>> tx = only_on_visit(optax.sgd(1.0), order)
        >>> jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="workers")(
        ...     jnp.ones(2))
        Array([-1.,  0.], dtype=float32)
    """
    inner = base.as_transformation("inner", inner)
    name = replicas.check_axis("averaging.only_on_visit", axis_name)

    def init_fn(params):
        own = base.vary(params, axis_name=name)
        inner_state = base.vary(inner.init(own), axis_name=name)
        inner_state = buffers.unshared(inner_state, params)
        return OnlyOnVisitState(jnp.zeros((), jnp.int32), inner_state)

    def update_fn(updates, state, params=None, **extra_args):
        place = base.check_answer("order(step)", order(state.step), jnp.integer)
        moves, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        kept = optax.tree.where(place >= 0, inner_state, state.inner_state)
        return only(place >= 0, moves), OnlyOnVisitState(state.step + 1, kept)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def in_turn(
    visit: Visit,
    center: Any,
    offer: Any,
    order: ArrivalOrder,
    step: jax.Array,
    axis_name: str,
) -> tuple[Any, Any, jax.Array]:
    """Lets every worker come to the center, one after the other.

    All workers gather all offers and follow the whole queue, so that all agree on the
    center: a server's part, done everywhere.

    Args:
        visit: one worker's, also called for who is not there, and must then leave the
            center as it is.
        center: what all workers share.
        offer: this worker's.
        order: see `ArrivalOrder`.
        step: of the schedule.
        axis_name: of the workers.

    Returns:
        The center after all visits, what this worker took, and whether it was there.
    """
    place = base.check_answer("order(step)", order(step), jnp.integer)
    offers, places = gather((offer, place), axis_name)
    queue = jnp.argsort(places)  # stable: equal ones by rank

    def next_one(center, worker):
        return visit(center, _row(offers, worker), worker, places[worker] >= 0)

    center, taken = jax.lax.scan(next_one, center, queue)
    own = jnp.argsort(queue)[jax.lax.axis_index(axis_name)]
    return center, _row(taken, own), place >= 0


def gather(tree: Any, axis_name: str) -> Any:
    """Every worker's tree, leaves [P, *shape], the same on all of them."""
    # under `vmap` they are not typed as the same, but no longer batched
    manual = axis_name in jax.sharding.get_abstract_mesh().manual_axes
    to = "invarying" if manual else "varying"
    return jax.tree.map(
        lambda leaf: jax.lax.all_gather(leaf, axis_name, to=to),
        base.vary(tree, axis_name=axis_name),
    )


def only(there: jax.Array, tree: Any) -> Any:
    """`tree` where a worker is there, zeros where it stays away."""
    return jax.tree.map(lambda leaf: jnp.where(there, leaf, 0), tree)


def _row(tree: Any, worker: jax.Array) -> Any:
    return jax.tree.map(
        lambda rows: jax.lax.dynamic_index_in_dim(rows, worker, keepdims=False), tree
    )
