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
TILE = 8, 128  # of a TPU's memory: it takes slices of whole tiles from the host's


def on_host() -> rings.Storage:
    """A history in pinned memory of the device's host.

    A step moves one item there and one back. What is read is bit for bit what was
    pushed. The slots stay in the memory where they are: `init` makes them on the host.
    Restored onto a single device they have to be put there, by `jax.device_put(slots,
    jax.memory.Space.Host)`; several devices' go where their `sharding` says.

    Returns:
        A storage for `delayed(..., history=on_host())`: `max_delay + 1` gradients on
        the host, and on the device the one that is read. Of several devices each
        keeps on its host what it would keep itself. Leaves that are no matrices of
        whole tiles, [..., >= 8, 128 n], are kept flat in rows of 128, padded with
        zeros to a multiple of 1024 numbers.

        For a plain `jit`, `scan` or `shard_map` with the state donated; not under
        `vmap`. Make it eagerly: where `init` is jitted, the zeros pass through the
        device. To compile ahead of time, the `jax.ShapeDtypeStruct`s of its slots need
        a `sharding`, which says the kind of memory.

    Raises:
        ValueError: in `push` and `read`, under a `vmap` over histories, such as
            `workers.simulate` of workers with their own; or if `age` is an array.

    Example:
        >>> storage, item = on_host(), jnp.ones(2)
        >>> ring = storage.push(storage.init(item, 4), item)
        >>> {slots.sharding.memory_kind for slots in jax.tree.leaves(ring.slots)}
        {'pinned_host'}
        >>> storage.read(ring, 0, item)
        Array([1., 1.], dtype=float32)
    """

    def init_fn(tree, capacity):
        zeros = jax.tree.map(jnp.zeros_like, tree)  # `tree` may hold shapes alone
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
            rows if rows.shape == jnp.shape(leaf) else _cut(rows, jnp.shape(leaf))
            for rows, leaf in zip(read, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, items)

    return rings.Storage(init_fn, push_fn, read_fn)


def _rows(leaf: jax.Array) -> jax.Array:
    """A leaf in rows of a tile, [8 n, 128]."""
    padding = -jnp.size(leaf) % math.prod(TILE)
    return jnp.pad(jnp.ravel(leaf), (0, padding)).reshape(-1, TILE[1])


def _cut(rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The leaf that was kept in rows."""
    return rows.ravel()[: math.prod(shape)].reshape(shape)


def _is_tiled(leaf: jax.Array) -> bool:
    rows, columns = (1, *leaf.shape)[-2:] if leaf.ndim else (1, 1)
    # flat, what is sharded explicitly would lose its type
    sharded = any(axis is not None for axis in jax.typeof(leaf).sharding.spec)
    return sharded or (rows >= TILE[0] and columns % TILE[1] == 0)


def _empty(zeros: jax.Array, capacity: int) -> jax.Array:
    if isinstance(zeros, jax.core.Tracer):
        return jax.device_put(rings.empty_slots(zeros, capacity), HOST)
    sharding = zeros.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, P(None, *sharding.spec))
    return _zeros(
        (capacity, *zeros.shape), zeros.dtype, sharding.with_memory_kind("pinned_host")
    )


def _zeros(shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.Array:
    """Zeros that are made in the memory of a sharding, never on a device."""
    zeros = jax.make_array_from_callback(
        shape, sharding, lambda index: np.zeros(shape, dtype)[index]
    )
    # of one device's arrays the call above forgets the type of memory
    return jax.device_put(zeros, HOST)


def _write(slots: jax.Array, item: jax.Array, slot: jax.Array) -> jax.Array:
    if jax.typeof(slots).memory_space == HOST:
        return _write_host(slots, item, slot)
    return rings.write_slot(slots, item, slot)


def _read(slots: jax.Array, slot: jax.Array) -> jax.Array:
    if slot.ndim > 0:
        raise ValueError(
            "`age` must be one integer for each leaf where a history is on the host,"
            f" got shape {slot.shape}: keep it on the device, history=None."
        )
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
        "A history in the host's memory has no `vmap`: simulate workers and grids with"
        " history=None, or average the gradients before the history,"
        " exchange.mean(delayed(..., history=ring.on_host()))."
    )
