"""A server's rules for gradients: when they come, and how they are combined."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from delayjax._src.cluster.server import Server
from delayjax._src.ground import dtypes, xla
from delayjax._src.ground.pickling import Pickled
from delayjax._src.ground.pickling import remembered as remembered


class Aggregation(NamedTuple):
    """A replacement for the mean of an update's gradients, as three functions.

    Attributes:
        init: parameters -> the state.
        add: (state, gradients, workers) -> the state. Gradients have a leading axis
            [c]. `workers`, int32 [c], are their workers, -1 where there is no gradient.
        finish: (state, last) -> (the direction of this update, the state for the next
            update). `last`, int32 [], is the worker of the last gradient that arrived,
            also if a rule refused it; -1 if none arrived. The direction is cast to the
            dtypes of the parameters. The new state stays if a rule refuses the
            direction.
        num_workers: P, if the state has a row for each worker.
    """

    init: Callable[[Any], Any]
    add: Callable[[Any, Any, jax.Array], Any]
    finish: Callable[[Any, jax.Array], tuple[Any, Any]]
    num_workers: int | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Protocol(Pickled):
    """A server's rule for gradients: a loop over its arrivals, with a name.

    Attributes:
        name: the call that makes the protocol, as `ssp(1)`; errors name it.
        run: the loop.
        aggregation: P -> the `aggregation` of `replay`; None for a mean of gradients.
    """

    name: str
    run: Callable[[Server], None]
    aggregation: Callable[[int], Aggregation] | None = None

    def __repr__(self) -> str:
        return self.name

    def __call__(self, server: Server) -> None:
        """Serves until the last update."""
        self.run(server)


def zero_rows(num_workers: int, params: Any) -> Any:
    """Zeros [P, *shape] of each leaf, float32 at least, on the devices of `params`."""

    def zeros(leaf):
        one = xla.zeros_sharded_as(leaf, dtypes.wide_dtype(leaf))
        return jnp.broadcast_to(one, (num_workers, *one.shape))

    return jax.tree.map(zeros, params)
