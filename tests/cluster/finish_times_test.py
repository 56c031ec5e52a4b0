import heapq
import itertools

import numpy as np
import pytest

from delayjax import cluster
from delayjax.cluster import protocols

SECONDS = np.random.default_rng(0).exponential(size=(40, 6))


def waits_for_none(step, workers):
    return np.zeros((workers, workers), bool)


def events(seconds, needs, *, lag=0, cost=lambda t: 0.0):
    """When each worker continues, by an event loop of workers with a link each.

    `needs`: (step, worker) -> workers; `cost`: of a step's exchange.
    """
    steps, workers = seconds.shape
    ends = np.full(seconds.shape, np.nan)
    queue = sorted((end, "done", i) for i, end in enumerate(seconds[0]))
    counts, computing = [0] * workers, [True] * workers  # the step of each worker
    first, busy = [0] * workers, [False] * workers  # the next exchange of its link
    sent, came = set(), set()

    def go_on(now, i):
        ends[counts[i], i] = now
        if lag:
            sent.add((counts[i], i))
        counts[i] += 1
        if counts[i] < steps:
            heapq.heappush(queue, (now + seconds[counts[i], i], "done", i))
            computing[i] = True

    def settle(now):
        """Starts everything that may begin now, and returns whether anything began."""
        moved = False
        for i in range(workers):
            t = first[i]
            if not busy[i] and t < steps and all((t, j) in sent for j in needs(t, i)):
                busy[i] = moved = True
                seconds_taken = cost(t) if len(needs(t, i)) else 0.0
                heapq.heappush(queue, (now + seconds_taken, "came", i))
            t = counts[i]
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
                sent.add((counts[i], i))
        else:
            came.add((first[i], i))
            busy[i], first[i] = False, first[i] + 1
        while settle(now):
            pass
    return ends


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
    "alone": (cluster.waits_for_neighbors(), lambda t, i: [i]),
    "alone, in turn": (
        cluster.waits_for_neighbors(together=False),
        lambda t, i: [i],
    ),
    "alone, every third step": (
        lambda t, workers: cluster.waits_for_neighbors()(t, workers) & (t % 3 == 0),
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


def test_behind_the_steps_the_slower_of_step_and_exchange_sets_the_pace():
    for waits in (cluster.waits_for_neighbors(), cluster.waits_for_all(1)):
        for lag, compute in itertools.product((1, 5), (1.0, 3.0)):
            seen = cluster.finish_times(
                np.full((60, 3), compute), waits, lag=lag, exchange_seconds=2.0
            )
            np.testing.assert_allclose(np.diff(seen, axis=0)[20:], max(compute, 2.0))


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_late_exchange_hides_behind_its_steps_and_the_rest_is_the_wait(late):
    """H steps of s seconds have F exchanges of c: exactly H s + F max(0, c - d s)."""
    period, fragments, step, exchange = 12, 3, 0.5, 1.25
    ends = cluster.finish_times(
        np.full((5 * period, 2), step),
        cluster.waits_for_all(period // fragments),
        lag=late,
        exchange_seconds=exchange,
    )
    waited = fragments * max(0.0, exchange - late * step)
    whole = period * step + waited
    np.testing.assert_allclose(np.diff(ends[period - 1 :: period], axis=0), whole)


def test_step_synchronous_times_are_those_of_the_simulated_cluster():
    """The event loop draws the same times: to wait for all at each step is hardsync."""
    workers, steps, seed = 4, 50, 3
    machine = cluster.Cluster(workers, cluster.exponential(1.0))
    trace = cluster.simulate(machine, protocols.hardsync(), steps, seed=seed)
    drawn = np.stack([machine.draw(w, steps, seed=seed) for w in range(workers)]).T
    seen = cluster.finish_times(drawn, cluster.waits_for_all(1))
    np.testing.assert_allclose(seen.max(axis=1), trace.seconds, rtol=1e-12)
