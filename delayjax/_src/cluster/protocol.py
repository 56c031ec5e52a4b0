"""A server's rules for gradients: when they come, and how they are combined."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from delayjax._src.cluster.server import Server
from delayjax._src.ground.pickling import Pickled
from delayjax._src.ground.pickling import remembered as remembered


@dataclasses.dataclass(frozen=True, repr=False)
class Protocol(Pickled):
    """A server's rule for gradients: a loop over its arrivals, with a name.

    Attributes:
        name: the call that makes the protocol, as `ssp(1)`; errors name it.
        run: the loop.
    """

    name: str
    run: Callable[[Server], None]

    def __repr__(self) -> str:
        return self.name

    def __call__(self, server: Server) -> None:
        """Serves until the last update."""
        self.run(server)


class Aggregation(NamedTuple):
    """A replacement for the mean of an update's gradients, as three functions.

    Attributes:
        init: parameters -> the state.
        add: (state, gradients, workers) -> the state. Gradients have a leading axis
            [c]. `workers`, int32 [c], are their workers, -1 where there is no gradient.
        finish: state -> (the direction of this update, the state for the next update).
    """

    init: Callable[[Any], Any]
    add: Callable[[Any, Any, jax.Array], Any]
    finish: Callable[[Any], tuple[Any, Any]]
