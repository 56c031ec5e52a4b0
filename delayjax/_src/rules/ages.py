"""The staleness that a rule needs, which may be a mean."""

from typing import Any

from delayjax._src.ground import extras

WRAP = "wrap the whole chain, `delayed(optax.chain(...), delay)`"
"""How to supply it: the remedy in an error."""


def take(
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


def take_one(needed_by: str, updates: Any, staleness: Any) -> tuple[Any, Any]:
    """The gradients and the one staleness of all leaves; an error if it is missing."""
    extras.require(staleness, "staleness", needed_by, WRAP)
    return extras.take_one_staleness(needed_by, updates, staleness)
