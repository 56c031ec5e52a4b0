"""A history of which each device keeps a part."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src import base, collectives
from delayjax._src.ring import ring as rings

COLUMNS = 128  # as wide as a tile of a TPU's memory: slots of rows waste none of it
EVEN = 256
"""Rows are padded to a multiple of this: 1, 2, 4 ... 256 devices hold the same arrays,
and what some have saved others can restore."""


def sharded(
    axis_name: str | tuple[str, ...],
    *,
    mesh: Mesh | None = None,
    num_workers: int | None = None,
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> rings.Storage:
    """A history of which each of n devices keeps 1/n.

    For gradients that are the same on all devices, as they are behind the mean: in a
    plain `jit` of a data-parallel step (`mesh`), or in the step of one worker
    (`num_workers`), `exchange.mean(delayed(..., history=sharded(...)))`. Each device
    writes its part of the fresh gradient, and the parts of the stale one are gathered:

        read(ring, age) = all-gather(slots[(pushed - 1 - age) mod capacity])

    Args:
        axis_name: of the devices; several names for several axes.
        mesh: with this axis, of type Auto, where the step is a plain `jit`: the state
            holds whole arrays, [capacity, rows, 128], sharded over the axis. In
            `workers.run` it may be an axis other than the workers'.
        num_workers: n, where the axis is the workers': the state of one holds its own
            part, [capacity, rows / n, 128]. In `workers.run` that is its device's; in
            `workers.simulate` the parts of all make up one history.
        bucket_bytes: leaves smaller than this are kept and gathered together, as many
            as make up so much. Larger ones are kept alone, which needs no copy.

    Returns:
        A storage for `delayed(..., history=sharded(...))` with one delay for all leaves
        and all workers. Bytes a device fall as 1/n. A step sends one gradient, gathered
        in one all-gather a bucket, and holds it whole; it copies no more of the history
        than that. Buckets are padded to a multiple of 128 n and of 2^15 numbers.

        Items that are sharded themselves are made whole first. They need no storage
        like this one: a plain history is sharded as its items are.

    Raises:
        TypeError: in `init`, if there is a capacity for each leaf.
        ValueError: if not one of `mesh` and `num_workers` is given, the mesh has no
            such axis or one of type Explicit, or a number is too small; in `push` and
            `read`, if workers have different gradients or delays, there is an age for
            each leaf, or the axis has another size.
        NameError: in `push` and `read`, if `num_workers` is given and there is no axis.

    Example:
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
        >>> storage, item = sharded("data", mesh=mesh), jnp.ones((2, 3))
        >>> ring = storage.push(storage.init(item, 4), item)
        >>> ring.slots[0].sharding.spec
        P(None, 'data')
        >>> storage.read(ring, 0, item)
        Array([[1., 1., 1.],
               [1., 1., 1.]], dtype=float32)

    References:
        Rajbhandari, Rasley, Ruwase and He, ZeRO, SC 2020, arXiv:1910.02054 (of what
        data-parallel devices would all hold, each keeps a part).
    """
    names = base.as_names(axis_name)
    if (mesh is None) == (num_workers is None):
        raise ValueError(
            "`sharded` needs either `mesh`, for a plain jit, or `num_workers`, for the"
            f" step of one worker, got mesh={mesh!r}, num_workers={num_workers!r}."
        )
    bucket_bytes = base.check_bound("bucket_bytes", bucket_bytes)
    if mesh is not None:
        cut = _ByMesh(names, mesh)
    else:
        cut = _ByWorkers(
            names, base.check_bound("num_workers", num_workers, at_least=1)
        )
    rows_even = math.lcm(cut.devices, EVEN)

    def init_fn(tree, capacity):
        if not _is_one(capacity):
            raise TypeError(
                "`capacity` must be one integer for all leaves of a sharded history,"
                f" got {capacity!r}: give `delayed` one max_delay."
            )
        zeros = jax.tree.map(jnp.zeros_like, tree)  # `tree` may hold shapes alone
        rows = _join(zeros, bucket_bytes, rows_even)
        ring = rings.init([cut.zeros(x) for x in rows], capacity)
        return ring._replace(slots=[cut.place(x) for x in ring.slots])

    def push_fn(ring, tree):
        cut.check("tree", tree)
        rows = _join(tree, bucket_bytes, rows_even)
        return rings.push(ring, [cut.own(x) for x in rows])

    def read_fn(ring, age, like):
        if not _is_one(age) or jnp.ndim(age) > 0:
            raise ValueError(
                "`age` must be one integer for all leaves of a sharded history, got"
                f" {age!r}: give `delayed` one delay."
            )
        cut.check("age", age)
        kept = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in ring.slots]
        parts = rings.read(ring, age, kept)
        return _apart([cut.gather(x) for x in parts], like, bucket_bytes)

    return rings.Storage(init_fn, push_fn, read_fn)


class _ByMesh:
    """Whole arrays, sharded over axes of a mesh."""

    def __init__(self, names: tuple[str, ...], mesh: Mesh):
        for name in names:
            if name not in mesh.shape:
                raise ValueError(
                    f"`mesh` must have an axis {name!r}, got {tuple(mesh.shape)}: make"
                    f" one with jax.make_mesh((n,), ({name!r},),"
                    " axis_types=(AxisType.Auto,))."
                )
        if any(kind == AxisType.Explicit for kind in mesh.axis_types):
            raise ValueError(
                f"`mesh` must have axes of type Auto, got {mesh.axis_types}: pass"
                " axis_types=(AxisType.Auto,) * n to jax.make_mesh."
            )
        self._names, self._mesh = names, mesh
        self.devices = math.prod(mesh.shape[name] for name in names)

    def check(self, name: str, tree: Any) -> None:
        """Checks that this is no step of one worker."""
        del name, tree
        if _size(self._names) is not None:
            raise ValueError(
                f"`mesh` is for a plain jit, and this is the step of one of the workers"
                f" along {self._names}: pass num_workers={self.devices} instead."
            )

    def zeros(self, rows: jax.Array) -> jax.Array:
        """`own` of zeros."""
        return self.own(rows)

    def own(self, rows: jax.Array) -> jax.Array:
        """All of the rows, of which each device keeps its own."""
        # whole first: else XLA shards a gradient before it is joined, and moves it then
        return self._constrain(self._constrain(rows, P()), P(self._names))

    def place(self, slots: jax.Array) -> jax.Array:
        """Slots of such rows."""
        return self._constrain(slots, P(None, self._names))

    def gather(self, rows: jax.Array) -> jax.Array:
        """The rows on each device."""
        return self._constrain(self._constrain(rows, P(self._names)), P())

    def _constrain(self, x: jax.Array, spec: P) -> jax.Array:
        mesh = jax.sharding.get_abstract_mesh()
        if not mesh.manual_axes:
            mesh = self._mesh
        elif not set(self._names) <= set(mesh.axis_names):
            return x  # types alone are traced, over the workers' axis alone
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


class _ByWorkers:
    """Arrays of each worker's own, under `shard_map` or `vmap`."""

    def __init__(self, names: tuple[str, ...], num_workers: int):
        self._names, self.devices = names, num_workers

    def check(self, name: str, tree: Any) -> None:
        """Checks that this is a worker's step, and `tree` the same for all workers."""
        size = _size(self._names)
        if size is None:
            raise NameError(
                f"There is no axis {self._names} here: take the step in"
                " workers.simulate or workers.run, or for a plain jit pass `mesh` to"
                " `sharded` instead of `num_workers`."
            )
        if size != self.devices:
            raise ValueError(
                f"`num_workers` must be the size of the axis {self._names}, {size}, got"
                f" {self.devices}."
            )
        for path, leaf in jax.tree.leaves_with_path(tree):
            if set(self._names) & base.varies_over(leaf):
                where = jax.tree_util.keystr(path) or "the root"
                raise ValueError(
                    f"`{name}` must be the same for all workers that keep one history"
                    f" together, and differs at {where}: take the mean before the"
                    " history, exchange.mean(delayed(...)), and one delay for all."
                )

    def zeros(self, rows: jax.Array) -> jax.Array:
        """`own` of zeros, inside or outside of the axis."""
        if _size(self._names) is None:
            return rows[: len(rows) // self.devices]
        return self.own(rows)

    def own(self, rows: jax.Array) -> jax.Array:
        """A worker's own rows."""
        worker = 0
        for name in self._names:
            worker = worker * jax.lax.axis_size(name) + jax.lax.axis_index(name)
        parts = rows.reshape(self.devices, -1, COLUMNS)
        return jax.lax.dynamic_index_in_dim(parts, worker, keepdims=False)

    def place(self, slots: jax.Array) -> jax.Array:
        """Slots of such rows."""
        return slots

    def gather(self, rows: jax.Array) -> jax.Array:
        """All workers' rows."""
        for name in reversed(self._names):
            # under `vmap` they are not typed as the same, but no longer batched
            to = "invarying" if name in base.varies_over(rows) else "varying"
            rows = jax.lax.all_gather(rows, name, tiled=True, to=to)
        return rows


def _join(tree: Any, bucket_bytes: int, rows_even: int) -> list[jax.Array]:
    """Rows, [rows, 128], of the leaves of each bucket, narrow floats as their bits."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]

    def rows_of(bucket):
        flat = jnp.concatenate([jnp.ravel(leaves[i]) for i in bucket])
        bits = rings.BITS.get(flat.dtype)
        flat = jax.lax.bitcast_convert_type(flat, bits) if bits else flat
        flat = jnp.pad(flat, (0, -flat.size % (rows_even * COLUMNS)))
        return flat.reshape(-1, COLUMNS)

    return [rows_of(bucket) for bucket in collectives.buckets(leaves, bucket_bytes)]


def _apart(rows: list[jax.Array], like: Any, bucket_bytes: int) -> Any:
    """The item, a tree like `like`, whose leaves were joined to these rows."""
    leaves, structure = jax.tree.flatten(like)
    items: list[Any] = [None] * len(leaves)
    buckets = collectives.buckets(leaves, bucket_bytes)
    for bucket, joined in zip(buckets, rows, strict=True):
        dtype = jnp.dtype(leaves[bucket[0]].dtype)
        flat = joined.ravel()
        if dtype in rings.BITS:
            flat = jax.lax.bitcast_convert_type(flat, dtype)
        start = 0
        for i in bucket:
            stop = start + leaves[i].size
            items[i] = flat[start:stop].reshape(leaves[i].shape)
            start = stop
    return jax.tree.unflatten(structure, items)


def _is_one(tree: Any) -> bool:
    return jax.tree_util.treedef_is_leaf(jax.tree.structure(tree))


def _size(names: tuple[str, ...]) -> int | None:
    """How many workers there are along some axes; None where there are no such axes."""
    try:
        return math.prod(jax.lax.axis_size(name) for name in names)
    except NameError:
        return None
