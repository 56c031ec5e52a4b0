"""Machines and links: slow-downs, deaths and messages."""

import math
import re

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


# Slow-downs. A case: windows (factor, start, stop) of each of four workers.

WINDOWS = {
    "from the beginning": [[(4.0, 0.0, INF)], [], [], []],
    "for a while": [[(5.0, 7.3, 21.1)], [(3.0, 2.2, 11.7)], [], [(2.0, 9.9, INF)]],
    "twice": [[(5.0, 3.3, 6.1), (2.5, 14.2, 19.9)], [], [], []],
    "overlapping": [[(5.0, 3.3, 16.1), (2.5, 8.2, 19.9)], [(2.0, 1.1, 9.0)], [], []],
    "shorter than a task": [[(50.0, 3.30, 3.31), (9.0, 3.35, 3.36)], [], [], []],
    "faster": [[(0.25, 5.0, 25.0)], [(0.5, 0.0, INF), (3.0, 4.0, 12.0)], [], []],
    "dead for a while": [[(INF, 5.05, 17.3)], [], [(INF, 9.1, 9.2)], []],
    "dead twice": [[(INF, 5.05, 7.3), (INF, 12.1, 20.9)], [], [], []],
    "dead for good": [[(INF, 5.05, INF)], [], [], []],
    "slow, then dead": [
        [(3.0, 2.0, 30.0), (INF, 8.03, 14.4)],
        [],
        [(2.0, 0.0, INF)],
        [],
    ],
}


def slowdowns(windows):
    return [
        cluster.Slowdown(worker, *window)
        for worker, own in enumerate(windows)
        for window in own
    ]


@pytest.mark.parametrize("name", WINDOWS)
def test_work_is_done_at_the_speed_of_its_moment(name):
    windows = WINDOWS[name]
    slowdown = slowdowns(windows)
    for seed in SEEDS:
        times = times_of(4, seed)
        trace = simulate(times, protocols.k_async(1), slowdown=slowdown)
        oracle.assert_same(trace, oracle.slowed_asgd(times, windows, UPDATES))
        for k in (1, 3):
            trace = simulate(times, protocols.k_sync(k), 40, slowdown=slowdown)
            oracle.assert_same(trace, oracle.slowed_k_sync(times, windows, k, 40))


def test_factors_of_all_workers_are_slowdowns_for_good():
    times, factors = times_of(4, 1), [1.0, 4.0, 0.5, 2.0]
    made = [protocols.k_async(2), protocols.ssp(1), protocols.ringleader()]
    for protocol in made:
        expected = simulate(times * np.array(factors)[:, None], protocol)
        windows = [[(factor, 0.0, INF)] for factor in factors]
        for slowdown in (factors, tuple(factors), slowdowns(windows)):
            trace = simulate(times, protocol, slowdown=slowdown)
            oracle.assert_same(trace, oracle.updates_of(expected))


def test_one_slowdown_may_name_several_workers():
    times = times_of(4, 1)
    protocol = protocols.k_async(1)
    together = simulate(
        times, protocol, slowdown=[cluster.Slowdown((0, 2), 3.0, 1.0, 9.0)]
    )
    apart = simulate(
        times,
        protocol,
        slowdown=[
            cluster.Slowdown(2, 3.0, 1.0, 9.0),
            cluster.Slowdown(0, 3.0, 1.0, 9.0),
        ],
    )
    oracle.assert_same(together, oracle.updates_of(apart))
    assert (together.seconds != simulate(times, protocol).seconds).any()


def test_a_dead_worker_s_gradient_is_lost_and_the_next_one_is_fresh():
    # worker 1 dies in its third task and is back at 5: it reads at 5 what the other
    # has made of it
    windows = [[], [(INF, 2.5, 5.25)]]
    trace = simulate(
        np.ones((2, 99)), protocols.k_async(1), 20, slowdown=slowdowns(windows)
    )
    own = trace.worker == 1
    np.testing.assert_allclose(trace.arrived[own][:4], [1.0, 2.0, 6.25, 7.25])
    # until then: 2 updates at each of 1 and 2, one at each of 3, 4 and 5
    assert trace.read_version[own][2] == 7


def test_a_trial_that_death_interrupts_fails_when_its_time_is_over():
    # dead in (0.5, 9): no trial begun before 10 can succeed, and none is an update
    gone = [cluster.Slowdown(0, INF, 0.5, 9.0)]
    times = [np.tile([1.0, 5.0, 1.5], 5000)]
    trace = simulate(times, protocols.mindflayer(1, 2.0), 3, slowdown=gone)
    # the sixth trial takes 1.5 s, the next ones 1 s, and 2 s in vain
    np.testing.assert_allclose(trace.seconds, [11.5, 12.5, 14.5])
    assert list(trace.counts) == [1, 1, 0]
    # it computes half a second, then from 10 on
    np.testing.assert_allclose(trace.busy_seconds, [0.5 + 4.5])


def test_a_coded_task_that_death_interrupts_has_its_load_again():
    gone = [cluster.Slowdown((0, 1), INF, 0.5, 10.0)]
    protocol = protocols.gradient_coding(1, 2)
    trace = simulate(np.tile([1.0, 3.0], (2, 50)), protocol, 2, slowdown=gone)
    # twice 3 s after the return, then twice 1 s
    np.testing.assert_allclose(trace.seconds, [16.0, 18.0])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_takes_the_time_until_it_is_done_or_for_ever(seed):
    rng = np.random.default_rng(seed)
    begins, lengths = rng.uniform(0, [[9.0], [3.0]], (2, 4))
    windows = list(zip([0.5, 3, INF, 2], begins, begins + lengths, strict=True))
    (speed,) = cluster.Cluster(1, cluster.constant(1.0), slowdowns([windows])).speeds()
    outcomes = set()
    for begin in rng.uniform(0, 12, 300):
        for work in rng.exponential(2.0, 5):
            end, takes, back = speed.finish(begin, work)
            expected, alive_at = oracle.outcome(begin, work, windows)
            if alive_at is None:
                np.testing.assert_allclose([end, takes], [expected, expected - begin])
            else:
                assert end == max(begin, begins[2]) < back == alive_at
                assert takes == INF
            outcomes.add(alive_at is None)
    assert len(outcomes) == 2


# Messages.


@pytest.mark.parametrize("serial", [False, True])
def test_a_latency_alone_makes_tasks_longer(serial):
    # down and up: with nothing to carry a serial link is never busy
    times = times_of(5, 1)
    link = cluster.Communication(latency_seconds=0.35, serial=serial)
    made = [protocols.k_async(1), protocols.k_async(2), protocols.hardsync()]
    for protocol in [*made, protocols.ssp(2), protocols.ringmaster(4)]:
        trace = simulate(times, protocol, communication=link)
        oracle.assert_same(trace, oracle.updates_of(simulate(times + 0.7, protocol)))


def test_messages_of_a_parallel_link_take_latency_and_bytes_over_rate():
    times = times_of(5, 2)
    link = cluster.Communication(0.25, message_bytes=300.0, bytes_per_second=2000.0)
    for protocol in (
        protocols.k_async(1),
        protocols.k_batch_async(3),
        protocols.hardsync(),
    ):
        trace = simulate(times, protocol, communication=link)
        oracle.assert_same(trace, oracle.updates_of(simulate(times + 0.8, protocol)))


@pytest.mark.parametrize(
    ("latency", "occupied"), [(0.0, 0.01), (0.2, 0.1), (0.0, 0.5), (1.0, 2.0)]
)
@pytest.mark.parametrize("num_workers", [1, 6])
def test_a_serial_link_is_a_queue(num_workers, latency, occupied):
    times = times_of(num_workers, 1)
    link = cluster.Communication(latency, 10.0, 10.0 / occupied, serial=True)
    trace = simulate(times, protocols.k_async(1), communication=link)
    oracle.assert_same(trace, oracle.serial_asgd(times, latency, occupied, UPDATES))
    trace = simulate(times, protocols.hardsync(), 50, communication=link)
    oracle.assert_same(trace, oracle.serial_hardsync(times, latency, occupied, 50))


def test_communication_that_costs_nothing_changes_nothing():
    times = times_of(4, 1)
    free = simulate(times, protocols.k_async(1))
    for link in (cluster.Communication(), cluster.Communication(serial=True)):
        trace = simulate(times, protocols.k_async(1), communication=link)
        oracle.assert_same(trace, oracle.updates_of(free))


def test_a_cluster_can_be_hashed():
    own = [cluster.constant(1.0), cluster.constant(2.0)]
    assert hash(cluster.Cluster(2, own, [1.0, 2.0])) == hash(
        cluster.Cluster(2, tuple(own), (1.0, 2.0))
    )


def test_a_worker_named_twice_is_slowed_once():
    once, twice = (
        cluster.Cluster(1, cluster.constant(1.0), [cluster.Slowdown(who, 2.0)])
        for who in (0, (0, 0))
    )
    assert once.speeds() == twice.speeds()


LINK = cluster.Communication(0.25, message_bytes=48.0, bytes_per_second=32.0)


@pytest.mark.parametrize("exponent", [0, 1, 3, 10])
def test_an_all_reduce_halves_what_it_sends_and_doubles_it_again(exponent):
    """Phase by phase: half of the model, a quarter, ..., and back."""
    halves = [0.25 + 1.5 / 2**phase for phase in range(1, exponent + 1)]
    seen = LINK.all_reduce_seconds(2**exponent)
    assert math.isclose(seen, 2 * sum(halves), rel_tol=1e-13)


def test_an_all_reduce_of_any_number_lies_between_those_of_powers_of_two():
    seen = [LINK.all_reduce_seconds(workers) for workers in range(4, 9)]
    assert seen == sorted(seen)
    assert math.isclose(seen[1], 2 * 3 * 0.25 + 2 * (4 / 5) * 1.5, rel_tol=1e-13)


@pytest.mark.parametrize("exponent", [0, 1, 3])
def test_a_group_s_sum_is_a_whole_model_for_each_bit(exponent):
    bits = [0.25 + 48.0 / 32.0 for _ in range(exponent)]
    assert LINK.group_seconds(2**exponent) == sum(bits)


ONE = cluster.constant(1.0)
BAD = [
    (cluster.Cluster, {"workers": 0, "service": ONE}, ValueError),
    (cluster.Cluster, {"workers": 2.0, "service": ONE}, TypeError),
    (cluster.Cluster, {"workers": True, "service": ONE}, TypeError),
    (cluster.Slowdown, {"factor": 0.0, "workers": 0}, ValueError),
    (cluster.Slowdown, {"factor": math.nan, "workers": 0}, ValueError),
    (cluster.Communication, {"latency_seconds": -1.0}, ValueError),
    (cluster.Communication, {"message_bytes": math.nan}, ValueError),
    (cluster.Communication, {"bytes_per_second": 0.0}, ValueError),
    (LINK.all_reduce_seconds, {"workers": 0}, ValueError),
    (LINK.group_seconds, {"group_size": 6}, ValueError),
]


@pytest.mark.parametrize(("make", "arguments", "error"), BAD)
def test_a_bad_argument_is_named_with_its_value(make, arguments, error):
    name, value = next(iter(arguments.items()))
    with pytest.raises(error, match=rf"`{name}` .* {re.escape(repr(value))}"):
        make(**arguments)


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        (-1.0, INF, r"`start_seconds`.* -1"),
        (math.nan, INF, r"`start_seconds`.* nan"),
        (3.0, 3.0, r"`stop_seconds`.* 3"),
    ],
)
def test_a_slowdown_begins_before_its_end(start, stop, message):
    with pytest.raises(ValueError, match=message):
        cluster.Slowdown(0, 2.0, start, stop)


def test_services_are_one_or_as_many_as_workers():
    with pytest.raises(ValueError, match=r"`service`.* 2, got 3"):
        cluster.Cluster(2, [ONE] * 3)


@pytest.mark.parametrize(
    ("slowdown", "error", "message"),
    [
        ([1.0], ValueError, r"2 .* \(1\.0,\)"),
        ([1.0, 2.0, 3.0], ValueError, r"2 .* \(1\.0, 2\.0, 3\.0\)"),
        ([1.0, 0.0], ValueError, r"positive.* \(1\.0, 0\.0\)"),
        ([1.0, -1.0], ValueError, r"positive.* \(1\.0, -1\.0\)"),
        ([1.0, math.nan], ValueError, r"nan"),
        ([1.0, INF], ValueError, r"inf.*Slowdown"),
        ([cluster.Slowdown(2, 2.0)], ValueError, r"0 \.\. 1, got 2"),
        ([cluster.Slowdown((0, -1), 2.0)], ValueError, r"got -1"),
        ([cluster.Slowdown(0, 2.0), 3.0], TypeError, r"3\.0"),
    ],
)
def test_slowdowns_are_factors_of_all_workers_or_objects(slowdown, error, message):
    with pytest.raises(error, match=rf"`slowdown.* {message}"):
        cluster.Cluster(2, ONE, slowdown=slowdown)
