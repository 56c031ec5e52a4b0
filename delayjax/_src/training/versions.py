"""The versions of the parameters: the last ones kept, and read at an age."""

from typing import Any

import jax

from delayjax._src.history import ring as rings


def check_depth(params: Any, versions: rings.Ring, depth: int) -> None:
    """Checks that a state keeps versions of this age."""
    held = min((len(kept) - 1 for kept in jax.tree.leaves(versions.slots)), default=0)
    if jax.tree.leaves(params) and held < depth:
        raise ValueError(
            f"`state` keeps versions up to a staleness of {held}, got a trace of"
            f" {depth}: change it with resize_history(state, training.init(params,"
            " key)), and `model_state=` if there is one."
        )
