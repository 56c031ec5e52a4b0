"""Each gradient is used once, at its version, with the arguments that belong to it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.training.traces import (
    KEY,
    ONE,
    RUNS,
    SGD,
    TORN_UPDATES,
    TRACES,
    bowl,
    counting,
    follower,
    fresh_key,
    itself,
    late_rows,
    reading,
    rows_apart,
    rows_of,
    runs,
    trace_of,
)

SIZE = 96  # at least the number of gradients in each trace


def log():
    """A transformation that records the arguments of each gradient, in order."""

    def init(params):
        rows = {"staleness": jnp.int32, "worker": jnp.int32, "moved": jnp.float32}
        return jnp.int32(0), {name: jnp.zeros(SIZE, d) for name, d in rows.items()}

    def update(updates, state, params, *, staleness, stale_params, worker):
        place, rows = state
        assert staleness.dtype == worker.dtype == jnp.int32
        values = {
            "staleness": staleness,
            "worker": worker,
            "moved": jnp.float32(params["version"] - stale_params["version"]),
        }
        rows = {name: rows[name].at[place].set(values[name]) for name in rows}
        return updates, (place + 1, rows)

    return optax.GradientTransformationExtraArgs(init, update)


def signed(params, batch, key):
    """A one at the place of the gradient's id; and the parameters that it read."""
    versions = {name: params[name] for name in ("version", "narrow")}
    metrics, zeros = reading(versions, batch["row"], key)
    return metrics, {**zeros, "ids": jax.nn.one_hot(batch["id"], SIZE)}


@functools.cache
def witness(run):
    """A trace, and a run along it: path, reports and the last state."""
    name, company, chunk = RUNS[run]
    trace = unit_divisor(TRACES[name])
    ids = np.full(trace.staleness.shape, SIZE - 1)  # of padding: it must not be used
    ids[trace.staleness >= 0] = np.arange(len(trace.update))
    params = {
        "ids": jnp.zeros(SIZE),
        "version": jnp.zeros(()),
        "narrow": jnp.zeros(2, jnp.bfloat16),
    }
    batches = {"id": ids, "row": rows_apart(trace)}
    return trace, *witnesses(company, chunk)(trace, batches, params=params)


@functools.cache
def witnesses(company, chunk):
    traces = [unit_divisor(TRACES[name]) for name in company]
    alone = all(trace.max_gradients == 1 for trace in traces)
    tx = optax.chain(log(), counting()) if alone else counting()
    return follower(dj.replay(traces, signed, tx, each=log(), chunk=chunk))


def moves_of(trace):
    """For each version, how many updates before it have a gradient."""
    return np.cumsum([0, *(trace.counts > 0)])


def unit_divisor(trace):
    return trace_of(rows_of(trace), divisor=np.ones(trace.num_updates))


@runs
def test_each_gradient_is_used_exactly_once(run):
    trace, path, _, _ = witness(run)
    for t, counts in enumerate(path["ids"]):
        used = np.flatnonzero(trace.update <= t)
        np.testing.assert_array_equal(counts, np.isin(np.arange(SIZE), used))


@runs
def test_each_gradient_is_taken_at_its_own_version(run):
    trace, _, reports, _ = witness(run)
    read, moves = reports.metrics["read"], moves_of(trace)
    for t, row in enumerate(rows_of(trace)):
        # the mean over the gradients of an update, each of which has its own place
        expected = np.zeros(trace.staleness.shape[1])
        expected[: len(row)] = [moves[version] / len(row) for _, version in row]
        if row:
            np.testing.assert_allclose(read["version"][t], expected, rtol=1e-6)
            narrow = read["narrow"][t, :, 1].astype(np.float32)
            np.testing.assert_allclose(narrow, expected, rtol=2**-6)


@runs
def test_each_is_told_the_age_the_worker_and_the_snapshot_in_order(run):
    trace, _, _, state = witness(run)
    assert_logged(state.each_state, trace)


@pytest.mark.parametrize("run", [*ONE, "serial, alone"])
def test_of_one_gradient_an_update_the_optimizer_is_told_the_same(run):
    trace, _, _, state = witness(run)
    assert_logged(state.opt_state[0], trace)


def assert_logged(log_state, trace):
    place, rows = log_state
    staleness = trace.update - trace.read_version
    assert place == len(staleness)
    np.testing.assert_array_equal(rows["staleness"][:place], staleness)
    np.testing.assert_array_equal(rows["worker"][:place], trace.worker)
    moves = moves_of(trace)  # the parameters count them
    moved = moves[trace.update] - moves[trace.read_version]
    np.testing.assert_array_equal(rows["moved"][:place], moved)


def test_a_narrow_trace_among_wider_ones_is_padded():
    narrow, wide = TRACES["one by one"], TRACES["four"]
    targets = np.random.default_rng(0).normal(size=(narrow.num_updates, 1, 2))
    padded = np.concatenate([targets, np.full_like(targets, np.nan)], axis=1)
    padded = padded[:, [0, 1, 1, 1]].astype(np.float32)
    start = jnp.array([1.0, -2.0])
    replay = dj.replay([narrow, wide], bowl, SGD)
    inputs = narrow.arrivals(0, narrow.num_updates, width=4), padded
    state, _ = jax.lax.scan(replay.step, replay.init(start, KEY), inputs)
    alone = follower(dj.replay(narrow, bowl, SGD))
    path, _, _ = alone(narrow, targets.astype(np.float32), params=start)
    np.testing.assert_allclose(state.params, path[-1], rtol=1e-6)


@pytest.mark.parametrize("chunk", [None, 1, 50])
def test_a_mean_in_bfloat16_adds_up_in_more_bits(chunk):
    """A sum of ones in bfloat16 would stop at 256, below 600."""
    trace = trace_of([[(w, 0) for w in range(600)]])

    def one(params, batch, key):
        return {"one": params + 1}, params + 1

    replay = dj.replay(trace, one, optax.sgd(-1.0), chunk=chunk)
    state = replay.init(jnp.zeros((), jnp.bfloat16), fresh_key())
    state, reports = replay.run(state, np.zeros((1, 600)))
    assert (state.params, state.params.dtype) == (1, jnp.bfloat16)
    assert reports.metrics["one"] == 1


def test_what_was_read_is_the_snapshot_that_is_handed_on():
    def compare(updates, state, params, *, stale_params, **extra):
        return updates, state + jnp.abs(updates - stale_params)

    def move(updates, state, params=None, **extra):
        return jnp.ones_like(updates), compare(updates, state, params, **extra)[1]

    each = optax.GradientTransformationExtraArgs(jnp.zeros_like, compare)
    tx = optax.GradientTransformationExtraArgs(jnp.zeros_like, move)
    trace = trace_of(late_rows(6, TORN_UPDATES))
    # the gradient is the parameters that were read
    replay = dj.replay(trace, itself, tx, each=each, read_spread=1.0)
    batches = np.zeros((TORN_UPDATES, 1))
    path, _, state = follower(replay)(trace, batches, params=jnp.zeros(50))
    np.testing.assert_array_equal(path[-1], np.full(50, TORN_UPDATES))
    np.testing.assert_array_equal(state.each_state, np.zeros(50))
    np.testing.assert_array_equal(state.opt_state, np.zeros(50))
