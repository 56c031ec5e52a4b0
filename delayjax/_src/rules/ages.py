"""The ages of gradients that a rule needs, which may be means."""

from typing import Any

from delayjax._src.ground import extras, trees

WRAP = "wrap the whole chain, `delayed(optax.chain(...), delay)`"
"""What supplies them: the remedy of an error."""


def take(
    needed_by: str,
    updates: Any,
    staleness: Any,
    remedy: str = WRAP,
    *,
    by_layer: bool = False,
    one: bool = False,
) -> tuple[Any, Any]:
    """The gradients and their staleness, or an error that says what lacks."""
    extras.require(staleness, "staleness", needed_by, remedy)
    if one and not trees.is_leaf(staleness):
        raise TypeError(
            f"`{needed_by}` needs one `staleness` for all leaves, got {staleness!r}:"
            " give each part its own rule and delay, with optax.partition."
        )
    return extras.take_staleness(
        needed_by, updates, staleness, mean=True, by_layer=by_layer
    )
