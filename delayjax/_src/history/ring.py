"""A history of pytrees with a fixed capacity, written and read in place."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import checks, named_arrays, trees, xla


class Ring(NamedTuple):
    """The last items pushed, in slots that are overwritten in turn."""

    # the item's tree, leaves [capacity, *shape]; narrow floats as integers (xla.BITS)
    slots: Any
    pushed: jax.Array  # items pushed so far, int32 []
    first: jax.Array  # items that were lost before the oldest kept item, int32 []


class Storage(NamedTuple):
    """A place and a way to keep a history, as `init`, `push` and `read` do."""

    init: Callable[[Any, Any], Ring]
    push: Callable[[Ring, Any], Ring]
    read: Callable[[Ring, Any, Any], Any]
    beside: Any = None  # the `Storage` of what is kept beside gradients; None: `plain`
    dtype: Any = None  # of the slots, as they are read; None: of each leaf


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
    return init_by(empty_slots, tree, capacity)


def init_by(empty: Callable[..., jax.Array], tree: Any, capacity: Any) -> Ring:
    """`init`, with a function of one item's zeros and the number of slots."""

    def slots_of(leaf, depth):
        depth = checks.check_bound("capacity", depth, at_least=1)
        dtype = jnp.dtype(jnp.result_type(leaf))
        return empty(xla.zeros_sharded_as(leaf, xla.BITS.get(dtype, dtype)), depth)

    depths = jax.tree.leaves(trees.broadcast("capacity", capacity, tree))
    slots = list(map(slots_of, jax.tree.leaves(tree), depths))
    clocks = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    return Ring(named_arrays.stacked(tree, slots), *clocks)


def empty_slots(zeros: jax.Array, capacity: int) -> jax.Array:
    """Zeros, [capacity, *shape], each sharded as the item is."""
    return jnp.broadcast_to(zeros, (capacity, *zeros.shape))


def push(ring: Ring, tree: Any) -> Ring:
    """Stores an item in the place of the oldest item.

    Args:
        ring: the history. Donate it, or carry it in a scan: then the write is in place
            and costs one item, whatever the capacity.
        tree: an item with the tree and the shapes of the ring's items. Floats are
            rounded to the slots' dtype; other leaves must fit into it.

    Returns:
        The ring with `tree` at age 0. The age of every other item grows by one.

    Example:
        >>> item = jnp.asarray(5.0)
        >>> ring = push(init(item, 2), item)
        >>> float(read(ring, 0, item)), int(ring.pushed)
        (5.0, 1)
    """
    return push_by(write_slot, ring, tree)


def push_by(
    write: Callable, ring: Ring, tree: Any, *, packed: Callable | None = None
) -> Ring:
    """`push`, with functions that write an item to a slot, and make it from a leaf."""
    check_tree("tree", ring.slots, tree)
    slots, structure = jax.tree.flatten(ring.slots)
    written = []
    for (path, leaf), held in zip(jax.tree.leaves_with_path(tree), slots, strict=True):
        item = packed(leaf, held.shape[1:]) if packed else leaf
        dtype, own = jnp.result_type(item), jnp.dtype(held.dtype)
        is_real = jnp.issubdtype(dtype, jnp.floating)
        is_bits = jnp.issubdtype(dtype, jnp.inexact)  # else it is an integer itself
        own = xla.FLOATS.get(own, own) if is_bits else own
        # a float is rounded to its slots' type, everything else must fit
        fits = is_real and jnp.issubdtype(own, jnp.floating)
        fits = fits or np.promote_types(dtype, own) == own
        if jnp.shape(item) != held.shape[1:] or not fits:
            raise ValueError(
                f"`tree` must be like the ring's items: {trees.path_name(path)} is"
                f" {dtype}{list(jnp.shape(item))}, and its slots hold"
                f" {own}{list(held.shape[1:])}."
            )
        slot = ring.pushed % held.shape[0]
        written.append(write(held, xla.as_bits(item, held.dtype), slot))
    written = jax.tree.unflatten(structure, written)
    return ring._replace(slots=written, pushed=ring.pushed + 1)


def write_slot(slots: jax.Array, item: jax.Array, slot: jax.Array) -> jax.Array:
    """[capacity, *shape] with the item [*shape] in the slot []."""
    return jax.lax.dynamic_update_index_in_dim(slots, item, slot, axis=0)


def read(ring: Ring, age: Any, like: Any) -> Any:
    """The item that was pushed `age` pushes before the last item.

    Push first, then read: else XLA copies the whole ring at every step on a CPU.

    Args:
        ring: the history.
        age: 0 for the last item. An int in [0, capacity - 1]; an integer scalar, which
            may be traced and is clipped to it; an integer array of a leaf's shape, for
            an age of each coordinate; or a prefix tree of these.
        like: an item (arrays or shapes), for example the newest.

    Returns:
        A tree with the structure and the dtypes of `like`; zeros where nothing was
        pushed. Costs one item.

    Example:
        >>> item = jnp.ones(())
        >>> ring = push(push(init(item, 2), item), jnp.zeros(()))
        >>> float(read(ring, 1, item)), float(read(ring, jnp.asarray(7), item))
        (1.0, 1.0)
    """
    return read_by(read_slot, ring, age, like)


def read_by(
    read: Callable, ring: Ring, age: Any, like: Any, *, opened: Callable | None = None
) -> Any:
    """`read`, with functions that read an item from a slot, and a leaf from it."""
    check_tree("like", ring.slots, like)

    def take(slots, leaf_age, leaf):
        capacity = slots.shape[0]
        if isinstance(leaf_age, int) and not 0 <= leaf_age < capacity:
            raise ValueError(
                f"`age` must lie in [0, {capacity - 1}], the ring's depth, got"
                f" {leaf_age}: make the ring with a larger capacity."
            )
        past = jnp.clip(leaf_age, 0, capacity - 1)
        kept = read(slots, (ring.pushed - 1 - past) % capacity)
        item = opened(kept, jnp.shape(leaf)) if opened else kept
        return xla.from_bits(item, jnp.result_type(leaf))

    ages = jax.tree.leaves(trees.broadcast("age", age, like))
    leaves, structure = jax.tree.flatten(like)
    taken = map(take, jax.tree.leaves(ring.slots), ages, leaves)
    return jax.tree.unflatten(structure, list(taken))


def read_slot(slots: jax.Array, slot: jax.Array) -> jax.Array:
    """The item [*shape] in a slot [], or in a slot for each coordinate [*shape]."""
    if slot.ndim > 0:
        return jnp.take_along_axis(slots, slot[None], axis=0)[0]
    return jax.lax.dynamic_index_in_dim(slots, slot, axis=0, keepdims=False)


def check_storage(history: Any, name: str = "history") -> Storage:
    """The storage that is an argument."""
    if not isinstance(history, Storage):
        raise TypeError(
            f"`{name}` must be a storage, got {history!r}: write for example"
            " ring.on_host() or ring.cast(jnp.bfloat16)."
        )
    return history


plain = Storage(init, push, read)
"""The default: slots on the device, in each leaf's own dtype and sharding."""


def item_in(slots: Any, slot: jax.Array, like: Any) -> Any:
    """The item like `like` in one of a tree's slots, whatever its age."""

    def read(held, leaf):
        return xla.from_bits(read_slot(held, slot), jnp.result_type(leaf))

    leaves, structure = jax.tree.flatten(like)
    found = list(map(read, jax.tree.leaves(slots), leaves))
    return jax.tree.unflatten(structure, found)


def with_item(slots: Any, slot: jax.Array, item: Any) -> Any:
    """A tree's slots, with an item in one of them."""

    def write(held, leaf):
        return write_slot(held, xla.as_bits(leaf, held.dtype), slot)

    kept, structure = jax.tree.flatten(slots)
    written = list(map(write, kept, jax.tree.leaves(item)))
    return jax.tree.unflatten(structure, written)


def dtype_of(slots: jax.Array) -> np.dtype:
    """The dtype of what slots hold: of narrow floats they hold the bits."""
    return xla.FLOATS.get(jnp.dtype(slots.dtype), jnp.dtype(slots.dtype))


def is_ring(node: Any) -> bool:
    """Whether a node of a tree is a ring."""
    return isinstance(node, Ring)


def check_tree(name: str, slots: Any, tree: Any) -> None:
    """Checks that an item has the structure of the slots."""
    held, got = (jax.tree.structure(named_arrays.unboxed(t)) for t in (slots, tree))
    if held != got:
        raise ValueError(
            f"`{name}` must have the structure of the history's items, {held}, got"
            f" {got}."
        )
