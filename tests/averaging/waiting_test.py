import math

import numpy as np
import pytest

import delayjax as dj
from delayjax import averaging

SECONDS = np.random.default_rng(0).exponential(size=(40, 6))


def events(seconds, needs, *, lag=0):
    """When each worker goes on, from what it needs: (step, worker) -> workers."""
    done, on = {}, {}
    for t, row in enumerate(seconds):
        for i, own in enumerate(row):
            done[t, i] = own + on.get((t - 1, i), 0.0)
        for i in range(len(row)):
            waited = [done[t - lag, j] for j in needs(t - lag, i)] if t >= lag else []
            on[t, i] = max([done[t, i], *waited])
    return np.asarray(
        [[on[t, i] for i in range(len(row))] for t in range(len(seconds))]
    )


RULES = {
    "everyone, H = 1": (averaging.everyone(1), lambda t, i: range(6)),
    "everyone, H = 5": (
        averaging.everyone(5),
        lambda t, i: range(6) if (t + 1) % 5 == 0 else [],
    ),
    "neighbours": (
        averaging.neighbours(1, -1),
        lambda t, i: [(i - 1) % 6, (i + 1) % 6],
    ),
    "a neighbour in turn": (
        averaging.neighbours(1, 2, together=False),
        lambda t, i: [(i - [1, 2][t % 2]) % 6],
    ),
    "nobody": (averaging.nobody, lambda t, i: []),
}


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("name", RULES)
def test_workers_go_on_when_they_have_what_they_need(name, lag):
    waits, needs = RULES[name]
    seen = averaging.finish_times(SECONDS, waits, lag=lag)
    np.testing.assert_allclose(seen, events(SECONDS, needs, lag=lag), rtol=1e-13)


def test_waiting_for_nobody_takes_the_slowest_worker_s_own_time():
    seen = averaging.finish_times(SECONDS, averaging.nobody)
    np.testing.assert_allclose(seen, SECONDS.cumsum(axis=0), rtol=1e-12)


def test_waiting_for_everyone_takes_the_sum_of_the_slowest():
    seen = averaging.finish_times(SECONDS, averaging.everyone(1))
    expected = SECONDS.max(axis=1).cumsum()
    np.testing.assert_allclose(seen, np.tile(expected[:, None], 6), rtol=1e-12)


def test_step_synchronous_times_are_those_of_the_simulated_cluster():
    """Its event loop draws the same times: waiting for all at each step is hardsync."""
    workers, steps, seed = 4, 50, 3
    service = dj.cluster.exponential(1.0)
    cluster = dj.cluster.Cluster(workers, service)
    trace = dj.cluster.simulate(
        cluster, dj.cluster.protocols.hardsync(), steps, seed=seed
    )
    drawn = np.empty((steps, workers))
    for w in range(workers):
        stream = np.random.SeedSequence(seed, spawn_key=(w,))
        blocks = service(np.random.default_rng(stream), w)
        row = np.concatenate([next(blocks) for _ in range(steps)])
        drawn[:, w] = row[:steps]
    seen = averaging.finish_times(drawn, averaging.everyone(1))
    np.testing.assert_allclose(seen.max(axis=1), trace.seconds, rtol=1e-12)


def late_by_events(seconds, period, slack):
    """Age of what each worker has in its buffer when the first one starts the sum."""
    needs = [averaging.everyone(period)]
    on = averaging.finish_times(seconds, *needs)
    behind = np.zeros(seconds.shape, int)
    for t in range(len(seconds)):
        if (t + 1) % period == 0:
            continue
        done = [
            [on[k - 1, i] + seconds[k, i] if k else seconds[k, i] for k in range(t + 1)]
            for i in range(seconds.shape[1])
        ]
        start = min(times[t] for times in done) + slack
        for i, times in enumerate(done):
            newest = max([k for k, time in enumerate(times) if time <= start] + [-1])
            behind[t, i] = t - newest
    return behind


@pytest.mark.parametrize(("period", "slack"), [(11, 0.0), (5, 0.5), (1, 0.0)])
def test_a_buffer_holds_what_its_worker_had_done_when_the_sum_started(period, slack):
    seen = averaging.wait_avoiding(SECONDS, period=period, slack_seconds=slack)
    np.testing.assert_array_equal(seen.behind, late_by_events(SECONDS, period, slack))
    assert seen.behind.max() <= max(period - 1, 0)
    if period > 1:
        assert seen.behind.max() > 1


def two_sleepers(rng, steps, workers):
    """Who sleeps, bool [T, P]: two ranks a step, perhaps the same (the authors')."""
    asleep = np.zeros((steps, workers), bool)
    asleep[np.arange(steps)[:, None], rng.integers(0, workers, (steps, 2))] = True
    return asleep


@pytest.mark.parametrize("workers", [16, 64, 256])
def test_the_throughput_of_waiting_less_is_the_paper_s_ratio(workers):
    """11 (t0 + .32) / (11 t0 + .32 E max hits), with E from draws of its own (D.11)."""
    compute, sleep, period, periods = 0.1, 0.32, 11, 1000
    asleep = two_sleepers(np.random.default_rng(1), period * periods, workers)
    seconds = compute + sleep * asleep
    avoiding = averaging.wait_avoiding(seconds, period=period).seconds[-1].max()
    every = averaging.finish_times(seconds, averaging.everyone(1))[-1].max()

    asleep = two_sleepers(np.random.default_rng(2), period * 4 * periods, workers)
    hits = asleep.reshape(-1, period, workers).sum(axis=1)
    longest = hits.max(axis=1).mean()
    expected = period * (compute + sleep) / (period * compute + sleep * longest)
    assert math.isclose(every / avoiding, expected, rel_tol=0.02)
    assert expected > 2


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: averaging.finish_times([["soon"]], averaging.nobody),
            TypeError,
            "`seconds` must hold real numbers",
        ),
        (
            lambda: averaging.finish_times([1.0], averaging.nobody),
            ValueError,
            r"`seconds` must have shape \[T, P\]",
        ),
        (
            lambda: averaging.finish_times([[np.inf]], averaging.nobody),
            ValueError,
            "`seconds` must be finite and non-negative",
        ),
        (
            lambda: averaging.finish_times([[1.0]], "all"),
            TypeError,
            "`waits` must be a function",
        ),
        (
            lambda: averaging.finish_times([[1.0]], averaging.nobody, lag=-1),
            ValueError,
            "`lag` must be non-negative, got -1",
        ),
        (lambda: averaging.everyone(0), ValueError, "`period` must be at least 1"),
        (lambda: averaging.neighbours(), TypeError, "`hops` must be one or more"),
        (lambda: averaging.neighbours(0.5), TypeError, "`hops` must be one or more"),
        (
            lambda: averaging.wait_avoiding([[1.0]], period=0),
            ValueError,
            "`period` must be at least 1, got 0",
        ),
        (
            lambda: averaging.wait_avoiding([[1.0]], slack_seconds=-1.0),
            ValueError,
            "`slack_seconds` must be finite and non-negative",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
