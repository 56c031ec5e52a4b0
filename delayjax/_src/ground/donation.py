"""Buffers of a state that a training step can donate."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def copied(leaf: Any) -> jax.Array:
    """A strongly typed copy of the caller's array, for a state that is donated."""
    return jnp.array(leaf, jnp.result_type(leaf), copy=True)


def unshared(state: Any, *beside: Any) -> Any:
    """`state`, with copies of arrays that it holds twice or shares with other trees.

    A training step donates parameters and state, and a buffer can be donated only once.
    Some optimizers (DoG, Prodigy, MECHANIC) keep the first parameters, and some rules
    begin with one array in two places.

    Args:
        state: the state that `init` is about to return.
        *beside: trees that are donated with it, such as the parameters.

    Returns:
        The same values. An array is copied only where it occurs again.

    Example:
        >>> params = {"w": jnp.ones(2)}
        >>> state = unshared({"first": params}, params)
        >>> state["first"]["w"] is params["w"]
        False
    """
    seen = {id(leaf) for leaf in jax.tree.leaves(beside)}

    def copy_repeated(leaf):
        if isinstance(leaf, jax.Array) and id(leaf) in seen:
            return jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(copy_repeated, state)


def made(make: Callable[[Any], Any], params: Any) -> Any:
    """`make(params)`, unshared; only its shapes where `params` are shapes."""
    leaves = jax.tree.leaves(params)
    shapes = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    return jax.eval_shape(make, params) if shapes else unshared(make(params), params)
