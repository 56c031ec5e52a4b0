"""Recorded times, as a service, as slowdowns by the clock, and as a law."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import cluster, stability
from delayjax.cluster import protocols
from tests.cluster import oracle
from tests.cluster.given_times import UPDATES
from tests.cluster.protocols import twins_test
from tests.cluster.traces import PROTOCOLS, assert_equal

WORKERS, STEPS = 5, 40
SECONDS = np.random.default_rng(0).gamma(4.0, 0.25, (WORKERS, STEPS))
SECONDS[2] *= 3.0
RECORDED = cluster.Recorded(SECONDS)
EVERY = PROTOCOLS | {
    name: make(WORKERS) for name, (make, _) in twins_test.ACCEPTING.items()
}


def simulate(service, protocol, num_updates=UPDATES, **options):
    spec = cluster.Cluster(WORKERS, service, **options)
    return cluster.simulate(spec, protocol, num_updates, seed=1)


@pytest.mark.parametrize("name", EVERY)
def test_every_protocol_takes_recorded_times_as_times_that_are_given(name):
    table = np.tile(SECONDS, 300)  # mindflayer draws 10,000 tasks of each worker
    ours = simulate(RECORDED.service(), EVERY[name])
    assert_equal(ours, simulate(oracle.given(table), EVERY[name]))


def test_a_step_of_hardsync_takes_as_long_as_its_slowest_worker():
    trace = simulate(RECORDED.service(), protocols.hardsync(), STEPS)
    np.testing.assert_allclose(trace.seconds, SECONDS.max(axis=0).cumsum())


def test_training_along_recorded_times_has_the_staleness_of_their_trace():
    trace = simulate(RECORDED.service("steps"), protocols.k_async(1))
    training = dj.replay(trace, lambda x, batch, key: (x, jnp.ones(())), optax.sgd(1.0))
    state = training.init(jnp.zeros(()), jax.random.key(0))
    _, report = training.run(state, np.zeros((UPDATES, 1)))
    # each gradient is 1: the parameters that it was taken at are minus the version
    np.testing.assert_array_equal(-report.metrics, trace.read_version)


def record_of(trace):
    """The tasks of each worker as a record with gaps at the end."""
    masks = [trace.worker == worker for worker in range(trace.num_workers)]
    table = np.full((2, trace.num_workers, max(map(sum, masks))), np.nan)
    for worker, rows in enumerate(masks):
        takes = trace.arrived[rows] - trace.begun[rows]
        table[:, worker, : takes.size] = takes, trace.begun[rows]
    return cluster.Recorded(table[0], starts=table[1])


@pytest.mark.filterwarnings("ignore:`starts` show that workers wait")
@pytest.mark.parametrize("name", ["ASGD", "2-softsync", "hardsync", "ssp(1)"])
def test_slowdowns_by_the_clock_give_back_the_run_that_was_recorded(name):
    first = simulate(cluster.gamma(1.0, 2.0), EVERY[name], slowdown=[1, 1, 3, 1, 1])
    recorded = record_of(first)
    mean = recorded.law().mean
    rerun = simulate(cluster.constant(mean), EVERY[name], slowdown=recorded.slowdowns())
    # until the end of the worker's record
    ends = np.nanmax(recorded.starts + recorded.seconds, axis=1).min()
    for field in ("worker", "read_version", "arrived"):
        ours, theirs = (
            getattr(run, field)[run.arrived < ends] for run in (rerun, first)
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert ends > 0.7 * first.seconds[-1]


def test_slowdowns_of_workers_that_wait_are_for_the_protocol_of_the_log():
    log = synchronous(TRUTHS["jitter"], steps=30)
    with pytest.warns(UserWarning, match=r"wait for \d+% .* Recorded.cluster\(\)"):
        log.slowdowns()
    record_of(simulate(cluster.exponential(1.0), EVERY["ASGD"])).slowdowns()  # none


@pytest.mark.filterwarnings("ignore:`starts` show that workers wait")
def test_a_slowdown_holds_until_the_worker_s_next_task_and_its_mean_outside():
    recorded = cluster.Recorded(
        [[1.0, np.nan, 5.0], [2.0, 4.0, 3.0]],
        starts=[[0.5, np.nan, 3.0], [0.0, 2.0, 6.0]],
    )
    rows = [
        (slow.workers, slow.factor * 3.0, slow.start_seconds, slow.stop_seconds)
        for slow in recorded.slowdowns()
    ]
    assert [worker for worker, *_ in rows] == [0, 0, 0, 0, 1, 1, 1, 1]
    # on average, a task takes the time divided by the tasks that were done in it
    first, second = 7.5 / (2.5 / 1 + 5 / 5), 9 / (2 / 2 + 4 / 4 + 3 / 3)
    expected = [(first, 0, 0.5), (1, 0.5, 3), (5, 3, 8), (first, 8, np.inf)]
    expected += [(2, 0, 2), (4, 2, 6), (3, 6, 9), (second, 9, np.inf)]
    np.testing.assert_allclose([row for _, *row in rows], expected)


def synchronous(spec, steps=900):
    """The log of a synchronous run: the computing times, and their starts."""
    run = cluster.simulate(spec, protocols.hardsync(), steps, seed=0)
    order = np.lexsort((run.begun, run.worker))
    begun, arrived = (
        times[order].reshape(spec.workers, -1) for times in (run.begun, run.arrived)
    )
    return cluster.Recorded(arrived - begun, begun)


def phases(workers, seconds):
    """Each worker is five times slower for 100 s in every 300 s."""
    return [
        cluster.Slowdown(w, 5.0, max(begin, 0.0), begin + 100.0)
        for w in range(workers)
        for begin in np.arange(w * 300 / workers - 300, seconds, 300.0)
        if begin > -100.0
    ]


TRUTHS = {
    "jitter": cluster.Cluster(8, cluster.empirical([0.5, 1.5])),
    "exponential": cluster.Cluster(8, cluster.exponential(1.0)),
    "phases": cluster.Cluster(8, cluster.constant(1.0), phases(8, 9000.0)),
    "both": cluster.Cluster(8, cluster.lognormal(1.0, 0.1), phases(8, 9000.0)),
}


EVERY_KIND = (
    *(protocols.hardsync(), protocols.k_sync(4), protocols.k_async(1)),
    *(protocols.rennala(8), protocols.ringmaster(8)),
)


def updates_of(spec, seconds):
    """The number of updates in these seconds with each kind of protocol."""
    return [
        cluster.simulate(spec, protocol, None, seconds=seconds, seed=1).num_updates
        for protocol in EVERY_KIND
    ]


@pytest.mark.parametrize("name", TRUTHS)
def test_a_synchronous_log_gives_the_speed_of_other_protocols(name):
    """With starts, and only with steps."""
    by_clock = name in ("phases", "both")
    log = synchronous(TRUTHS[name], steps=300 if by_clock else 900)
    seconds = 0.9 * log.starts.max()
    truth = updates_of(TRUTHS[name], seconds)
    for recorded in (log, cluster.Recorded(log.seconds)):
        assert recorded.lasts() == ("clock" if by_clock else "task")
        assert updates_of(recorded.cluster(), seconds) == pytest.approx(truth, rel=0.03)


def slow_tasks(between):
    """20 of 60 tasks take 5 s because of long documents, and not by the clock.

    A batch with long and short documents has a time in between.
    """
    rng = np.random.default_rng(0)
    seconds = np.ones((8, 600))
    for row, first in zip(seconds, rng.integers(60, size=8), strict=True):
        task = (np.arange(600) + first) % 60
        row[task < 20] = 5.0
        if between:
            edges = (task == 59) | (task == 20)
            row[edges] = rng.uniform(1.0, 5.0, edges.sum())
    return seconds


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_slow_tasks_are_not_called_slow_phases_of_the_clock(noise, between):
    seconds = slow_tasks(between)
    seconds *= np.random.default_rng(1).lognormal(0.0, noise, seconds.shape)
    recorded = cluster.Recorded(seconds)
    match = r'workers that wait for .*: use cluster\(lasts="clock"\) .*"block"\)'
    with pytest.raises(ValueError, match=match):
        recorded.cluster()
    by_task = cluster.Cluster(8, recorded.service("block"))
    run = cluster.simulate(by_task, protocols.k_async(1), 6000, seed=0)
    right = 8 / seconds.mean()
    assert run.summary().updates_per_second == pytest.approx(right, rel=0.03)


def test_what_lasts_may_be_chosen():
    log = synchronous(TRUTHS["phases"], steps=60)
    with pytest.raises(ValueError, match="must show whether"):
        log.cluster()  # too short
    truth = updates_of(TRUTHS["phases"], 270.0)
    by_clock = log.cluster(lasts="clock")
    assert updates_of(by_clock, 270.0) == pytest.approx(truth, rel=0.03)
    by_task = log.cluster(lasts="task")
    assert by_task.draw(0, 4000, seed=0).mean() == pytest.approx(
        log.seconds[0].mean(), rel=0.05
    )


def test_a_log_without_waits_has_the_speeds_by_the_clock():
    """With noise, which waits would turn into too much speed."""
    truth = cluster.Cluster(8, cluster.lognormal(1.0, 0.3), phases(8, 2400.0))
    log = cluster.simulate(truth, protocols.k_async(1), None, seconds=1800.0, seed=0)
    recorded = record_of(log)
    assert recorded.lasts() == "clock"
    right = pytest.approx(updates_of(truth, 1600.0), rel=0.03)
    assert updates_of(recorded.cluster(), 1600.0) == right
    noisy = record_of(simulate(cluster.exponential(1.0), EVERY["ASGD"], 4000))
    assert noisy.lasts() == "task"


@pytest.mark.parametrize("first", [None, 7.0])
def test_half_of_a_wait_belongs_to_the_task_before_and_half_to_the_task_after(first):
    """Two workers are slow in turn, and wait for one another; `first` is in `starts`.

    Each step lasts 5 s. A worker is fast for 20 steps of 1 s, and the wait after the
    last of these is from 96 s to 100 s.
    """
    seconds = np.repeat([[1.0, 5.0], [5.0, 1.0]], 20, axis=1)
    begun = first and first + np.broadcast_to(5.0 * np.arange(40), seconds.shape)
    spec = cluster.Recorded(seconds, begun).cluster(lasts="clock")
    log_begins, mean = first or 0.0, seconds.mean()
    lengths = [(98.0, 102.0), (100.0, 96.0)]  # of the phases, until the last task ends
    for speed, (before, after), (one, two) in zip(
        spec.speeds(), lengths, [(1.0, 5.0), (5.0, 1.0)], strict=True
    ):
        usual = (before + after) / (before / one + after / two)  # time over work
        for time, factor in (
            *((log_begins - 0.01, usual), (log_begins + 0.01, one)),
            *((log_begins + before - 0.01, one), (log_begins + before + 0.01, two)),
            (log_begins + before + after - 0.01, two),
            (log_begins + before + after + 0.01, usual),
        ):
            if time > 0:
                lasts = speed.factor_between(time, time) * mean
                assert lasts == pytest.approx(factor), time


@pytest.mark.filterwarnings("ignore:`starts` show that workers wait")
def test_a_worker_that_is_always_slow_is_slow_after_the_log_too():
    slow = cluster.Cluster(
        2, cluster.lognormal(1.0, 0.05), [*phases(2, 300.0), cluster.Slowdown(1, 5.0)]
    )
    recorded = synchronous(slow, steps=50)
    spec = cluster.Cluster(2, cluster.constant(1.0), recorded.slowdowns())
    (_, speed), mean = spec.speeds(), recorded.law().mean
    work = (recorded.seconds[1] / mean).sum()
    assert speed.factors[-1] * mean > 4.0
    assert speed.factors[-1] <= work


@pytest.mark.parametrize(("spread", "noise"), [(0.1, 0.02), (1.0, 0.3), (0.5, 0.02)])
def test_independent_steps_that_workers_share_do_not_make_slowness_last(spread, noise):
    """Long steps are long for all workers: there are as many samples as steps."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        steps = rng.lognormal(0.0, spread, 100)
        seconds = steps * rng.lognormal(0.0, noise, (8, 100))
        assert cluster.Recorded(seconds).lasts() == "task"


@pytest.mark.parametrize("lasts", [None, "clock"])
def test_phases_whose_tasks_differ_are_refused(lasts):
    spec = cluster.Cluster(8, cluster.exponential(1.0), phases(8, 9000.0))
    free = cluster.simulate(spec, protocols.k_async(1), 4000, seed=0)
    for log in (synchronous(spec), record_of(free)):
        with pytest.raises(ValueError, match=r"tasks that differ by .*\(clock\)\.$"):
            log.cluster(lasts=lasts)


def test_more_workers_take_the_times_of_the_recorded_ones_in_turn():
    spec = cluster.Recorded([[1.0, 1.1] * 10, [2.0, 2.1] * 10]).cluster(workers=5)
    drawn = [spec.draw(worker, 50, seed=0).mean() for worker in range(5)]
    assert [round(mean) for mean in drawn] == [1, 2, 1, 2, 1]


def test_gaps_leave_the_law_of_each_worker_s_times_as_it_is():
    """In a log of ASGD, a slow worker has a fifth of the tasks of the others."""
    seconds, starts = np.full((2, 2, 1000), np.nan)
    for worker, tasks in enumerate((1000, 200)):
        times = np.random.default_rng(worker).exponential(1000 / tasks, tasks)
        seconds[worker, :tasks] = times
        starts[worker, :tasks] = np.cumsum(times) - times
    drawn = cluster.Recorded(seconds, starts).cluster().draw(1, 4000, seed=0)
    assert drawn.mean() == pytest.approx(np.nanmean(seconds[1]), rel=0.1)
    assert drawn.std() == pytest.approx(np.nanstd(seconds[1]), rel=0.1)


@pytest.mark.parametrize(("spread", "noise"), [(0.5, 1e-3), (0.01, 5e-4), (0.003, 0)])
def test_times_from_barrier_to_barrier_are_seen(spread, noise):
    """Also where a steady worker is the slowest in each step."""
    rng = np.random.default_rng(0)
    steps = rng.uniform(1.0, 1.0 + 2 * spread, 200)
    recorded = cluster.Recorded(steps * (1 + noise * rng.normal(size=(4, 200))))
    for use in (recorded.cluster, recorded.service):
        with pytest.warns(UserWarning, match="also counts the wait for the slowest"):
            use()
    for distinct in (0.5 * spread, 0.2):  # no warning
        cluster.Recorded(steps * rng.uniform(1 - distinct, 1, (4, 200))).service()


def test_a_task_that_begins_in_the_one_before_is_refused():
    with pytest.raises(ValueError, match=r"`starts` must not be before .* last task"):
        cluster.Recorded([[2.0, 2.0]], starts=[[0.0, 1.0]])
    cluster.Recorded([[2.0, 2.0]], starts=[[0.0, 1.985]])  # rounding


@pytest.mark.filterwarnings("ignore:`starts` show that workers wait")
def test_many_slowdowns_of_a_worker_are_read_in_one_pass():
    size = 20_000
    recorded = cluster.Recorded(
        np.tile([[1.0, 3.0]], size // 2), starts=[3.0 * np.arange(size)]
    )
    spec = cluster.Cluster(1, cluster.constant(2.0), recorded.slowdowns())
    (speed,) = spec.speeds()
    np.testing.assert_allclose(speed.factors[:-1], np.tile([0.5, 1.5], size // 2))


@pytest.mark.parametrize("worker", [None, 0, 2])
def test_the_moments_of_the_law_are_those_of_the_rows(worker):
    times = (SECONDS if worker is None else SECONDS[worker]).ravel()
    law = RECORDED.law(worker)
    assert law.mean == pytest.approx(times.mean())
    pairs = np.maximum.outer(times, times)  # of two independent draws
    assert law.kth_mean(2, 2) == pytest.approx(pairs.mean())
    assert law.slope(0.0) == pytest.approx(times.mean())
    assert law.transform(0.7) == pytest.approx(np.exp(-0.7 * times).mean())


def test_the_law_leaves_gaps_out():
    recorded = cluster.Recorded([[1.0, np.nan], [3.0, 5.0]], starts=[[0, 0], [0, 4]])
    assert recorded.law(0).mean == 1.0
    assert recorded.law().mean == 3.0


def test_closed_forms_take_the_law():
    law, laws = RECORDED.law(), [RECORDED.law(w) for w in range(WORKERS)]
    times = np.sort(SECONDS.ravel())
    # E max of P draws from the times: the i-th smallest is the largest with
    # probability (i/n)^P - ((i-1)/n)^P
    shares = np.linspace(0, 1, times.size + 1) ** WORKERS
    slowest = protocols.k_sync(WORKERS).update_seconds(WORKERS, law)
    assert slowest == pytest.approx(times @ np.diff(shares))
    rate = cluster.arrival_rate(WORKERS, [one.mean for one in laws])
    assert rate == pytest.approx((1 / SECONDS.mean(axis=1)).sum())
    late = cluster.staleness_law(cluster.Cluster(WORKERS, laws))
    assert late.mean == pytest.approx(WORKERS - 1, abs=0.01)
    # a mode e^{-rt} of x'(t) = -gain E x(t - T)
    gain = 0.1 / law.mean
    rate = stability.DelayEquation(law).decay_rate(gain)
    assert rate == pytest.approx(gain * np.exp(rate * times).mean())


def test_what_a_step_spends_on_other_work_is_unexplained():
    slowest = SECONDS.max(axis=0)
    other = np.random.default_rng(1).uniform(0.5, 1.0, STEPS)
    share = other.mean() / (slowest + other).mean()
    assert RECORDED.unexplained(slowest + other) == pytest.approx(share)
    assert RECORDED.unexplained((slowest + other).mean()) == pytest.approx(share)
    assert RECORDED.unexplained(slowest) == pytest.approx(0.0)


def test_a_record_keeps_its_own_arrays():
    given = SECONDS.copy()
    recorded = cluster.Recorded(given, starts=10.0 * np.arange(STEPS) + 0 * given)
    given[:] = 7.0
    np.testing.assert_array_equal(recorded.seconds, SECONDS)
    for held in (recorded.seconds, recorded.starts, recorded.steps):
        with pytest.raises(ValueError, match="read-only"):
            held[:] = 1
    np.testing.assert_array_equal(recorded.steps, np.arange(STEPS))


GAP = cluster.Recorded([[1.0, np.nan], [1.0, 1.0]], starts=[[0, 5], [0, 5]])
APART = cluster.Recorded(SECONDS, steps=[*range(STEPS - 1), STEPS])


def record(seconds, **others):
    return lambda: cluster.Recorded(seconds, **others)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *(
            (
                record([[1.0, 2.0], [1.0, bad]]),
                ValueError,
                rf"`seconds` must be positive.* got {bad} for task 1 of worker 1",
            )
            for bad in (0.0, -1.0, np.inf, 1.7e9)
        ),
        (record([1.0]), ValueError, r"`seconds` must have shape \[W, T\], got \(1,\)"),
        (record([[]]), ValueError, r"shape \[W, T\].*got \(1, 0\)"),
        (record([["a"]]), TypeError, "`seconds` must hold real numbers"),
        (record([[1.0], [1.0, 2.0]]), ValueError, "has an inhomogeneous shape"),
        (
            record([[1.0, np.nan]]),
            ValueError,
            "`seconds` must have no gap without `starts`, got nan for task 1 of worker"
            " 0: give `starts`, or leave out this task of all workers",
        ),
        *(
            (
                record(np.ones((2, 2)), starts=[[0.0, 1.0], [0.0, bad]]),
                ValueError,
                rf"`starts` must lie in .* got {bad}.* for task 1 of worker 1",
            )
            for bad in (-1.0, np.nan, 1760000000.5)
        ),
        (
            record(np.ones((2, 3)), starts=[[0, 1, 2], [0, 5, 5]]),
            ValueError,
            "`starts` must increase from task to task, got 5.0 for task 2 of worker 1",
        ),
        (
            record([[1.0, np.nan, 1.0]], starts=[[3, 0, 2]]),
            ValueError,
            "`starts` .* got 2.0 for task 2 of worker 0: sort the tasks of each work",
        ),
        *(
            (
                record(np.ones((2, 2)), steps=bad),
                ValueError,
                "`steps` must be 2 increasing integers",
            )
            for bad in ([1, 1], [2, 1], [1], [0.5, 1.5])
        ),
        (
            record(np.ones((2, 3)), steps=[0, 2, 1]),
            ValueError,
            "`steps` must be 3 increasing integers",
        ),
        (
            GAP.service,
            ValueError,
            r"no gap for service\(\).*task 1 of worker 0: use sl",
        ),
        (GAP.block_length, ValueError, r"no gap for block_length\(\)"),
        (lambda: GAP.unexplained(1.0), ValueError, r"no gap for unexplained\(\)"),
        (
            RECORDED.slowdowns,
            ValueError,
            r"`starts` must be given for slowdowns, got None\.",
        ),
        *(
            (
                lambda b=b: APART.service(b),
                ValueError,
                r"`steps` must be consecutive for blocks, got 38 before 40\.",
            )
            for b in ("block", 2)
        ),
        (APART.block_length, ValueError, "`steps` must be consecutive"),
        (
            lambda: RECORDED.service(0),
            ValueError,
            r"`resample` must lie in 1 \.\. 40, got 0\.",
        ),
        (lambda: RECORDED.service(41), ValueError, r"`resample` .* 1 \.\. 40, got 41"),
        (lambda: RECORDED.law(5), ValueError, r"`worker` .* 0 \.\. 4, got 5"),
        (
            lambda: RECORDED.unexplained([1.0, 2.0]),
            ValueError,
            r"`step_seconds` .* shape \(40,\), .* got \[1.0, 2.0\]",
        ),
        (lambda: RECORDED.unexplained(0.0), ValueError, "`step_seconds` .* positive"),
        (
            lambda: RECORDED.unexplained(0.5),
            ValueError,
            r"`step_seconds` must be .* mean of 3\.04 s or more.* got 0\.5: give",
        ),
    ],
)
def test_what_is_no_record_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_steps_with_gaps_may_be_taken_in_their_order_and_one_by_one():
    for resample in ("wrap", "steps", 1):
        drawn = cluster.Cluster(WORKERS, APART.service(resample)).draw(0, 99, seed=0)
        assert set(drawn) <= set(SECONDS[0])


def test_a_worker_without_a_task_is_refused():
    seconds, starts = np.array([[1.0, 1.0], [np.nan] * 2]), np.array([[0.0, 1.0]] * 2)
    with pytest.raises(ValueError, match="got none of worker 1: leave this worker"):
        cluster.Recorded(seconds, starts=np.where(np.isnan(seconds), np.nan, starts))
