"""Arrival rates and run times are those of simulated clusters."""

import math

import numpy as np
import pytest

from delayjax import cluster, stability
from delayjax.cluster import protocols

P = 16
UPDATES = 20_000


def simulated(service, protocol, *, workers=P, updates=UPDATES, **options):
    machine = cluster.Cluster(workers, service, **options)
    return cluster.simulate(machine, protocol, updates, seed=1)


def rate_of(trace):
    return trace.num_updates / trace.seconds[-1]


# rates


@pytest.mark.parametrize(
    "service", [cluster.constant(2.0), cluster.exponential(2.0), cluster.gamma(2.0, 4)]
)
def test_gradients_arrive_at_the_sum_of_the_workers_rates(service):
    speeds = [1.0, 2.0, 4.0, 1.0]
    trace = simulated(service, protocols.k_async(1), workers=4, slowdown=speeds)
    rates = np.array([0.5, 0.25, 0.125, 0.5])
    nu = cluster.arrival_rate(4, 1 / rates)
    assert nu == pytest.approx(rates.sum(), rel=1e-15)
    assert rate_of(trace) == pytest.approx(nu, rel=0.01)
    shares = trace.summary().gradients / UPDATES
    np.testing.assert_allclose(shares, rates / nu, rtol=0.05)


@pytest.mark.parametrize("workers", [2, 5, 8])
def test_a_serial_server_takes_gradients_up_to_its_own_rate(workers):
    # the parameters down and the gradient up: 0.5 s each, alone
    link = cluster.Communication(message_bytes=1.0, bytes_per_second=2.0, serial=True)
    trace = simulated(
        cluster.constant(4.0), protocols.k_async(1), workers=workers, communication=link
    )
    nu = cluster.arrival_rate(workers, 4.0, server_seconds=2 * link.transfer_seconds)
    assert nu == pytest.approx(min(workers / 5.0, 1.0), rel=1e-15)
    assert rate_of(trace) == pytest.approx(nu, rel=0.01)


@pytest.mark.parametrize(("workers", "near"), [(2, 0.1), (8, 0.3), (64, 0.01)])
def test_with_random_times_the_rate_of_a_serial_server_is_a_bound(workers, near):
    link = cluster.Communication(message_bytes=1.0, bytes_per_second=2.0, serial=True)
    trace = simulated(
        cluster.exponential(8.0),
        protocols.k_async(1),
        workers=workers,
        communication=link,
    )
    nu = cluster.arrival_rate(workers, 8.0, server_seconds=2 * link.transfer_seconds)
    assert rate_of(trace) < nu * 1.01
    assert rate_of(trace) > nu * (1 - near)


def test_what_is_not_sent_does_not_occupy_the_server():
    plain = cluster.arrival_rate(8, 2.0, sent=0.25)
    assert plain == 0.25 * cluster.arrival_rate(8, 2.0)
    # a quarter of the gradients costs a worker a quarter of the waiting
    queued = cluster.arrival_rate(8, 2.0, sent=0.25, server_seconds=1.0)
    assert queued == pytest.approx(8 * 0.25 / (2.0 + 0.25))
    assert cluster.arrival_rate(64, 2.0, sent=0.25, server_seconds=1.0) == 1.0


# time to a target


def test_one_mode_takes_the_logarithm_of_its_way_over_its_rate():
    assert cluster.run_time(1e-3, 0.7) == pytest.approx(math.log(1e3) / 0.7, rel=1e-14)
    result = cluster.run_time(0.5, 0.7, start=-8.0)
    assert result == pytest.approx(math.log(16.0) / 0.7, rel=1e-14)
    for rate in np.geomspace(1e-3, 10.0, 300):  # rounding may end beyond the target
        seconds = cluster.run_time(1e-2, rate)
        assert seconds == pytest.approx(math.log(100.0) / rate, rel=1e-12)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_distance_of_a_spectrum_is_the_target_at_that_time(seed):
    rng = np.random.default_rng(seed)
    rates, start = rng.uniform(0.01, 1.0, 9), rng.normal(size=9)
    for target in (1e-30, 1e-3, 0.5):
        seconds = cluster.run_time(target, rates, start=start)
        left = np.linalg.norm(start * np.exp(-rates * seconds))
        assert left == pytest.approx(target, rel=1e-9)


def test_a_target_that_is_met_takes_no_time():
    assert cluster.run_time(1.0, 0.3) == 0.0
    assert cluster.run_time(5.0, [0.3, -1.0], start=[3.0, 4.0]) == 0.0
    assert cluster.run_time(0.1, [0.3, -1.0], start=0.0) == 0.0


def test_a_mode_of_infinite_rate_is_gone_at_once():
    rate = stability.workers_decay_rate(1.0, 1, cluster.constant(1.0))
    assert cluster.run_time(0.01, rate) == 0.0
    alone = cluster.run_time(0.01, 0.3)
    assert cluster.run_time(0.01, [0.3, rate]) == alone
    assert cluster.run_time(0.01, [0.3, rate], start=[0.001, 1.0]) == 0.0
    assert cluster.run_time(0.01, [-0.3, rate]) == math.inf


def test_an_unstable_mode_never_arrives_unless_it_is_not_off():
    for rate in (0.0, -0.1):
        assert cluster.run_time(0.01, [0.3, rate]) == math.inf
        kept = cluster.run_time(0.01, [0.3, rate], start=[1.0, 0.0])
        assert kept == pytest.approx(math.log(100) / 0.3)
    unstable = -math.log(stability.Dynamics(1).spectral_radius(1.5))
    assert cluster.run_time(0.01, unstable) == math.inf


def test_a_quadratic_on_simulated_workers_takes_that_long():
    workers, step = 4, 0.08
    trace = simulated(cluster.constant(2.0), protocols.k_async(1), workers=workers)
    path = [1.0]
    for read in trace.read_version[:2000].tolist():
        path.append(path[-1] - step * path[read])
    arrived = np.flatnonzero(np.array(path) < 1e-20)[0]
    decay = -math.log(stability.Dynamics(workers - 1).spectral_radius(step))
    rate = decay * cluster.arrival_rate(workers, 2.0)
    seconds = cluster.run_time(1e-20, rate)
    # workers start together: constants are off by what the first second does
    assert trace.seconds[arrived - 1] == pytest.approx(seconds, rel=0.03)
