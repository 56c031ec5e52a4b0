"""Closed forms of the times at which workers with different models act."""

import functools
import heapq
import math

import numpy as np
import pytest

import delayjax as dj
from delayjax.cluster import constant, exponential, sleepers
from experiments.training.methods import (
    a2sgd,
    ad_psgd,
    allreduce_sgd,
    async_easgd,
    async_sgd,
    d_psgd,
    dasgd,
    dga,
    ea_wild,
    eager_sgd,
    gossip,
    hogwild_sgd,
    local_sgd,
    original_easgd,
    sgp,
    sync_easgd,
    wagma,
)

T, LATENCY, TRANSFER, P = 2.0, 0.1, 0.5, 8
SERIAL = dict(serial=True, bytes_per_second=5.0)
RING = 2 * 3 * LATENCY + 2 * (1 - 1 / P) * TRANSFER  # an all-reduce of 8 = 2^3


def of(method, steps, *, service=None, seed=0, workers=P, slowdown=None, **link):
    """The timetable of a method; its link has a cost unless it is given."""
    price = dict(
        latency_seconds=LATENCY, message_bytes=10.0, bytes_per_second=10.0 / TRANSFER
    )
    cluster = dj.cluster.Cluster(
        workers,
        service or constant(T),
        slowdown=slowdown,
        communication=dj.cluster.Communication(**price | link),
    )
    return method.timetable(cluster, steps, seed)


def slow(workers, factor):
    """The slowdown of P workers, the last of them slow."""
    return [1.0] * (P - workers) + [factor] * workers


@pytest.mark.parametrize(
    ("method", "a_step"),
    [
        (allreduce_sgd(), T + RING),
        (a2sgd(), T + 6 * LATENCY),  # it sends two numbers
        (local_sgd(1), T + RING),
        (local_sgd(4), T + RING / 4),
        (sync_easgd(4), T + RING / 4),
        (dasgd(4, 2), T),  # hidden behind two local steps
        (dga(1), T),
        (d_psgd(), T),  # beside the gradient
        (ad_psgd(), T),
        (gossip(), T + LATENCY + TRANSFER),
        (gossip(period=4), T + (LATENCY + TRANSFER) / 4),
        (sgp(), T + LATENCY + TRANSFER),
        (sgp(2), T + LATENCY + 2 * TRANSFER),
        # groups of 4, and all workers every fourth time
        (wagma(4, period=4), T + (3 * (4 * LATENCY + 1.5 * TRANSFER) + RING) / 4),
    ],
)
def test_a_step_takes_a_gradient_and_what_is_sent_beside_nothing(method, a_step):
    steps = 40
    assert math.isclose(of(method, steps).seconds[-1], steps * a_step)


@pytest.mark.parametrize(
    ("method", "a_step"),
    [
        (dga(1), RING),  # longer than a gradient
        (d_psgd(), LATENCY + 2 * TRANSFER),
        (ad_psgd(), LATENCY + TRANSFER),
    ],
)
def test_what_is_sent_beside_a_shorter_gradient_is_waited_for(method, a_step):
    seconds = of(method, 101, service=constant(0.1)).seconds
    assert math.isclose(seconds[100] - seconds[50], 50 * a_step)


@pytest.mark.parametrize(
    ("method", "options", "period", "visits_a_second"),
    [
        # a visit is a message in each direction
        (async_easgd(), {}, 1, P / (T + 2 * (LATENCY + TRANSFER))),
        (async_easgd(4), {}, 4, P / (4 * T + 2 * (LATENCY + TRANSFER))),
        (async_sgd(4), {}, 4, P / (4 * T + 2 * (LATENCY + TRANSFER))),
        (async_easgd(), SERIAL, 1, 1 / 4),  # a message takes 2 s
        (ea_wild(), SERIAL, 1, P / (T + 2 * (LATENCY + 2))),
        (hogwild_sgd(), SERIAL, 1, P / (T + 2 * (LATENCY + 2))),
    ],
)
def test_the_center_serves_one_after_the_other_only_under_a_lock(
    method, options, period, visits_a_second
):
    result = of(method, 400, **options)
    visits = result.there[::period].sum()
    assert math.isclose(visits / result.seconds[-1], visits_a_second, rel_tol=0.03)


def test_two_sleepers_stop_the_others_only_where_they_wait():
    """11 (t0 + .32) / (11 t0 + .32 E max hits), with E from draws of its own (D.11)."""
    compute, sleep, period, periods, workers = 0.1, 0.32, 11, 300, 16
    cluster = {
        "service": sleepers(compute, sleep, workers),
        "workers": workers,
        "latency_seconds": 0.0,
        "message_bytes": 0.0,
    }
    steps = period * periods
    waiting = of(allreduce_sgd(), steps, **cluster).seconds[-1]
    avoiding = of(wagma(period=11), steps, **cluster).seconds[-1]
    draws = np.random.default_rng(1).integers(workers, size=(20_000, period, 2))
    hits = (draws[..., None] == np.arange(workers)).any(axis=2).sum(axis=1)
    expected = (compute + sleep) / (compute + sleep * hits.max(axis=1).mean() / period)
    assert math.isclose(waiting / avoiding, expected, rel_tol=0.02)


@pytest.mark.parametrize("trigger", ["solo", "majority"])
def test_who_comes_after_the_trigger_is_late(trigger):
    steps = 3000
    result = of(eager_sgd(trigger), steps, service=exponential(1.0))
    share = result.in_time.mean(axis=1)
    if trigger == "solo":
        assert (share == 1 / P).all()
    else:  # the k-th arrival is in time if one of the last P - k + 1 workers triggers
        assert math.isclose(share.mean(), (P + 1) / 2 / P, rel_tol=0.05)


def visits_of(cluster, period, number, *, seed):
    """(time, worker) of the first visits, by an event queue without messages."""
    tasks = [cluster.draw(w, period * number, seed=seed) for w in range(P)]
    factor = np.ones(P) if cluster.slowdown is None else np.asarray(cluster.slowdown)
    ends = factor[:, None] * np.cumsum(tasks, axis=1)[:, period - 1 :: period]
    queue = [
        (end, worker, k) for worker in range(P) for k, end in enumerate(ends[worker])
    ]
    heapq.heapify(queue)
    return [heapq.heappop(queue)[:2] for _ in range(number)]


@pytest.mark.parametrize("method", [async_easgd(3), async_sgd(3)])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_visits_are_those_of_an_event_queue(method, factor):
    period, rounds = 3, 20
    free = {"latency_seconds": 0.0, "message_bytes": 0.0}
    changes = free | {"slowdown": slow(2, factor)}
    result = of(method, rounds * period, service=exponential(1.0), **changes)
    cluster = dj.cluster.Cluster(P, exponential(1.0), slowdown=slow(2, factor))
    came = []
    for row in range(period - 1, rounds * period, period):
        places = result.place[row]
        order = sorted(np.flatnonzero(places >= 0), key=places.item)
        came += [(float(result.arrived[row, w]), w) for w in order]
        assert math.isclose(result.seconds[row], came[-1][0])
        assert len(set(order)) == len(order) <= P
    expected = visits_of(cluster, period, len(came), seed=0)
    assert [worker for _, worker in came] == [worker for _, worker in expected]
    np.testing.assert_allclose([t for t, _ in came], [t for t, _ in expected])


def test_workers_in_rank_order_wait_for_the_one_before():
    result = of(original_easgd(), 50, service=exponential(1.0))
    for places in result.place[1:]:
        visits = np.flatnonzero(places >= 0)
        assert (np.diff(places[visits]) > 0).all()
    assert (np.diff(result.seconds) > 0).all()


@pytest.mark.parametrize("method", [local_sgd(4), wagma(), async_easgd(4)])
def test_a_longer_timetable_begins_as_a_shorter_one(method):
    short, long = (of(method, n, service=exponential(1.0)) for n in (37, 100))
    for name, rows in vars(short).items():
        if isinstance(rows, np.ndarray):
            np.testing.assert_array_equal(rows, getattr(long, name)[:37], err_msg=name)


def test_a_trace_has_the_gradients_of_each_step():
    result = of(wagma(), 44, service=sleepers(T, 1.0, P))
    trace = result.trace
    assert (trace.counts == P).all() and trace.num_updates == 44
    late = (trace.update - trace.read_version).reshape(44, P)
    np.testing.assert_array_equal(late, result.behind)
    assert late.max() > 0
    assert trace.read_version.min() == -1  # a late worker adds its initial model
    # the worker that works longest in its period is never idle
    busy = trace.busy_seconds
    np.testing.assert_allclose(busy, (result.arrived - result.begun).sum(axis=0))


@pytest.mark.parametrize("slowdown", [slow(1, 2.0), np.sqrt(np.arange(1, P + 1))])
def test_who_waits_for_nobody_and_stays_in_step_must_be_as_fast(slowdown):
    for method in (gossip(), ad_psgd()):
        with pytest.raises(ValueError, match=r"equally fast.*async_easgd"):
            of(method, 10, slowdown=list(slowdown))
    slower = of(gossip(), 10, slowdown=slow(P, 3.0)).seconds[-1]
    assert math.isclose(slower, 10 * (3 * T + LATENCY + TRANSFER))


def test_where_workers_wait_the_slowest_sets_the_pace():
    for make in (allreduce_sgd, d_psgd, functools.partial(wagma, period=4), eager_sgd):
        result = of(make(), 400, slowdown=slow(1, 3.0), latency_seconds=0.0)
        pace = 3 * T + (RING - 6 * LATENCY) * (make == allreduce_sgd)
        assert math.isclose(result.seconds[-1], 400 * pace, rel_tol=0.15), make


@pytest.mark.parametrize(
    ("method", "service", "seconds"),
    [
        (allreduce_sgd(), exponential(1.0), math.fsum(1 / k for k in range(1, 9))),
        (allreduce_sgd(), sleepers(0.4, 0.32, 8), 0.72),
        (ad_psgd(), sleepers(0.4, 0.32, 8), 0.4 + 0.32 * (1 - (7 / 8) ** 2)),
        (gossip(), dj.cluster.gamma(2.0, 3.0), 2.0),
    ],
)
def test_seconds_of_a_free_step_are_an_order_statistic_or_a_mean(
    method, service, seconds
):
    result = of(method, 10_000, service=service, latency_seconds=0.0, message_bytes=0.0)
    assert result.seconds[-1] / 10_000 == pytest.approx(seconds, rel=0.01)
