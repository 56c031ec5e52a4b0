"""What the runner needs to know of a task, and nothing else."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

import delayjax as dj

Params = Any
"""A pytree of floating-point arrays."""

Batch = Any
"""A pytree of arrays: what one step trains on."""

Part = Any
"""Which examples of each batch, as in x[:, part]: a slice or an integer array."""

WHOLE = slice(None)
"""The part that is all of them."""


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Something to minimize, as four functions.

    A model may have a state that is not trained, such as BatchNorm's statistics: then
    `loss` has an argument `state`, `init` returns the pair (parameters, state) and
    `evaluate` takes both. A loss that draws random numbers, as dropout does, has an
    argument `key`.

    Attributes:
        init: key -> parameters. Traced, and mapped over the cells of a grid.
        loss: (parameters, batch) -> the training loss, float32 []; with `state` the
            pair (loss, state after it). Traced, mapped over cells, differentiated in
            the parameters.
        batches: (seed, start, stop) -> the batches of updates start .. stop - 1, with
            start < stop, as NumPy leaves [stop - start, ...]. Runs on the host. A pure
            function of its arguments, so that a resumed run sees the same batches:
            batches(s, 0, 4)[2:] equals batches(s, 2, 4). Where `examples` is given it
            takes a fourth argument, a `Part`: batches(s, 0, 4, part) equals
            batches(s, 0, 4)[:, part], and no other example is drawn.
        evaluate: parameters -> {metric: float32 []}. `train_loss` is needed; a grid
            marks by it a cell that diverged or ended higher. Traced. Large data sets
            are gone through a block of examples at a time (`jax.lax.map` with a
            `batch_size`).
        facts: what is worth printing beside the results: sizes, entropies, a SHA-256,
            `sharpness` (the largest curvature at the optimum), `optimum_loss`.
        examples: how many a batch has, along the second axis of its leaves. With it
            each process of a run draws the examples of its own workers alone; None
            draws whole batches everywhere.
        tokens: how many tokens a batch predicts; None where it predicts none.
        batches_of: where workers have data of their own: (seed, start, workers) -> the
            batches of gradients start, start + 1, ... of these workers int [n], as
            `batches`. `along` takes a gradient on its worker's; others train on all.
        parts: of the model, for pipelines; None where it is not cut. Then parameters
            are a mapping with the three parts, and the parts' loss is the task's.
    """

    init: Callable[[jax.Array], Any]
    loss: Callable[..., Any]
    batches: Callable[..., Batch]
    evaluate: Callable[..., dict[str, jax.Array]]
    facts: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    examples: int | None = None
    tokens: int | None = None
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
    """The type that a network computes in, by its name.

    Raises:
        ValueError: if it is neither float32 nor bfloat16.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"`dtype` must be 'float32' or 'bfloat16', got {dtype!r}.")
    return jnp.dtype(dtype)
