"""Workers visit a center, which is a shared model, one after the other."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src.averaging import means
from delayjax._src.ground import axes, checks, collectives, donation, kinds, transforms

ArrivalOrder = Callable[[jax.Array], ArrayLike]
"""step (int32 []) -> this worker's place in the queue of the step, int32 []. Lower
places come first, equal places by rank. A worker with a negative place stays away."""

Visit = Callable[[Any, Any, jax.Array, jax.Array], tuple[Any, Any]]
"""(center, offer, worker int32 [], there bool []) -> (center, what the worker takes).
If `there` is false the center must not change."""


def by_rank(*, axis_name: str = "workers") -> ArrivalOrder:
    """The `order` of `easgd` and `downpour` by which workers visit by their ranks.

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


class OnlyOnVisitState(NamedTuple):
    """State of `only_on_visit`."""

    step: jax.Array  # rounds done, int32 []
    inner_state: Any  # of each worker, after its last visit


@kinds.checked
def only_on_visit(
    inner: transforms.Transformation,
    order: ArrivalOrder,
    *,
    axis_name: str = "workers",
) -> optax.GradientTransformation:
    """The `inner` of `easgd` and `downpour` that steps only when its worker visits.

        u = U(g^i) where order(t) >= 0, else 0, and the state of U does not change

    Args:
        inner: each worker's own optimizer, U. Each step copies its whole state, which
            is slow if the state holds a history.
        order: as in `easgd` and `downpour`.
        axis_name: the workers' axis.

    Example:
        >>> from delayjax.averaging import first_come
        >>> tx = only_on_visit(optax.sgd(1.0), first_come([[0.0, float("inf")]]))
        >>> jax.vmap(lambda g: tx.update(g, tx.init(g))[0], axis_name="workers")(
        ...     jnp.ones(2))
        Array([-1.,  0.], dtype=float32)
    """
    inner = transforms.as_transformation("inner", inner)

    def init_fn(params):
        inner_state = inner.init(params)
        inner_state = donation.unshared(
            axes.vary(inner_state, axis_name=axis_name), params
        )
        return OnlyOnVisitState(jnp.zeros((), jnp.int32), inner_state)

    def update_fn(updates, state, params=None, **extra_args):
        place = checks.as_scalar("order(step)", order(state.step), jnp.integer)
        moves, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        kept = optax.tree.where(place >= 0, inner_state, state.inner_state)
        return only(place >= 0, moves), OnlyOnVisitState(state.step + 1, kept)

    return transforms.stateful(OnlyOnVisitState, init_fn, update_fn)


def in_turn(
    visit: Visit,
    center: Any,
    offer: Any,
    order: ArrivalOrder,
    step: Any,
    axis_name: str,
) -> tuple[Any, Any, jax.Array]:
    """Lets the workers visit the center one after the other.

    Each worker gathers all offers and computes all visits, so all have the same center.
    Returns the center, what this worker took, and whether this worker visited.
    """
    place = checks.as_scalar("order(step)", order(step), jnp.integer)
    offers, places = means.gathered((offer, place), axis_name)
    queue = jnp.argsort(places)  # stable: equal places by rank

    def row(tree, worker):
        return jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, worker, keepdims=False), tree
        )

    def next_one(center, worker):
        return visit(center, row(offers, worker), worker, places[worker] >= 0)

    center, taken = jax.lax.scan(next_one, center, queue)
    turn = jnp.argsort(queue)[jax.lax.axis_index(axis_name)]
    return center, row(taken, turn), place >= 0


def only(there: jax.Array, tree: Any) -> Any:
    """`tree` if the worker visits, else zeros."""
    return jax.tree.map(lambda leaf: jnp.where(there, leaf, 0), tree)


def typed_beyond(tree: Any, model: Any, axis_name: str) -> Any:
    """`tree`, which workers share, typed as different over the threads of a worker."""
    over = {name for leaf in jax.tree.leaves(model) for name in axes.varies_over(leaf)}
    further = tuple(sorted(over - {axis_name}))
    return axes.vary(tree, axis_name=further) if further else tree
