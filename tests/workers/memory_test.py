"""Shared state exists once, is donated and never copied; types do not change."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from tests.exchange.driving import shared_buffers
from tests.support.cases import shortened
from tests.support.compiled import compile_as_usual
from tests.workers.driving import (
    BOTH,
    INPUTS,
    MOMENTUM,
    PER_WORKER,
    WORKERS,
    both,
    logistic,
    mesh_of,
    step_of,
)
from tests.workers.twins_test import BATCHES, START

WIDE = {"w": jnp.zeros((100, 200)), "b": jnp.zeros(200)}
N = 4 * (100 * 200 + 200)  # bytes of a gradient


def nbytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def wide_loss(params, data):
    return jnp.mean(jnp.tanh(data @ params["w"] + params["b"][None]) ** 2)


# name: (depth -> transformation, bytes of its state beside clocks)
HELD = {
    "late": (
        lambda d: dj.delayed(dj.exchange.mean(MOMENTUM), d),
        lambda d: N + WORKERS * (d + 1) * N,
    ),
    "late and overlapped": (
        lambda d: dj.delayed(dj.exchange.overlapped_mean(MOMENTUM), d),
        lambda d: N + WORKERS * (d + 2) * N,
    ),
    "a delay a worker": (
        lambda d: dj.delayed(
            optax.chain(dj.compensate_delay(0.1), dj.exchange.mean(MOMENTUM)),
            dj.delays.per_worker(np.arange(WORKERS)),
            max_delay=d,
            keep_params=True,
        ),
        lambda d: N + (WORKERS + 1) * (d + 1) * N,
    ),
    "a history behind the mean": (
        lambda d: dj.exchange.mean(dj.delayed(MOMENTUM, d)),
        lambda d: N + (d + 1) * N,
    ),
}


def wide_split(tx):
    data = jax.ShapeDtypeStruct((WORKERS, 2, 100), jnp.float32)
    workers = BOTH["simulate"](step_of(tx, wide_loss))
    return workers, workers.init((WIDE, tx.init(WIDE)), data), data


@pytest.mark.parametrize("name", HELD)
def test_workers_hold_the_parameters_and_the_optimizer_once(name):
    make_tx, size = HELD[name]
    for depth in (3, 9):
        _, split, _ = wide_split(make_tx(depth))
        clocks = 2 * 4 * (depth + 1) + 64  # ages and losses in the history, and scalars
        assert 0 < nbytes(split) - (N + size(depth)) <= clocks


@pytest.mark.parametrize(
    "name", shortened(HELD, "late and overlapped", "a delay a worker")
)
def test_a_donated_step_copies_no_history(name):
    # simulated: on CPU devices, XLA copies a history that differs between workers
    workers, split, data = wide_split(HELD[name][0](64))
    step = jax.jit(workers.step, donate_argnums=0)
    program = compile_as_usual(step.lower(split, data))
    memory, text = program.memory_analysis(), program.as_text()
    # the gradients, sums and reads; a ring would be 65 N
    assert memory.temp_size_in_bytes <= 12 * N
    assert not re.search(r"f32\[[\d,]*65,100,200\]\S* (copy|select)\(", text)
    # if each worker had its own clock, the write would be a scatter
    assert " scatter(" not in text
    # all donated buffers are reused, except for scalars that are not read
    assert memory.alias_size_in_bytes >= nbytes(split) - 64


@both
def test_the_first_step_is_traced_once_and_no_other_at_all(make):
    """`init` has already found the axes of the state that a step returns."""
    traces = []
    tx = dj.exchange.overlapped_mean(MOMENTUM)
    inner = step_of(tx, logistic)

    def step(state, batch):
        traces.append(batch)
        return inner(state, batch)

    workers = make(step)
    split = workers.init((START, tx.init(START)), BATCHES[0])
    program, begun = jax.jit(workers.step), len(traces)
    split, _ = program(split, BATCHES[0])
    traced = len(traces)
    assert traced == begun + 1
    for batch in BATCHES[1:]:
        split, _ = program(split, batch)
    workers.init((START, tx.init(START)), BATCHES[1])
    assert len(traces) == traced


@both
def test_init_and_one_worker_s_state_share_no_buffer_with_anybody(make):
    """The arguments, the split and the copy may all be donated."""
    tx = dj.exchange.overlapped_mean(MOMENTUM)
    state = START, tx.init(START)
    if make is BOTH["run"]:  # here a `device_put` would change nothing
        state = jax.device_put(state, NamedSharding(mesh_of(WORKERS), P()))
    before = jax.tree.map(np.array, state)
    split = make(step_of(tx, logistic)).init(state, BATCHES[0])
    assert shared_buffers(state, split, split.one()) == []
    jax.tree.map(np.testing.assert_array_equal, state, before)


@pytest.mark.parametrize(
    ("execution", "change"),
    shortened(
        [(e, change) for change in ("shallower", "stripped") for e in BOTH],
        *(("run", "shallower"), ("simulate", "stripped")),
    ),
)
def test_a_split_with_another_history_may_be_donated(execution, change):
    """On devices it crashed, if two of its leaves were one buffer."""
    make, stripped = BOTH[execution], change == "stripped"
    depth = 3 if stripped else 1

    def workers_of(depth):
        tx = dj.delayed(dj.exchange.overlapped_mean(MOMENTUM, keep_params=True), depth)
        workers = make(step_of(tx, logistic))
        return workers, workers.init((START, tx.init(START)), BATCHES[0])

    _, split = workers_of(2)
    split = dj.strip_history(split) if stripped else split
    after, like = workers_of(depth)
    split = dj.resize_history(split, like)
    assert shared_buffers(split) == []
    step = jax.jit(after.step, donate_argnums=0)
    for batch in BATCHES:
        split, metrics = step(split, batch)
    assert np.isfinite(metrics["loss"])


def test_every_leaf_keeps_its_type():
    tx = dj.delayed(
        dj.exchange.overlapped_mean(
            optax.chain(MOMENTUM, dj.scale_by_staleness(dj.modulation.inverse)),
            weight=lambda tau: 1 / (1 + tau.astype(jnp.float32)),  # strongly typed
        ),
        PER_WORKER,
        max_delay=3,
    )
    params = {"w": jnp.ones(INPUTS, jnp.bfloat16), "b": jnp.zeros(())}
    workers = BOTH["run"](step_of(tx, logistic))
    split = workers.init((params, tx.init(params)), BATCHES[0])
    after = jax.jit(workers.step)(split, BATCHES[0])[0]

    def types(split):
        return jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), split)

    assert (after.axes, types(after)) == (split.axes, types(split))
    kinds = {leaf.dtype for leaf in jax.tree.leaves(after.state[0])}
    assert kinds == {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}


@both
def test_metrics_that_differ_between_workers_have_an_axis_of_them(make):
    def step(x, batch):
        mean = jax.lax.pmean(batch, "workers")
        return x, {"own": batch, "mean": mean, "rate": 0.5, "steps": 3, "none": None}

    workers = make(step)
    batch = jnp.arange(4.0)
    split = workers.init(jnp.zeros(()), batch)
    metrics = jax.jit(workers.step)(split, batch)[1]
    assert jax.tree.map(jnp.shape, metrics) == {
        **{"own": (4,), "mean": (), "rate": (), "steps": (), "none": None}
    }
    np.testing.assert_array_equal(metrics["own"], batch)
    assert (metrics["mean"], metrics["rate"], metrics["steps"]) == (1.5, 0.5, 3)
