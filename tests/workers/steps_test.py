"""Losses, trees, values and grids in steps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.exchange import oracle
from tests.workers.driving import (
    ADAM,
    BOTH,
    GROUPS,
    MOMENTUM,
    RATE,
    WORKERS,
    assert_close,
    both,
    logistic,
    mesh_of,
    normal,
    scanned,
    step_of,
)
from tests.workers.twins_test import BATCHES, START, alone


def both_ways(step, state, batches, shared=None):
    """The split after all steps; simulated and run, with equal axes and values."""
    ends = []
    for make in BOTH.values():
        workers = make(step)
        split = workers.init(state, jax.tree.map(lambda x: x[0], batches), shared)
        ends.append(scanned(workers, split, batches)[0])
    assert ends[0].axes == ends[1].axes
    assert_close(ends[0].state, ends[1].state)
    return ends[0]


@jax.custom_vjp
def by_hand(params, data):
    return logistic(params, data)


by_hand.defvjp(
    lambda params, data: (logistic(params, data), (params, data)),
    lambda kept, g: (
        jax.tree.map(lambda leaf: g * leaf, jax.grad(logistic)(*kept)),
        jnp.zeros_like(kept[1]),
    ),
)


def row_by_row(params, data):
    def body(total, row):
        return total + logistic(params, row[None]) / len(data), None

    start = dj.workers.vary(jnp.zeros(()))
    return jax.lax.scan(body, start, data)[0]


def by_a_branch(params, data):
    return jax.lax.cond(data[0, 0] > 0, logistic, jax.jit(logistic), params, data)


LOSSES = {
    "plain": logistic,
    "jit, remat, custom_vjp": jax.jit(jax.checkpoint(by_hand)),
    "scan": row_by_row,
    "cond": by_a_branch,
}


def test_a_loss_may_be_jitted_rematerialized_looped_or_branch():
    tx = dj.exchange.overlapped_mean(optax.sgd(RATE))
    steps = {name: step_of(tx, loss) for name, loss in LOSSES.items()}

    def step(states, batch):
        return {name: steps[name](states[name], batch)[0] for name in steps}, {}

    states = {name: (START, tx.init(START)) for name in steps}
    end = both_ways(step, states, BATCHES, dict.fromkeys(states, (True, False))).state
    for name in steps:
        assert_close(end[name][0], end["plain"][0])


def test_an_update_may_stand_in_a_branch_that_all_workers_take():
    tx = dj.exchange.mean(optax.sgd(RATE))

    def step(state, batch):
        x, every_second = state
        grads = dj.workers.vary(x) - batch

        def update(x):
            return x + tx.update(grads, tx.init(x))[0]

        return (jax.lax.cond(every_second, update, lambda x: x, x), ~every_second), {}

    batches = jnp.asarray(normal(1, 5, WORKERS))
    x = 0.0
    for batch in batches[1::2]:
        x -= RATE * (x - float(jnp.mean(batch)))
    end = both_ways(step, (jnp.zeros(()), jnp.asarray(False)), batches)
    np.testing.assert_allclose(end.state[0], x, rtol=1e-5)


class Node(NamedTuple):
    left: Any
    right: Any


def test_states_of_any_tree_are_split():
    tx = dj.delayed(dj.exchange.overlapped_mean(MOMENTUM), 1)
    params = Node({"empty": {}, "none": None}, [jnp.ones(()), (jnp.ones((0, 3)),)])

    def loss(params, data):
        return (params.right[0] - data) ** 2 + jnp.sum(params.right[1][0])

    inner = step_of(tx, loss)

    def step(state, batch):
        return inner(state, batch)[0], {}

    end = both_ways(step, (params, tx.init(params)), jnp.asarray(normal(1, 4, WORKERS)))
    assert jax.tree.structure(end.state[0]) == jax.tree.structure(params)


@both
def test_a_step_may_hold_nothing(make):
    workers = make(lambda state, batch: (state, jax.lax.pmean(batch, "workers")))
    for state in ((), None, {}):
        split = workers.init(state, jnp.arange(4.0))
        split, mean = workers.step(split, jnp.arange(4.0))
        assert (split.state, split.axes, mean) == (state, (), 1.5)


def test_keys_integers_and_flags_are_state_like_any_other():
    def step(state, batch):
        shared, key, raw, steps, flag = state
        shared, draw = jax.random.split(shared)
        key = jax.random.fold_in(key, jax.lax.axis_index("workers"))
        raw = jax.random.fold_in(raw, jax.lax.psum(1, "workers"))
        metrics = {"same": jax.random.normal(draw), "own": jax.random.normal(key)}
        return (shared, key, raw, steps + 1, ~flag), metrics

    state = (
        jax.random.key(0),
        jax.random.key(1),
        jax.random.PRNGKey(2),
        jnp.int8(0),
        jnp.asarray(True),
    )
    shared = (True, False, True, True, True)
    end = both_ways(step, state, jnp.zeros((3, WORKERS)), shared)
    assert end.axes == ((), ("workers",), (), (), ())
    assert (end.state[3], end.state[4]) == (3, False)
    assert end.state[1].shape == (WORKERS,)
    shared = jax.random.key(0)
    for _ in range(3):
        shared = jax.random.split(shared)[0]
    assert end.state[0] == shared


@both
def test_python_and_numpy_values_are_state(make):
    state = [0.0, 1, True, np.float32(2), np.ones(3)]
    workers = make(lambda state, batch: (state, {}))
    split = workers.init(state, jnp.zeros(WORKERS))
    split, _ = jax.jit(workers.step, donate_argnums=0)(split, jnp.zeros(WORKERS))
    for kept, value in zip(split.state, state, strict=True):
        np.testing.assert_array_equal(kept, value)
        assert kept.dtype == jnp.result_type(value)


def test_a_batch_may_be_keys_or_nothing():
    def draw(state, key):
        return state + jax.lax.pmean(jax.random.normal(key), "workers"), {}

    keys = jax.random.split(jax.random.key(0), (2, WORKERS))
    end = both_ways(draw, jnp.zeros(()), keys)
    expected = jnp.sum(jnp.mean(jax.vmap(jax.vmap(jax.random.normal))(keys), axis=1))
    np.testing.assert_allclose(end.state, expected, rtol=1e-5)

    for make in BOTH.values():
        workers = make(lambda state, batch: (state + jax.lax.psum(1, "workers"), {}))
        assert workers.step(workers.init(jnp.zeros(()), ()), ())[0].state == WORKERS


def test_one_worker_is_the_optimizer_alone():
    tx = dj.exchange.mean(ADAM)
    step, state = step_of(tx, logistic), (START, tx.init(START))
    expected = alone(oracle.adam(RATE), BATCHES[:, 0])
    for workers in (dj.workers.simulate(step, 1), dj.workers.run(step, mesh_of(1))):
        split = workers.init(state, BATCHES[0, :1])
        split, _ = scanned(workers, split, BATCHES[:, :1])
        assert_close(split.state[0], expected)


@pytest.mark.parametrize("counts", [(1, 4), (4, 1)], ids=str)
def test_an_axis_of_one_changes_nothing(counts):
    def step(x, batch):
        grads = dj.workers.vary(x, axis_name=GROUPS) - batch
        updates, _ = tx.update(grads, tx.init(x))
        return x + updates, {}

    tx = dj.exchange.mean(
        dj.exchange.mean(optax.sgd(RATE), axis_name="groups"), axis_name="members"
    )
    batches = jnp.asarray(normal(1, 5, *counts), jnp.float32)
    x = 0.0
    for batch in batches:
        x -= RATE * (x - float(jnp.mean(batch)))
    mesh = mesh_of(*counts, names=GROUPS)
    for workers in (
        dj.workers.simulate(step, counts, axis_name=GROUPS),
        dj.workers.run(step, mesh, axis_name=GROUPS),
    ):
        split = workers.init(jnp.zeros(()), batches[0])
        np.testing.assert_allclose(scanned(workers, split, batches)[0].state, x, 1e-5)


def test_a_grid_of_step_sizes_and_delays_is_one_program():
    @jax.jit
    def losses(rate, delay):
        tx = dj.delayed(dj.exchange.mean(optax.sgd(rate)), delay, max_delay=3)
        workers = dj.workers.simulate(step_of(tx, logistic), WORKERS)
        split = workers.init((START, tx.init(START)), BATCHES[0])
        return jax.lax.scan(workers.step, split, BATCHES)[1]["loss"]

    rates, delays = jnp.asarray([0.1, 0.2]), jnp.asarray([0, 3])
    result = jax.jit(jax.vmap(losses))(rates, delays)
    expected = [losses(rate, delay) for rate, delay in zip(rates, delays, strict=True)]
    np.testing.assert_allclose(result, jnp.stack(expected), rtol=1e-5)
    assert abs(result[0, -1] - result[1, -1]) > 1e-3
