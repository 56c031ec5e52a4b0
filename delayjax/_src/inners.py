"""Optimizers that cannot use a stale gradient, and the remedy for each."""

import functools
from collections.abc import Iterator
from typing import Any

import optax

_SEARCH = (
    "it compares the gradient with the loss at today's parameters",
    "Use a learning rate that is fixed or scheduled",
)
_PAIRS = (
    "it pairs the changes of gradient and parameters, but a stale gradient was not"
    " taken at today's parameters",
    "Use an optimizer that reads the gradient alone, as optax.sgd or optax.adam do",
)
REFUSED = {
    "lookahead": (
        "its parameters are pairs, but its gradients are not",
        "Delay the fast optimizer in it: optax.lookahead({wrapper}(fast_optimizer,"
        " ...), ...)",
    ),
    "sam": (
        "it takes gradients in turn at two points, and a stale gradient is from the"
        " wrong point",
        "Delay the optimizer in it: optax.contrib.sam({wrapper}(optimizer, ...),"
        " adv_optimizer, opaque_mode=True)",
    ),
    "lbfgs": _PAIRS,
    "scale_by_lbfgs": _PAIRS,
    "scale_by_backtracking_linesearch": _SEARCH,
    "scale_by_zoom_linesearch": _SEARCH,
    "differentially_private_aggregate": (
        "its gradients have one axis more than the parameters, for the examples",
        "Put it in front: optax.chain(differentially_private_aggregate(...),"
        " {wrapper}(...))",
    ),
}
"""Refused factories of Optax: the reason, and the remedy."""


def check(name: str, inner: Any, *, wrapper: str = "delayed") -> None:
    """Checks that a transformation can use gradients that `wrapper` made late."""
    for factory in factories(inner):
        if factory in REFUSED:
            why, remedy = REFUSED[factory]
            raise ValueError(
                f"`{name}` must not hold optax's {factory}: {why}."
                f" {remedy.format(wrapper=wrapper)}."
            )


def factories(transformation: Any) -> Iterator[str]:
    """The names of Optax's factories that made a transformation and its parts."""
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
        elif hasattr(node, "__closure__"):  # it holds the parts of a transformation
            if (node.__module__ or "").split(".")[0] == "optax":
                yield node.__qualname__.split(".")[0]
            for cell in node.__closure__ or ():
                try:
                    todo.append(cell.cell_contents)
                except ValueError:  # an empty cell
                    continue
