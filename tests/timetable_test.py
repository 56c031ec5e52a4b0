"""What workers with models of their own do, and when, has closed forms."""

import heapq
import math

import numpy as np
import pytest

import delayjax as dj
from experiments import build
from tests.update_test import arm_config

T, LATENCY, TRANSFER, P = 2.0, 0.1, 0.5, 8
RING = 2 * 3 * LATENCY + 2 * (1 - 1 / P) * TRANSFER  # an all-reduce of 8 = 2^3


def of(arm, steps, *, service=f"constant({T})", seed=0, **cluster):
    """The timetable of an arm whose link has a price, unless it is given."""
    link = {
        "latency_seconds": LATENCY,
        "message_bytes": 10.0,
        "bytes_per_second": 10.0 / TRANSFER,
    }
    changes = link | {"workers": P, "service": service} | cluster
    config = arm_config(arm, **{f"cluster.{key}": x for key, x in changes.items()})
    config = build.for_arm(config, arm)
    method = build.method(config, arm)
    return method.timetable(build.cluster(config), steps, seed)


@pytest.mark.parametrize(
    ("arm", "a_step"),
    [
        ("allreduce_sgd()", T + RING),
        ("local_sgd(1)", T + RING),
        ("local_sgd(4)", T + RING / 4),
        ("sync_easgd(4)", T + RING / 4),
        ("dasgd(4, 2)", T),  # hidden behind two local steps
        ("dga(1)", T),
        ("d_psgd()", T),  # beside the gradient
        ("ad_psgd()", T),
        ("gossip()", T + LATENCY + TRANSFER),
        ("gossip(period=4)", T + (LATENCY + TRANSFER) / 4),
        ("sgp()", T + LATENCY + TRANSFER),
        ("sgp(2)", T + LATENCY + 2 * TRANSFER),
        # groups of 4 = 2^2, and every fourth time all
        ("wagma(4, period=4)", T + (3 * 2 * (LATENCY + TRANSFER) + RING) / 4),
    ],
)
def test_a_step_takes_a_gradient_and_what_is_sent_beside_nothing(arm, a_step):
    steps = 40
    assert math.isclose(of(arm, steps).seconds[-1], steps * a_step)


@pytest.mark.parametrize(
    ("arm", "a_step"),
    [
        ("dga(1)", RING),  # longer than a gradient
        ("d_psgd()", LATENCY + 2 * TRANSFER),
        ("ad_psgd()", LATENCY + TRANSFER),
    ],
)
def test_what_is_sent_beside_a_shorter_gradient_is_waited_for(arm, a_step):
    seconds = of(arm, 101, service="constant(0.1)").seconds
    assert math.isclose(seconds[100] - seconds[50], 50 * a_step)


@pytest.mark.parametrize(
    ("arm", "visits_a_second"),
    [
        # a visit is a message there and one back
        ("async_easgd()", P / (T + 2 * (LATENCY + TRANSFER))),
        ("async_easgd(4)", P / (4 * T + 2 * (LATENCY + TRANSFER))),
        ("async_sgd(4)", P / (4 * T + 2 * (LATENCY + TRANSFER))),
        ("async_easgd() serial=True bytes_per_second=5.0", 1 / 4),  # 2 s a message
        ("ea_wild() serial=True bytes_per_second=5.0", P / (T + 2 * (LATENCY + 2))),
        ("hogwild_sgd() serial=True bytes_per_second=5.0", P / (T + 2 * (LATENCY + 2))),
    ],
)
def test_the_center_serves_one_after_the_other_only_under_a_lock(arm, visits_a_second):
    found = of(arm, 400)
    period = 4 if "(4)" in arm else 1
    there = found.delivers[::period].sum()
    assert math.isclose(there / found.seconds[-1], visits_a_second, rel_tol=0.03)


def test_two_sleepers_stop_the_others_only_where_they_wait():
    """11 (t0 + .32) / (11 t0 + .32 E max hits), with E from draws of its own (D.11)."""
    compute, sleep, period, periods, workers = 0.1, 0.32, 11, 300, 16
    cluster = {
        "service": f"sleepers({compute}, {sleep}, {workers})",
        "workers": workers,
        "latency_seconds": 0.0,
        "message_bytes": 0.0,
    }
    steps = period * periods
    waiting = of("allreduce_sgd()", steps, **cluster).seconds[-1]
    avoiding = of("wagma(period=11)", steps, **cluster).seconds[-1]
    draws = np.random.default_rng(1).integers(workers, size=(20_000, period, 2))
    hits = (draws[..., None] == np.arange(workers)).any(axis=2).sum(axis=1)
    expected = (compute + sleep) / (compute + sleep * hits.max(axis=1).mean() / period)
    assert math.isclose(waiting / avoiding, expected, rel_tol=0.02)


@pytest.mark.parametrize("trigger", ["solo", "majority"])
def test_who_comes_after_the_trigger_is_late(trigger):
    steps = 3000
    found = of(f"eager_sgd({trigger!r})", steps, service="exponential(1.0)")
    share = found.in_time.mean(axis=1)
    if trigger == "solo":
        assert (share == 1 / P).all()
    else:  # the k-th to come is in time where one of the P - k + 1 last triggers
        assert math.isclose(share.mean(), (P + 1) / 2 / P, rel_tol=0.05)


def visits_of(cluster, period, number, *, seed):
    """(time, worker) of the first visits, by an event queue and without messages."""
    tasks = [cluster.draw(w, period * number, seed=seed) for w in range(P)]
    factor = np.ones(P) if cluster.slowdown is None else np.asarray(cluster.slowdown)
    ends = factor[:, None] * np.cumsum(tasks, axis=1)[:, period - 1 :: period]
    queue = [
        (end, worker, k) for worker in range(P) for k, end in enumerate(ends[worker])
    ]
    heapq.heapify(queue)
    return [heapq.heappop(queue)[:2] for _ in range(number)]


@pytest.mark.parametrize("arm", ["async_easgd(3)", "async_sgd(3)"])
@pytest.mark.parametrize("slow", [1.0, 4.0])
def test_visits_are_those_of_an_event_queue(arm, slow):
    period, rounds = 3, 20
    free = {"latency_seconds": 0.0, "message_bytes": 0.0}
    changes = free | {"slow_workers": 2, "slow_factor": slow}
    found = of(arm, rounds * period, service="exponential(1.0)", **changes)
    cluster = dj.cluster.Cluster(
        P, dj.cluster.exponential(1.0), slowdown=[1.0] * (P - 2) + [slow] * 2
    )
    came = []
    for row in range(period - 1, rounds * period, period):
        order = sorted(np.flatnonzero(found.place[row] >= 0), key=found.place[row].item)
        came += [(float(found.arrived[row, w]), w) for w in order]
        assert math.isclose(found.seconds[row], came[-1][0])
        assert len(set(order)) == len(order) <= P
    expected = visits_of(cluster, period, len(came), seed=0)
    assert [worker for _, worker in came] == [worker for _, worker in expected]
    np.testing.assert_allclose([t for t, _ in came], [t for t, _ in expected])


def test_workers_in_rank_order_wait_for_the_one_before():
    found = of("original_easgd()", 50, service="exponential(1.0)")
    for places in found.place[1:]:
        there = np.flatnonzero(places >= 0)
        assert (np.diff(places[there]) > 0).all()
    assert (np.diff(found.seconds) > 0).all()


@pytest.mark.parametrize("arm", ["local_sgd(4)", "wagma()", "async_easgd(4)"])
def test_a_longer_timetable_begins_as_a_shorter_one(arm):
    short, long = (of(arm, n, service="exponential(1.0)") for n in (37, 100))
    for name, rows in vars(short).items():
        if isinstance(rows, np.ndarray):
            np.testing.assert_array_equal(rows, getattr(long, name)[:37], err_msg=name)


def test_a_trace_has_the_gradients_of_each_step():
    found = of("wagma()", 44, service=f"sleepers({T}, 1.0, {P})")
    trace = found.trace
    assert (trace.counts == P).all() and trace.num_updates == 44
    late = (trace.update - trace.read_version).reshape(44, P)
    np.testing.assert_array_equal(late, found.behind)
    assert late.max() > 0
    # who works longer than all others of its period is never idle
    busy = trace.busy_seconds
    np.testing.assert_allclose(busy, (found.arrived - found.begun).sum(axis=0))


@pytest.mark.parametrize("change", [{"slow_workers": 1}, {"speeds": "sqrt"}])
def test_who_waits_for_nobody_and_stays_in_step_must_be_as_fast(change):
    change = {"slow_factor": 2.0} | change
    for arm in ("gossip()", "ad_psgd()"):
        with pytest.raises(ValueError, match=r"equally fast.*async_easgd"):
            of(arm, 10, **change)
    slower = of("gossip()", 10, slow_workers=P, slow_factor=3.0).seconds[-1]
    assert math.isclose(slower, 10 * (3 * T + LATENCY + TRANSFER))


def test_where_workers_wait_the_slowest_sets_the_pace():
    for arm in ("allreduce_sgd()", "d_psgd()", "wagma(period=4)", "eager_sgd()"):
        slow = of(arm, 400, slow_workers=1, slow_factor=3.0, latency_seconds=0.0)
        pace = 3 * T + (RING - 6 * LATENCY) * (arm == "allreduce_sgd()")
        assert math.isclose(slow.seconds[-1], 400 * pace, rel_tol=0.15), arm
