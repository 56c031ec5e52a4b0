"""Which memory the leaves of a state lie in."""

from typing import Any

import jax
import jax.numpy as jnp


def unshared(state: Any, *beside: Any) -> Any:
    """`state`, each leaf in memory of its own.

    A training step donates its state and its parameters, and a buffer can be donated
    once. Eagerly, an array that stands in two places is one buffer: some optimizers
    keep the first parameters as they are (DoG, Prodigy, MECHANIC).

    Args:
        state: a tree that was just made.
        *beside: trees that are donated with it. They stay as they are.

    Returns:
        The same values. An array that stands in `beside`, or a second time in `state`,
        is copied; nothing else is.

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
