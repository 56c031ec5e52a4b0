"""How often islands, workers with a model each, exchange their models over a link."""

import math
from collections.abc import Callable
from typing import NamedTuple

from delayjax._src.cluster.cluster import Cluster, TooCostlyError

_COST = 0.05  # of the time
_FRAGMENTS = 4  # of a model


class Islands(NamedTuple):
    """The periods and delays at which exchanges of models cost 5 % of the time.

    They are for `averaging.outer` and local SGD, where each worker is an island.
    `str(islands)` is a sentence. A number is None if no number is large enough.

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
            None without a `communication`, with a dead worker, or with slowdowns that
            begin or end: the time of a step then depends on when it begins. It takes
            the memory of `shortest_period`.

        Example:
            >>> from delayjax.cluster import Cluster, Communication, constant
            >>> link = Communication(message_bytes=42.0, bytes_per_second=10.0)
            >>> Islands.from_cluster(Cluster(2, constant(1.0), communication=link))
            Islands(exchange_seconds=4.2, period=80, delay=4, fragment_delay=1)
        """
        link, speeds = cluster.communication, cluster.speeds()
        lasting = [
            len(one.factors) == 1 and one.factors[0] < math.inf for one in speeds
        ]
        if link is None or not all(lasting):
            return None
        return cls(
            link.all_reduce_seconds(cluster.workers),
            _smallest(lambda: cluster.shortest_period(_COST)),
            _smallest(lambda: cluster.shortest_delay(_COST)),
            _smallest(lambda: cluster.shortest_delay(_COST, fragments=_FRAGMENTS)),
        )

    def __str__(self) -> str:
        said = [
            "If each worker is an island with its own model, an exchange takes"
            f" {self.exchange_seconds:.3g} s and costs"
        ]
        if self.period is None:
            said += [f"over {_COST:.0%} of the time at any H."]
        else:
            said += [
                f"at most {_COST:.0%} of the time from H = {self.period} steps on."
            ]
        flights = {1: self.delay, _FRAGMENTS: self.fragment_delay}
        late = [
            f"in {count} fragments " * (count > 1)
            + f"from d = {delay} on (H above {count * (delay + 1) - 1})"
            for count, delay in flights.items()
            if delay is not None
        ]
        if late:
            said += [
                f"With a delay d it costs no more {', or '.join(late)}. Late outer"
                " steps cost loss: H should be many times the smallest."
            ]
        else:
            said += [
                "With a delay islands wait for a slice of it at every step, and that"
                " costs more."
            ]
        return " ".join(said)


def _smallest(number: Callable[[], int]) -> int | None:
    """The number, or None if none is large enough."""
    try:
        return number()
    except TooCostlyError:
        return None
