"""Progressive groups: as few groups as stragglers allow."""

import math
import statistics

from delayjax._src.cluster.protocol import Protocol, remembered
from delayjax._src.cluster.protocols.groups import Teams
from delayjax._src.ground import checks


@remembered
def progressive_groups(
    max_groups: int, *, tolerance: float = 0.2, every: int = 20
) -> Protocol:
    """As few groups as stragglers allow: Basu et al.'s progressive grouping, rebuilt.

    It begins with one group. Every `every` updates it takes the smallest number G with

        1 / (1 - (1/G) d/(1+d)) <= 1 + tolerance,    d = slowest mean task / median - 1

    so that a run takes at most 1 + tolerance times as long as without the straggler.
    When G changes, all workers abandon their tasks and start new ones.

    Args:
        max_groups: the most groups.
        tolerance: of time, as a share.
        every: updates between two decisions.

    Example:
        >>> from delayjax.cluster import Cluster, constant, simulate
        >>> cluster = Cluster(4, constant(1.0), slowdown=[1.0, 1.0, 1.0, 4.0])
        >>> trace = simulate(cluster, progressive_groups(4), 40, seed=0)
        >>> trace.counts[19:22]  # from one group of four to four of one
        array([4, 1, 1])
    """
    max_groups = checks.check_bound("max_groups", max_groups, at_least=1)
    every = checks.check_bound("every", every, at_least=1)
    tolerance = checks.check_number("tolerance", tolerance, positive=True)

    def run(server):
        server.check_workers("max_groups", max_groups)
        team = Teams(server, 1)
        times = [[] for _ in range(server.num_workers)]
        server.start_all()
        for arrival in server:
            times[arrival.worker].append(arrival.arrived - arrival.begun)
            group = team.gather(arrival)
            if group is None:
                continue
            if server.version % every == 0:
                wanted = _wanted_groups(times, max_groups, tolerance)
                # the last one is kept: a slow worker may have no other
                times = [seconds[-1:] for seconds in times]
                if wanted != len(team.members):
                    team = Teams(server, wanted)
                    server.start_all()
                    continue
            server.start_all(team.members[group])

    options = f"tolerance={tolerance}, every={every}"
    return Protocol(f"progressive_groups({max_groups}, {options})", run)


def _wanted_groups(times: list[list[float]], max_groups: int, tolerance: float) -> int:
    means = [statistics.fmean(seconds) for seconds in times if seconds]
    middle = statistics.median(means)
    delay = max(means) / middle - 1.0 if middle > 0 else 0.0
    wanted = math.ceil((1.0 + tolerance) / tolerance * delay / (1.0 + delay) - 1e-9)
    return min(max(wanted, 1), max_groups)
