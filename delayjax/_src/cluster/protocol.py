"""A protocol of a parameter server, and the call that made it."""

import dataclasses
from collections.abc import Callable

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
