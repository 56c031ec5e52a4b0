"""The rule by which a server combines the gradients that arrived."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Aggregation(NamedTuple):
    """A replacement for the mean of an update's gradients, as three functions.

    Attributes:
        init: parameters -> the state.
        add: (state, gradients, workers) -> the state. Gradients have a leading axis
            [c]. `workers`, int32 [c], names their workers, -1 where there is none.
        finish: state -> (the direction of this update, the state for the next update).
    """

    init: Callable[[Any], Any]
    add: Callable[[Any, Any, jax.Array], Any]
    finish: Callable[[Any], tuple[Any, Any]]
