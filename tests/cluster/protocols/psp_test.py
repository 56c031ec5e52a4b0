import math

import numpy as np
import pytest

from delayjax.cluster import protocols
from tests.cluster.given_times import SEEDS, simulate
from tests.support.cases import shortened


@pytest.mark.parametrize("seed", shortened(SEEDS, SEEDS[0]))
@pytest.mark.parametrize(("sample", "bound"), [(1, 0), (2, 1), (4, 0), (4, 2)])
def test_sampled_barriers_let_pass_as_often_as_the_draw_says(sample, bound, seed):
    # A worker with c tasks and L of the P - 1 others lagging it starts when the
    # r-th of these (in the order in which they catch up) has: with probability
    # P(rank <= r) = C(P - 1 - (L - r), b) / C(P - 1, b).
    p, n = 8, 4000
    rng = np.random.default_rng(seed)
    times = 0.3 + rng.exponential(1.0, (p, n))
    trace = simulate(times, protocols.psp(sample, bound), n, seed=seed)
    begun, ends = (
        [column[trace.worker == w] for w in range(p)]
        for column in (trace.begun, trace.arrived)
    )
    excess = variance = passed = passes = spread = 0.0
    for w in range(p):
        for c in range(1, len(ends[w])):
            now = ends[w][c - 1]
            catch_up = []
            for v in set(range(p)) - {w}:
                if c - np.searchsorted(ends[v], now, side="right") > bound:
                    when = c - bound - 1
                    catch_up.append(ends[v][when] if when < len(ends[v]) else math.inf)
            catch_up.sort()
            rank = [i for i, at in enumerate([now, *catch_up]) if at == begun[w][c]]
            assert len(rank) == 1, "it starts at its own or at a catching-up's moment"
            lagging = len(catch_up)
            below = np.array(
                [
                    math.comb(p - 1 - lagging + r, sample) / math.comb(p - 1, sample)
                    for r in range(lagging + 1)
                ]
            )
            chance = np.diff(below, prepend=0.0)
            mean = chance @ np.arange(lagging + 1)
            excess += rank[0] - mean
            variance += chance @ (np.arange(lagging + 1) - mean) ** 2
            passed += rank[0] == 0
            passes += chance[0]
            spread += chance[0] * (1 - chance[0])
    assert variance > 50 and spread > 50
    assert abs(excess) < 4 * math.sqrt(variance)
    assert abs(passed - passes) < 4 * math.sqrt(spread)
