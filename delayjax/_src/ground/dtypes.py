"""Dtypes in which sums and products are exact enough, at least float32."""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike


def real_dtype(tree: Any) -> jnp.dtype:
    """A real dtype, at least float32 and as exact as the leaves of `tree`."""
    return jnp.finfo(wide_dtype(*jax.tree.leaves(tree))).dtype


def wide_dtype(*leaves: Any) -> np.dtype:
    """The floating dtype, at least float32, that can represent all leaves.

    Integers count as JAX's default float: float64 under `jax_enable_x64`.
    """
    kinds = map(jnp.result_type, leaves)
    return _floating([np.dtype(np.float32), *(_floating([kind]) for kind in kinds)])


def wide(leaf: Any) -> jax.Array:
    """A leaf in at least float32."""
    return jnp.asarray(leaf, wide_dtype(leaf))


def in_one_dtype(*leaves: Any) -> list[jax.Array]:
    """Leaves in one floating dtype, the widest; Python numbers are not converted.

    JAX does the same by default, but not with `jax_numpy_dtype_promotion="strict"`.
    """
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    strong = [x.dtype for x in arrays if not x.weak_type]
    if not strong:
        return arrays
    exact = _floating(strong)
    return [x if x.weak_type else x.astype(exact) for x in arrays]


def times(factor: ArrayLike, leaf: jax.Array) -> jax.Array:
    """The product in the dtype of the leaf, computed in the wider of both dtypes."""
    factor, exact = in_one_dtype(factor, leaf)
    return (factor * exact).astype(leaf.dtype)


def scaled(factor: ArrayLike, tree: Any) -> Any:
    """`times` for each leaf of a tree."""
    return jax.tree.map(lambda leaf: times(factor, leaf), tree)


def _floating(dtypes: Iterable[Any]) -> np.dtype:
    floats = [np.dtype(x) for x in dtypes if jnp.issubdtype(x, jnp.inexact)]
    return functools.reduce(
        np.promote_types, floats or [np.dtype(jnp.result_type(float))]
    )


def wide_zeros(tree: Any) -> Any:
    """Zeros like `tree`, at least float32: in bfloat16 a moving mean would not move."""

    def zeros(leaf):
        return jnp.zeros_like(leaf, dtype=wide_dtype(leaf))

    return jax.tree.map(zeros, tree)


def as_wide_as(tree: Any, reals: Any) -> Any:
    """`tree` in the precision of a tree of reals; complex leaves stay complex."""
    return jax.tree.map(lambda x, real: x.astype(wide_dtype(x, real)), tree, reals)


def real_zeros(tree: Any) -> Any:
    """Zeros like `tree`, real and at least float32, for means of |g|^2."""
    return jax.tree.map(lambda x: jnp.zeros_like(x, dtype=real_dtype(x)), tree)
