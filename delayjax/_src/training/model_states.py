"""The mean of the model states that `grad_fn` returns with the gradients."""

from typing import Any

import jax
import jax.numpy as jnp

from delayjax._src.ground import dtypes
from delayjax._src.training import sums


def start(model_state: Any) -> Any:
    """The mean before the first `add`; it is the result if there is no gradient."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtypes.wide_dtype(leaf)) if _has_mean(leaf) else leaf,
        model_state,
    )


def add(mean: Any, seen: jax.Array, states: Any, used: jax.Array) -> Any:
    """The mean of `seen` model states and of the used ones among [c, ...], bool [c].

    The mean of equal values is bit for bit this value, because differences are
    averaged. A leaf that is not floating (a counter, a key) comes from the last
    gradient used.
    """
    count = used.sum(dtype=jnp.int32)
    first = jnp.argmax(used)
    last = len(used) - 1 - jnp.argmax(used[::-1])

    def put(mean, leaf):
        if not _has_mean(leaf):
            return jnp.where(count > 0, leaf[last], mean)
        states = leaf.astype(mean.dtype)
        total = sums.add(
            jnp.zeros_like(mean), _apart(states, states[first][None]), used
        )
        chunk_mean = states[first] + sums.over(total, jnp.maximum(count, 1))
        share = (count / jnp.maximum(seen + count, 1)).astype(mean.dtype)
        both = mean + _apart(chunk_mean, mean) * share
        both = jnp.where(seen > 0, both.astype(mean.dtype), chunk_mean)
        return jnp.where(count > 0, both, mean)

    return jax.tree.map(put, mean, states)


def rounded(mean: Any, model_state: Any) -> Any:
    """The server's model state after an update, in the dtypes that it had before."""
    return jax.tree.map(
        lambda mean, leaf: mean.astype(leaf.dtype) if _has_mean(leaf) else mean,
        *(mean, model_state),
    )


def _apart(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(a == b, 0, a - b)  # 0, not nan, for two equal infinities


def _has_mean(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)
