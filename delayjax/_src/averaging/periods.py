"""What happens at every H-th step alone."""

from collections.abc import Callable
from typing import Any

import jax

from delayjax._src.ground import axes, checks


def due(step: jax.Array, period: Any) -> Any:
    """Whether `period` divides step + 1; the Python bool True at the Python int 1."""
    return (isinstance(period, int) and period == 1) or (step + 1) % period == 0


def choose(due: Any, yes: Callable, no: Callable, *operands: Any) -> Any:
    """`jax.lax.cond`, but only `yes` is compiled if `due` is the Python bool True."""
    return yes(*operands) if due is True else jax.lax.cond(due, yes, no, *operands)


def when(
    due: Any,
    mix: Callable[[Any], Any],
    tree: Any,
    axis_name: axes.AxisName,
    otherwise: Callable[[Any], Any] = lambda tree: tree,
) -> Any:
    """`mix(tree)` where `due`, a bool that all workers share."""

    def mixed(tree):
        # or the two branches have different types
        return axes.vary(mix(tree), axis_name=axis_name)

    return choose(due, mixed, otherwise, axes.vary(tree, axis_name=axis_name))


def check_period(name: str, value: Any) -> Any:
    """A number of steps, at least 1. A traced value is returned as it is."""
    is_known = checks.is_concrete(value)
    return checks.check_bound(name, value, at_least=1) if is_known else value
