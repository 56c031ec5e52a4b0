"""Groups: synchronous inside, asynchronous across."""

import itertools
import math
from typing import Literal

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.cluster.server import Arrival, Server
from delayjax._src.ground import checks


@remembered
def groups(
    num_groups: int, *, data: Literal["dynamic", "static"] = "dynamic"
) -> Protocol:
    """G groups: a barrier inside each group, asynchronous updates by each group.

        x_{t+1} = x_t - eta (1/|group|) sum_{i in group} g_i(x_{t - tau})

    A group has neighboring workers, who read together and wait for their slowest; mean
    tau = G - 1. If one group is slower by 1 + d, a run takes 1 / (1 - (1/G) d/(1+d))
    times as long with dynamic data, 1 + d times with static data.

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
    num_groups = checks.check_bound("num_groups", num_groups, at_least=1)
    checks.check_choice("data", data, "dynamic", "static")

    def run(server):
        server.check_workers("num_groups", num_groups)
        left: list[float] = [math.inf] * num_groups
        if data == "static":
            if server.num_updates == math.inf:
                raise ValueError(
                    "`num_updates` must be given if `data` is static, got None."
                )
            share, more = divmod(int(server.num_updates), num_groups)
            left = [share + (group < more) for group in range(num_groups)]
        team = Teams(server, num_groups)
        for group, members in enumerate(team.members):
            server.leave_out(() if left[group] else members)
            server.start_all(members if left[group] else ())
        for arrival in server:
            group = team.gather(arrival)
            if group is not None:
                left[group] -= 1
                server.start_all(team.members[group] if left[group] else ())

    return Protocol(f"groups({num_groups}, data={data!r})", run)


class Teams:
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
