"""`replay` keeps a version until it is read last: beside the ring, and in pieces."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax._src.training.state import begin
from delayjax._src.training.update import update
from tests.support.cases import shortened
from tests.training.traces import (
    ADAPTIVE,
    KEY,
    MOMENTUM,
    PARAMS,
    RUNS,
    SGD,
    TRACES,
    Server,
    assert_close,
    assert_same,
    batches_of,
    follower,
    fresh_key,
    grad_fn,
    itself,
    late_rows,
    only,
    pick,
    trace_of,
    young,
)

p, WORKERS = dj.cluster.protocols, 5
EXPONENTIAL = dj.cluster.Cluster(WORKERS, dj.cluster.exponential(1.0))
HEAVY = dj.cluster.Cluster(WORKERS, dj.cluster.pareto(1.0, 1.5))
# name: (cluster, protocol)
SIMULATED = {
    "k_async": (EXPONENTIAL, p.k_async(1)),
    "k_async(2)": (EXPONENTIAL, p.k_async(2)),
    "k_batch_async": (EXPONENTIAL, p.k_batch_async(2)),
    "k_sync": (EXPONENTIAL, p.k_sync(2)),
    "restarting": (EXPONENTIAL, p.bounded_staleness(3, late="restart")),
    "waiting": (EXPONENTIAL, p.bounded_staleness(3, late="wait")),
    "dropping": (EXPONENTIAL, p.bounded_staleness(3)),
    "rennala": (EXPONENTIAL, p.rennala(2)),
    "ssp": (EXPONENTIAL, p.ssp(2)),
    "2-softsync": (EXPONENTIAL, p.n_softsync(2)),
    "round robin": (EXPONENTIAL, p.round_robin()),
    "heavy tails": (HEAVY, p.k_async(1)),
}
KEPT = "k_async", "restarting", "2-softsync", "heavy tails"
simulated = pytest.mark.parametrize("name", shortened(list(SIMULATED), *KEPT))


@functools.cache
def simulate(name, updates, seed=0):
    workers, protocol = SIMULATED[name]
    return dj.cluster.simulate(workers, protocol, updates, seed=seed)


def in_a_ring(replay, traces):
    """The same training, with all of the last versions in a ring."""
    capacity = max(trace.max_staleness for trace in traces) + 1
    plan = dataclasses.replace(replay.step.args[0], slotted=False, capacity=capacity)
    return dj.Replay(
        functools.partial(begin, plan), functools.partial(update, plan), None
    )


def assert_same_in_a_ring(trace, traces, **options):
    replay = dj.replay(traces, grad_fn, **options)
    batches = batches_of(trace)
    path, reports, state = follower(replay)(trace, batches)
    others = follower(in_a_ring(replay, traces))(trace, batches)
    assert_same((path, reports), others[:2])
    assert_same(state._replace(versions=()), others[2]._replace(versions=()))


@pytest.mark.parametrize(
    "run",
    shortened(RUNS, "four", "ragged, at once", "fifteen", "some equally late, alone"),
)
def test_slots_are_the_ring_bit_for_bit(run):
    name, company, chunk = RUNS[run]
    traces = [TRACES[other] for other in company]
    assert_same_in_a_ring(TRACES[name], traces, tx=MOMENTUM, chunk=chunk)


@simulated
def test_along_a_simulation_slots_are_the_ring_bit_for_bit(name):
    trace = simulate(name, 60)
    assert_same_in_a_ring(trace, [trace], tx=MOMENTUM, each=ADAPTIVE)


def test_where_a_rule_refuses_slots_are_the_ring_bit_for_bit():
    trace = simulate("2-softsync", 60)
    each = only(young, ADAPTIVE)
    assert_same_in_a_ring(trace, [trace], tx=MOMENTUM, each=each)
    assert_same_in_a_ring(trace, [trace], tx=dj.drop_stale(MOMENTUM, 1))


def test_along_a_heavy_tail_replay_is_a_server_that_keeps_every_version():
    trace = simulate("heavy tails", 60)
    assert trace.max_staleness > 2 * WORKERS > 2 * trace.max_versions - 1
    batches = batches_of(trace)
    path, _, _ = follower(dj.replay(trace, grad_fn, MOMENTUM))(trace, batches)
    assert_close(path, Server(MOMENTUM).train(trace, batches, agree=True)[0])


def tree_bytes(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def test_a_state_along_a_heavy_tail_holds_no_more_trees_than_there_are_workers():
    workers = dj.cluster.Cluster(17, dj.cluster.pareto(1.0, 1.5))
    trace = dj.cluster.simulate(workers, p.k_async(1), 4000, seed=0)
    assert trace.max_staleness >= 10 * 17
    params = {"w": jnp.zeros((30, 40)), "b": jnp.zeros(40)}
    state = jax.eval_shape(dj.replay(trace, itself, SGD).init, params, KEY)
    assert tree_bytes(state.versions.slots) == 17 * (tree_bytes(params) + 4)


def run(trace, batches, state=None, **options):
    replay = dj.replay(trace, grad_fn, MOMENTUM, **options)
    new = replay.init(PARAMS, fresh_key())
    return replay.run(new if state is None else dj.resize_history(state, new), batches)


@simulated
def test_a_run_goes_on_along_a_longer_trace_of_the_same_simulation(name):
    """100 updates and 100 more are the 200 of the longer trace, bit for bit."""
    short, long = simulate(name, 100), simulate(name, 200)
    batches = batches_of(long)
    first, last = pick(batches, slice(100)), pick(batches, slice(100, None))
    state, _ = run(long, first)
    at_once = run(long, last, state)  # programs of the same lengths round alike
    state, _ = run(short, first)
    assert_same(run(long, last, state), at_once)
    assert np.isfinite(at_once[1].staleness).all()


def test_a_log_that_has_become_longer_reports_nan_where_a_version_is_lost():
    """Version 0 is not read in the first 6 updates, and its slot is given away."""
    rows = [[(0, t)] for t in range(6)] + [[(0, 5)], [(1, 0)], [(0, 7)]]
    long, short = trace_of(rows), trace_of([[(0, max(0, t - 1))] for t in range(6)])
    batches = batches_of(long)
    state, _ = run(short, pick(batches, slice(6)))
    _, report = run(long, pick(batches, slice(6, None)), state)
    assert np.isnan(report.staleness[1]) and np.isnan(report.metrics["fit"][1])
    assert report.staleness[2] == 1


def test_a_report_is_nan_where_a_slot_holds_another_version():
    trace = simulate("k_async", 60)
    replay = dj.replay(trace, grad_fn, SGD)
    scan = jax.jit(lambda *x: jax.lax.scan(replay.step, *x))
    rows, batches = trace.arrivals(0, 60), batches_of(trace)
    for t in (10, 33):
        slot = rows.slot.copy()
        slot[t] = (slot[t] + 1) % trace.max_versions
        wrong = rows._replace(slot=slot)
        _, report = scan(replay.init(PARAMS, KEY), (wrong, batches))
        assert np.flatnonzero(np.isnan(report.staleness)).tolist() == [t]
        assert np.isnan(report.metrics["fit"][t])
        # a version that is written over is lost for all who read it later
        written = rows.written.copy()
        written[t] = slot[t + 1, 0] if slot[t + 1, 0] != written[t] else slot[t + 2, 0]
        wrong = rows._replace(written=written)
        _, report = scan(replay.init(PARAMS, KEY), (wrong, batches))
        assert np.isnan(report.staleness).any()


def test_one_program_takes_the_arrivals_of_other_seeds():
    traces = [simulate("k_async", 60, seed) for seed in (0, 1, 2)]
    several = [dj.replay(trace, grad_fn, SGD, max_versions=WORKERS) for trace in traces]
    traced = []

    @jax.jit
    def scan(state, inputs):
        traced.append(state)
        return jax.lax.scan(several[0].step, state, inputs)

    for trace, replay in zip(traces, several, strict=True):
        inputs = trace.arrivals(0, 60), batches_of(trace)
        state, report = scan(several[0].init(PARAMS, KEY), inputs)
        path, reports, _ = follower(replay)(trace, inputs[1])
        assert_close(state.params, pick(path, -1))
        assert_close(report, reports)
        assert np.isfinite(report.staleness).all()
    assert len(traced) == 1


def test_a_row_that_no_row_of_the_traces_is_like_reports_nan():
    """Of fewer gradients, of several versions, or with another divisor."""
    trace = trace_of(late_rows(1, 8, width=2))
    replay = dj.replay(trace, itself, SGD, max_versions=4)
    others = {
        "fewer": trace_of([*late_rows(1, 7, width=2), [(0, 6)]], divisor=[2.0] * 8),
        "apart": trace_of([*late_rows(1, 7, width=2), [(0, 6), (1, 7)]]),
        "divided": trace_of(late_rows(1, 8, width=2), divisor=[2.0] * 7 + [3.0]),
    }
    scan = jax.jit(lambda *x: jax.lax.scan(replay.step, *x)[1])
    state = replay.init(jnp.ones(3), KEY)
    reports = scan(state, (trace.arrivals(0, 8), np.zeros((8, 2))))
    assert np.isfinite(reports.staleness).all()
    for other in others.values():
        report = scan(state, (other.arrivals(0, 8), np.zeros((8, 2))))
        assert np.isnan(report.staleness).tolist() == [False] * 7 + [True]


def test_points_of_a_grid_along_one_trace_write_their_slots_in_place():
    trace = simulate("k_async(2)", 60)
    rates = jnp.array([0.05, 0.1, 0.2])

    def replay_at(rate):
        return dj.replay(trace, itself, optax.sgd(rate))

    def init(rate):
        return replay_at(rate).init(jnp.ones((4, 6)), KEY)

    axes = dj.ring.vmap_axes(jax.eval_shape(init, rates[0]))
    step = jax.vmap(lambda s, x, r: replay_at(r).step(s, x)[0], (axes, None, 0), axes)

    def grid(state, rows):
        return jax.lax.scan(lambda s, x: (step(s, x, rates), None), state, rows)[0]

    state = jax.eval_shape(jax.vmap(init, out_axes=axes), rates)
    rows = trace.arrivals(0, 60), np.zeros((60, 2), np.float32)
    program = jax.jit(grid, donate_argnums=0).lower(state, rows).compile().as_text()
    assert " scatter(" not in program
    assert f"f32[3,{trace.max_versions},4,6]{{3,2,1,0}} copy(" not in program
