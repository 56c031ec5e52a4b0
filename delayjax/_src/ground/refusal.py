"""What loops and wrappers read of a rule that refuses gradients: its state."""

from typing import Any, NamedTuple

import jax


class RefusingState(NamedTuple):
    """State of a rule that refuses gradients."""

    applied: jax.Array  # whether the last gradient was used, bool []
    dropped: jax.Array  # gradients refused so far, int32 []
    dropped_in_row: jax.Array  # gradients refused since the last one used, int32 []
    memory: Any  # of the rule: refused gradients change it too
    inner_state: Any  # unchanged by a refused gradient


def refuses(state: Any) -> bool:
    """Whether a state has a rule that refuses."""
    return bool(_rules(state))


def was_applied(state: Any) -> jax.Array:
    """Whether the last gradient was used, bool []: what the outermost rule says."""
    return _rules(state)[0].applied


def check_place(name: str, state: Any, *, alone: bool = True) -> None:
    """Checks that a rule that refuses has the whole optimizer of `name` in it.

    `alone` says that no other state stands before the rule either.
    """
    if not refuses(state) or _is_rule(state):
        return
    parts = _parts(state)
    place = next(place for place, part in enumerate(parts) if refuses(part))
    kind = type(state).__name__
    if kind in _SKIPS:
        raise ValueError(
            f"`{name}` must call its rule that refuses at every step, got the rule in a"
            f" {kind}: put the rule outside, drop_stale(wrapper(optimizer), bound)."
        )
    is_chain = type(state) in (tuple, list)
    moved = parts[place + 1 :] if is_chain else []
    if type(state) is dict:  # parts of the parameters
        moved = parts[:place] + parts[place + 1 :]
    if moved or (is_chain and alone and jax.tree.leaves(parts[:place])):
        raise ValueError(
            f"`{name}` must have its whole optimizer inside of the rule that refuses,"
            f" got the rule as part {place + 1} of {len(parts)}, and the others move"
            " with refused gradients: write drop_stale(optax.chain(...), bound)."
        )
    check_place(name, parts[place], alone=alone)


# states of Optax's wrappers that call `inner` at some steps alone
_SKIPS = ("MultiStepsState", "ApplyIfFiniteState", "ConditionallyTransformState")


def _is_rule(node: Any) -> bool:
    return isinstance(node, RefusingState)


def _rules(state: Any) -> list[RefusingState]:
    """The outermost rules of a state."""
    return [n for n in jax.tree.leaves(state, is_leaf=_is_rule) if _is_rule(n)]


def _parts(node: Any) -> list[Any]:
    """The children of a node."""
    return jax.tree.leaves(node, is_leaf=lambda child: child is not node)
