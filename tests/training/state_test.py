"""A state keeps its types, can stop and continue, and is one program for a grid."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.support.compiled import compile_as_usual
from tests.training.traces import (
    ADAPTIVE,
    FULL,
    KEY,
    MOMENTUM,
    PARAMS,
    SGD,
    TRACES,
    Server,
    assert_close,
    assert_same,
    batches_of,
    bowl,
    draw,
    follower,
    fresh_key,
    grad_fn,
    host,
    is_key,
    itself,
    only,
    pick,
    shapes_after,
    stack,
    trace_of,
    types,
    young,
)


def restored(saved, like):
    def to_jax(x, leaf):
        return jax.random.wrap_key_data(x) if is_key(leaf) else jnp.asarray(x)

    return jax.tree.map(to_jax, saved, like)


REFUSING = dict(tx=MOMENTUM, each=only(young, ADAPTIVE), chunk=3)


def test_a_scan_a_loop_of_steps_and_a_run_in_pieces_are_one_thing():
    trace, stop = TRACES["ragged"], 5
    batches = batches_of(trace)
    replay = dj.replay(trace, grad_fn, **FULL)
    path, reports, scanned = follower(replay)(trace, batches)
    looped, rows = replay.init(PARAMS, KEY), []
    step = jax.jit(replay.step)
    arrivals = trace.arrivals(0, trace.num_updates)
    for t in range(trace.num_updates):
        assert looped.versions.pushed == t
        looped, report = step(looped, (pick(arrivals, t), pick(batches, t)))
        assert_close(looped.params, pick(path, t))
        rows.append(report)
    assert_close(stack(rows), reports)

    whole, all_reports = replay.run(replay.init(PARAMS, fresh_key()), batches)
    assert_close(whole, looped)
    assert_close(whole, scanned)
    assert_close(all_reports, reports)

    def in_pieces(between):
        """The state and the reports of a run whose state goes through `between`."""
        pieces = dj.replay(trace, grad_fn, **FULL)
        state = pieces.init(PARAMS, fresh_key())
        state, early = pieces.run(state, pick(batches, slice(stop)))
        state = between(pieces, state)
        state, late = pieces.run(state, pick(batches, slice(stop, None)))
        return state, jax.tree.map(lambda *x: np.concatenate(x), early, late)

    def stopped(pieces, state):
        return restored(host(state), pieces.init(PARAMS, jax.random.key(99)))

    in_two = in_pieces(lambda pieces, state: state)
    assert_close(in_two, (whole, all_reports))  # a program of another length
    assert_same(in_pieces(stopped), in_two)


@pytest.mark.parametrize("name", ["deep", "ragged"])
def test_a_step_returns_the_types_that_init_gave(name):
    trace = TRACES[name]
    replay = dj.replay(trace, grad_fn, **REFUSING)
    shapes = jax.eval_shape(replay.init, PARAMS, KEY)
    assert types(shapes) == types(replay.init(PARAMS, KEY))
    after, report = shapes_after(replay, trace, batches_of(trace))
    assert types(after) == types(shapes)
    assert types(after.params) == types(PARAMS)
    assert (report.staleness.dtype, report.staleness.shape) == (jnp.float32, ())
    assert (report.gradients.dtype, report.gradients.shape) == (jnp.int32, ())


def test_run_donates_its_state_and_leaves_the_user_s_parameters_alone():
    trace = TRACES["ragged"]
    params, key = jax.tree.map(jnp.copy, PARAMS), fresh_key()
    replay = dj.replay(trace, grad_fn, SGD)
    state = replay.init(params, key)
    history = jax.tree.leaves(state.versions.slots)
    replay.run(state, batches_of(trace))
    assert all(slots.is_deleted() for slots in history)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((params, key)))


SEEDS = [trace_of(draw(seed, [3, 2, 3, 1, 3, 2, 3], 4)) for seed in (1, 2, 3)]


RATES = [0.05, 0.1, 0.2]


KEYS = [jax.random.key(seed) for seed in range(3)]


def of_rate(rate):
    """For several seeds, each with its trace; the rate may be traced."""
    return dj.replay(SEEDS, grad_fn, optax.sgd(rate), each=ADAPTIVE, chunk=2)


def cell_inputs(cell):
    trace = SEEDS[cell]
    return trace.arrivals(0, trace.num_updates), batches_of(trace, seed=cell)


def test_seeds_with_traces_of_their_own_and_step_sizes_are_one_program():
    traced = []

    @jax.jit
    def alone(rate, key, inputs):
        traced.append(rate)
        replay = of_rate(rate)
        return jax.lax.scan(replay.step, replay.init(PARAMS, key), inputs)

    def init(rate, key):
        return of_rate(rate).init(PARAMS, key)

    def step(state, inputs, rate):
        return of_rate(rate).step(state, inputs)

    rates, keys = jnp.array(RATES), jnp.stack(KEYS)
    axes = dj.ring.vmap_axes(jax.eval_shape(init, RATES[0], KEYS[0]))
    steps = jax.vmap(step, (axes, 0, 0), (axes, 0))

    @jax.jit
    def grid(inputs):
        state = jax.vmap(init, out_axes=axes)(rates, keys)
        return jax.lax.scan(lambda s, x: steps(s, x, rates), state, inputs)

    inputs = jax.tree.map(
        lambda *leaves: np.stack(leaves, 1), *map(cell_inputs, range(3))
    )
    program = compile_as_usual(grid.lower(inputs))
    # each seed writes to its own slot, and none copies its versions
    capacity = max(trace.max_versions for trace in SEEDS)
    assert not re.search(rf"f32\[3,{capacity},3,2\]\S* copy\(", program.as_text())
    state, reports = program(inputs)
    assert state.versions.pushed.shape == ()
    for cell in range(3):
        own_state, own_reports = alone(RATES[cell], KEYS[cell], cell_inputs(cell))
        assert_close(pick(state.params, cell), own_state.params)
        assert_close(pick(state.opt_state, cell), own_state.opt_state)
        assert_close(jax.tree.map(lambda x, c=cell: x[:, c], reports), own_reports)
    assert len(traced) == 1
    server = Server(optax.sgd(RATES[cell]), each=ADAPTIVE)
    path, _, _ = server.train(SEEDS[cell], cell_inputs(cell)[1], KEYS[cell])
    assert_close(own_state.params, pick(path, -1))


def test_double_precision_is_kept():
    trace = TRACES["ragged"]
    with jax.enable_x64(True):
        replay = dj.replay(trace, bowl, **REFUSING)
        start = jnp.array([1.0, -2.0])
        batches = batches_of(trace)["target"].astype(np.float64)
        after, report = shapes_after(replay, trace, batches, start)
        assert types(after) == types(jax.eval_shape(replay.init, start, KEY))
        assert after.params.dtype == jnp.float64
        assert (report.staleness.dtype, report.gradients.dtype) == ("float32", "int32")


def test_weakly_typed_parameters_become_strong_at_once():
    trace, start = TRACES["ragged"], {"x": jnp.asarray(1.0)}
    assert start["x"].weak_type
    replay = dj.replay(trace, itself, **FULL)
    after, _ = shapes_after(replay, trace, np.zeros(trace.staleness.shape), start)
    assert types(after) == types(replay.init(start, KEY))


def test_gradients_that_need_no_data_have_batches_without_leaves():
    trace, start = TRACES["deep"], jnp.array([1.0, -2.0])
    replay = dj.replay(trace, itself, SGD)
    inputs = trace.arrivals(0, trace.num_updates), ()
    state, _ = jax.lax.scan(replay.step, replay.init(start, KEY), inputs)
    path, _, _ = follower(replay)(trace, np.zeros(trace.staleness.shape), params=start)
    assert_close(state.params, path[-1])
    with pytest.raises(ValueError, match=r"`batches`"):
        replay.run(replay.init(start, fresh_key()), ())


def test_parameters_without_leaves_are_fine():
    trace = TRACES["ragged"]
    replay = dj.replay(trace, itself, MOMENTUM, each=ADAPTIVE)
    state, _ = replay.run(replay.init({}, fresh_key()), batches_of(trace))
    assert state.params == {}
    assert state.versions.pushed == trace.num_updates
