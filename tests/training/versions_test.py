"""Which versions are kept, and reads that are torn between them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.support.cases import shortened
from tests.training.traces import (
    ADAM,
    KEY,
    PARAMS,
    SGD,
    TORN_UPDATES,
    TRACES,
    assert_close,
    assert_same,
    batches_of,
    bowl,
    counting,
    draw,
    follower,
    grad_fn,
    itself,
    late_rows,
    pick,
    reading,
    rows_apart,
    trace_of,
)


def kept_by(replay):
    shapes = jax.eval_shape(replay.init, PARAMS, KEY)
    (capacity,) = {x.shape[0] for x in jax.tree.leaves(shapes.versions.slots)}
    return capacity


def test_a_state_keeps_as_many_versions_as_the_trace_that_needs_most():
    few, many = trace_of(draw(1, [2] * 6, 1)), trace_of(draw(2, [2] * 6, 5))
    assert 1 < few.max_versions < many.max_versions
    for traces in (many, [few, many], (many, few)):
        assert kept_by(dj.replay(traces, grad_fn, SGD)) == many.max_versions
    for more in (0, 3):
        stated = dj.replay(few, grad_fn, SGD, max_versions=few.max_versions + more)
        assert kept_by(stated) == few.max_versions + more


def test_reads_that_are_spread_need_the_last_versions_all():
    heavy = trace_of([[(0, 0)] if t == 7 else [(1, t)] for t in range(8)])
    assert heavy.max_versions == 2
    assert kept_by(dj.replay(heavy, grad_fn, SGD)) == 2
    assert kept_by(dj.replay(heavy, grad_fn, SGD, read_spread=0.5)) == 7 + 1


@functools.cache
def torn(spread, width):
    """(tau, params, seed) -> the version at which each coordinate was read."""
    deepest = trace_of(late_rows(8, TORN_UPDATES, width))
    follow = follower(dj.replay(deepest, reading, counting(), read_spread=spread))

    def versions(tau, params, seed=0):
        trace = trace_of(late_rows(tau, TORN_UPDATES, width))
        key = jax.random.key(seed)
        _, reports, _ = follow(trace, rows_apart(trace), key, params)
        return jax.tree.map(lambda x: np.asarray(x) * width, reports.metrics["read"])

    return versions


@pytest.mark.parametrize("tau", [1, 3, 8])
@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_a_torn_read_takes_each_coordinate_from_the_last_versions(spread, tau):
    size = 2000
    read = torn(spread, 1)(tau, jnp.zeros(size))[:, 0]
    for t in range(TORN_UPDATES):
        span = int(spread * min(t, tau))
        versions, counts = np.unique(read[t], return_counts=True)
        np.testing.assert_array_equal(versions, max(0, t - tau) + np.arange(span + 1))
        # uniform: six standard deviations of a binomial count
        share = size / (span + 1)
        np.testing.assert_allclose(counts, share, atol=6 * share**0.5)


def test_each_torn_read_is_torn_in_another_way():
    params = {"a": jnp.zeros(300), "b": jnp.zeros(300)}
    read, again = (torn(1.0, 2)(8, params, seed) for seed in (0, 1))
    newest, before = 11, 10  # updates, both at the full staleness of 8
    ages = [
        newest - read["a"][newest, 0],
        newest - read["a"][newest, 1],  # another gradient
        newest - read["b"][newest, 0],  # another leaf
        before - read["a"][before, 0],  # another update
        newest - again["a"][newest, 0],  # another key
    ]
    for i, one in enumerate(ages):
        for other in ages[:i]:
            # of 9 equally likely ages a ninth agrees by chance
            assert np.mean(one == other) < 1 / 9 + 6 * (1 / 9 / 300) ** 0.5


def test_a_spread_below_one_version_is_no_spread():
    trace = TRACES["ragged"]
    batches = batches_of(trace)["target"]
    plain, spread = (
        follower(dj.replay(trace, bowl, ADAM, read_spread=share))(
            trace, batches, params=jnp.array([1.0, -2.0])
        )
        for share in (0.0, 0.9 / trace.max_staleness)
    )
    assert_close(plain[0], spread[0])


def test_a_spread_may_be_any_number():
    params = jnp.zeros(2000)
    trace = trace_of(late_rows(8, TORN_UPDATES))
    spread = jnp.float32(0.5)  # not a Python float
    follow = follower(dj.replay(trace, reading, counting(), read_spread=spread))
    _, reports, _ = follow(trace, rows_apart(trace), jax.random.key(0), params)
    assert_same(reports.metrics["read"], torn(0.5, 1)(8, params))


def sparse(params, batch, key):
    """A term of sum x^2 / 2 that touches a few coordinates."""
    return {}, jnp.zeros_like(params).at[batch].set(params[batch])


SPARSE_UPDATES, COORDINATES = 3000, 1500


@functools.cache
def least_squares(tau, spread):
    trace = trace_of(late_rows(tau, SPARSE_UPDATES))
    replay = dj.replay(trace, sparse, optax.sgd(0.5), read_spread=spread)
    return trace, follower(replay)


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
def test_hogwild_on_sparse_terms_lies_on_the_serial_curve(seed):
    """Papers D.1: a term touches 3 of 1500 coordinates, tau = 9."""
    rng = np.random.default_rng(seed)
    start = jnp.asarray(rng.normal(size=COORDINATES), jnp.float32)
    touched = rng.integers(COORDINATES, size=(SPARSE_UPDATES, 1, 3))

    def log_error(tau, spread):
        trace, follow = least_squares(tau, spread)
        path, _, _ = follow(trace, touched, params=start)
        return np.log(np.linalg.norm(np.asarray(path, np.float64), axis=1))

    serial, hogwild = log_error(0, 0.0), log_error(9, 1.0)
    assert serial[-1] < serial[0] - 2
    # within 9 updates a coordinate is touched twice with probability 9 * 3 / 1500
    np.testing.assert_allclose(
        hogwild - hogwild[0], serial - serial[0], rtol=0.03, atol=0.03
    )


def test_hogwild_on_dense_terms_does_not():
    def last(tau, spread):
        trace = trace_of(late_rows(tau, 150))
        replay = dj.replay(trace, itself, optax.sgd(0.75), read_spread=spread)
        batches = np.zeros((150, 1), np.float32)
        path, _, _ = follower(replay)(trace, batches, params=jnp.ones(20))
        return np.abs(path[-1]).max()

    assert last(0, 0.0) < 1e-9 < 100 < last(9, 1.0)


def test_rows_that_ask_for_what_was_never_kept_report_nan():
    trace, other = trace_of(late_rows(2, 8)), trace_of(late_rows(5, 8))

    def logged(params, batch, key):
        return {"loss": params**2}, params

    replay = dj.replay(trace, logged, SGD)
    step = jax.jit(replay.step)

    def reported(rows, updates):
        state = replay.init(jnp.ones(()), KEY)
        for row in range(updates):
            state, _ = step(state, (pick(trace.arrivals(0, updates), row), np.ones(1)))
        report = step(state, (pick(rows, 0), np.ones(1)))[1]
        return [float(report.staleness), float(report.metrics["loss"])]

    ages = reported(trace.arrivals(3, 4), 3)
    assert ages[0] == 2
    assert np.isfinite(ages).all()
    assert np.isnan(reported(other.arrivals(6, 7), 6)).all()  # of another trace
    assert np.isnan(reported(trace.arrivals(3, 4), 1)).all()  # of another time


def test_a_deeper_history_reports_nan_until_it_holds_what_is_read():
    deep, shallow = trace_of(late_rows(4, 12)), trace_of(late_rows(2, 12))
    key = jax.random.key(0)
    # less than one version of spread: of the last versions all
    replay = dj.replay(shallow, itself, SGD, read_spread=0.1)
    state, _ = replay.run(replay.init(jnp.ones(()), key), np.ones((5, 1)))
    replay = dj.replay(deep, itself, SGD, read_spread=0.1)
    state = dj.resize_history(state, replay.init(jnp.ones(()), key))
    _, reports = replay.run(state, np.ones((7, 1)))
    # versions 2, 3 and 4 were kept, and update 5 reads version 1
    np.testing.assert_array_equal(reports.staleness, [np.nan] + [4.0] * 6)
