"""Norms, squares and moving means of trees, in float32 or wider."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import dtypes


def distance(tree: Any, other: Any) -> jax.Array:
    """The norm of a difference, float32 or wider []."""
    return norm(jax.tree.map(lambda a, b: dtypes.wide(a) - dtypes.wide(b), tree, other))


def norm(tree: Any) -> jax.Array:
    """The norm of a tree, float32 or wider []."""
    return jnp.sqrt(squared_norm(tree))


def product(tree: Any, other: Any) -> jax.Array:
    """The real part of <tree, other>, float32 or wider []."""
    products = jax.tree.map(
        lambda a, b: (dtypes.wide(a).conj() * dtypes.wide(b)).real.sum(), tree, other
    )
    return sum(jax.tree.leaves(products), jnp.zeros((), jnp.float32))


def square(leaf: jax.Array) -> jax.Array:
    """|g|^2 of each coordinate, real, float32 or wider."""
    return jnp.square(jnp.abs(leaf).astype(dtypes.real_dtype(leaf)))


def squared_norm(tree: Any) -> jax.Array:
    """The sum of |x|^2 over all leaves, float32 or wider []."""
    parts = jnp.array([square(leaf).sum() for leaf in jax.tree.leaves(tree)])
    return jnp.sort(parts).sum()  # the same bits in any order of the leaves


def moving_mean(updates: Any, mean: Any, decay: ArrayLike) -> Any:
    """The next mean = decay * mean + (1 - decay) * g, in the precision of the mean."""
    moments = optax.tree.update_moment(dtypes.as_wide_as(updates, mean), mean, decay, 1)
    return optax.tree.cast_like(moments, mean)


def moving_mean_square(updates: Any, mean_square: Any, decay: ArrayLike) -> Any:
    """The next ms = decay * ms + (1 - decay) * |g|^2, in the precision of ms."""
    moments = optax.tree.update_moment_per_elem_norm(
        dtypes.as_wide_as(updates, mean_square), mean_square, decay, 2
    )
    return optax.tree.cast_like(moments, mean_square)
