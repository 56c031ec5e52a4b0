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

from delayjax._src import base, boxes
from delayjax._src.ring import ring as rings

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
TILE = 8, 128  # of a TPU's memory, which takes whole tiles from the host's memory


def on_host() -> rings.Storage:
    """A history in pinned memory of the device's host.

    A step moves one item to the host and one item back. A read has the same bits as the
    push. `init` makes the slots on the host, where they stay. After a restore onto a
    single device put them there with `jax.device_put(slots, jax.memory.Space.Host)`. On
    several devices they go where their `sharding` says.

    Returns:
        A storage for `delayed(..., history=on_host())`: `max_delay + 1` gradients on
        the host, one gradient on the device. With several devices, each host keeps the
        slots of its own devices. A leaf that is no matrix of whole tiles,
        [..., >= 8, 128 n], is kept flat in rows of 128, padded with zeros to a multiple
        of 1024 numbers.

        For a plain `jit`, `scan` or `shard_map` with the state donated, not for `vmap`.
        Call `init` eagerly: a jitted `init` makes its zeros on the device. To compile
        ahead of time, give the `jax.ShapeDtypeStruct`s of the slots a `sharding` with
        the kind of memory.

    Raises:
        ValueError: in `push` and `read`, under a `vmap` over histories (for example
            `workers.simulate` with a history for each worker).

    Example:
        >>> storage, item = on_host(), jnp.ones(2)
        >>> ring = storage.push(storage.init(item, 4), item)
        >>> {slots.sharding.memory_kind for slots in jax.tree.leaves(ring.slots)}
        {'pinned_host'}
        >>> storage.read(ring, 0, item)
        Array([1., 1.], dtype=float32)
    """

    def init_fn(tree, capacity):
        zeros = jax.tree.map(jnp.zeros_like, tree)  # `tree` may hold shapes
        leaves = jax.tree.leaves(zeros)
        kept = [leaf if _is_tiled(leaf) else _rows(leaf) for leaf in leaves]
        depths = jax.tree.leaves(base.broadcast("capacity", capacity, tree))
        ring = rings.init_by(_empty, kept, depths)
        return ring._replace(slots=boxes.stacked(zeros, ring.slots))

    def push_fn(ring, tree):
        rings.check_tree("tree", ring.slots, tree)
        slots, structure = jax.tree.flatten(ring.slots)
        kept = [
            leaf if jnp.shape(leaf) == held.shape[1:] else _rows(leaf)
            for held, leaf in zip(slots, jax.tree.leaves(tree), strict=True)
        ]
        pushed = rings.push_by(_write, ring._replace(slots=slots), kept)
        return pushed._replace(slots=jax.tree.unflatten(structure, pushed.slots))

    def read_fn(ring, age, like):
        rings.check_tree("like", ring.slots, like)
        slots = jax.tree.leaves(ring.slots)
        leaves, structure = jax.tree.flatten(like)
        ages = jax.tree.leaves(base.broadcast("age", age, like))
        kept = [
            jax.ShapeDtypeStruct(held.shape[1:], jnp.result_type(leaf))
            for held, leaf in zip(slots, leaves, strict=True)
        ]
        read = rings.read_by(_read, ring._replace(slots=slots), ages, kept)
        items = [
            rows.ravel()[: math.prod(jnp.shape(leaf))].reshape(jnp.shape(leaf))
            if rows.shape != jnp.shape(leaf)
            else rows
            for rows, leaf in zip(read, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, items)

    return rings.Storage(init_fn, push_fn, read_fn)


def _rows(leaf: jax.Array) -> jax.Array:
    """A leaf in rows of tiles, [8 n, 128]."""
    padding = -jnp.size(leaf) % math.prod(TILE)
    return jnp.pad(jnp.ravel(leaf), (0, padding)).reshape(-1, TILE[1])


def _is_tiled(leaf: jax.Array) -> bool:
    rows, columns = (1, *leaf.shape)[-2:] if leaf.ndim else (1, 1)
    # a flat leaf would lose the type of an explicit sharding
    sharded = any(axis is not None for axis in jax.typeof(leaf).sharding.spec)
    return sharded or (rows >= TILE[0] and columns % TILE[1] == 0)


def _empty(zeros: jax.Array, capacity: int) -> jax.Array:
    """Slots of zeros that are made on the host, never on a device."""
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
    if jax.typeof(slots).memory_space == HOST:
        return _write_host(slots, item, slot)
    return rings.write_slot(slots, item, slot)


def _read(slots: jax.Array, slot: jax.Array) -> jax.Array:
    if jax.typeof(slots).memory_space == HOST:
        return _read_host(slots, slot)
    return rings.read_slot(slots, slot)


@custom_vmap
def _write_host(slots: jax.Array, item: jax.Array, slot: jax.Array) -> jax.Array:
    return rings.write_slot(slots, jax.device_put(item, HOST), slot)


@custom_vmap
def _read_host(slots: jax.Array, slot: jax.Array) -> jax.Array:
    return jax.device_put(rings.read_slot(slots, slot), DEVICE)


@_write_host.def_vmap
@_read_host.def_vmap
def _refuse(*_: Any) -> Any:
    raise ValueError(
        "A history on the host has no `vmap`: simulate workers and grids with"
        " history=None, or average the gradients before the history,"
        " exchange.mean(delayed(..., history=ring.on_host()))."
    )
