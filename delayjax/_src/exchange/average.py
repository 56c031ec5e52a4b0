"""The mean gradient of the workers and its staleness."""

from typing import Any

import jax
import jax.numpy as jnp

from delayjax._src import base, collectives


def average(
    updates: Any,
    staleness: Any,
    *,
    axis_name: base.AxisName,
    weight: base.Law | None,
    bucket_bytes: int,
    meanwhile: Any = None,
) -> tuple[Any, Any, Any]:
    """The mean gradient and the mean staleness of all workers, and `meanwhile`.

    Args:
        updates: a worker's gradient.
        staleness: its own, one or a tree; None where it was told none.
        axis_name: of the workers.
        weight: staleness -> weight in both means; None weighs all the same.
        bucket_bytes: see `collectives.sums`.
        meanwhile: what is computed while the sums are under way; None where they have
            to come first.
    """

    def sums(tree):
        if meanwhile is None:
            return collectives.sums(tree, axis_name, bucket_bytes), None
        return collectives.sums_beside(meanwhile, tree, axis_name, bucket_bytes)

    workers = collectives.workers_of(axis_name)
    if staleness is None and weight is None:
        total, done = sums(updates)
        mean = jax.tree.map(lambda leaf: leaf / workers, total)
        return mean, jnp.int32(0), done
    age = base.check_staleness(
        "exchange", 0 if staleness is None else staleness, mean=True
    )
    wide = base.real_dtype(updates)  # as exact as the gradients
    weights = jax.tree.map(lambda tau: _weigh(weight, tau.astype(wide)), age)
    weighted = jax.tree.map(
        lambda leaf, w: leaf * w.astype(leaf.dtype),
        updates,
        base.broadcast("staleness", weights, updates),
    )
    (total, ages, shares), done = sums(
        (weighted, jax.tree.map(jnp.multiply, weights, age), weights)
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
    return mean, staleness, done


def _weigh(weight: base.Law | None, age: jax.Array) -> jax.Array:
    """The weight of a gradient of this age, in the age's dtype."""
    answer = 1.0 if weight is None else weight(age)
    return base.as_scalar("weight(staleness)", answer).astype(age.dtype)
