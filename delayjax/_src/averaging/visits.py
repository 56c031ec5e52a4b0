"""Workers visit a center, which is a shared model, one after the other."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from delayjax._src.averaging.gather import gather
from delayjax._src.averaging.orders import ArrivalOrder
from delayjax._src.ground import axes, checks

Visit = Callable[[Any, Any, jax.Array, jax.Array], tuple[Any, Any]]
"""(center, offer, worker int32 [], there bool []) -> (center, what the worker takes).
If `there` is false the center must not change."""


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
    offers, places = gather((offer, place), axis_name)
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
