"""A history in the host's memory."""

import math
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import xla
from delayjax._src.ground.pickling import remembered
from delayjax._src.history import ring as rings

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
TILE = 8, 128  # a TPU copies whole tiles from the host's memory


@remembered
def on_host() -> rings.Storage:
    """A history in pinned memory of the device's host.

    A step moves one item to the host and one item back. `init` makes the slots on the
    host, and they stay there. After a restore onto a single device put them there with
    `jax.device_put(slots, jax.memory.Space.Host)`. On several devices a restore places
    them by their `sharding`.

    Returns:
        A storage for `delayed(..., history=on_host())`: `max_delay + 1` gradients on
        the host of each device, one gradient on the device. A leaf that is no matrix of
        whole tiles, [..., >= 8, 128 n], is kept flat in rows of 128, padded with zeros
        to a multiple of 1024 numbers.

        Use it in a plain `jit`, `scan` or `shard_map`, and donate the state. Under a
        `vmap` over histories (`workers.simulate` with a history for each worker) it
        raises a ValueError. Call `init` eagerly: a jitted `init` makes its zeros on the
        device. It has no derivative: differentiation raises a TypeError. To compile
        ahead of time, give the `jax.ShapeDtypeStruct`s of the slots a `sharding` with
        the kind of memory.

    Example:
        >>> storage, item = on_host(), jnp.ones(2)
        >>> ring = storage.push(storage.init(item, 4), item)
        >>> {slots.sharding.memory_kind for slots in jax.tree.leaves(ring.slots)}
        {'pinned_host'}
        >>> storage.read(ring, 0, item)
        Array([1., 1.], dtype=float32)
    """
    return rings.Storage(_empty, _write, _read, _pack, _unpack)


def _rows(leaf: Any) -> jax.Array:
    """A leaf in rows of tiles, [8 n, 128]."""
    padding = -jnp.size(leaf) % math.prod(TILE)
    return jnp.pad(jnp.ravel(leaf), (0, padding)).reshape(-1, TILE[1])


def _pack(tree: Any, slots: Any) -> Any:
    """Leaves in the shapes of their slots; before there are slots, `_empty` does it."""
    if slots is None:
        return tree
    rings.check_tree("tree", slots, tree)

    def pack(leaf, held):
        return leaf if jnp.shape(leaf) == held.shape[1:] else _rows(leaf)

    return rings.map_leaves(pack, tree, slots)


def _unpack(leaves: Any, like: Any) -> Any:
    """The inverse of `_pack`."""

    def unpack(kept, leaf):
        shape = jnp.shape(leaf)
        if kept.shape == shape:
            return kept
        return kept.ravel()[: math.prod(shape)].reshape(shape)

    return rings.unpack_as_is(rings.map_leaves(unpack, leaves, like), like)


def _is_tiled(leaf: jax.Array) -> bool:
    rows, columns = (1, *leaf.shape)[-2:] if leaf.ndim else (1, 1)
    # a flat leaf would lose the type of an explicit sharding
    sharded = any(axis is not None for axis in jax.typeof(leaf).sharding.spec)
    return sharded or (rows >= TILE[0] and columns % TILE[1] == 0)


def _empty(zeros: jax.Array, capacity: int) -> jax.Array:
    """Slots of zeros that are made on the host, never on a device."""
    zeros = zeros if _is_tiled(zeros) else _rows(zeros)
    if isinstance(zeros, jax.core.Tracer):
        return jax.device_put(rings.empty_slots(zeros, capacity), HOST)
    sharding = zeros.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, P(None, *sharding.spec))
    shape, dtype = (capacity, *zeros.shape), zeros.dtype
    slots = jax.make_array_from_callback(
        shape,
        sharding.with_memory_kind("pinned_host"),
        lambda index: np.zeros(shape, dtype)[index],
    )
    # on a single device the call above forgets the kind of memory
    return jax.device_put(slots, HOST)


def _write(slots: jax.Array, item: jax.Array, slot: jax.Array) -> jax.Array:
    if jax.typeof(slots).memory_space != HOST:
        return rings.write_slot(slots, item, slot)
    return _write_host(slots, xla.without_derivative(item, "the host's memory"), slot)


def _read(slots: jax.Array, slot: jax.Array) -> jax.Array:
    is_host = jax.typeof(slots).memory_space == HOST
    return (_read_host if is_host else rings.read_slot)(slots, slot)


@custom_vmap
def _write_host(slots: jax.Array, item: jax.Array, slot: jax.Array) -> jax.Array:
    return rings.write_slot(slots, jax.device_put(item, HOST), slot)


@custom_vmap
def _read_host(slots: jax.Array, slot: jax.Array) -> jax.Array:
    return jax.device_put(rings.read_slot(slots, slot), DEVICE)


@_write_host.def_vmap
@_read_host.def_vmap
def _refuse(*_: Any) -> Any:
    raise ValueError("A history on the host has no `vmap`: use history=None there.")
