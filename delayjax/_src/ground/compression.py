"""Compressed messages, and the parts of a tree that they leave out."""

import functools
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import checks

Compressor = Annotated[
    Callable[[Any, jax.Array], tuple[Any, Callable[[Any], Any]]],
    functools.partial(checks.check_function, remedy=": write exchange.quantized(4)"),
]
"""(tree, step int32 []) -> (message, restore); see `error_feedback`."""


def compressed(
    compress: Compressor, tree: Any, error: Any, step: jax.Array
) -> tuple[Any, Callable[[Any], Any], Any]:
    """The message of x + e, `restore`, and the next e, which the message leaves out.

    Args:
        compress: the compressor.
        tree: x.
        error: e, the sum that earlier messages left out, like x.
        step: the step that the compressor receives.
    """
    whole = jax.tree.map(lambda x, e: (x + e).astype(x.dtype), tree, error)
    message, restore = compress(whole, step)
    left = jax.tree.map(jnp.subtract, whole, restore(message))
    return message, restore, optax.tree.cast_like(left, error)
