"""Groups: synchronous inside, asynchronous across."""

import itertools
import math
import statistics
from typing import Literal

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.cluster.server import Arrival, Server
from delayjax._src.ground import kinds


@remembered
def groups(
    num_groups: kinds.PositiveInt, *, data: Literal["dynamic", "static"] = "dynamic"
) -> Protocol:
    """G groups: a barrier inside each group, asynchronous updates by each group.

        x_{t+1} = x_t - eta (1/|group|) sum_{i in group} g_i(x_{t - tau})

    A group has neighboring workers, which read together and wait for the slowest of
    them; mean tau = G - 1. If one group is 1 + d times slower, a run takes
    1 / (1 - (1/G) d/(1+d)) times as long with dynamic data, 1 + d times with static
    data.

    Args:
        num_groups: G. 1 is synchronous, P is plain asynchronous SGD.
        data: with "dynamic" all groups draw from one pool; with "static" each group has
            its share of the simulation's `num_updates` and stops after it.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(4, constant(1.0), slowdown=[1.0, 1.0, 1.0, 4.0])
        >>> simulate(cluster, groups(2), 5, seed=0).seconds
        array([1., 2., 3., 4., 4.])

    References:
        Basu et al., Balancing stragglers against staleness, HiPC 2018 (reconstruction).
    """

    def run(server):
        server.check_workers("num_groups", num_groups)
        left: list[float] = [math.inf] * num_groups  # updates that a group still makes
        if data == "static":
            if server.num_updates == math.inf:
                raise ValueError("`num_updates` must be given, got None.")
            share, more = divmod(int(server.num_updates), num_groups)
            left = [share + (group < more) for group in range(num_groups)]
        team = _Teams(server, num_groups)
        for group, members in enumerate(team.members):
            server.leave_out(() if left[group] else members)
            server.start_all(members if left[group] else ())
        for arrival in server:
            group = team.gather(arrival)
            if group is not None:
                left[group] -= 1
                server.leave_out(() if left[group] else team.members[group])
                server.start_all(team.members[group] if left[group] else ())

    return Protocol(f"groups({num_groups}, data={data!r})", run)


@remembered
def progressive_groups(
    max_groups: kinds.PositiveInt,
    *,
    tolerance: kinds.PositiveFloat = 0.2,
    every: kinds.PositiveInt = 20,
) -> Protocol:
    """As few groups as stragglers allow: Basu et al.'s progressive grouping, rebuilt.

    It begins with one group. Every `every` updates it takes the smallest number G with

        1 / (1 - (1/G) d/(1+d)) <= 1 + tolerance,    d = slowest mean task / median - 1

    so that a run takes at most 1 + tolerance times as long as without the straggler.
    When G changes, all workers abandon their tasks and start new ones, and the
    gradients of groups that are not complete are dropped.

    Args:
        max_groups: the most groups.
        tolerance: the additional time that is allowed, as a share of the time.
        every: the number of updates between two decisions.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(4, constant(1.0), slowdown=[1.0, 1.0, 1.0, 4.0])
        >>> trace = simulate(cluster, progressive_groups(4), 40, seed=0)
        >>> trace.counts[19:22]  # one group of four workers becomes four groups
        array([4, 1, 1])
    """

    def run(server):
        server.check_workers("max_groups", max_groups)
        team = _Teams(server, 1)
        times = [[] for _ in range(server.num_workers)]
        server.start_all()
        for arrival in server:
            times[arrival.worker].append(arrival.arrived - arrival.begun)
            group = team.gather(arrival)
            if group is None:
                continue
            if server.version % every == 0:
                wanted = _wanted_groups(times, max_groups, tolerance)
                # each worker's last time is kept: a slow worker may have no other time
                times = [seconds[-1:] for seconds in times]
                if wanted != len(team.members):
                    team.drop()
                    team = _Teams(server, wanted)
                    server.start_all()
                    continue
            server.start_all(team.members[group])

    options = f"tolerance={tolerance}, every={every}"
    return Protocol(f"progressive_groups({max_groups}, {options})", run)


class _Teams:
    """Groups of neighbors, and the gradients that each group has."""

    def __init__(self, server: Server, num_groups: int):
        self._server = server
        edges = [
            -(-g * server.num_workers // num_groups) for g in range(num_groups + 1)
        ]
        self.members = [range(*pair) for pair in itertools.pairwise(edges)]
        self._gathered = [[] for _ in self.members]

    def gather(self, arrival: Arrival) -> int | None:
        """Makes an update if the arrival's group is complete, and returns the group."""
        group = arrival.worker * len(self.members) // self._server.num_workers
        self._gathered[group].append(arrival)
        if len(self._gathered[group]) < len(self.members[group]):
            return None
        for each in self._gathered[group]:
            self._server.take(each)
        self._gathered[group] = []
        self._server.update()
        return group

    def drop(self) -> None:
        """Drops the gradients of groups that are not complete."""
        for arrival in itertools.chain(*self._gathered):
            self._server.drop(arrival)


def _wanted_groups(times: list[list[float]], max_groups: int, tolerance: float) -> int:
    means = [statistics.fmean(seconds) for seconds in times if seconds]
    middle = statistics.median(means)
    delay = max(means) / middle - 1.0 if middle > 0 else 0.0
    wanted = math.ceil((1.0 + tolerance) / tolerance * delay / (1.0 + delay) - 1e-9)
    return min(max(wanted, 1), max_groups)
