"""Sums over gradients, in float32 at least."""

from typing import Any

import jax
import jax.numpy as jnp

from delayjax._src.ground import dtypes


def add(total: Any, values: Any, used: jax.Array | None = None) -> Any:
    """`total` plus the values [c, ...] that are used, bool [c]; all by default."""

    def sum_up(total, leaf):
        if used is not None:
            mask = used.reshape(-1, *(1 for _ in leaf.shape[1:]))
            leaf = jnp.where(mask, leaf, jnp.zeros_like(leaf))
        return total + leaf.sum(0, dtype=total.dtype)

    return jax.tree.map(sum_up, total, values)


def over(total: Any, count: jax.Array) -> Any:
    """A sum over a count, leaf by leaf."""

    def divided(leaf):
        leaf = leaf.astype(dtypes.wide_dtype(leaf))  # integers too
        return leaf / count.astype(leaf.dtype)

    return jax.tree.map(divided, total)
