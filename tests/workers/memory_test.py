"""What is shared is held once, donated and never copied; types stay."""

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
    ADAM,
    BOTH,
    INPUTS,
    PER_WORKER,
    WORKERS,
    both,
    logistic,
    mesh_of,
    step_of,
)
from tests.workers.twins_test import BATCHES, START

# What is held


WIDE = {"w": jnp.zeros((100, 200)), "b": jnp.zeros(200)}
N = 4 * (100 * 200 + 200)  # bytes of a gradient


def nbytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def wide_loss(params, data):
    return jnp.mean(jnp.tanh(data @ params["w"] + params["b"][None]) ** 2)


# name: (depth -> transformation, bytes of its state beside clocks)
HELD = {
    "late": (
        lambda d: dj.delayed(dj.exchange.mean(ADAM), d),
        lambda d: 2 * N + WORKERS * (d + 1) * N,
    ),
    "late and overlapped": (
        lambda d: dj.delayed(dj.exchange.overlapped_mean(ADAM), d),
        lambda d: 2 * N + WORKERS * (d + 2) * N,
    ),
    "a delay a worker": (
        lambda d: dj.delayed(
            optax.chain(dj.compensate_delay(0.1), dj.exchange.mean(ADAM)),
            dj.delays.per_worker(np.arange(WORKERS)),
            max_delay=d,
            keep_params=True,
        ),
        lambda d: 2 * N + (WORKERS + 1) * (d + 1) * N,
    ),
    "a history behind the mean": (
        lambda d: dj.exchange.mean(dj.delayed(ADAM, d)),
        lambda d: 2 * N + (d + 1) * N,
    ),
}


def wide_step(tx):
    return step_of(tx, wide_loss)


def wide_split(make, tx):
    data = jax.ShapeDtypeStruct((WORKERS, 2, 100), jnp.float32)
    workers = make(wide_step(tx))
    return workers, workers.init((WIDE, tx.init(WIDE)), data), data


@pytest.mark.parametrize("depth", [3, 9])
@pytest.mark.parametrize("name", HELD)
def test_workers_hold_the_parameters_and_the_optimizer_once(name, depth):
    make_tx, size = HELD[name]
    split = wide_split(BOTH["simulate"], make_tx(depth))[1]
    clocks = 2 * 4 * (depth + 1) + 64  # ages and losses in the history, and scalars
    assert 0 < nbytes(split) - (N + size(depth)) <= clocks


@pytest.mark.parametrize(
    "name", shortened(HELD, "late and overlapped", "a delay a worker")
)
def test_a_donated_step_copies_no_history(name):
    # simulated: on CPU devices XLA copies a history that is a worker's own
    workers, split, data = wide_split(BOTH["simulate"], HELD[name][0](64))
    step = jax.jit(workers.step, donate_argnums=0)
    program = compile_as_usual(step.lower(split, data))
    memory, text = program.memory_analysis(), program.as_text()
    # the gradients, sums and what is read; a ring would be 65 N
    assert memory.temp_size_in_bytes <= 12 * N
    assert not re.search(r"f32\[[\d,]*65,100,200\]\S* (copy|select)\(", text)
    # a clock of each worker's own would make a scatter of the write
    assert " scatter(" not in text
    # all that is donated is written over, but for scalars that are not read
    assert memory.alias_size_in_bytes >= nbytes(split) - 64


@both
def test_no_step_after_the_first_is_traced(make):
    traces = []
    tx = dj.delayed(dj.exchange.overlapped_mean(ADAM), 2)
    inner = step_of(tx, logistic)

    def step(state, batch):
        traces.append(batch)
        return inner(state, batch)

    workers = make(step)
    split = workers.init((START, tx.init(START)), BATCHES[0])
    taken = jax.jit(workers.step)
    split, _ = taken(split, BATCHES[0])
    traced = len(traces)
    for batch in BATCHES[1:]:
        split, _ = taken(split, batch)
    workers.init((START, tx.init(START)), BATCHES[1])
    assert len(traces) == traced


@both
def test_init_neither_donates_nor_aliases_what_it_was_given(make):
    tx = dj.exchange.mean(ADAM)
    state = START, tx.init(START)
    if make is BOTH["run"]:  # where a `device_put` would have nothing to do
        state = jax.device_put(state, NamedSharding(mesh_of(WORKERS), P()))
    workers = make(step_of(tx, logistic))
    before = jax.tree.map(np.array, state)
    split = workers.init(state, BATCHES[0])
    jax.jit(workers.step, donate_argnums=0)(split, BATCHES[0])
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    jax.tree.map(np.testing.assert_array_equal, state, before)


@both
def test_one_worker_s_state_is_a_copy(make):
    """The split goes on to be donated, and so may the copy."""
    tx = dj.exchange.overlapped_mean(ADAM)
    state = START, tx.init(START)
    workers = make(step_of(tx, logistic))
    split = workers.init(state, BATCHES[0])
    one = split.one()
    assert shared_buffers(state, split, one) == []


@pytest.mark.parametrize(
    ("execution", "change"),
    shortened(
        [(e, change) for change in ("shallower", "stripped") for e in BOTH],
        *(("run", "shallower"), ("simulate", "stripped")),
    ),
)
def test_a_split_with_another_history_may_be_donated(execution, change):
    """It was a crash on devices where two of its leaves were one buffer."""
    make, stripped = BOTH[execution], change == "stripped"
    depth = 3 if stripped else 1

    def workers_of(depth):
        tx = dj.delayed(dj.exchange.overlapped_mean(ADAM, keep_params=True), depth)
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


@pytest.mark.parametrize("execution", shortened(BOTH, "run"))
def test_every_leaf_keeps_its_type(execution):
    make = BOTH[execution]
    tx = dj.delayed(
        dj.exchange.overlapped_mean(
            optax.chain(ADAM, dj.scale_by_staleness(dj.modulation.inverse)),
            weight=lambda tau: 1 / (1 + tau.astype(jnp.float32)),  # strongly typed
        ),
        PER_WORKER,
        max_delay=3,
    )
    params = {"w": jnp.ones(INPUTS, jnp.bfloat16), "b": jnp.zeros(())}
    workers = make(step_of(tx, logistic))
    split = workers.init((params, tx.init(params)), BATCHES[0])

    def types(split):
        return jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), split)

    step = jax.jit(workers.step)
    after = step(split, BATCHES[0])[0]
    assert after.axes == split.axes
    assert types(step(after, BATCHES[1])[0]) == types(after)
    kinds = {leaf.dtype for leaf in jax.tree.leaves(after.state[0])}
    assert kinds == {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}
    if make is BOTH["run"]:
        assert types(after) == types(split)


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
