"""A fixed-capacity history of pytrees, written and read in place."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from delayjax._src import base, boxes


class Ring(NamedTuple):
    """The last items pushed, in slots that are overwritten in turn.

    It holds arrays alone, so that any checkpoint library can store it.
    """

    # the item's tree, each leaf [capacity, *shape]; narrow floats as integers, see BITS
    slots: Any
    pushed: jax.Array  # items pushed so far, int32 []
    first: jax.Array  # how many of them were lost before the oldest kept, int32 []


BITS = {
    jnp.dtype(jnp.bfloat16): jnp.dtype(jnp.uint16),
    jnp.dtype(jnp.float16): jnp.dtype(jnp.int16),
    jnp.dtype(jnp.float8_e4m3fn): jnp.dtype(jnp.uint8),
    jnp.dtype(jnp.float8_e5m2): jnp.dtype(jnp.int8),
}
"""Floating-point types narrower than 32 bits, and the integers that hold their bits.

XLA computes with these types in float32 on a CPU. It would convert the whole ring,
there and back, at every write; integers are left in place.
"""
FLOATS = {bits: dtype for dtype, bits in BITS.items()}


class Storage(NamedTuple):
    """Where and how a history is kept: three functions with the signatures below."""

    init: Callable[[Any, Any], Ring]
    push: Callable[[Ring, Any], Ring]
    read: Callable[[Ring, Any, Any], Any]


def init(tree: Any, capacity: Any) -> Ring:
    """An empty history of items shaped like `tree`.

    Args:
        tree: arrays (or `jax.ShapeDtypeStruct`s) with the shapes, dtypes and shardings
            of one item; their values are not used.
        capacity: how many items are kept, at least 1: an int, or a prefix tree of ints
            for a depth of its own in each part of the tree. Static.

    Returns:
        A ring of zeros, `capacity` times the memory of `tree`. Each slot is sharded as
        its item is, also where `init` is compiled: a spec (*spec) becomes
        (None, *spec), in arrays and in Flax's metadata.

    Raises:
        TypeError: if a capacity is not a static integer.
        ValueError: if a capacity is below 1, or `capacity` is no prefix of `tree`.

    Example:
        >>> ring = init(jnp.zeros(()), 3)
        >>> for item in (1.0, 2.0, 3.0, 4.0):
        ...     ring = push(ring, jnp.asarray(item))
        >>> [float(read(ring, age, item)) for age in (0, 1, 2)]
        [4.0, 3.0, 2.0]
    """
    return init_by(empty_slots, tree, capacity)


def init_by(empty: Callable[..., jax.Array], tree: Any, capacity: Any) -> Ring:
    """`init`, by a function of one item's zeros and the number of slots."""
    slots = [
        empty(_zeros_like(leaf), depth)
        for leaf, depth in zip(
            jax.tree.leaves(tree), _depths(capacity, tree), strict=True
        )
    ]
    return Ring(
        boxes.stacked(tree, slots), *(jnp.zeros((), jnp.int32) for _ in range(2))
    )


def empty_slots(zeros: jax.Array, capacity: int) -> jax.Array:
    """Zeros, [capacity, *shape], each sharded as the item is."""
    return jnp.broadcast_to(zeros, (capacity, *zeros.shape))


def push(ring: Ring, tree: Any) -> Ring:
    """Stores an item in the place of the oldest.

    Args:
        ring: the history. Donate it (or carry it in a scan): the write is then in place
            and costs one item, whatever the capacity.
        tree: the item, of the structure and shapes the ring was made for.

    Returns:
        The ring with `tree` at age 0 and every other item one older.

    Raises:
        ValueError: if the structure or a shape differs, naming the leaf.
        TypeError: if storing a leaf would lose precision; see `cast`.

    Example:
        >>> item = jnp.asarray(5.0)
        >>> ring = push(init(item, 2), item)
        >>> float(read(ring, 0, item)), int(ring.pushed)
        (5.0, 1)
    """
    return push_by(write_slot, ring, tree)


def push_by(write: Callable[..., jax.Array], ring: Ring, tree: Any) -> Ring:
    """`push`, by a function of slots, one item and the slot that it goes to."""
    check_item(ring.slots, tree)
    slots, structure = jax.tree.flatten(ring.slots)
    written = [
        write(held, _as_kept(leaf, held.dtype), ring.pushed % held.shape[0])
        for held, leaf in zip(slots, jax.tree.leaves(tree), strict=True)
    ]
    return ring._replace(
        slots=jax.tree.unflatten(structure, written), pushed=ring.pushed + 1
    )


def write_slot(slots: jax.Array, item: jax.Array, slot: jax.Array) -> jax.Array:
    """[capacity, *shape] with an item, [*shape], in a slot, []."""
    return jax.lax.dynamic_update_index_in_dim(slots, item, slot, axis=0)


def read(ring: Ring, age: Any, like: Any) -> Any:
    """The item pushed `age` pushes before the last one.

    Push first, then read: a read of the old buffer before a write to it makes XLA copy
    the whole ring at every step on a CPU.

    Args:
        ring: the history.
        age: 0 for the item pushed last. An int, an integer scalar that may be traced
            (clipped to [0, capacity - 1]), an integer array of a leaf's shape for each
            coordinate at an age of its own, or a prefix tree of these. Slots that have
            not been written yet read as zeros.
        like: an item (arrays or shapes), the newest for one. What is read has its tree
            and its dtypes.

    Returns:
        A tree like `like`. Costs one item.

    Raises:
        ValueError: if an int is outside [0, capacity - 1], `age` is no prefix of the
            item's tree, or `like` is no such item.

    Example:
        >>> item = jnp.ones(())
        >>> ring = push(push(init(item, 2), item), jnp.zeros(()))
        >>> float(read(ring, 1, item)), float(read(ring, jnp.asarray(7), item))
        (1.0, 1.0)
    """
    return read_by(read_slot, ring, age, like)


def read_by(read: Callable[..., jax.Array], ring: Ring, age: Any, like: Any) -> Any:
    """`read`, by a function of slots and the slot that is wanted."""
    check_tree("like", ring.slots, like)

    def take(slots, leaf_age, leaf):
        capacity = slots.shape[0]
        if isinstance(leaf_age, int) and not 0 <= leaf_age < capacity:
            raise ValueError(
                f"`age` must lie in [0, {capacity - 1}], the ring's depth, got"
                f" {leaf_age}: make the ring deeper with a larger capacity."
            )
        past = jnp.clip(leaf_age, 0, capacity - 1)
        kept = read(slots, (ring.pushed - 1 - past) % capacity)
        return _as_item(kept, jnp.result_type(leaf))

    ages = jax.tree.leaves(base.broadcast("age", age, like))
    items, structure = jax.tree.flatten(like)
    taken = map(take, jax.tree.leaves(ring.slots), ages, items)
    return jax.tree.unflatten(structure, list(taken))


def read_slot(slots: jax.Array, slot: jax.Array) -> jax.Array:
    """The item [*shape] in a slot, [], or in a slot for each coordinate, [*shape]."""
    if slot.ndim > 0:
        return jnp.take_along_axis(slots, slot[None], axis=0)[0]
    return jax.lax.dynamic_index_in_dim(slots, slot, axis=0, keepdims=False)


def cast(dtype: DTypeLike, *, storage: Storage | None = None) -> Storage:
    """A history kept in a lower precision.

    Args:
        dtype: the floating-point type to store, `jnp.bfloat16` say.
        storage: where, `on_host()` or `sharded(...)`; by default on the device.

    Returns:
        A storage for `delayed(..., history=cast(dtype))`: half the memory of float32
        in bfloat16, at a relative rounding of 2^-9 of each gradient. What is read has
        the dtype of the gradients again.

    Raises:
        TypeError: if `dtype`, or a leaf to be stored, is not real floating point, or
            `storage` is no storage.

    Example:
        >>> storage, item = cast(jnp.bfloat16), jnp.full(2, 1.001)
        >>> storage.read(storage.push(storage.init(item, 4), item), 0, item)
        Array([1., 1.], dtype=float32)
    """
    try:
        is_floating = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
    except TypeError:
        is_floating = False
    if not is_floating:
        raise TypeError(f"`dtype` must be a floating-point type, got {dtype!r}.")
    kept = plain if storage is None else storage
    if not isinstance(kept, Storage):
        raise TypeError(
            f"`storage` must be a storage such as ring.on_host(), got {storage!r}."
        )

    def check(tree):
        for path, leaf in jax.tree.leaves_with_path(tree):
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise TypeError(
                    f"`cast` stores real floating-point leaves, got"
                    f" {jnp.result_type(leaf)} at {_name(path)}."
                )

    def narrow(leaf):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jnp.zeros_like(leaf, dtype=dtype)
        return leaf.astype(dtype)

    def init_fn(tree, capacity):
        check(tree)
        return kept.init(jax.tree.map(narrow, tree), capacity)

    def push_fn(ring, tree):
        check(tree)
        return kept.push(ring, optax.tree.cast(tree, dtype))

    def read_fn(ring, age, like):
        item = jax.eval_shape(lambda tree: optax.tree.cast(tree, dtype), like)
        return optax.tree.cast_like(kept.read(ring, age, item), like)

    return Storage(init_fn, push_fn, read_fn)


def vmap_axes(tree: Any) -> Any:
    """The `in_axes` and `out_axes` of a `vmap` over states that hold rings.

    A ring's clock is the same in every cell of a grid. Left unbatched, the write to a
    slot stays in place; batched, it becomes a scatter over the whole ring.

    Args:
        tree: a state, or its shapes from `jax.eval_shape`, that may hold rings.

    Returns:
        A tree like it: None at each ring's `pushed` and `first`, 0 everywhere else.

    Example:
        >>> vmap_axes(init(jnp.zeros(2), 4))
        Ring(slots=0, pushed=None, first=None)
    """
    clocks = [jax.tree_util.GetAttrKey(name) for name in ("pushed", "first")]

    def is_clock(path):
        return bool(path) and path[-1] in clocks

    return jax.tree.map_with_path(lambda path, _: None if is_clock(path) else 0, tree)


plain = Storage(init, push, read)
"""The default: slots in device memory, in each leaf's own dtype and sharding."""


def _depths(capacity: Any, tree: Any) -> list[int]:
    """A static number of items for each leaf of an item's tree."""
    checked = jax.tree.map(
        lambda depth: base.check_bound("capacity", depth, at_least=1), capacity
    )
    return jax.tree.leaves(base.broadcast("capacity", checked, tree))


def _zeros_like(leaf: Any) -> jax.Array:
    """Zeros like one leaf of an item, sharded and typed as it is, as they are kept."""
    dtype = jnp.dtype(jnp.result_type(leaf))
    # not jnp.zeros(shape): that forgets the leaf's sharding and its varying axes
    zeros = jnp.zeros_like(leaf, dtype=BITS.get(dtype, dtype))
    if isinstance(leaf, jax.core.Tracer):
        # in a compiled program a constant has no sharding (every device would hold all
        # slots); what depends on the leaf is sharded as the leaf is
        zeros = jnp.where(leaf == leaf, zeros, zeros)
    return zeros


def _as_kept(leaf: Any, dtype: Any) -> jax.Array:
    """A leaf of an item as slots of `dtype` hold it."""
    if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and dtype in FLOATS:
        return jax.lax.bitcast_convert_type(jnp.asarray(leaf, FLOATS[dtype]), dtype)
    return jnp.asarray(leaf, dtype)


def _as_item(kept: jax.Array, dtype: Any) -> jax.Array:
    """What slots hold of a leaf, as an item's leaf of `dtype`."""
    if jnp.issubdtype(dtype, jnp.floating) and kept.dtype in FLOATS:
        kept = jax.lax.bitcast_convert_type(kept, FLOATS[kept.dtype])
    return kept.astype(dtype)


def check_tree(name: str, slots: Any, tree: Any) -> None:
    """Checks that an item has the structure that the slots were made for."""
    expected, got = (jax.tree.structure(boxes.unboxed(t)) for t in (slots, tree))
    if expected != got:
        raise ValueError(
            f"`{name}` must have the structure the ring was made for, {expected}, got"
            f" {got}."
        )


def check_item(slots: Any, tree: Any) -> None:
    """Checks that an item is like those that the slots were made for."""
    check_tree("tree", slots, tree)
    leaves = jax.tree.leaves_with_path(tree)
    for (path, leaf), kept in zip(leaves, jax.tree.leaves(slots), strict=True):
        if jnp.shape(leaf) != kept.shape[1:]:
            raise ValueError(
                f"`tree` must have the shapes the ring was made for: {_name(path)} is"
                f" {jnp.shape(leaf)}, its slots hold {kept.shape[1:]}."
            )
        dtype, held = jnp.dtype(jnp.result_type(leaf)), jnp.dtype(kept.dtype)
        if jnp.issubdtype(dtype, jnp.floating):
            held = FLOATS.get(held, held)
        if jnp.promote_types(dtype, held) != held:
            raise TypeError(
                f"`tree` would lose precision: {_name(path)} is {dtype}, its slots hold"
                f" {held}. Cast it, or say so with `cast`."
            )


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "the root"
