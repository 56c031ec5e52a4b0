"""The number of the worker that sent a gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import checks, extras

IN_EACH = (
    "put the rule into `each` of `replay`, or into its `tx` where each update has one"
    " gradient"
)
"""How to supply it: the remedy in an error."""


def check(needed_by: str, worker: Any, workers: int | None = None) -> jax.Array:
    """A worker's number, int32 []."""
    extras.require(worker, "worker", needed_by, IN_EACH)
    known = checks.is_concrete(worker)
    number = np.asarray(worker) if known else worker
    is_number = number.ndim == 0 and jnp.issubdtype(number.dtype, jnp.integer)
    most = np.inf if workers is None else workers - 1
    if not is_number or (known and not 0 <= number <= most):
        must = "a non-negative integer" if workers is None else f"in 0 .. {most}"
        raise ValueError(
            f"`worker` handed to `{needed_by}` must be a worker's number, {must}, got"
            f" {worker!r}."
        )
    return jnp.asarray(worker, jnp.int32)
