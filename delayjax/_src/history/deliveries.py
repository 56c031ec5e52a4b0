"""Sums of pytrees in the slots of the steps at which they are due."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from delayjax._src.ground import dtypes, trees
from delayjax._src.history import ring as rings


class Calendar(NamedTuple):
    """Items that are due at this step or at one of the next `capacity` - 1 steps."""

    # sums of items, leaves [capacity, *shape], at least float32; the items due at step
    # s are in slot s mod capacity, and a slot where none is due holds an old sum
    slots: Any
    due: jax.Array  # the number of items in each slot, int32 [capacity]
    step: jax.Array  # this step, int32 []


def init(tree: Any, capacity: int) -> Calendar:
    """An empty calendar of items like `tree`: arrays, or shapes with shardings."""

    def wide(leaf):
        dtype = dtypes.wide_dtype(leaf)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jnp.zeros_like(leaf, dtype=dtype)
        return jnp.asarray(leaf, dtype)

    slots = rings.init(jax.tree.map(wide, tree), capacity).slots
    return Calendar(slots, jnp.zeros(capacity, jnp.int32), jnp.zeros((), jnp.int32))


def add(calendar: Calendar, tree: Any, delay: jax.Array) -> Calendar:
    """Adds an item that is due in `delay` steps, 0 .. capacity - 1. Costs one item."""
    rings.check_tree("tree", calendar.slots, tree)
    slot = (calendar.step + delay) % len(calendar.due)
    is_empty = calendar.due[slot] == 0
    slots, structure = jax.tree.flatten(calendar.slots)
    added = []
    for (path, leaf), held in zip(jax.tree.leaves_with_path(tree), slots, strict=True):
        _check_like(path, leaf, held)
        # the sum depends on what it overwrites: so XLA keeps the slots in place
        before = rings.read_slot(held, slot)
        total = jnp.where(is_empty, jnp.zeros_like(before), before)
        total = total + jnp.asarray(leaf, held.dtype)
        added.append(rings.write_slot(held, total, slot))
    return calendar._replace(
        slots=jax.tree.unflatten(structure, added),
        due=calendar.due.at[slot].add(1),
    )


def take(calendar: Calendar, like: Any) -> tuple[Calendar, Any, jax.Array]:
    """The calendar of the next step, the sum of the items due now, and their number.

    Add first, then take: else XLA copies all slots. Costs one item.

    Args:
        calendar: after the `add` of this step.
        like: an item, whose tree the sum has; its leaves are at least float32.
    """
    slot = calendar.step % len(calendar.due)
    arrived = calendar.due[slot]

    def sum_in(held):
        total = rings.read_slot(held, slot)
        return jnp.where(arrived > 0, total, jnp.zeros_like(total))

    sums = list(map(sum_in, jax.tree.leaves(calendar.slots)))
    calendar = calendar._replace(
        due=calendar.due.at[slot].set(0), step=calendar.step + 1
    )
    return calendar, jax.tree.unflatten(jax.tree.structure(like), sums), arrived


def _check_like(path: Any, leaf: Any, held: jax.Array) -> None:
    """Checks that an item fits into its slots."""
    fits = dtypes.wide_dtype(leaf, held) == held.dtype
    if jnp.shape(leaf) != held.shape[1:] or not fits:
        raise ValueError(
            f"`tree` must be like the calendar's items: {trees.path_name(path)} is"
            f" {jnp.result_type(leaf)}{list(jnp.shape(leaf))}, and its slots hold"
            f" {held.dtype}{list(held.shape[1:])}."
        )
