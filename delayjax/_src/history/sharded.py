"""A history that is divided between several devices."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import axes, collectives, kinds, trees, xla
from delayjax._src.ground.pickling import remembered
from delayjax._src.history import ring as rings

COLUMNS = 128  # the width of a tile of a TPU's memory
EVEN = 256
"""The number of rows is a multiple of this, so that the arrays are the same on 1, 2, 4,
..., 256 devices, and a checkpoint from 4 devices, say, can be restored on 8."""


@remembered
def sharded(
    axis_name: axes.AxisName,
    *,
    mesh: Mesh | None = None,
    num_workers: kinds.PositiveInt | None = None,
    bucket_bytes: kinds.NonNegativeInt = collectives.BUCKET_BYTES,
) -> rings.Storage:
    """A history that is divided between n devices: each keeps 1/n of it.

    It needs gradients that are the same on all devices, so use it after the mean: in a
    plain `jit` of a data-parallel step (`mesh`), or in the step of one worker
    (`num_workers`), `exchange.mean(delayed(..., history=sharded(...)))`. Each device
    writes its part of the fresh gradient, and gathers the parts of the stale gradient:

        read(ring, age) = all-gather(slots[(pushed - 1 - age) mod capacity])

    Args:
        axis_name: the axis of the devices, or several axes.
        mesh: a mesh with this axis, of type Auto, for a step in a plain `jit`. The
            state holds whole arrays, [capacity, rows, 128], sharded over the axis.
        num_workers: n, where the axis is the workers' axis. Each worker's state holds
            its own part, [capacity, rows / n, 128]. Give `mesh` or `num_workers`.
        bucket_bytes: smaller leaves are kept and gathered together, up to this size.

    Returns:
        A storage for `delayed(..., history=sharded(...))` with one delay for all leaves
        and all workers. The bytes on a device fall as 1/n. A step gathers one gradient,
        in one all-gather for each bucket, and holds it whole. Buckets are padded to a
        multiple of 128 n and of 2^15 numbers. An item that is itself sharded is
        gathered first: for such items use the default history, which has the sharding
        of the items.

    Example:
        >>> from jax.sharding import AxisType
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
        >>> storage, item = sharded("data", mesh=mesh), jnp.ones((2, 3))
        >>> ring = storage.push(storage.init(item, 4), item)
        >>> ring.slots[0].shape, ring.slots[0].sharding.spec
        ((4, 256, 128), P(None, 'data'))

    References:
        Rajbhandari, Rasley, Ruwase and He, ZeRO, SC 2020, arXiv:1910.02054.
    """
    names = axes.as_names(axis_name)
    if mesh is not None and num_workers is None:
        cut = _ByMesh(names, mesh)
    elif num_workers is not None and mesh is None:
        cut = _ByWorkers(names, num_workers)
    else:
        raise ValueError(
            "Either `mesh`, for a plain jit, or `num_workers`, for the step of one"
            f" worker, must be given, got {mesh} and {num_workers}."
        )
    rows_even = math.lcm(cut.devices, EVEN)

    def pack(tree, slots):
        if slots is None:  # `tree` may hold shapes
            tree = jax.tree.map(jnp.zeros_like, tree)
        else:
            cut.check_same("tree", tree)
        rows = _join(tree, bucket_bytes, rows_even)
        return [cut.part(x) for x in rows]

    def take(slots, slot):
        cut.check_same("age", slot)
        return rings.read_slot(slots, slot)

    def unpack(leaves, like):
        return _apart([cut.gather(x) for x in leaves], like, bucket_bytes)

    return rings.Storage(empty=cut.empty, take=take, pack=pack, unpack=unpack)


class _ByMesh:
    """Whole arrays, sharded over axes of a mesh."""

    def __init__(self, names: tuple[str, ...], mesh: Mesh):
        axes.check_mesh(mesh, names)
        self._names, self._mesh = names, mesh
        self.devices = math.prod(mesh.shape[name] for name in names)

    def part(self, rows: jax.Array) -> jax.Array:
        """All rows, sharded: each device keeps its part."""
        # first whole: otherwise XLA shards a gradient before it is joined, and moves it
        return self._constrain(self._constrain(rows, P()), P(self._names))

    def empty(self, zeros: jax.Array, capacity: int) -> jax.Array:
        """Slots of rows, each slot sharded as the rows."""
        slots = rings.empty_slots(zeros, capacity)
        return self._constrain(slots, P(None, self._names))

    def gather(self, rows: jax.Array) -> jax.Array:
        """The rows on each device."""
        return self._constrain(self._constrain(rows, P(self._names)), P())

    def check_same(self, name: str, tree: Any) -> None:
        """Checks nothing: in a plain `jit` values are the same on all devices."""

    def _constrain(self, x: jax.Array, spec: P) -> jax.Array:
        mesh = jax.sharding.get_abstract_mesh()
        if not mesh.manual_axes:
            mesh = self._mesh
        elif not set(self._names) <= set(mesh.axis_names):
            return x  # only types are traced here, over the workers' axis alone
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


class _ByWorkers:
    """Each worker's own arrays, under `shard_map` or `vmap`."""

    def __init__(self, names: tuple[str, ...], num_workers: int):
        self._names, self.devices = names, num_workers
        self.empty = rings.empty_slots

    def part(self, rows: jax.Array) -> jax.Array:
        """A worker's rows; outside of the axis, in `init`, a part of the zeros."""
        if not collectives.is_inside(self._names):
            return rows[: len(rows) // self.devices]
        parts = rows.reshape(self.devices, -1, COLUMNS)
        worker = jax.lax.axis_index(self._names)
        return jax.lax.dynamic_index_in_dim(parts, worker, keepdims=False)

    def gather(self, rows: jax.Array) -> jax.Array:
        """All workers' rows."""
        for name in reversed(self._names):
            rows = collectives.whole(rows, name)
        return rows

    def check_same(self, name: str, tree: Any) -> None:
        """Checks that `tree` is the same for all of the workers."""
        size = collectives.workers_of(self._names)
        if size != self.devices:
            raise ValueError(
                f"`num_workers` must be {size}, the workers of the axis, got"
                f" {self.devices}."
            )
        for path, leaf in jax.tree.leaves_with_path(tree):
            if set(self._names) & axes.varies_over(leaf):
                raise ValueError(
                    f"`{name}` must be the same for all workers, but differs at"
                    f" {trees.path_name(path)}: use exchange.mean(delayed(...))."
                )


def _join(tree: Any, bucket_bytes: int, rows_even: int) -> list[jax.Array]:
    """The leaves of each bucket in rows, [rows, 128]; narrow floats as bits."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]

    def rows_of(bucket):
        flat = jnp.concatenate([jnp.ravel(leaves[i]) for i in bucket])
        flat = xla.as_bits(flat, xla.BITS.get(flat.dtype, flat.dtype))
        flat = jnp.pad(flat, (0, -flat.size % (rows_even * COLUMNS)))
        return flat.reshape(-1, COLUMNS)

    return [rows_of(bucket) for bucket in collectives.buckets(leaves, bucket_bytes)]


def _apart(rows: list[jax.Array], like: Any, bucket_bytes: int) -> Any:
    """The tree whose leaves `_join` put into these rows; `like` has its shapes."""
    leaves, structure = jax.tree.flatten(like)
    buckets = collectives.buckets(leaves, bucket_bytes)
    parcels = [
        xla.from_bits(joined.ravel(), leaves[bucket[0]].dtype)
        for bucket, joined in zip(buckets, rows, strict=True)
    ]
    return jax.tree.unflatten(structure, collectives.opened(buckets, parcels, leaves))
