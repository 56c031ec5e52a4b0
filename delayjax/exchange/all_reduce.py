"""Sums over the workers' axis, small leaves together."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax import base

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


def check_fresh(needed_by: str, updates: Any, axis_name: base.AxisName) -> None:
    """Checks that gradients are floating point and not summed over the workers already.

    Raises:
        TypeError: if one is not floating point.
        ValueError: if one is the same on all workers, naming the first.
    """
    base.check_gradients(needed_by, updates)
    # where nothing varies (vmap, pmap), no type tells what is summed
    names = base.varies_over(base.as_own(jnp.zeros(()), axis_name))
    for path, leaf in jax.tree.leaves_with_path(updates):
        if names & set(base.as_names(axis_name)) - base.varies_over(leaf):
            where = jax.tree_util.keystr(path) or "the root"
            raise ValueError(
                f"`{needed_by}` got a gradient that is the same on all workers, at"
                f" {where}: it is summed already. Take it at workers.vary(params),"
                " exchange it once, and put optax.MultiSteps inside of the exchange."
            )


def average(
    updates: Any,
    staleness: Any,
    *,
    axis_name: base.AxisName,
    weight: base.Law | None,
    bucket_bytes: int,
    apart: bool = False,
) -> tuple[Any, Any]:
    """The mean gradient and the mean staleness of all workers.

    Args:
        updates: a worker's gradient.
        staleness: its own, one or a tree; None where it was told none.
        axis_name: of the workers.
        weight: staleness -> weight in both means; None weighs all the same.
        bucket_bytes: see `sums`.
        apart: likewise.
    """
    workers = workers_of(axis_name)
    if staleness is None and weight is None:
        total = sums(updates, axis_name, bucket_bytes, apart=apart)
        return jax.tree.map(lambda leaf: leaf / workers, total), jnp.int32(0)
    age = base.check_staleness(
        "exchange", 0 if staleness is None else staleness, mean=True
    )
    # as exact as the gradients, and no less than float32
    leaves = jax.tree.leaves(updates)
    wide = jnp.finfo(jnp.result_type(jnp.float32, *leaves)).dtype
    weights = jax.tree.map(
        lambda tau: jnp.asarray(
            1.0 if weight is None else weight(tau.astype(wide)), wide
        ),
        age,
    )
    weighted = jax.tree.map(
        lambda leaf, w: leaf * w.astype(leaf.dtype),
        updates,
        base.broadcast("staleness", weights, updates),
    )
    total, ages, shares = sums(
        (weighted, jax.tree.map(jnp.multiply, weights, age), weights),
        axis_name,
        bucket_bytes,
        apart=apart,
    )
    shares = jax.tree.map(lambda share: jnp.where(share > 0, share, 1.0), shares)
    mean = jax.tree.map(
        lambda leaf, share: leaf / share.astype(leaf.dtype),
        total,
        base.broadcast("staleness", shares, updates),
    )
    staleness = jax.tree.map(
        lambda total, share: (total / share).astype(jnp.float32), ages, shares
    )
    return mean, staleness


def sums(
    tree: Any, axis_name: base.AxisName, bucket_bytes: int, *, apart: bool = False
) -> Any:
    """The sum of each leaf over the workers.

    Args:
        tree: arrays.
        axis_name: of the workers.
        bucket_bytes: leaves smaller than this are sent together, flat and joined, as
            many as make up one such bucket. Larger ones are sent as they are: a
            compiler hides a whole collective, not pieces that must be put together.
            All are where the mesh has further axes.
        apart: whether joining comes before all sums, and what is made of a sum after
            all of them. For sums that have the whole step to hide in: on a TPU they
            cannot do so behind such arithmetic, yet would be scheduled there. Sums that
            wait for this step's gradients start earlier without.
    """
    tree = base.as_own(tree, axis_name)
    fence = jax.lax.optimization_barrier if apart else _as_they_are
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.manual_axes:  # simulated: nothing is sent
        return fence(jax.lax.psum(tree, axis_name))
    if any(
        mesh.shape[name] > 1 for name in mesh.axis_names if name not in mesh.manual_axes
    ):
        bucket_bytes = 0  # joined, leaves would lose their sharding over these
    leaves, structure = jax.tree.flatten(tree)
    buckets = _buckets(leaves, bucket_bytes)
    joined = fence(
        {
            n: jnp.concatenate([leaves[i].ravel() for i in bucket])
            for n, bucket in enumerate(buckets)
            if len(bucket) > 1
        }
    )
    # a fence around what is sent as it is would change when that is sent
    sent = [joined.get(n, leaves[bucket[0]]) for n, bucket in enumerate(buckets)]
    came = fence([jax.lax.psum(leaf, axis_name) for leaf in sent])
    summed: list[Any] = [None] * len(leaves)
    for bucket, total in zip(buckets, came, strict=True):
        if len(bucket) == 1:
            summed[bucket[0]] = total
            continue
        ends = np.cumsum([leaves[i].size for i in bucket])
        for i, part in zip(bucket, jnp.split(total, ends[:-1]), strict=True):
            summed[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(structure, summed)


def _as_they_are(arrays: Any) -> Any:
    return arrays


def _buckets(leaves: list[jax.Array], bucket_bytes: int) -> list[list[int]]:
    """Indices of leaves that travel together: of one dtype, up to a bucket's bytes."""
    buckets: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}  # dtype -> its last bucket, bytes
    for i, leaf in enumerate(leaves):
        bucket, held = filling.get(leaf.dtype, ([], 0))
        if not bucket or held + leaf.nbytes > bucket_bytes:
            bucket, held = [], 0
            buckets.append(bucket)
        bucket.append(i)
        if leaf.nbytes < bucket_bytes:
            filling[leaf.dtype] = bucket, held + leaf.nbytes
    return buckets
