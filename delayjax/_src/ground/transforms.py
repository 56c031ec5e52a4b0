"""Transformations inside a wrapper, their states, and numbers that change by step."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.core
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import checks, trees

OfStep = Callable[[Any], ArrayLike]
"""step (int32 []) -> a number, as in Optax."""

Transformation = optax.GradientTransformation | optax.MultiSteps
"""A transformation inside a wrapper."""

State = TypeVar("State")


def as_transformation(name: str, inner: Any) -> optax.GradientTransformationExtraArgs:
    """`inner` (also a `MultiSteps`) as a transformation that takes extra arguments."""
    update = getattr(inner, "update", None)
    steps = getattr(update, "__self__", None)
    if isinstance(steps, optax.MultiSteps):
        # MultiSteps.gradient_transformation() drops extra arguments
        method: Any = steps.update
        return optax.GradientTransformationExtraArgs(steps.init, method)
    if not callable(update) or not hasattr(inner, "init"):
        raise TypeError(f"`{name}` must be an Optax transformation, got {inner!r}.")
    return optax.with_extra_args_support(inner)


def stateful(
    kind: type[Any], init_fn: optax.TransformInitFn, update_fn: Callable[..., Any]
) -> optax.GradientTransformationExtraArgs:
    """A transformation with states of type `kind`.

    It refuses other states, and gradients that are not floating point.
    """

    def update(updates, state, params=None, **extra_args):
        if not all(hasattr(state, field) for field in kind._fields):
            raise TypeError(
                f"`state` must be a {kind.__name__}, got a {type(state).__name__}: take"
                " the state of this transformation, and restore a checkpoint into it,"
                " as flax.serialization.from_state_dict(tx.init(params), state) does."
            )
        trees.check_gradients(updates)
        return update_fn(updates, state, params, **extra_args)

    update.__qualname__ = update_fn.__qualname__  # `testing.check` names the rule
    return optax.GradientTransformationExtraArgs(init_fn, update)


def states_in(opt_state: Any, kind: type[State]) -> list[State]:
    """The states of this kind, a NamedTuple, in the state of a whole optimizer."""

    def is_state(node):
        return isinstance(node, kind)

    nodes = jax.tree.leaves(opt_state, is_leaf=is_state)
    return [node for node in nodes if is_state(node)]


def state_in(
    opt_state: Any, kind: type[State], what: str, remedy: str, name: str = "opt_state"
) -> State:
    """The only state of this kind in the state of a whole optimizer.

    Args:
        opt_state: the state to look in.
        kind: a NamedTuple.
        what: the name of the kind in an error.
        remedy: the remedy if there is none, or several.
        name: the name of `opt_state` in an error.

    Raises:
        ValueError: if there is none, or there are several.
    """
    states = states_in(opt_state, kind)
    if len(states) != 1:
        raise ValueError(f"`{name}` must hold one {what}, got {len(states)}: {remedy}.")
    return states[0]


def rate_at(
    rate: optax.ScalarOrSchedule, step: jax.Array, name: str = "learning_rate"
) -> Any:
    """The rate of a step: the number, or the value of the schedule."""
    return checks.as_scalar(f"{name}(step)", rate(step)) if callable(rate) else rate
