"""The places of leaves on a mesh, and the state of one worker."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax.workers import WorkerState
from tests.workers.driving import (
    BOTH,
    COMPOSITIONS,
    INPUTS,
    MOMENTUM,
    WORKERS,
    assert_close,
    logistic,
    mesh_of,
    scanned,
    step_of,
)
from tests.workers.twins_test import BATCHES, START


def test_a_split_goes_on_under_the_other_execution():
    """A checkpoint is the same for both executions: steps of both can alternate."""
    tx = COMPOSITIONS["a delay a worker, overlapped"].tx
    step, state = step_of(tx, logistic), (START, tx.init(START))
    simulated, on_devices = (make(step) for make in BOTH.values())
    unmixed = mixed = simulated.init(state, BATCHES[0])
    steps = [jax.jit(simulated.step), jax.jit(on_devices.step)]
    for t, batch in enumerate(BATCHES):
        unmixed, _ = steps[0](unmixed, batch)
        mixed, _ = steps[t % 2](mixed, batch)
    assert unmixed.axes == mixed.axes
    assert_close(unmixed.state, mixed.state)


def test_run_places_what_is_shared_on_all_devices_and_what_is_own_on_one():
    tx = dj.delayed(dj.exchange.mean(MOMENTUM), 2)
    workers = BOTH["run"](step_of(tx, logistic))
    split = workers.init((START, tx.init(START)), BATCHES[0])
    mesh = mesh_of(WORKERS)
    for leaf, axes in zip(jax.tree.leaves(split.state), split.axes, strict=True):
        assert leaf.sharding == NamedSharding(mesh, P(*axes))
    assert split.state[1].gradients.slots["w"].addressable_shards[0].data.shape == (
        *(1, 3, INPUTS),
    )


def test_more_workers_than_devices_run_under_jit():
    tx = dj.exchange.overlapped_mean(MOMENTUM)
    data = BATCHES.reshape(3, 8, 3, -1)
    workers = dj.workers.simulate(step_of(tx, logistic), 8)
    start = workers.init((START, tx.init(START)), data[0])
    expected = scanned(workers, jax.tree.map(jnp.copy, start), data)[0]

    mesh = mesh_of(WORKERS)
    places = start.shardings(mesh)
    split = jax.device_put(start, places)
    batches = jax.device_put(data, NamedSharding(mesh, P(None, "workers")))
    split = scanned(workers, split, batches)[0]
    assert_close(split.state, expected.state)
    outbox = split.state[1].outbox["w"]
    assert outbox.sharding.is_equivalent_to(places.state[1].outbox["w"], 2)
    assert outbox.addressable_shards[0].data.shape == (2, INPUTS)


def test_one_is_the_state_of_one_worker():
    split = WorkerState(
        (jnp.asarray(5), jnp.arange(6).reshape(2, 3), jnp.arange(3)),
        ((), ("groups", "members"), ("members",)),
    )
    picked = split.one(worker={"groups": 1, "members": 2})
    assert picked == (5, 5, 2)
    first = split.one()
    assert first == (5, 0, 0)
    state = WorkerState(jnp.arange(4), (("workers",),))
    for index in (2, np.int64(2), jnp.int32(2)):
        assert state.one(worker=index) == 2
    for beyond in (4, -1):
        with pytest.raises(ValueError, match=rf"must lie in 0 .. 3.*got {beyond}"):
            state.one(worker=beyond)
