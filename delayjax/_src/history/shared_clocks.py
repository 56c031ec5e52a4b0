"""The step counters of histories, which a `vmap` must not map."""

from typing import Any

import jax

from delayjax._src.history import deliveries
from delayjax._src.history import ring as rings

CLOCKS = {rings.Ring: ("pushed", "first"), deliveries.Calendar: ("step",)}
"""The fields of each kind of history that all cells of a grid share."""


def is_history(node: Any) -> bool:
    """Whether a node of a tree is a history."""
    return isinstance(node, tuple(CLOCKS))


def vmap_axes(tree: Any) -> Any:
    """The `in_axes` and `out_axes` of a `vmap` over states that hold histories.

    All cells of a grid share the counter of a history, so that a step writes the same
    slot in each of them, in place. With a counter for each cell, XLA would copy the
    whole history. So the axes are None at each ring's `pushed` and `first` and at each
    calendar's `step`, 0 everywhere else.

    Args:
        tree: a state, or its shapes from `jax.eval_shape`.

    Example:
        >>> vmap_axes(rings.init(jax.numpy.zeros(2), 4))
        Ring(slots=0, pushed=None, first=None)
    """

    def axes_of(node):
        if not is_history(node):
            return 0
        axes = jax.tree.map(lambda _: 0, node)
        return axes._replace(**dict.fromkeys(CLOCKS[type(node)]))

    return jax.tree.map(axes_of, tree, is_leaf=is_history)
