"""Machines and links: slowdowns, failures and messages."""

import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.given_times import SEEDS, UPDATES, simulate, times_of

INF = math.inf

# Slowdowns. A case: windows (factor, start, stop) of each of four workers.

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
    "dead in parts": [[(INF, 5.05, 9.3), (INF, 8.1, 17.3)], [], [], []],
    "dead while slow": [[(INF, 5.05, 17.3), (3.0, 6.1, 11.2)], [], [], []],
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
        for worker, some in enumerate(windows)
        for window in some
    ]


@pytest.mark.parametrize("name", WINDOWS)
def test_work_is_done_at_the_speed_of_its_moment(name):
    windows = WINDOWS[name]
    slowdown = slowdowns(windows)
    for seed in SEEDS:
        times = times_of("exponential", 4, seed)
        trace = simulate(times, protocols.k_async(1), slowdown=slowdown)
        oracle.assert_same(trace, oracle.slowed_asgd(times, windows, UPDATES))
        for k in (1, 3):
            trace = simulate(times, protocols.k_sync(k), 40, slowdown=slowdown)
            oracle.assert_same(trace, oracle.slowed_k_sync(times, windows, k, 40))


def test_factors_of_all_workers_are_slowdowns_for_good():
    times, factors = times_of("exponential", 4, 1), [1.0, 4.0, 0.5, 2.0]
    for protocol in (protocols.k_async(2), protocols.ringleader()):
        expected = simulate(times * np.array(factors)[:, None], protocol)
        windows = [[(factor, 0.0, INF)] for factor in factors]
        for slowdown in (factors, slowdowns(windows)):
            trace = simulate(times, protocol, slowdown=slowdown)
            oracle.assert_same(trace, oracle.updates_of(expected))


def test_one_slowdown_may_name_several_workers_and_one_of_them_twice():
    together, apart = (
        cluster.Cluster(3, cluster.constant(1.0), slowdown)
        for slowdown in (
            [cluster.Slowdown((0, 2, 0), 3.0, 1.0, 9.0)],
            [cluster.Slowdown(2, 3.0, 1.0, 9.0), cluster.Slowdown(0, 3.0, 1.0, 9.0)],
        )
    )
    assert together.speeds() == apart.speeds()


DOWN = {
    "in one part": [(INF, 2.0, 12.0)],
    "overlapping": [(INF, 2.0, 10.0), (INF, 4.0, 12.0)],
    "one after the other": [(INF, 2.0, 10.0), (INF, 10.0, 12.0)],
    "slow meanwhile": [(INF, 2.0, 12.0), (2.0, 5.0, 6.0)],
    "not slower": [(INF, 2.0, 12.0), (1.0, 4.0, 5.0), (1.0, 20.0, 30.0)],
}


@pytest.mark.parametrize("name", DOWN)
def test_a_dead_worker_comes_back_once_when_its_last_failure_ends(name):
    """It reads at 12 s, and a task with both messages takes 2 latency + 1 s."""
    down, whole = slowdowns([DOWN[name]]), slowdowns([DOWN["in one part"]])
    one = cluster.Cluster(
        1, cluster.constant(1.0), down, cluster.Communication(latency_seconds=3.0)
    )
    trace = cluster.simulate(one, protocols.k_async(1), 2, seed=0)
    np.testing.assert_array_equal(trace.seconds, [12.0 + 7.0, 12.0 + 2 * 7.0])
    # no task of the random times is drawn in vain
    times = times_of("exponential", 2, 1)
    seen = simulate(times, protocols.k_async(1), slowdown=down)
    expected = simulate(times, protocols.k_async(1), slowdown=whole)
    np.testing.assert_array_equal(seen.seconds, expected.seconds)
    np.testing.assert_array_equal(seen.read_version, expected.read_version)


def test_a_slowdown_that_does_not_slow_has_no_effect():
    usual = cluster.Slowdown(0, 1.0, 4.0, 5.0)
    spec = cluster.Cluster(2, cluster.exponential(1.0), [usual])
    plain = cluster.Cluster(2, cluster.exponential(1.0))
    assert spec.speeds() == plain.speeds()
    np.testing.assert_array_equal(
        spec.step_seconds(9, seed=0), plain.step_seconds(9, seed=0)
    )


def test_a_dead_worker_s_gradient_is_lost_and_the_next_one_is_fresh():
    # worker 1 fails in its third task and returns at 5: there it reads the model that
    # the other worker has made
    windows = [[], [(INF, 2.5, 5.25)]]
    trace = simulate(
        np.ones((2, 99)), protocols.k_async(1), 20, slowdown=slowdowns(windows)
    )
    rows = trace.worker == 1
    np.testing.assert_allclose(trace.arrived[rows][:4], [1.0, 2.0, 6.25, 7.25])
    # until then: 2 updates at each of 1 and 2, one at each of 3, 4 and 5
    assert trace.read_version[rows][2] == 7


def test_a_trial_that_death_interrupts_fails_when_its_time_is_over():
    # failed in (0.5, 9): no trial that begins before 10 succeeds, and none is an update
    gone = [cluster.Slowdown(0, INF, 0.5, 9.0)]
    times = [np.tile([1.0, 5.0, 1.5], 5000)]
    trace = simulate(times, protocols.mindflayer(1, 2.0), 3, slowdown=gone)
    # the sixth trial takes 1.5 s, the next ones 1 s, and 2 s without success
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


# Messages


@pytest.mark.parametrize("serial", [False, True])
def test_a_latency_alone_makes_tasks_longer(serial):
    # down and up: without anything to send, a serial link is never busy
    times = times_of("exponential", 5, 1)
    link = cluster.Communication(latency_seconds=0.35, serial=serial)
    for protocol in (protocols.k_async(2), protocols.ssp(2), protocols.ringmaster(4)):
        trace = simulate(times, protocol, communication=link)
        oracle.assert_same(trace, oracle.updates_of(simulate(times + 0.7, protocol)))


def test_messages_of_a_parallel_link_take_latency_and_bytes_over_rate():
    times = times_of("exponential", 5, 2)
    link = cluster.Communication(0.25, message_bytes=300.0, bytes_per_second=2000.0)
    for protocol in (protocols.k_batch_async(3), protocols.hardsync()):
        trace = simulate(times, protocol, communication=link)
        oracle.assert_same(trace, oracle.updates_of(simulate(times + 0.8, protocol)))


def starts_first(server):
    """A worker starts again before its gradient makes the update."""
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.start(arrival.worker)
        server.update()


@pytest.mark.parametrize(
    ("latency", "occupied"), [(0.0, 0.01), (0.2, 0.1), (0.0, 0.5), (1.0, 2.0)]
)
@pytest.mark.parametrize("num_workers", [1, 6])
def test_a_serial_link_is_a_queue(num_workers, latency, occupied):
    times = times_of("exponential", num_workers, 1)
    link = cluster.Communication(latency, 10.0, 10.0 / occupied, serial=True)
    trace = simulate(times, protocols.k_async(1), communication=link)
    oracle.assert_same(trace, oracle.serial_asgd(times, latency, occupied, UPDATES))
    trace = simulate(times, starts_first, communication=link)
    expected = oracle.serial_asgd(times, latency, occupied, UPDATES, before=True)
    oracle.assert_same(trace, expected)
    trace = simulate(times, protocols.hardsync(), 50, communication=link)
    oracle.assert_same(trace, oracle.serial_hardsync(times, latency, occupied, 50))


STARTS = {
    "k_async": protocols.k_async(1),
    "round_robin": protocols.round_robin(),
    "ssp": protocols.ssp(0),
    "ringleader": protocols.ringleader(),
    "starts_first": starts_first,
}


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("meet", [False, True])
def test_communication_that_costs_nothing_changes_nothing(meet, name):
    times = np.ones((4, UPDATES)) if meet else times_of("exponential", 4, 1)
    free = simulate(times, STARTS[name])
    for link in (cluster.Communication(), cluster.Communication(serial=True)):
        trace = simulate(times, STARTS[name], communication=link)
        oracle.assert_same(trace, oracle.updates_of(free))


def starts_twice(server):
    """The first of the two tasks is called off at once."""
    server.start_all()
    for arrival in server:
        server.take(arrival)
        server.start_all()
        server.start_all()
        server.update()


@pytest.mark.parametrize("protocol", [starts_first, starts_twice])
@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("sent", [0.0, 1.0])
def test_a_worker_that_starts_before_the_update_reads_the_old_version(
    sent, serial, protocol
):
    """If no other message is on the way, tau is 0 once, and then 1."""
    link = cluster.Communication(0.1, sent, 10.0, serial=serial)
    one = cluster.Cluster(1, cluster.constant(1.0), communication=link)
    trace = cluster.simulate(one, protocol, 4, seed=0)
    np.testing.assert_array_equal(trace.staleness[:, 0], np.minimum(range(4), 1))


def test_a_cluster_can_be_hashed():
    services = [cluster.constant(1.0), cluster.constant(2.0)]
    assert hash(cluster.Cluster(2, services, [1.0, 2.0])) == hash(
        cluster.Cluster(2, tuple(services), (1.0, 2.0))
    )


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


@pytest.mark.parametrize("fragments", [1, 3])
def test_fragments_have_the_same_bytes_together_and_a_latency_each(fragments):
    """A compressor sends fewer bytes, with the latencies of an all-reduce."""
    latencies = 2 * 3 * 0.25  # of 8 = 2^3 workers
    whole = LINK.all_reduce_seconds(8)
    for fraction in (1.0, 0.25):
        seen = LINK.all_reduce_seconds(8, fragments=fragments, fraction=fraction)
        expected = fragments * latencies + fraction * (whole - latencies)
        assert math.isclose(fragments * seen, expected, rel_tol=1e-13)


@pytest.mark.parametrize(
    "period, delay, fragments", [(12, 0, 1), (12, 0, 3), (12, 2, 3), (4, 3, 1)]
)
@pytest.mark.parametrize("fraction", [1.0, 0.25])
@pytest.mark.parametrize("step", [0.01, 0.5, 2.0])
def test_equal_steps_lose_each_exchange_or_the_slice_that_outlasts_a_step(
    period, delay, fragments, fraction, step
):
    """F c / (H s + F c), and late 1 - s / max(s, c), of the slowest island's s."""
    services = [cluster.constant(step), cluster.constant(step / 2)]
    islands = cluster.Cluster(2, services, communication=LINK)
    takes = 2 * 0.25 + fraction / fragments / max(delay, 1) * 48.0 / 32.0
    expected = fragments * takes / (period * step + fragments * takes)
    if delay:
        expected = 1 - step / max(step, takes)
    seen = islands.exchange_cost(
        period, delay=delay, fragments=fragments, fraction=fraction
    )
    assert math.isclose(seen, expected, rel_tol=1e-9, abs_tol=1e-12)


def alternating(rng, worker):
    """Steps of 1 and 3 seconds in turn; the other worker begins with 3."""
    while True:
        yield [1.0, 3.0] if worker else [3.0, 1.0]


@pytest.mark.parametrize("takes", [0.5, 1.0, 2.0, 3.0])
def test_with_a_delay_a_long_step_of_any_island_delays_all_islands(takes):
    """One island takes 1, 3, 1, ... seconds, the other one 3, 1, 3, ...

    In any two steps both take 4 s, so islands that exchange every 2 steps lose c alone.
    In slices of c <= 3 s two steps take 3 + max(1, c): the island whose step is short
    waits for the slice that began when the other one's long step ended.
    """
    link = cluster.Communication(latency_seconds=takes / 2)
    islands = cluster.Cluster(2, alternating, communication=link)
    assert math.isclose(islands.exchange_cost(2), takes / (4 + takes), rel_tol=1e-9)
    late = 1 - 4 / (3 + max(1, takes))
    assert math.isclose(islands.exchange_cost(2, delay=1), late, abs_tol=1e-12)


def ends(seconds, period, takes, late):
    """The end of each island's steps, by a loop over both methods."""
    now = np.zeros(seconds.shape[1])
    for t, step in enumerate(seconds, start=1):
        arrives = now.max() + takes  # of the slice that is sent beside the step
        now = now + step
        if late:
            now = np.maximum(now, arrives)
        elif t % period == 0:
            now[:] = now.max() + takes
    return now


@pytest.mark.parametrize("delay", [0, 2])
def test_the_cost_of_exchanges_is_that_of_a_loop_over_steps_of_random_length(delay):
    islands = cluster.Cluster(3, cluster.gamma(1.0, 2), communication=LINK)
    period, exchanges = 5, 400  # 2000 steps
    seconds = islands.step_seconds(period * exchanges, seed=1)
    takes = LINK.all_reduce_seconds(3, fragments=2 * max(delay, 1))
    whole = ends(seconds, period, takes, delay).max()
    options = dict(delay=delay, fragments=2, seed=1)
    seen = islands.exchange_cost(2 * period, **options)
    assert math.isclose(seen, 1 - seconds.sum(axis=0).max() / whole, rel_tol=1e-9)
    # with a delay, each step sends a slice, for any H
    assert (islands.exchange_cost(20 * period, **options) == seen) == bool(delay)


@pytest.mark.parametrize("fragments", [1, 3])
def test_the_shortest_period_is_the_first_that_is_cheap_enough(fragments):
    options = dict(fragments=fragments, fraction=0.5)
    equal = cluster.Cluster(2, cluster.constant(0.5), communication=LINK)
    takes = 0.5 + 0.75 / fragments
    steps = math.ceil(takes * (0.97 / 0.03) / 0.5)
    assert equal.shortest_period(0.03, **options) == fragments * steps
    drawn = cluster.Cluster(4, cluster.lognormal(0.5, 0.3), communication=LINK)
    period = drawn.shortest_period(0.03, **options)
    assert drawn.exchange_cost(period, **options) <= 0.03
    assert drawn.exchange_cost(period - fragments, **options) > 0.03


@pytest.mark.parametrize("fragments", [1, 3])
def test_the_shortest_delay_is_the_first_whose_slices_are_cheap_enough(fragments):
    """2 l + n / (F d b) <= s / (1 - cost) in seconds, so d >= n / (F b (... - 2 l))."""
    options = dict(fragments=fragments, fraction=0.5)
    equal = cluster.Cluster(2, cluster.constant(0.5), communication=LINK)
    for cost in (0.03, 0.2):
        delay = math.ceil(0.75 / fragments / (0.5 / (1 - cost) - 0.5))
        assert equal.shortest_delay(cost, **options) == delay
    drawn = cluster.Cluster(4, cluster.lognormal(1.3, 0.1), communication=LINK)
    delay = drawn.shortest_delay(0.1, **options)
    late = [drawn.exchange_cost(60, delay=d, **options) for d in range(1, delay + 1)]
    assert late[-1] <= 0.1 and all(cost > 0.1 for cost in late[:-1])


def test_the_steps_of_a_cluster_are_those_of_its_workers_times_their_factors():
    machine = cluster.Cluster(2, cluster.exponential(1.0), slowdown=[1.0, 3.0])
    seen = machine.step_seconds(5, seed=2)
    for worker, factor in enumerate([1.0, 3.0]):
        drawn = machine.draw(worker, 5, seed=2)
        np.testing.assert_array_equal(seen[:, worker], factor * drawn)
