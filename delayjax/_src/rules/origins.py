"""Where a gradient comes from: its staleness, which may be a mean, and its worker."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import checks, extras

WRAP = "wrap the whole chain, `delayed(optax.chain(...), delay)`"
"""How to supply a staleness: the remedy in an error."""

IN_EACH = (
    "put the rule into `each` of `replay`, or into its `tx` where each update has one"
    " gradient"
)
"""How to supply a worker: the remedy in an error."""


def staleness_of(
    needed_by: str,
    updates: Any,
    staleness: Any,
    remedy: str = WRAP,
    *,
    by_layer: bool = False,
) -> tuple[Any, Any]:
    """The gradients and their staleness; an error if the staleness is missing."""
    extras.require(staleness, "staleness", needed_by, remedy)
    return extras.take_staleness(
        needed_by, updates, staleness, mean=True, by_layer=by_layer
    )


def one_staleness_of(needed_by: str, updates: Any, staleness: Any) -> tuple[Any, Any]:
    """The gradients and the one staleness of all leaves; an error if it is missing."""
    extras.require(staleness, "staleness", needed_by, WRAP)
    return extras.take_one_staleness(needed_by, updates, staleness)


def worker_of(needed_by: str, worker: Any, workers: int | None = None) -> jax.Array:
    """A worker's number, int32 []."""
    extras.require(worker, "worker", needed_by, IN_EACH)
    known = checks.is_concrete(worker)
    number = np.asarray(worker) if known else worker
    is_number = number.ndim == 0 and jnp.issubdtype(number.dtype, jnp.integer)
    most = np.inf if workers is None else workers - 1
    if not is_number or (known and not 0 <= number <= most):
        raise ValueError(
            f"`worker` handed to `{needed_by}` must be a worker's number, in 0 .."
            f" {most}, got {worker!r}."
        )
    return jnp.asarray(worker, jnp.int32)
