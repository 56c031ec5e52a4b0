import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster import oracle

SEEDS = [1, 2, 3]
UPDATES = 150
INF = math.inf


def times_of(num_workers, seed, tasks=2000):
    return np.random.default_rng(seed).gamma(2.0, 0.5, (num_workers, tasks))


def simulate(times, protocol, num_updates=UPDATES, *, seconds=INF, **keywords):
    spec = cluster.Cluster(len(times), oracle.given(times), **keywords)
    return cluster.simulate(spec, protocol, num_updates, seed=0, seconds=seconds)


# The end.


def test_the_clock_may_end_a_run():
    times = times_of(4, 1)
    made = [
        protocols.k_async(1),
        protocols.k_sync(2),
        protocols.ringleader(),
        protocols.mindflayer(1, 5.0),
        protocols.ringmaster(2),
    ]
    for protocol in made:
        whole = simulate(np.tile(times, 6), protocol)
        for end in (0.01, 7.7, float(whole.seconds[20])):
            trace = simulate(np.tile(times, 6), protocol, seconds=end)
            kept = int((whole.seconds <= end).sum())
            assert trace.num_updates == kept < UPDATES
            oracle.assert_same(trace, oracle.updates_of(whole)[:kept])
        # whichever comes first
        assert simulate(np.tile(times, 6), protocol, seconds=1e9).num_updates == UPDATES


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("num_updates", 0, ValueError),
        ("num_updates", 5.0, TypeError),
        ("seconds", 0.0, ValueError),
        ("seconds", math.nan, ValueError),
        ("seed", -1, ValueError),
        ("seed", 0.5, TypeError),
    ],
)
def test_a_bad_argument_is_named_with_its_value(argument, value, error):
    four = cluster.Cluster(4, cluster.constant(1.0))
    arguments = {"num_updates": 5, "seed": 0, argument: value}
    with pytest.raises(error, match=f"`{argument}` .* {value}"):
        cluster.simulate(four, protocols.hardsync(), **arguments)
