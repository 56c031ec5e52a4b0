"""A history of pytrees with a fixed capacity; it is written and read in place."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import checks, named_arrays, trees, xla
from delayjax._src.ground.pickling import Pickled


class Ring(NamedTuple):
    """The last items pushed, in slots that are overwritten in turn."""

    # the item's tree, leaves [capacity, *shape]; narrow floats as integers (xla.BITS)
    slots: Any
    pushed: jax.Array  # items pushed so far, int32 []
    first: jax.Array  # items that were lost before the oldest kept item, int32 []


def empty_slots(zeros: jax.Array, capacity: int) -> jax.Array:
    """Zeros, [capacity, *shape], each sharded as the item is."""
    return jnp.broadcast_to(zeros, (capacity, *zeros.shape))


def write_slot(slots: jax.Array, item: jax.Array, slot: jax.Array) -> jax.Array:
    """Slots [capacity, *shape], with the item [*shape] written to the slot []."""
    return jax.lax.dynamic_update_index_in_dim(slots, item, slot, axis=0)


def read_slot(slots: jax.Array, slot: jax.Array) -> jax.Array:
    """The item [*shape] in a slot [], or in a slot for each coordinate [*shape]."""
    if slot.ndim > 0:
        return jnp.take_along_axis(slots, slot[None], axis=0)[0]
    return jax.lax.dynamic_index_in_dim(slots, slot, axis=0, keepdims=False)


def pack_as_is(tree: Any, slots: Any) -> Any:
    """An item's leaves; each has slots of its shape and dtype."""
    return tree


def unpack_as_is(leaves: Any, like: Any) -> Any:
    """The item with these leaves, with the boxes and the dtypes of `like`."""
    check_tree("like", leaves, like)

    def read(leaf, kept):
        return xla.from_bits(kept, jnp.result_type(leaf))

    return map_leaves(read, like, leaves)


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """`jax.tree.map`, where `others` may have other boxes than `tree`, or none."""
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten(map(function, leaves, *map(jax.tree.leaves, others)))


class _Ways(NamedTuple):
    # (zeros [*shape], capacity) -> slots [capacity, *shape]
    empty: Callable[[jax.Array, int], jax.Array] = empty_slots
    # (slots, leaf [*shape], slot []) -> slots
    write: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] = write_slot
    # (slots, slot [] or [*shape]) -> leaf [*shape]
    take: Callable[[jax.Array, jax.Array], jax.Array] = read_slot
    # (item, the ring's slots or None in `init`) -> a tree of leaves as they are kept
    pack: Callable[[Any, Any], Any] = pack_as_is
    # (packed leaves, an item) -> an item like it
    unpack: Callable[[Any, Any], Any] = unpack_as_is
    of_origins: Any = None  # the `Storage` of gradients' origins; None: `plain`
    dtype: Any = None  # of the items in the slots; None: the dtype of each leaf


class Storage(Pickled, _Ways):
    """How and where a history is kept: functions of its items and of their slots.

    An item is a tree. Its leaves are packed, and each packed leaf has its own slots.
    """

    def init(self, tree: Any, capacity: Any) -> Ring:
        """An empty history of items like `tree`, as `ring.init` makes it."""

        def slots_of(leaf, depth):
            depth = checks.check_bound("capacity", depth, at_least=1)
            dtype = jnp.dtype(jnp.result_type(leaf))
            kept = xla.zeros_sharded_as(leaf, xla.BITS.get(dtype, dtype))
            return self.empty(kept, depth)

        trees.check_numbers("tree", tree)
        leaves = self.pack(tree, None)
        depths = jax.tree.leaves(trees.broadcast("capacity", capacity, leaves))
        slots = list(map(slots_of, jax.tree.leaves(leaves), depths))
        clocks = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        return Ring(named_arrays.stacked(leaves, slots), *clocks)

    def push(self, ring: Ring, tree: Any) -> Ring:
        """The ring with `tree` at age 0, as `ring.push` stores it."""

        def fits(leaf, kept):  # floats are rounded; other dtypes must be representable
            is_rounded = all(jnp.issubdtype(x, jnp.floating) for x in (leaf, kept))
            return is_rounded or np.promote_types(leaf, kept) == kept

        def write(slots, leaf):
            slot = ring.pushed % slots.shape[0]
            return self.write(slots, xla.as_bits(leaf, slots.dtype), slot)

        leaves = self.pack(tree, ring.slots)
        check_item(ring.slots, leaves, fits)
        slots = map_leaves(write, ring.slots, leaves)
        return ring._replace(slots=slots, pushed=ring.pushed + 1)

    def read(self, ring: Ring, age: Any, like: Any) -> Any:
        """The item that was pushed `age` pushes before the last item."""

        def take(slots, age):
            capacity = slots.shape[0]
            if isinstance(age, int) and not 0 <= age < capacity:
                raise ValueError(f"`age` must lie in 0 .. {capacity - 1}, got {age}.")
            past = jnp.clip(checks.as_steps(age), 0, capacity - 1)
            return self.take(slots, (ring.pushed - 1 - past) % capacity)

        slots = named_arrays.unboxed(ring.slots)
        ages = trees.broadcast("age", age, slots)
        return self.unpack(jax.tree.map(take, slots, ages), like)


plain = Storage()
"""The default: slots on the device, in each leaf's own dtype and sharding."""


def init(tree: Any, capacity: Any) -> Ring:
    """Makes an empty history of items like `tree`.

    Args:
        tree: one item: arrays, or `jax.ShapeDtypeStruct`s with shardings.
        capacity: the number of items kept, at least 1: an int, or a prefix tree of
            ints. Static.

    Returns:
        A ring of zeros, `capacity` times the memory of `tree`. Each slot is sharded as
        its item: a spec (*spec) becomes (None, *spec), in arrays and in metadata.

    Example:
        >>> ring = init(jnp.zeros(()), 3)
        >>> for item in (1.0, 2.0, 3.0, 4.0):
        ...     ring = push(ring, jnp.asarray(item))
        >>> [float(read(ring, age, item)) for age in (0, 1, 2)]
        [4.0, 3.0, 2.0]
    """
    return plain.init(tree, capacity)


def push(ring: Ring, tree: Any) -> Ring:
    """Stores an item in place of the oldest item.

    Args:
        ring: the history. Donate it, or carry it in a scan: then the write is in place
            and costs one item, for any capacity.
        tree: an item with the tree and the shapes of the ring's items. Floats are
            rounded to the slots' dtype; other dtypes must fit into the slots' dtype.

    Returns:
        The ring with `tree` at age 0. The age of every other item grows by one.

    Example:
        >>> item = jnp.asarray(5.0)
        >>> ring = push(init(item, 2), item)
        >>> float(read(ring, 0, item)), int(ring.pushed)
        (5.0, 1)
    """
    return plain.push(ring, tree)


def read(ring: Ring, age: Any, like: Any) -> Any:
    """The item that was pushed `age` pushes before the last item.

    Push before you read: otherwise XLA copies the whole ring at every step on a CPU.

    Args:
        ring: the history.
        age: 0 for the last item. An int in [0, capacity - 1]; an integer scalar, which
            may be traced and is clipped to this interval; an integer array of a leaf's
            shape, for an age of each coordinate; or a prefix tree of these.
        like: an item (arrays or shapes), for example the newest.

    Returns:
        A tree with the structure and the dtypes of `like`; zeros where nothing was
        pushed. The time is proportional to one item, for any capacity.

    Example:
        >>> item = jnp.ones(())
        >>> ring = push(push(init(item, 2), item), jnp.zeros(()))
        >>> float(read(ring, 1, item)), float(read(ring, jnp.asarray(7), item))
        (1.0, 1.0)
    """
    return plain.read(ring, age, like)


def item_in(slots: Any, slot: jax.Array, like: Any) -> Any:
    """The item in slot `slot`, with the structure and the dtypes of `like`."""
    return unpack_as_is(map_leaves(lambda x: read_slot(x, slot), slots), like)


def with_item(slots: Any, slot: jax.Array, item: Any) -> Any:
    """A tree's slots, with `item` written to slot `slot`."""

    def write(held, leaf):
        return write_slot(held, xla.as_bits(leaf, held.dtype), slot)

    return map_leaves(write, slots, item)


def as_dtype(leaf: Any, dtype: Any) -> jax.Array:
    """An array in a dtype; zeros in this dtype where `leaf` is only a shape."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.zeros_like(leaf, dtype=dtype)
    return jnp.asarray(leaf, dtype)


def dtype_of(slots: jax.Array) -> np.dtype:
    """The dtype of the items in slots, which hold narrow floats as bits."""
    return xla.FLOATS.get(jnp.dtype(slots.dtype), jnp.dtype(slots.dtype))


def check_tree(name: str, slots: Any, tree: Any) -> None:
    """Checks that an item has the structure of the slots."""
    held, got = (jax.tree.structure(named_arrays.unboxed(t)) for t in (slots, tree))
    if held != got:
        raise ValueError(
            f"`{name}` must have the structure of the history's items, {held}, got"
            f" {got}."
        )


def check_item(slots: Any, item: Any, fits: Callable[[Any, Any], bool]) -> None:
    """Checks that an item's leaves have the shapes and fit into the dtypes of slots."""
    check_tree("tree", slots, item)
    leaves = jax.tree.leaves_with_path(item)
    for (path, leaf), held in zip(leaves, jax.tree.leaves(slots), strict=True):
        dtype, shape = jnp.result_type(leaf), list(jnp.shape(leaf))
        kept = dtype_of(held) if jnp.issubdtype(dtype, jnp.inexact) else held.dtype
        if shape != list(held.shape[1:]) or not fits(dtype, kept):
            raise ValueError(
                f"`tree` must be like the history's items: {trees.path_name(path)} is"
                f" {dtype}{shape}, and its slots hold {kept}{list(held.shape[1:])}:"
                " make the state with `init` of these parameters."
            )


def check_depth(slots: Any, bounds: list[int]) -> None:
    """Checks that the depths of slots are these bounds, each leaf's `max_delay`."""
    depths = [held.shape[0] - 1 for held in jax.tree.leaves(slots)]
    if len(depths) != len(bounds):  # a history that keeps several leaves together
        depths, bounds = sorted(set(depths)), sorted(set(bounds))
    if depths != bounds:
        names = (sorted(map(str, set(x))) for x in (bounds, depths))
        wanted, held = map(" and ".join, names)
        raise ValueError(
            f"`max_delay` is {wanted or 0}, but the history in the state has depth"
            f" {held or 0}: change it with resize_history(state, tx.init(params))."
        )
