"""How often islands, workers with a model each, exchange their models over a link."""

from collections.abc import Callable
from typing import NamedTuple

from delayjax._src.cluster.cluster import Cluster

_COST = 0.05  # of the time
_FRAGMENTS = 4  # of a model


class Islands(NamedTuple):
    """The periods and delays at which exchanges of models cost 5 % of the time.

    For `averaging.outer` and local SGD, where each worker is an island. `str(islands)`
    is a sentence. A number is None if exchanges cost more however large it is.

    Attributes:
        exchange_seconds: the seconds of an all-reduce of the model.
        period: the smallest H, in steps, of islands that wait for each exchange.
        delay: the smallest d, in steps, if the model is sent in d slices, one beside
            each step; H is at least d + 1, and should be much longer.
        fragment_delay: the same d for each of four fragments; H >= 4 (d + 1).
    """

    exchange_seconds: float
    period: int | None
    delay: int | None
    fragment_delay: int | None

    @classmethod
    def from_cluster(cls, cluster: Cluster) -> "Islands | None":
        """The numbers of a cluster by `shortest_period` and `shortest_delay`.

        Args:
            cluster: one worker is one island.

        Returns:
            None without a `communication` and with slowdowns that begin or end: the
            time of a step then depends on its begin. It takes the memory of
            `shortest_period`.

        Example:
            >>> from delayjax.cluster import Cluster, Communication, constant
            >>> link = Communication(message_bytes=42.0, bytes_per_second=10.0)
            >>> Islands.from_cluster(Cluster(2, constant(1.0), communication=link))
            Islands(exchange_seconds=4.2, period=80, delay=4, fragment_delay=1)
        """
        link, speeds = cluster.communication, cluster.speeds()
        if link is None or any(len(speed.factors) > 1 for speed in speeds):
            return None
        return cls(
            link.all_reduce_seconds(cluster.workers),
            _smallest(lambda: cluster.shortest_period(_COST)),
            _smallest(lambda: cluster.shortest_delay(_COST)),
            _smallest(lambda: cluster.shortest_delay(_COST, fragments=_FRAGMENTS)),
        )

    def __str__(self) -> str:
        said = (
            "If each worker is an island with its own model, an exchange takes"
            f" {self.exchange_seconds:.3g} s"
        )
        said += (
            f" and costs over {_COST:.0%} of the time at any H"
            if self.period is None
            else f" and costs at most {_COST:.0%} of the time from H = {self.period}"
            " local steps on"
        )
        if self.delay is not None:
            said += (
                f"; from H = {self.delay + 1} on if it is in flight during"
                f" {self.delay} of them"
            )
        if self.fragment_delay is not None:
            said += (
                f"; from H = {_FRAGMENTS * (self.fragment_delay + 1)} on in"
                f" {_FRAGMENTS} fragments, each in flight during {self.fragment_delay}"
            )
        if self.delay is self.fragment_delay is None:
            said += (
                "; with a delay islands wait for a slice of it at every step, and that"
                " costs more"
            )
        return f"{said}."


def _smallest(number: Callable[[], int]) -> int | None:
    """The number, or None if none is large enough."""
    try:
        return number()
    except ValueError:
        return None
