"""The state of a rule that refuses gradients; training loops and wrappers read it."""

import collections
from typing import Any, NamedTuple, TypeVar

import jax
import optax

T = TypeVar("T")


class RefusingState(NamedTuple):
    """State of a rule that refuses gradients."""

    applied: jax.Array  # whether the last gradient was used, bool []
    dropped: jax.Array  # gradients refused so far, int32 []
    dropped_in_row: jax.Array  # gradients refused since one was used, int32 []
    memory: Any  # the rule's own state, which refused gradients change too
    inner_state: Any  # unchanged by a refused gradient


def refuses(state: Any) -> bool:
    """Whether a state holds the state of a rule that refuses."""
    return bool(_rules(state))


def was_applied(state: Any) -> jax.Array:
    """Whether the outermost rule used the last gradient, bool []."""
    return _rules(state)[0].applied


def register_producer(kind: type[T]) -> type[T]:
    """Registers the type of a state as a producer of staleness, as `DelayedState` is.

    A rule that refuses (`drop_stale`, `refusing`) must contain the whole optimizer,
    because refused gradients change the arrays outside of the rule. A producer of
    staleness may be outside: refused gradients may change its arrays. Use this function
    as a decorator of your producer's state.

    Args:
        kind: a NamedTuple, the state of a wrapper that hands on `staleness=`.

    Returns:
        The same class.

    Example:
        >>> @register_producer
        ... class MeasuredState(NamedTuple):
        ...     staleness: jax.Array
        ...     inner_state: Any
    """
    _PRODUCERS.add(kind)
    return kind


def wraps_optimizer(state: Any) -> bool:
    """Whether a producer of staleness, or a rule that refuses, holds a state inside."""
    return type(state) in (RefusingState, *_PRODUCERS) and hasattr(state, "inner_state")


def check_place(name: str, state: Any, *, alone: bool = True) -> None:
    """Checks that a rule that refuses contains the whole optimizer of `name`.

    With `alone`, no other state may be before the rule in a chain.
    """
    stray = _stray(state, alone) if refuses(state) else None
    if stray:
        raise ValueError(
            f"`{name}` must have its whole optimizer inside of the rule that refuses,"
            f" got {stray}: put the rule outside, drop_stale(optax.chain(...), bound)."
        )


_PRODUCERS: set[type] = set()
_CHAINS = tuple, list, dict, collections.OrderedDict


def _stray(node: Any, alone: bool) -> str | None:
    """An array outside of the rule in a state: its path, and the type of the state."""
    if _is_rule(node):
        return None
    parts = jax.tree.leaves_with_path(node, is_leaf=lambda child: child is not node)
    place = next(place for place, (_, part) in enumerate(parts) if refuses(part))
    kind = type(node)
    before = [] if kind is tuple and not alone else parts[:place]
    # without a schedule the hyperparameters do not change
    is_fixed = kind is optax.InjectStatefulHyperparamsState
    is_fixed = is_fixed and not jax.tree.leaves(node.hyperparams_states)
    if kind not in _PRODUCERS and not is_fixed:
        for path, part in before + parts[place + 1 :]:
            for rest, _ in jax.tree.leaves_with_path(part):
                return f"{jax.tree_util.keystr((*path, *rest))} in a {kind.__name__}"
        # in a dict each part has other parameters, and the order does not matter
        behind = parts[place + 1 :] + before * (kind is dict)
        if kind in _CHAINS and behind:  # a part without arrays may move parameters too
            return f"part {place + 1} of {len(parts)} in a {kind.__name__}"
    return _stray(parts[place][1], alone)


def _is_rule(node: Any) -> bool:
    return isinstance(node, RefusingState)


def _rules(state: Any) -> list[RefusingState]:
    """The outermost rules of a state."""
    return [n for n in jax.tree.leaves(state, is_leaf=_is_rule) if _is_rule(n)]
