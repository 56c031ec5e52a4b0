"""The one state of a kind that a whole optimizer's state has in it."""

from typing import Any, TypeVar

import jax

State = TypeVar("State")


def find(
    kind: type[State], opt_state: Any, *, name: str, what: str, remedy: str
) -> State:
    """The state of this kind.

    Args:
        kind: a NamedTuple.
        opt_state: the state to look in.
        name: the name of `opt_state` in an error.
        what: the name of the kind in an error.
        remedy: the remedy if there is none, or several.

    Raises:
        ValueError: if there is none, or there are several.
    """

    def is_state(node):
        return isinstance(node, kind)

    nodes = jax.tree.leaves(opt_state, is_leaf=is_state)
    states = [node for node in nodes if is_state(node)]
    if len(states) != 1:
        raise ValueError(f"`{name}` must hold one {what}, got {len(states)}: {remedy}.")
    return states[0]
