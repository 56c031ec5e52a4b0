"""Sums of pytrees in the slots of the steps at which they are due."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from delayjax._src.ground import dtypes
from delayjax._src.history import ring as rings


class Calendar(NamedTuple):
    """Items that are due at this step or at one of the next `capacity` - 1 steps."""

    # sums of items, leaves [capacity, *shape], at least float32. The items due at step
    # s are in slot s mod capacity. A slot without due items still holds an old sum.
    slots: Any
    due: jax.Array  # the number of items in each slot, int32 [capacity]
    step: jax.Array  # this step, int32 []


def init(tree: Any, capacity: int) -> Calendar:
    """An empty calendar of items like `tree`: arrays, or shapes with shardings."""

    def wide(leaf):
        return rings.as_dtype(leaf, dtypes.wide_dtype(leaf))

    slots = rings.init(jax.tree.map(wide, tree), capacity).slots
    return Calendar(slots, jnp.zeros(capacity, jnp.int32), jnp.zeros((), jnp.int32))


def add(calendar: Calendar, tree: Any, delay: jax.Array) -> Calendar:
    """Adds an item that is due in `delay` steps, 0 .. capacity - 1; writes one slot."""

    def fits(leaf, kept):
        return dtypes.wide_dtype(leaf, kept) == kept

    def add_to(held, leaf):
        # the sum depends on the slot that it overwrites, so XLA writes it in place
        before = rings.read_slot(held, slot)
        total = jnp.where(is_empty, jnp.zeros_like(before), before)
        total = total + jnp.asarray(leaf, held.dtype)
        return rings.write_slot(held, total, slot)

    rings.check_item(calendar.slots, tree, fits)
    slot = (calendar.step + delay) % len(calendar.due)
    is_empty = calendar.due[slot] == 0
    slots = rings.map_leaves(add_to, calendar.slots, tree)
    return calendar._replace(slots=slots, due=calendar.due.at[slot].add(1))


def take(calendar: Calendar, like: Any) -> tuple[Calendar, Any, jax.Array]:
    """The calendar of the next step, the sum of the items due now, and their number.

    Call `add` before `take`: otherwise XLA copies all slots. It reads one slot.

    Args:
        calendar: after the `add` of this step.
        like: an item; the sum has its tree, with leaves of at least float32.
    """
    slot = calendar.step % len(calendar.due)
    arrived = calendar.due[slot]

    def sum_in(_, held):
        total = rings.read_slot(held, slot)
        return jnp.where(arrived > 0, total, jnp.zeros_like(total))

    sums = rings.map_leaves(sum_in, like, calendar.slots)
    due = calendar.due.at[slot].set(0)
    return calendar._replace(due=due, step=calendar.step + 1), sums, arrived
