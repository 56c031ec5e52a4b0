"""A history in which the caller chooses the slot of each item; items are numbered."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from delayjax._src.history import ring as rings


class Numbered(NamedTuple):
    """An item with its number, in a slot that was chosen at its push."""

    item: Any
    number: jax.Array  # the number of its push, from 1 on; 0 in an empty slot, int32 []


def init(tree: Any, capacity: int) -> rings.Ring:
    """An empty history of `capacity` items like `tree`."""
    return rings.init(Numbered(tree, jnp.zeros((), jnp.int32)), capacity)


def push(ring: rings.Ring, tree: Any, slot: jax.Array) -> rings.Ring:
    """The history with the next item in a slot."""
    pushed = ring.pushed + 1
    slots = rings.with_item(ring.slots, slot, Numbered(tree, pushed))
    return ring._replace(slots=slots, pushed=pushed)


def read(ring: rings.Ring, slot: jax.Array, like: Any) -> Any:
    """The item in a slot, with the structure and the dtypes of `like`."""
    return rings.item_in(ring.slots.item, slot, like)
