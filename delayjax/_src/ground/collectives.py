"""Sums over the workers' axis, small leaves together."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import axes, checks, trees, xla

BUCKET_BYTES = 4 * 2**20
"""A leaf of at least this size has its own message; smaller leaves share a message."""


def workers_of(axis_name: axes.AxisName) -> int:
    """The number of workers along an axis, or along several axes together."""
    try:
        return math.prod(jax.lax.axis_size(name) for name in axes.as_names(axis_name))
    except NameError:
        raise NameError(
            f"There is no axis {axis_name!r} here: take the step in workers.simulate"
            " or workers.run, or under vmap, shard_map or pmap with this `axis_name`."
        ) from None


def is_inside(axis_name: axes.AxisName) -> bool:
    """Whether this is the step of one worker: one of the axes is mapped or manual."""
    for name in axes.as_names(axis_name):
        try:
            jax.lax.axis_size(name)
        except NameError:
            continue
        return True
    return False


def check_table(name: str, table: Any) -> Any:
    """`table`, if it holds real numbers [T, P]; it may be traced."""
    table = checks.as_array(table)
    table = np.asarray(table) if checks.is_concrete(table) else table
    if table.ndim != 2 or table.size == 0 or table.dtype.kind not in "fiu":
        raise ValueError(
            f"`{name}` must be numbers [T, P], a row for each step, a column for each"
            f" worker, got {table.shape} of {table.dtype}."
        )
    return table


def row_of(
    name: str, table: jax.Array, step: Any, axis_name: axes.AxisName
) -> tuple[jax.Array, jax.Array]:
    """The row [P] of a step in a table [T, P] that repeats, and this worker's index."""
    workers = workers_of(axis_name)
    if workers != table.shape[1]:
        raise ValueError(
            f"`{name}` must have a column for each of {workers} workers, got"
            f" {table.shape[1]}."
        )
    return table[step % table.shape[0]], jax.lax.axis_index(axis_name)


def check_fresh(needed_by: str, updates: Any, axis_name: axes.AxisName) -> None:
    """Checks that gradients are floating point and not yet summed over the workers."""
    trees.check_gradients(updates)
    # under vmap and pmap the types do not show which arrays are summed
    names = axes.varies_over(axes.vary(jnp.zeros(()), axis_name=axis_name))
    all_axes = jax.sharding.get_abstract_mesh().manual_axes
    named = "" if all_axes == ("workers",) else f", axis_name={all_axes}"
    for path, leaf in jax.tree.leaves_with_path(updates):
        if names & set(axes.as_names(axis_name)) - axes.varies_over(leaf):
            raise ValueError(
                f"`{needed_by}` got a gradient that is the same on all workers, at"
                f" {trees.path_name(path)}: it is summed already. Take it at"
                f" workers.vary(params{named}), and exchange it once; `{needed_by}`"
                " must be outside of optax.MultiSteps."
            )


def sums(tree: Any, axis_name: axes.AxisName, bucket_bytes: int) -> Any:
    """The sum of each leaf over the workers, small leaves joined up to `bucket_bytes`.

    Larger leaves are sent alone: a compiler can hide a collective behind computation,
    but not the copy that joins leaves first.
    """
    tree = axes.vary(tree, axis_name=axis_name)
    if not crosses_devices(axis_name):
        return xla.psum(tree, axis_name)
    parcels = _Parcels(tree, _joined_up_to(axis_name, bucket_bytes))
    return parcels.open(xla.psum(parcels.all(parcels.joined), axis_name))


def sums_beside(
    meanwhile: Any, tree: Any, axis_name: axes.AxisName, bucket_bytes: int
) -> tuple[Any, Any]:
    """`sums` of `tree`, and `meanwhile`, which is computed while the sums are sent.

    The barriers (for TPU and GPU, jax 0.10; shown by
    `tests/experiments/pods/compile_pod_test.py`) put all joining before the sums, and
    all use of a sum after the last sum and after the computation of `meanwhile`.
    Otherwise a compiler would use the sums before it computes `meanwhile`.
    """
    tree = axes.vary(tree, axis_name=axis_name)
    if not crosses_devices(axis_name):
        return xla.psum(tree, axis_name), meanwhile
    parcels = _Parcels(tree, _joined_up_to(axis_name, bucket_bytes))
    # a barrier around leaves with a message of their own would delay them
    joined = xla.barrier(list(parcels.joined.values()))
    sent = parcels.all(dict(zip(parcels.joined, joined, strict=True)))
    came = [xla.psum(parcel, axis_name) for parcel in sent]
    came, meanwhile = xla.sums_under_way(sent, came, meanwhile)
    return parcels.open(came), meanwhile


def whole(share: jax.Array, axis_name: str, along: int = 0) -> jax.Array:
    """The shares of all workers in one array, which is the same on each worker."""
    share = axes.vary(share, axis_name=axis_name)
    # under `vmap` the type does not say that workers agree, but the batch axis is gone
    to = "invarying" if axis_name in axes.varies_over(share) else "varying"
    return jax.lax.all_gather(share, axis_name, axis=along, tiled=True, to=to)


def is_sent() -> bool:
    """Whether each worker is a device. Simulated workers send no messages."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def crosses_devices(axis_name: axes.AxisName) -> bool:
    """Whether a sum over the workers is sent from device to device.

    True if workers are devices, or if a mesh has an axis with the name of the workers'
    axis, so that each of its devices simulates some of the workers.
    """
    mesh = jax.sharding.get_abstract_mesh()
    named = (mesh.shape.get(name, 1) for name in axes.as_names(axis_name))
    return is_sent() or any(size > 1 for size in named)


def _joined_up_to(axis_name: axes.AxisName, bucket_bytes: int) -> int:
    """`bucket_bytes`, or 0 if a joined leaf might differ over too many axes.

    Where workers are devices, the type of a leaf shows over which axes it differs.
    Under `vmap` it does not, and a sum over some axes would differ over the others.
    """
    further = set(jax.sharding.get_abstract_mesh().axis_names)
    return bucket_bytes if is_sent() or further <= set(axes.as_names(axis_name)) else 0


class _Parcels:
    """The leaves of a tree as they are sent: small ones joined, large ones alone."""

    def __init__(self, tree: Any, bucket_bytes: int):
        self._leaves, self._structure = jax.tree.flatten(tree)
        # a joined leaf would lose its sharding over the mesh's other axes
        alone = {i for i, x in enumerate(self._leaves) if xla.may_be_sharded(x)}
        # a joined leaf would also differ over the axes of the other leaves
        kinds = [axes.varies_over(leaf) for leaf in self._leaves]
        self._buckets = buckets(self._leaves, bucket_bytes, alone, kinds)
        self.joined = {
            n: jnp.concatenate([self._leaves[i].ravel() for i in bucket])
            for n, bucket in enumerate(self._buckets)
            if len(bucket) > 1
        }

    def all(self, joined: dict[int, jax.Array]) -> list[jax.Array]:
        """All parcels in order; `joined` holds the parcels with several leaves."""
        return [
            joined[n] if n in joined else self._leaves[bucket[0]]
            for n, bucket in enumerate(self._buckets)
        ]

    def open(self, parcels: list[jax.Array]) -> Any:
        """The tree that these parcels hold."""
        leaves = opened(self._buckets, parcels, self._leaves)
        return jax.tree.unflatten(self._structure, leaves)


def opened(
    buckets: list[list[int]], parcels: list[jax.Array], like: Sequence[Any]
) -> list[Any]:
    """Arrays of the shapes of `like`, from one parcel per bucket, perhaps padded."""
    leaves: list[Any] = [None] * len(like)
    for bucket, parcel in zip(buckets, parcels, strict=True):
        start = 0
        for i in bucket:
            stop = start + like[i].size
            is_alone = parcel.shape == like[i].shape
            part = parcel if is_alone else parcel[start:stop]
            leaves[i], start = part.reshape(like[i].shape), stop
    return leaves


def buckets(
    leaves: Sequence[Any],
    bucket_bytes: int,
    alone: Collection[int] = (),
    kinds: Sequence[Any] | None = None,
) -> list[list[int]]:
    """The indices of the leaves in each bucket, of up to `bucket_bytes`.

    The leaves of a bucket have one dtype and, with `kinds`, one kind. `alone` has the
    indices of leaves that are not joined.
    """
    groups: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}  # kind -> its last bucket, bytes
    for i, leaf in enumerate(leaves):
        if i in alone:
            groups.append([i])
            continue
        nbytes = leaf.size * leaf.dtype.itemsize
        kind = leaf.dtype, kinds and kinds[i]
        bucket, held = filling.get(kind, ([], 0))
        if not bucket or held + nbytes > bucket_bytes:
            bucket, held = [], 0
            groups.append(bucket)
        bucket.append(i)
        if nbytes < bucket_bytes:
            filling[kind] = bucket, held + nbytes
    return groups
