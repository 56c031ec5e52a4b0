"""What the runner needs to know of a task, and nothing else."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

Params = Any
"""A pytree of floating-point arrays."""

Batch = Any
"""A pytree of arrays: what one step trains on."""

Part = Any
"""Which examples of each batch, as in x[:, part]: a slice or an integer array."""

WHOLE = slice(None)
"""The part that is all of them."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Something to minimise, as four functions.

    Attributes:
        init: key -> parameters. Traced, and mapped over the cells of a grid.
        loss: (parameters, batch) -> the training loss, float32 []. Traced, mapped over
            cells, differentiated in the parameters.
        batches: (seed, start, stop) -> the batches of steps start .. stop - 1, with
            start < stop, as NumPy leaves [stop - start, ...]. Runs on the host. A pure
            function of its arguments, so that a resumed run sees the same batches:
            batches(s, 0, 4)[2:] equals batches(s, 2, 4). Where `examples` is given it
            takes a fourth argument, a `Part`: batches(s, 0, 4, part) equals
            batches(s, 0, 4)[:, part], and no other example is drawn.
        evaluate: parameters -> float32 [] for some of train_loss, test_loss,
            train_accuracy, test_accuracy. Traced. Large data sets are gone through a
            block of examples at a time (`jax.lax.map` with a `batch_size`).
        facts: what is worth printing beside the results: sizes, entropies, a SHA-256,
            `sharpness` (the largest curvature at the optimum), `optimum_loss`.
        examples: how many a batch has, along the second axis of its leaves. With it
            each process of a run draws those of its own workers alone; None draws whole
            batches everywhere.
        tokens: how many a batch predicts; None where they are not what is predicted.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[[Params, Batch], jax.Array]
    batches: Callable[..., Batch]
    evaluate: Callable[[Params], dict[str, jax.Array]]
    facts: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    examples: int | None = None
    tokens: int | None = None


def at_least(config: ConfigDict, key: str, low: int) -> int:
    """`config[key]`, which must be no smaller than `low`.

    Raises:
        ValueError: if it is smaller.

    Example:
        >>> at_least(ConfigDict({"width": 0}), "width", 1)
        Traceback (most recent call last):
        ValueError: config.task.width must be at least 1, got 0.
    """
    if config[key] < low:
        raise ValueError(
            f"config.task.{key} must be at least {low}, got {config[key]}."
        )
    return config[key]


def activations(config: ConfigDict) -> Any:
    """The dtype that a network computes in, `config.dtype`; parameters are float32.

    Raises:
        ValueError: if it is neither float32 nor bfloat16.

    Example:
        >>> activations(ConfigDict({"dtype": "float16"}))
        Traceback (most recent call last):
        ValueError: config.task.dtype must be 'float32' or 'bfloat16', got 'float16'.
    """
    if config.dtype not in ("float32", "bfloat16"):
        raise ValueError(
            f"config.task.dtype must be 'float32' or 'bfloat16', got {config.dtype!r}."
        )
    return jnp.dtype(config.dtype)
