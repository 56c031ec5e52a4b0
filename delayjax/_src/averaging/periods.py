"""Actions at every H-th step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from delayjax._src.ground import axes


class Due(NamedTuple):
    """Whether a method mixes models at this step."""

    now: Any  # bool [], shared by all workers
    always: bool = False  # whether it mixes at every step: then there is no branch


def due(step: jax.Array, period: Any, first: Any = None) -> Due:
    """Due after `first` steps, by default `period`, and then every `period` steps."""
    first = period if first is None else first
    if isinstance(period, int) and isinstance(first, int) and period == first == 1:
        return Due(True, always=True)
    since = step + 1 - first
    return Due((since >= 0) & (since % period == 0))


def choose(due: Due, yes: Callable, no: Callable, *operands: Any) -> Any:
    """`yes(*operands)` where it is due, else `no(*operands)`, by `jax.lax.cond`."""
    if due.always:
        return yes(*operands)
    return jax.lax.cond(due.now, yes, no, *operands)


def when(
    due: Due,
    mix: Callable[[Any], Any],
    tree: Any,
    axis_name: axes.AxisName,
    otherwise: Callable[[Any], Any] = lambda tree: tree,
) -> Any:
    """`mix(tree)` where it is due."""

    def mixed(tree):
        # otherwise the two branches have different types
        return axes.vary(mix(tree), axis_name=axis_name)

    return choose(due, mixed, otherwise, axes.vary(tree, axis_name=axis_name))
