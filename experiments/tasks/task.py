"""The interface between a task and the runner."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

import delayjax as dj

Batch = Any
"""A pytree of arrays: the data of one step."""

Part = Any
"""Selects examples of each batch, as in x[:, part]: a slice or an integer array."""

WHOLE = slice(None)
"""The part with all examples."""


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Something to minimize, as four functions.

    A model may have a state that is not trained, such as BatchNorm's statistics. Then
    `loss` takes an argument `state`, `init` returns the pair (parameters, state) and
    `evaluate` takes both. A loss that draws random numbers, as with dropout, takes an
    argument `key`.

    Attributes:
        init: key -> parameters. Traced, and mapped over the cells of a grid.
        loss: (parameters, batch) -> the training loss, float32 []; with `state` the
            pair (loss, next state). Traced, mapped over cells, and differentiated with
            respect to the parameters.
        batches: (seed, start, stop) -> the batches of updates start .. stop - 1, with
            start < stop, as NumPy leaves [stop - start, ...]. Runs on the host. A pure
            function of its arguments, so that a resumed run sees the same batches:
            batches(s, 0, 4)[2:] equals batches(s, 2, 4). If `examples` is given, it
            takes a fourth argument, a `Part`: batches(s, 0, 4, part) equals
            batches(s, 0, 4)[:, part], and no other example is drawn.
        evaluate: parameters -> {metric: float32 []}. `train_loss` is required; from it
            a grid sees that a cell diverged or ended higher. Traced. A large data set
            should be evaluated one block of examples at a time (`jax.lax.map` with a
            `batch_size`).
        facts: numbers and texts to print beside the results: sizes, entropies, a
            SHA-256, `sharpness` (the largest curvature at the optimum), `optimum_loss`.
        examples: the number of examples in a batch, along the second axis of its
            leaves. With it each process of a run draws only the examples of its
            workers; with None every process draws whole batches.
        batches_of: set if each worker has its part of the data: (seed, start, workers)
            -> the batches of gradients start, start + 1, ... of these workers int [n],
            in the form of `batches`. `along` takes each gradient on the data of its
            worker; other methods train on all data.
        parts: the parts of the model, for pipelines; None if the model is not cut. With
            parts, the parameters are a mapping with the three parts, and the loss of
            the parts is the loss of the task.
    """

    init: Callable[[jax.Array], Any]
    loss: Callable[..., Any]
    batches: Callable[..., Batch]
    evaluate: Callable[..., dict[str, jax.Array]]
    facts: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    examples: int | None = None
    batches_of: Callable[..., Batch] | None = None
    parts: dj.pipelines.Parts | None = None

    @cached_property
    def has_state(self) -> bool:
        """Whether the model has a state."""
        return "state" in inspect.signature(self.loss).parameters

    @cached_property
    def uses_key(self) -> bool:
        """Whether the loss draws random numbers."""
        return "key" in inspect.signature(self.loss).parameters


def at_least(name: str, value: int, low: int) -> None:
    """Checks that a number of a task is no smaller than `low`.

    Raises:
        ValueError: if it is smaller.

    Example:
        >>> at_least("width", 0, 1)
        Traceback (most recent call last):
        ValueError: `width` must be at least 1, got 0.
    """
    if value < low:
        raise ValueError(f"`{name}` must be at least {low}, got {value}.")


def activations(dtype: str) -> Any:
    """The dtype of a network's activations, by its name.

    Raises:
        ValueError: if it is neither float32 nor bfloat16.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"`dtype` must be 'float32' or 'bfloat16', got {dtype!r}.")
    return jnp.dtype(dtype)
