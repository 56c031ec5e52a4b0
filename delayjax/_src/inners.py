"""Optimizers that can't stand behind a stale gradient, and what to write instead."""

import functools
from collections.abc import Iterator
from typing import Any

import optax

_SEARCH = (
    "it compares the gradient with the loss at today's parameters",
    "Use a learning rate that is fixed or scheduled",
)
_PAIRS = (
    "it pairs the change of the gradient with the change of the parameters, and a stale"
    " gradient was not taken at today's",
    "Use an optimizer that reads the gradient alone, as optax.sgd or optax.adam do",
)
REFUSED = {
    "lookahead": (
        "its parameters are pairs, and its gradients are not",
        "Delay the fast optimizer in it: optax.lookahead({wrapper}(fast_optimizer,"
        " ...), ...)",
    ),
    "sam": (
        "its gradients are taken in turn at two points, and a stale one is of the wrong"
        " point",
        "Delay the optimizer in it: optax.contrib.sam({wrapper}(optimizer, ...),"
        " adv_optimizer, opaque_mode=True)",
    ),
    "lbfgs": _PAIRS,
    "scale_by_lbfgs": _PAIRS,
    "scale_by_backtracking_linesearch": _SEARCH,
    "scale_by_zoom_linesearch": _SEARCH,
    "differentially_private_aggregate": (
        "its gradients have an axis of examples more than the parameters",
        "Put it in front: optax.chain(differentially_private_aggregate(...),"
        " {wrapper}(...))",
    ),
}
"""Factories of Optax that are refused: why, and what to write instead."""


def check(name: str, inner: Any, *, wrapper: str = "delayed") -> None:
    """Checks that a transformation can be handed gradients that are late.

    Args:
        name: the argument that holds the transformation, for errors.
        inner: the transformation.
        wrapper: the function that makes gradients late.

    Raises:
        ValueError: if a part of `inner` was made by a factory in `REFUSED`.
    """
    for factory in factories(inner):
        if factory in REFUSED:
            why, remedy = REFUSED[factory]
            raise ValueError(
                f"`{name}` must not hold optax's {factory}: {why}."
                f" {remedy.format(wrapper=wrapper)}."
            )


def factories(transformation: Any) -> Iterator[str]:
    """The names of Optax's factories that made a transformation and its parts.

    A transformation is a pair of functions. What it is made of is found in the
    variables that these functions close over.
    """
    seen: set[int] = set()
    todo = [transformation]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, (tuple, list)):
            todo += node
        elif isinstance(node, dict):
            todo += node.values()
        elif isinstance(node, functools.partial):
            todo += [node.func, *node.args, *node.keywords.values()]
        elif isinstance(node, optax.MultiSteps):
            todo.append(node.inner_opt)
        elif hasattr(node, "__self__"):  # a method
            todo.append(node.__self__)
        elif hasattr(node, "__wrapped__"):
            todo.append(node.__wrapped__)
        elif hasattr(node, "__closure__"):
            if node.__module__.split(".")[0] == "optax":
                yield node.__qualname__.split(".")[0]
            for cell in node.__closure__ or ():
                try:
                    todo.append(cell.cell_contents)
                except ValueError:  # an empty cell
                    continue
