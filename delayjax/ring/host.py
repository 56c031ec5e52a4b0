"""A history in the host's memory."""

import dataclasses
import math
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax.ring import ring as rings

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
TILE = 8, 128  # of a TPU's memory: it takes slices of whole tiles from the host's


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Flat(rings.Packed):
    """Slots of an item that is kept flat, in rows padded with zeros."""

    rows: Any  # [capacity, rows, 128]; narrow floats as `Bits`
    item: tuple[int, ...] = dataclasses.field(metadata={"static": True})  # its shape

    @property
    def shape(self) -> tuple[int, ...]:
        """[capacity, *shape], as of any slots."""
        return (self.rows.shape[0], *self.item)

    @property
    def dtype(self) -> jnp.dtype:
        """Of the items."""
        return self.rows.dtype


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
        >>> storage = on_host()
        >>> ring = storage.push(storage.init(jnp.zeros(2), 4), jnp.ones(2))
        >>> {slots.sharding.memory_kind for slots in jax.tree.leaves(ring.slots)}
        {'pinned_host'}
        >>> storage.read(ring, 0)
        Array([1., 1.], dtype=float32)
    """

    def init_fn(tree, capacity):
        zeros = jax.tree.map(jnp.zeros_like, tree)  # `tree` may hold shapes alone
        rows = jax.tree.map(
            lambda leaf: leaf if _is_tiled(leaf) else _rows(leaf), zeros
        )
        ring = rings.init_by(_empty, rows, capacity)

        def pack(leaf, slots):
            return slots if _is_tiled(leaf) else Flat(slots, leaf.shape)

        return ring._replace(slots=jax.tree.map(pack, zeros, ring.slots))

    def push_fn(ring, tree):
        rings.check_item(ring.slots, tree)

        def as_kept(slots, leaf):
            return _rows(leaf) if isinstance(slots, Flat) else leaf

        kept = jax.tree.map(as_kept, ring.slots, tree, is_leaf=rings.is_packed)
        return _packed_like(rings.push_by(_write, _unpacked(ring), kept), ring)

    def read_fn(ring, age):
        def as_item(slots, kept):
            if isinstance(slots, Flat):
                return kept.ravel()[: math.prod(slots.item)].reshape(slots.item)
            return kept

        kept = rings.read_by(_read, _unpacked(ring), age)
        return jax.tree.map(as_item, ring.slots, kept, is_leaf=rings.is_packed)

    return rings.Storage(init_fn, push_fn, read_fn)


def _unpacked(ring: rings.Ring) -> rings.Ring:
    """A ring whose items are those that a `Flat` holds."""

    def unpack(slots):
        return slots.rows if isinstance(slots, Flat) else slots

    slots = jax.tree.map(unpack, ring.slots, is_leaf=rings.is_packed)
    return ring._replace(slots=slots)


def _packed_like(ring: rings.Ring, like: rings.Ring) -> rings.Ring:
    """A ring that was `unpacked`, packed again."""
    slots = jax.tree.map(
        lambda old, new: Flat(new, old.item) if isinstance(old, Flat) else new,
        *(like.slots, ring.slots),
        is_leaf=rings.is_packed,
    )
    return ring._replace(slots=slots)


def _is_tiled(leaf: jax.Array) -> bool:
    rows, columns = (1, *leaf.shape)[-2:] if leaf.ndim else (1, 1)
    # flat, what is sharded explicitly would lose its type
    sharded = any(axis is not None for axis in jax.typeof(leaf).sharding.spec)
    return sharded or (rows >= TILE[0] and columns % TILE[1] == 0)


def _rows(leaf: jax.Array) -> jax.Array:
    """A leaf in rows of a tile, [8 n, 128]."""
    padding = -jnp.size(leaf) % math.prod(TILE)
    return jnp.pad(jnp.ravel(leaf), (0, padding)).reshape(-1, TILE[1])


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
