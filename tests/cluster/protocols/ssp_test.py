import numpy as np

from delayjax.cluster import protocols
from tests.cluster.given_times import UPDATES, simulate, times_of


def test_bulk_synchronous_clocks_are_rounds_of_a_barrier():
    # SSP's updates are single gradients: P of them a round, and the last of a
    # round is a hardsync update's moment
    times = times_of("straggler", 5, 1)
    single = simulate(times, protocols.ssp(0))
    barrier = simulate(times, protocols.hardsync(), UPDATES // 5)
    np.testing.assert_allclose(single.seconds[4::5], barrier.seconds, rtol=1e-12)
