import heapq
import itertools

import numpy as np
import pytest

import delayjax as dj
from delayjax import cluster

SECONDS = np.random.default_rng(0).exponential(size=(40, 6))


def waits_for_none(step, workers):
    return np.zeros((workers, workers), bool)


def events(seconds, needs, *, lag=0, cost=lambda t: 0.0):
    """When each worker goes on, by an event loop of workers and a link of each.

    `needs`: (step, worker) -> workers; `cost`: of a step's exchange.
    """
    steps, workers = seconds.shape
    on = np.full(seconds.shape, np.nan)
    queue = sorted((own, "done", i) for i, own in enumerate(seconds[0]))
    at, computing = [0] * workers, [True] * workers  # each worker's step
    first, busy = [0] * workers, [False] * workers  # exchange that its link has next
    sent, came = set(), set()

    def go_on(now, i):
        on[at[i], i] = now
        if lag:
            sent.add((at[i], i))
        at[i] += 1
        if at[i] < steps:
            heapq.heappush(queue, (now + seconds[at[i], i], "done", i))
            computing[i] = True

    def settle(now):
        """What may begin now; whether anything did."""
        moved = False
        for i in range(workers):
            t = first[i]
            if not busy[i] and t < steps and all((t, j) in sent for j in needs(t, i)):
                busy[i] = moved = True
                seconds_taken = cost(t) if len(needs(t, i)) else 0.0
                heapq.heappush(queue, (now + seconds_taken, "came", i))
            t = at[i]
            if t < steps and not computing[i]:
                free = t < lag or not len(needs(t - lag, i))
                if free or (t - lag, i) in came:
                    go_on(now, i)
                    moved = True
        return moved

    while queue:
        now, what, i = heapq.heappop(queue)
        if what == "done":
            computing[i] = False
            if not lag:
                sent.add((at[i], i))
        else:
            came.add((first[i], i))
            busy[i], first[i] = False, first[i] + 1
        while settle(now):
            pass
    return on


WAITS = {
    "everyone, H = 1": (cluster.waits_for_all(1), lambda t, i: range(6)),
    "everyone, H = 5": (
        cluster.waits_for_all(5),
        lambda t, i: range(6) if (t + 1) % 5 == 0 else [],
    ),
    "neighbors": (
        cluster.waits_for_neighbors(1, -1),
        lambda t, i: [i, (i - 1) % 6, (i + 1) % 6],
    ),
    "a neighbor in turn": (
        cluster.waits_for_neighbors(1, 2, together=False),
        lambda t, i: [i, (i - [1, 2][t % 2]) % 6],
    ),
    "alone": (cluster.waits_for_self, lambda t, i: [i]),
    "alone, every third step": (
        lambda t, workers: cluster.waits_for_self(t, workers) & (t % 3 == 0),
        lambda t, i: [i] if t % 3 == 0 else [],
    ),
    "nobody": (waits_for_none, lambda t, i: []),
}
# the slowest of six exponential times of mean 1 is 2.45 on average
COSTS = {
    "free": (0.0, lambda t: 0.0),
    "cheap": (0.3, lambda t: 0.3),
    "dear": (2.5, lambda t: 2.5),
    "dear at every fifth": (
        lambda t: 2.5 if (t + 1) % 5 == 0 else 0.3,
        lambda t: 2.5 if (t + 1) % 5 == 0 else 0.3,
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_workers_go_on_when_they_have_what_they_need(name):
    waits, needs = WAITS[name]
    for lag, (takes, at_each) in itertools.product([0, 1, 3], COSTS.values()):
        seen = cluster.finish_times(SECONDS, waits, lag=lag, exchange_seconds=takes)
        expected = events(SECONDS, needs, lag=lag, cost=at_each)
        np.testing.assert_allclose(seen, expected, rtol=1e-13)


@pytest.mark.parametrize("compute", [1.0, 3.0])
@pytest.mark.parametrize("waits", [cluster.waits_for_self, cluster.waits_for_all(1)])
def test_behind_the_steps_the_slower_of_step_and_exchange_sets_the_pace(waits, compute):
    for lag in (1, 5):
        seen = cluster.finish_times(
            np.full((60, 3), compute), waits, lag=lag, exchange_seconds=2.0
        )
        np.testing.assert_allclose(np.diff(seen, axis=0)[20:], max(compute, 2.0))


@pytest.mark.parametrize("waits", [cluster.waits_for_self, cluster.waits_for_all(1)])
def test_without_a_lag_an_exchange_adds_to_its_step(waits):
    seen = cluster.finish_times(np.ones((60, 3)), waits, exchange_seconds=2.0)
    expected = np.tile(3.0 * np.arange(1, 61)[:, None], 3)
    np.testing.assert_allclose(seen, expected, rtol=1e-13)


def test_an_exchange_nobody_has_takes_no_time():
    seen = cluster.finish_times(SECONDS, waits_for_none, exchange_seconds=9.0)
    np.testing.assert_array_equal(seen, cluster.finish_times(SECONDS, waits_for_none))


@pytest.mark.parametrize("period", [1, 4, 8])
def test_a_period_pays_its_slowest_worker_and_one_exchange(period):
    seen = cluster.finish_times(
        SECONDS, cluster.waits_for_all(period), exchange_seconds=0.7
    )
    slowest = SECONDS.reshape(-1, period, 6).sum(axis=1).max(axis=1)
    np.testing.assert_allclose(
        seen[period - 1 :: period, 0], np.cumsum(slowest + 0.7), rtol=1e-12
    )


def test_waiting_for_nobody_takes_the_slowest_worker_s_own_time():
    seen = cluster.finish_times(SECONDS, waits_for_none)
    np.testing.assert_allclose(seen, SECONDS.cumsum(axis=0), rtol=1e-12)


def test_waiting_for_everyone_takes_the_sum_of_the_slowest():
    seen = cluster.finish_times(SECONDS, cluster.waits_for_all(1))
    expected = SECONDS.max(axis=1).cumsum()
    np.testing.assert_allclose(seen, np.tile(expected[:, None], 6), rtol=1e-12)


def test_step_synchronous_times_are_those_of_the_simulated_cluster():
    """Its event loop draws the same times: waiting for all at each step is hardsync."""
    workers, steps, seed = 4, 50, 3
    service = dj.cluster.exponential(1.0)
    machine = dj.cluster.Cluster(workers, service)
    trace = dj.cluster.simulate(
        machine, dj.cluster.protocols.hardsync(), steps, seed=seed
    )
    drawn = np.empty((steps, workers))
    for w in range(workers):
        stream = np.random.SeedSequence(seed, spawn_key=(w,))
        blocks = service(np.random.default_rng(stream), w)
        row = np.concatenate([next(blocks) for _ in range(steps)])
        drawn[:, w] = row[:steps]
    seen = cluster.finish_times(drawn, cluster.waits_for_all(1))
    np.testing.assert_allclose(seen.max(axis=1), trace.seconds, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: cluster.finish_times([["soon"]], waits_for_none),
            ValueError,
            r"`seconds` must have shape \[T, P\], with numbers",
        ),
        (
            lambda: cluster.finish_times([1.0], waits_for_none),
            ValueError,
            r"`seconds` must have shape \[T, P\]",
        ),
        (
            lambda: cluster.finish_times([[np.inf]], waits_for_none),
            ValueError,
            "`seconds` must be finite and non-negative",
        ),
        (
            lambda: cluster.finish_times([[1.0]], waits_for_none, lag=-1),
            ValueError,
            "`lag` must be non-negative, got -1",
        ),
        (
            lambda: cluster.finish_times([[1.0]], lambda t, workers: [True]),
            ValueError,
            r"`waits` must return bool \[P, P\], got \(1,\)",
        ),
        (
            lambda: cluster.finish_times(
                [[1.0]], cluster.waits_for_self, exchange_seconds=-1.0
            ),
            ValueError,
            "`exchange_seconds` must be finite and non-negative, got -1.0",
        ),
        (
            lambda: cluster.finish_times(
                [[1.0], [1.0]], cluster.waits_for_self, exchange_seconds=lambda t: -t
            ),
            ValueError,
            r"`exchange_seconds\(1\)` must be finite and non-negative, got -1",
        ),
        (
            lambda: cluster.finish_times(
                [[1.0]], cluster.waits_for_self, exchange_seconds="soon"
            ),
            TypeError,
            "`exchange_seconds` must be a number, got 'soon'",
        ),
        (lambda: cluster.waits_for_all(0), ValueError, "`period` must be at least 1"),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
