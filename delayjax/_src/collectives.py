"""Sums over the workers' axis, small leaves together."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src import base

BUCKET_BYTES = 4 * 2**20
"""Leaves of at least so many bytes travel alone, smaller ones together."""


def workers_of(axis_name: base.AxisName) -> int:
    """How many workers there are along an axis, or along several.

    Raises:
        NameError: if there is no such axis.
    """
    try:
        return math.prod(jax.lax.axis_size(name) for name in base.as_names(axis_name))
    except NameError:
        raise NameError(
            f"There is no axis {axis_name!r} here: take the step in workers.simulate"
            " or workers.run, or under vmap, shard_map or pmap with"
            f" axis_name={axis_name!r}."
        ) from None


def check_table(name: str, table: Any, kinds: str = "fiu") -> Any:
    """A table of numbers [T, P], a row for each step and a column for each worker.

    Args:
        name: of the argument.
        table: anything like an array; as it is where it is traced.
        kinds: of NumPy's dtypes: "fiu" for real numbers, "iu" for whole ones.

    Raises:
        TypeError: if it holds no such numbers.
        ValueError: if it has not two dimensions or is empty.
    """
    table = base.as_array(name, table)
    table = np.asarray(table) if base.is_concrete(table) else table
    if table.dtype.kind not in kinds:
        numbers = "real numbers" if "f" in kinds else "whole numbers"
        raise TypeError(f"`{name}` must hold {numbers}, got {table.dtype}.")
    if table.ndim != 2 or table.size == 0:
        raise ValueError(
            f"`{name}` must have shape [T, P], a row for each step and a column for"
            f" each worker, got {table.shape}."
        )
    return table


def row_of(
    name: str, table: jax.Array, step: Any, axis_name: base.AxisName
) -> tuple[jax.Array, jax.Array]:
    """A step's row [P] of a table [T, P], which starts anew; and this worker's number.

    Raises:
        NameError: if there is no such axis.
        ValueError: if P is not the number of workers.
    """
    workers = workers_of(axis_name)
    if workers != table.shape[1]:
        raise ValueError(
            f"`{name}` must have one column for each of the {workers} workers on axis"
            f" {axis_name!r}, got {table.shape[1]}."
        )
    return table[step % table.shape[0]], jax.lax.axis_index(axis_name)


def check_fresh(needed_by: str, updates: Any, axis_name: base.AxisName) -> None:
    """Checks that gradients are floating point and not summed over the workers already.

    Raises:
        TypeError: if one is not floating point.
        ValueError: if one is the same on all workers, naming the first.
    """
    base.check_gradients(needed_by, updates)
    # where nothing varies (vmap, pmap), no type tells what is summed
    names = base.varies_over(base.vary(jnp.zeros(()), axis_name=axis_name))
    for path, leaf in jax.tree.leaves_with_path(updates):
        if names & set(base.as_names(axis_name)) - base.varies_over(leaf):
            where = jax.tree_util.keystr(path) or "the root"
            raise ValueError(
                f"`{needed_by}` got a gradient that is the same on all workers, at"
                f" {where}: it is summed already. Take it at workers.vary(params),"
                " exchange it once, and put optax.MultiSteps inside of the exchange."
            )


def sums(tree: Any, axis_name: base.AxisName, bucket_bytes: int) -> Any:
    """The sum of each leaf over the workers.

    Args:
        tree: arrays.
        axis_name: of the workers.
        bucket_bytes: leaves smaller than this are sent together, flat and joined, as
            many as make up one such bucket. Larger ones are sent as they are: a
            compiler hides a whole collective, not pieces that must be put together.
            All are where the mesh has further axes.
    """
    tree = base.vary(tree, axis_name=axis_name)
    if not is_sent():
        return jax.lax.psum(tree, axis_name)
    parcels = _Parcels(tree, bucket_bytes)
    return parcels.open(jax.lax.psum(parcels.all(), axis_name))


def sums_beside(
    meanwhile: Any, tree: Any, axis_name: base.AxisName, bucket_bytes: int
) -> tuple[Any, Any]:
    """`sums` of `tree`, and `meanwhile`, which is computed while they are under way.

    For sums that have the whole step to hide in. Joining comes before all of them, and
    what is made of one after all of them: a TPU cannot hide a sum behind such
    arithmetic, yet would schedule it there. Sums that wait for this step's gradients
    are better off without: they could not start until the last one is there.
    """
    tree = base.vary(tree, axis_name=axis_name)
    if not is_sent():
        return jax.lax.psum(tree, axis_name), meanwhile
    parcels = _Parcels(tree, bucket_bytes)
    # a fence around what is sent as it is would change when that is sent
    joined = jax.lax.optimization_barrier(parcels.joined)
    sent = parcels.all(joined)
    came = [jax.lax.psum(parcel, axis_name) for parcel in sent]
    came = jax.lax.optimization_barrier(came)
    came, meanwhile = _kept_apart(sent, came, meanwhile)
    return parcels.open(came), meanwhile


def is_sent() -> bool:
    """Whether workers are devices; simulated ones send nothing."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def _has_further_axes() -> bool:
    """Whether there are axes beside the workers', over which leaves may be sharded."""
    mesh = jax.sharding.get_abstract_mesh()
    further = set(mesh.axis_names) - set(mesh.manual_axes)
    return any(mesh.shape[name] > 1 for name in further)


def _kept_apart(
    sent: list[jax.Array], came: list[jax.Array], meanwhile: Any
) -> tuple[list[jax.Array], Any]:
    """`came` and `meanwhile`; on CPUs each is known only when both are.

    XLA gives out a CPU's memory as if a program ran in the order in which it is
    written. The memory of what is sent, and that in which the sum arrives, would go to
    results of the computation beside it, which would then wait for the sum. So all of
    it stays in use till both are done: by a loop that is never entered, which the
    compiler cannot know. Where the mesh has further axes an entry to ask for may lie on
    another device, so there is no such loop.
    """

    def entry(leaf):
        return leaf.ravel()[0].real.astype(jnp.float32)

    def on_cpu(sent, came, meanwhile):
        some = next(entry(leaf) for leaf in came if leaf.size)
        bits = jax.lax.bitcast_convert_type(some, jnp.int32)

        def body(carry):
            _, sent, came, meanwhile = carry
            some = jnp.stack([entry(x) for x in sent if x.size]).sum()
            return (
                jnp.zeros_like(carry[0]),
                [-x for x in sent],
                [-x for x in came],
                jax.tree.map(lambda x: x * some.astype(x.dtype), meanwhile),
            )

        carry = (bits | 1) == 0, sent, came, meanwhile
        return jax.lax.while_loop(lambda carry: carry[0], body, carry)[2:]

    if _has_further_axes() or not any(leaf.size for leaf in came):
        return came, meanwhile
    return jax.lax.platform_dependent(
        *(sent, came, meanwhile),
        cpu=on_cpu,
        default=lambda sent, came, meanwhile: (came, meanwhile),
    )


class _Parcels:
    """A tree's leaves as what is sent: small ones joined, large ones as they are."""

    def __init__(self, tree: Any, bucket_bytes: int):
        if _has_further_axes():
            bucket_bytes = 0  # joined, leaves would lose their sharding over these
        self._leaves, self._structure = jax.tree.flatten(tree)
        self._buckets = buckets(self._leaves, bucket_bytes)
        self.joined = {
            n: jnp.concatenate([self._leaves[i].ravel() for i in bucket])
            for n, bucket in enumerate(self._buckets)
            if len(bucket) > 1
        }

    def all(self, joined: dict[int, jax.Array] | None = None) -> list[jax.Array]:
        """In order; with `joined` for what was joined."""
        joined = self.joined if joined is None else joined
        return [
            joined[n] if n in joined else self._leaves[bucket[0]]
            for n, bucket in enumerate(self._buckets)
        ]

    def open(self, parcels: list[jax.Array]) -> Any:
        """A tree of what came."""
        leaves: list[Any] = [None] * len(self._leaves)
        for bucket, parcel in zip(self._buckets, parcels, strict=True):
            start = 0
            for i in bucket:
                like = self._leaves[i]
                part = parcel if len(bucket) == 1 else parcel[start : start + like.size]
                leaves[i], start = part.reshape(like.shape), start + like.size
        return jax.tree.unflatten(self._structure, leaves)


def buckets(leaves: Sequence[Any], bucket_bytes: int) -> list[list[int]]:
    """Indices of leaves that go together: of one dtype, up to a bucket's bytes.

    Args:
        leaves: arrays or their shapes.
        bucket_bytes: who has as many or more goes alone.
    """
    found: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}  # dtype -> its last bucket, bytes
    for i, leaf in enumerate(leaves):
        nbytes = leaf.size * leaf.dtype.itemsize
        bucket, held = filling.get(leaf.dtype, ([], 0))
        if not bucket or held + nbytes > bucket_bytes:
            bucket, held = [], 0
            found.append(bucket)
        bucket.append(i)
        if nbytes < bucket_bytes:
            filling[leaf.dtype] = bucket, held + nbytes
    return found
