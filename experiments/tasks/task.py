"""What the runner needs to know of a task, and nothing else."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

Params = Any
"""A pytree of floating-point arrays."""

Batch = Any
"""A pytree of arrays: what one step trains on."""


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
            batches(s, 0, 4)[2:] equals batches(s, 2, 4).
        evaluate: parameters -> float32 [] for some of train_loss, test_loss,
            train_accuracy, test_accuracy. Traced. Large data sets are gone through a
            block of examples at a time (`jax.lax.map` with a `batch_size`).
        facts: what is worth printing beside the results: sizes, entropies, a SHA-256,
            `sharpness` (the largest curvature at the optimum), `optimum_loss`.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[[Params, Batch], jax.Array]
    batches: Callable[[int, int, int], Batch]
    evaluate: Callable[[Params], dict[str, jax.Array]]
    facts: Mapping[str, float | str] = dataclasses.field(default_factory=dict)


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
