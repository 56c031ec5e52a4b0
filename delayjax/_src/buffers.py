"""The memory in which the leaves of a state lie."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def unshared(state: Any, *beside: Any) -> Any:
    """`state`, with memory of its own for each leaf.

    A training step donates its state and its parameters, and a buffer can be donated
    once. Some optimizers (DoG, Prodigy, MECHANIC) keep the first parameters themselves:
    eagerly that is the same buffer in two places.

    Args:
        state: a new state.
        *beside: trees that are donated with it. They stay as they are.

    Returns:
        The same values. An array is copied if it stands in `beside`, or a second time
        in `state`.

    Example:
        >>> zero = jnp.zeros(())
        >>> first, second = unshared((zero, zero))
        >>> first is zero, second is zero
        (True, False)
    """
    seen = {id(leaf) for leaf in jax.tree.leaves(beside)}

    def own(leaf):
        if isinstance(leaf, jax.Array) and id(leaf) in seen:
            return jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(own, state)


def made(make: Callable[[Any], Any], params: Any) -> Any:
    """`make(params)`, or its shapes where `params` are shapes.

    For a state that begins with the values of `params`. With zeros in place of missing
    values a run would train without an error.

    Example:
        >>> made(lambda x: x + 1, jax.ShapeDtypeStruct((2,), jnp.float32))
        ShapeDtypeStruct(shape=(2,), dtype=float32)
    """
    leaves = jax.tree.leaves(params)
    shapes = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    return jax.eval_shape(make, params) if shapes else make(params)
