"""A fixed-capacity history of pytrees, written and read in place."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from delayjax import base


class Ring(NamedTuple):
    """The last items pushed, in slots that are overwritten in turn."""

    slots: Any  # the item's tree; each leaf [capacity, *shape], narrow floats as `Bits`
    pushed: jax.Array  # items pushed so far, int32 []
    first: jax.Array  # how many of them were lost before the oldest kept, int32 []


class Packed:
    """Slots in another form than their items', of which they tell `shape`, `dtype`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bits(Packed):
    """Slots of a floating-point type narrower than 32 bits, kept as their bits.

    XLA computes with such types in float32 on a CPU. It would convert the whole ring,
    there and back, at every write; integers are left in place.
    """

    bits: jax.Array  # unsigned integers as wide as `dtype`, [capacity, *shape]
    dtype: jnp.dtype = dataclasses.field(metadata={"static": True})  # of the items

    @property
    def shape(self) -> tuple[int, ...]:
        """[capacity, *shape], as of any slots."""
        return self.bits.shape


class Storage(NamedTuple):
    """Where and how a history is kept: three functions with the signatures below."""

    init: Callable[[Any, Any], Ring]
    push: Callable[[Ring, Any], Ring]
    read: Callable[[Ring, Any], Any]


def init(tree: Any, capacity: Any) -> Ring:
    """An empty history of items shaped like `tree`.

    Args:
        tree: arrays (or `jax.ShapeDtypeStruct`s) with the shapes, dtypes and shardings
            of one item; their values are not used.
        capacity: how many items are kept, at least 1: an int, or a prefix tree of ints
            for a depth of its own in each part of the tree. Static.

    Returns:
        A ring of zeros, `capacity` times the memory of `tree`. Each slot is sharded as
        its item is; where `init` itself is jitted on a mesh of Auto axes, name
        `out_shardings`, for XLA gives zeros no sharding of its own.

    Raises:
        TypeError: if a capacity is not a static integer.
        ValueError: if a capacity is below 1, or `capacity` is no prefix of `tree`.

    Example:
        >>> ring = init(jnp.zeros(()), 3)
        >>> for item in (1.0, 2.0, 3.0, 4.0):
        ...     ring = push(ring, jnp.asarray(item))
        >>> [float(read(ring, age)) for age in (0, 1, 2)]
        [4.0, 3.0, 2.0]
    """
    return init_by(empty_slots, tree, capacity)


def init_by(empty: Callable[..., jax.Array], tree: Any, capacity: Any) -> Ring:
    """`init`, by a function of one item's zeros and the number of slots."""

    def make(depth, leaf):
        # not jnp.zeros(shape): that forgets the leaf's sharding and its varying axes
        dtype = jnp.result_type(leaf)
        zeros = jnp.zeros_like(leaf, dtype=bits_type(dtype) or dtype)
        slots = empty(zeros, depth)
        return Bits(slots, dtype) if bits_type(dtype) else slots

    slots = jax.tree.map(make, _depths(capacity, tree), tree)
    return Ring(slots, *(jnp.zeros((), jnp.int32) for _ in range(2)))


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
        >>> ring = push(init(jnp.zeros(()), 2), jnp.asarray(5.0))
        >>> float(read(ring, 0)), int(ring.pushed)
        (5.0, 1)
    """
    return push_by(write_slot, ring, tree)


def push_by(write: Callable[..., jax.Array], ring: Ring, tree: Any) -> Ring:
    """`push`, by a function of slots, one item and the slot that it goes to."""
    check_item(ring.slots, tree)

    def put(slots, leaf):
        leaf = jnp.asarray(leaf, slots.dtype)
        if isinstance(slots, Bits):
            leaf = jax.lax.bitcast_convert_type(leaf, slots.bits.dtype)
            return dataclasses.replace(slots, bits=put(slots.bits, leaf))
        return write(slots, leaf, ring.pushed % slots.shape[0])

    slots = jax.tree.map(put, ring.slots, tree, is_leaf=is_packed)
    return ring._replace(slots=slots, pushed=ring.pushed + 1)


def write_slot(slots: jax.Array, item: jax.Array, slot: jax.Array) -> jax.Array:
    """[capacity, *shape] with an item, [*shape], in a slot, []."""
    return jax.lax.dynamic_update_index_in_dim(slots, item, slot, axis=0)


def read(ring: Ring, age: Any) -> Any:
    """The item pushed `age` pushes before the last one.

    Push first, then read: a read of the old buffer before a write to it makes XLA copy
    the whole ring at every step on a CPU.

    Args:
        ring: the history.
        age: 0 for the item pushed last. An int, an integer scalar that may be traced
            (clipped to [0, capacity - 1]), an integer array of a leaf's shape for each
            coordinate at an age of its own, or a prefix tree of these. Slots that have
            not been written yet read as zeros.

    Returns:
        A tree like the items. Costs one item.

    Raises:
        ValueError: if an int is outside [0, capacity - 1], or `age` is no prefix of the
            item's tree.

    Example:
        >>> ring = push(push(init(jnp.zeros(()), 2), jnp.ones(())), jnp.zeros(()))
        >>> float(read(ring, 1)), float(read(ring, jnp.asarray(7)))  # the oldest is 1
        (1.0, 1.0)
    """
    return read_by(read_slot, ring, age)


def read_by(read: Callable[..., jax.Array], ring: Ring, age: Any) -> Any:
    """`read`, by a function of slots and the slot that is wanted."""

    def take(slots, leaf_age):
        if isinstance(slots, Bits):
            bits = take(slots.bits, leaf_age)
            return jax.lax.bitcast_convert_type(bits, slots.dtype)
        capacity = slots.shape[0]
        if isinstance(leaf_age, int) and not 0 <= leaf_age < capacity:
            raise ValueError(
                f"`age` must lie in [0, {capacity - 1}], the ring's depth, got"
                f" {leaf_age}: make the ring deeper with a larger capacity."
            )
        past = jnp.clip(leaf_age, 0, capacity - 1)
        return read(slots, (ring.pushed - 1 - past) % capacity)

    item = jax.tree.map(lambda _: 0, ring.slots, is_leaf=is_packed)
    ages = base.broadcast("age", age, item)
    return jax.tree.map(take, ring.slots, ages, is_leaf=is_packed)


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
        `dtype`; `delayed` casts it back.

    Raises:
        TypeError: if `dtype`, or a leaf to be stored, is not real floating point, or
            `storage` is no storage.

    Example:
        >>> storage = cast(jnp.bfloat16)
        >>> ring = storage.push(storage.init(jnp.zeros(2), 4), jnp.full(2, 1.001))
        >>> storage.read(ring, 0)
        Array([1, 1], dtype=bfloat16)
    """
    if not jnp.issubdtype(dtype, jnp.floating):
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

    def init_fn(tree, capacity):
        check(tree)
        zeros = optax.tree.zeros_like(tree)  # `tree` may hold shapes alone
        return kept.init(optax.tree.cast(zeros, dtype), capacity)

    def push_fn(ring, tree):
        check(tree)
        return kept.push(ring, optax.tree.cast(tree, dtype))

    return Storage(init_fn, push_fn, kept.read)


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


def _depths(capacity: Any, tree: Any) -> Any:
    """A static number of items for each leaf of an item's tree."""
    checked = jax.tree.map(
        lambda depth: base.check_bound("capacity", depth, at_least=1), capacity
    )
    return base.broadcast("capacity", checked, tree)


def check_item(slots: Any, tree: Any) -> None:
    """Checks that an item is like those that the slots were made for."""
    expected = jax.tree.structure(slots, is_leaf=is_packed)
    got = jax.tree.structure(tree)
    if expected != got:
        raise ValueError(
            f"`tree` must have the structure the ring was made for, {expected}, got"
            f" {got}."
        )
    leaves = jax.tree.leaves_with_path(tree)
    each = jax.tree.leaves(slots, is_leaf=is_packed)
    for (path, leaf), held in zip(leaves, each, strict=True):
        if jnp.shape(leaf) != held.shape[1:]:
            raise ValueError(
                f"`tree` must have the shapes the ring was made for: {_name(path)} is"
                f" {jnp.shape(leaf)}, its slots hold {held.shape[1:]}."
            )
        if jnp.promote_types(jnp.result_type(leaf), held.dtype) != held.dtype:
            raise TypeError(
                f"`tree` would lose precision: {_name(path)} is"
                f" {jnp.result_type(leaf)}, its slots hold {held.dtype}. Cast it, or"
                " say so with `cast`."
            )


def is_packed(node: Any) -> bool:
    """Whether a node of a tree of slots is one leaf's."""
    return isinstance(node, Packed)


def bits_type(dtype: Any) -> Any:
    """The unsigned integers as wide as a narrow floating-point type, else None."""
    width = jnp.dtype(dtype).itemsize
    if jnp.issubdtype(dtype, jnp.floating) and width < 4:
        return {1: jnp.uint8, 2: jnp.uint16}[width]
    return None


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "the root"
