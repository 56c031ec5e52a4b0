import math

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.traces import PROTOCOLS, by_hand, simulate

DTYPES = {
    "seconds": np.float64,
    "update": np.int32,
    "worker": np.int32,
    "read_version": np.int32,
    "begun": np.float64,
    "arrived": np.float64,
    "divisor": np.float64,
    "busy_seconds": np.float64,
    "counts": np.int64,
    "staleness": np.int32,
    "workers": np.int32,
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_trace_has_the_types_and_the_shapes_that_it_says(name):
    trace = simulate(name)
    assert {f: getattr(trace, f).dtype for f in DTYPES} == DTYPES
    T, M = trace.num_updates, len(trace.update)
    assert T == 60 and trace.num_workers == 5
    assert len(trace.seconds) == len(trace.divisor) == len(trace.counts) == T
    assert trace.counts.sum() == M
    for column in (trace.worker, trace.read_version, trace.begun, trace.arrived):
        assert column.shape == (M,)
    assert trace.busy_seconds.shape == (5,)
    assert trace.staleness.shape == trace.workers.shape == (T, trace.counts.max())
    dropped = trace.dropped
    assert len({len(column) for column in dropped}) == 1
    kinds = [column.dtype for column in dropped]
    assert kinds == [np.int32, np.int32, np.int32, np.float64, np.float64]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_times_and_versions_are_in_order(name):
    trace = simulate(name)
    assert (np.diff(trace.seconds) >= 0).all() and (np.diff(trace.update) >= 0).all()
    assert (trace.begun < trace.arrived).all()
    assert (trace.arrived <= trace.seconds[trace.update]).all()
    assert (trace.read_version >= 0).all()
    assert (trace.read_version <= trace.update).all()
    # the version read was there when the task began, and the next one was not
    # before a worker that continues with its model
    begun = np.searchsorted(trace.seconds, trace.begun, side="right")
    assert (trace.read_version <= begun).all()
    if name != "ringleader":
        np.testing.assert_array_equal(trace.read_version, begun)
    dropped = trace.dropped
    versions = np.searchsorted(trace.seconds, dropped.arrived)
    np.testing.assert_array_equal(dropped.version, versions)
    assert (dropped.read_version <= dropped.version).all()
    assert (dropped.begun < dropped.arrived).all()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_staleness_is_padded_with_minus_one(name):
    trace = simulate(name)
    updates = oracle.updates_of(trace)
    most = max(len(rows) for _, rows in updates)
    staleness = [
        [t - read for _, read in rows] + [-1] * (most - len(rows))
        for t, (_, rows) in enumerate(updates)
    ]
    workers = [[w for w, _ in rows] + [-1] * (most - len(rows)) for _, rows in updates]
    np.testing.assert_array_equal(trace.staleness, staleness)
    np.testing.assert_array_equal(trace.workers, workers)
    np.testing.assert_array_equal(trace.counts, [len(rows) for _, rows in updates])
    assert trace.max_staleness == max(map(max, staleness))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_arrivals_are_the_rows_of_some_updates(name):
    trace = simulate(name)
    for some in (slice(0, 60), slice(7, 31), slice(59, 60), slice(13, 13)):
        rows = trace.arrivals(some.start, some.stop)
        np.testing.assert_array_equal(rows.staleness, trace.staleness[some])
        np.testing.assert_array_equal(rows.worker, trace.workers[some])
        np.testing.assert_array_equal(
            rows.divisor, trace.divisor[some].astype(np.float32)
        )
        assert rows.staleness.dtype == rows.worker.dtype == np.int32
        assert rows.divisor.dtype == np.float32


@pytest.mark.parametrize("name", ["ASGD", "ringleader"])
def test_arrivals_may_be_wider_than_the_trace(name):
    trace = simulate(name)
    most = trace.counts.max()
    rows, wide = trace.arrivals(3, 20), trace.arrivals(3, 20, width=most + 4)
    for narrow, padded in zip(rows[:2], wide[:2], strict=True):
        np.testing.assert_array_equal(padded[:, :most], narrow)
        assert padded.shape == (17, most + 4) and (padded[:, most:] == -1).all()
    np.testing.assert_array_equal(wide.divisor, rows.divisor)
    # a smaller width cuts nothing off
    assert trace.arrivals(3, 20, width=1).staleness.shape == rows.staleness.shape


def slow_summary(trace):
    """mean, p50, p99, max, mean of each worker, gradients: by loops and sorting."""
    ages = [
        t - read
        for t, (_, rows) in enumerate(oracle.updates_of(trace))
        for _, read in rows
    ]
    per_worker = [[] for _ in range(trace.num_workers)]
    for t, (_, rows) in enumerate(oracle.updates_of(trace)):
        for w, read in rows:
            per_worker[w].append(t - read)

    def quantile(q):
        place = q * (len(ages) - 1)
        low, high = sorted(ages)[math.floor(place)], sorted(ages)[math.ceil(place)]
        return low + (high - low) * (place - math.floor(place))

    return (
        sum(ages) / len(ages),
        quantile(0.5),
        quantile(0.99),
        max(ages),
        [sum(ages) / len(ages) if ages else math.nan for ages in per_worker],
        [len(ages) for ages in per_worker],
    )


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_summary_is_its_slow_recomputation(name):
    trace = simulate(name)
    summary = trace.summary()
    np.testing.assert_allclose(summary[:4], slow_summary(trace)[:4], rtol=1e-12)
    np.testing.assert_allclose(summary.per_worker, slow_summary(trace)[4], rtol=1e-12)
    np.testing.assert_array_equal(summary.gradients, slow_summary(trace)[5])
    assert summary.gradients.dtype == np.int64
    assert summary.dropped == len(trace.dropped.worker)
    assert math.isclose(summary.updates_per_second, 60 / trace.seconds[-1])


def test_a_worker_without_a_gradient_has_no_mean():
    trace = by_hand(4, [(1.0, [(0, 0), (2, 0)]), (2.5, [(2, 0)]), (4.0, [(2, 2)])])
    summary = trace.summary()
    np.testing.assert_array_equal(summary.per_worker, [0, math.nan, 1 / 3, math.nan])
    np.testing.assert_array_equal(summary.gradients, [1, 0, 3, 0])
    assert (summary.mean, summary.p50, summary.max) == (0.25, 0.0, 1)
    assert summary.updates_per_second == 3 / 4
    assert math.isnan(summary.idle_share)


# The idle time of the engine, compared with intervals that the server knows


def idle(times, protocol, num_updates, **keywords):
    spec = cluster.Cluster(len(times), oracle.given(times), **keywords)
    trace = cluster.simulate(spec, protocol, num_updates, seed=0)
    return trace, trace.summary().idle_share


def test_nobody_idles_who_never_waits():
    times = np.random.default_rng(1).exponential(1.0, (4, 300))
    for protocol in (
        protocols.k_async(1),
        protocols.k_batch_async(3),
        protocols.k_batch_sync(2),
        protocols.event_triggered(0.3),
        protocols.rennala(3),
        protocols.ringmaster(2, stop=True),
    ):
        trace, share = idle(times, protocol, 60)
        assert abs(share) < 1e-12
        np.testing.assert_allclose(trace.busy_seconds, trace.seconds[-1], rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_who_finishes_first_idles_until_the_round_is_over(k):
    times = np.random.default_rng(k).exponential(1.0, (4, 300))
    trace, share = idle(times, protocols.k_sync(k), 100)
    rounds = np.sort(times[:, :100], axis=0)[k - 1]
    busy = np.minimum(times[:, :100], rounds).sum(1)
    np.testing.assert_allclose(trace.busy_seconds, busy, rtol=1e-12)
    assert math.isclose(share, 1 - busy.sum() / (4 * rounds.sum()), rel_tol=1e-9)


@pytest.mark.parametrize("name", ["k_async", "ssp", "round_robin", "groups", "wait"])
def test_idle_time_lies_between_a_gradient_and_the_next(name):
    # every task is applied: busy is the union of [begun, arrived], and of the tasks
    # in hand at the end from when they began
    protocol = {
        "k_async": protocols.k_async(3),
        "ssp": protocols.ssp(1),
        "round_robin": protocols.round_robin(),
        "groups": protocols.groups(2),
        "wait": protocols.bounded_staleness(2, late="wait"),
    }[name]
    times = np.random.default_rng(1).exponential(1.0, (4, 400))
    long, _ = idle(times, protocol, 160)
    short, share = idle(times, protocol, 80)
    end = short.seconds[-1]
    begun, arrived = np.minimum(long.begun, end), np.minimum(long.arrived, end)
    busy = np.bincount(long.worker, arrived - begun, minlength=4)
    np.testing.assert_allclose(short.busy_seconds, busy, rtol=1e-12)
    assert math.isclose(share, 1 - busy.sum() / (4 * end), rel_tol=1e-9)
    assert 0 < share < 1


def test_the_abandoned_part_of_a_trial_counts_as_busy():
    times = [np.tile([1.0, 5.0], 6000), np.tile([0.5, 0.25], 6000)]
    trace, share = idle(times, protocols.mindflayer(2, 2.0), 10)
    # a round: 1 s and 2 s without success; 0.5 s and 0.25 s
    np.testing.assert_allclose(trace.busy_seconds, [30.0, 7.5], rtol=1e-12)
    assert math.isclose(share, 1 - 37.5 / 60)


def test_the_dead_idle():
    times = np.ones((2, 200))
    gone = [cluster.Slowdown(1, math.inf, 10.25, 20.0)]
    trace, share = idle(times, protocols.k_async(1), 80, slowdown=gone)
    end = trace.seconds[-1]
    np.testing.assert_allclose(
        trace.busy_seconds, [end, end - (20.0 - 10.25)], rtol=1e-12
    )
    assert math.isclose(share, 9.75 / (2 * end), rel_tol=1e-9)


def test_a_task_that_is_called_off_before_it_reads_costs_nothing():
    # a message takes 1 s, a task 10 s; each task is called off while it waits to read
    def protocol(server):
        server.start(0)
        for arrival in server:
            server.take(arrival)
            server.update()
            server.start(0)
            server.start(0)

    link = cluster.Communication(message_bytes=1.0, bytes_per_second=1.0, serial=True)
    spec = cluster.Cluster(1, cluster.constant(10.0), communication=link)
    trace = cluster.simulate(spec, protocol, 4, seed=0)
    np.testing.assert_array_equal(trace.busy_seconds, [4 * 10.0])


# The law of staleness


def law_by_counting(ages):
    """Probabilities, mean and variance of the ages, by loops."""
    mean = sum(ages) / len(ages)
    pmf = [ages.count(k) / len(ages) for k in range(max(ages) + 1)]
    return pmf, mean, sum((age - mean) ** 2 for age in ages) / len(ages)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_staleness_law_counts_the_ages(name, dropped):
    trace = simulate(name)
    pairs = [*zip(trace.update, trace.read_version, strict=True)]
    if dropped:
        refused = trace.dropped
        pairs += zip(refused.version, refused.read_version, strict=True)
    for burn_in in (0, 20):
        law = trace.staleness_law(burn_in=burn_in, dropped=dropped)
        ages = [int(t - read) for t, read in pairs if t >= burn_in]
        pmf, mean, variance = law_by_counting(ages)
        np.testing.assert_allclose(law.pmf, pmf, rtol=1e-12)
        assert math.isclose(law.mean, mean, rel_tol=1e-12, abs_tol=1e-12)
        assert math.isclose(law.variance, variance, rel_tol=1e-9, abs_tol=1e-12)
        assert law.pmf.dtype == np.float64
    refuses = len(trace.dropped.worker) > 0
    assert refuses == (name in ("dropping", "triggered"))


def test_a_trace_without_updates_has_no_rates():
    spec = cluster.Cluster(2, cluster.constant(5.0))
    trace = cluster.simulate(spec, protocols.k_async(1), 10, seed=0, seconds=4.0)
    assert trace.num_updates == 0 and trace.max_staleness == 0
    assert trace.staleness.shape[0] == trace.counts.size == 0
    summary = trace.summary()
    assert math.isnan(summary.mean) and np.isnan(summary.per_worker).all()
    assert summary.gradients.tolist() == [0, 0]
