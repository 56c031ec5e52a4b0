"""Where leaves lie on a mesh, and one worker's state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax.workers import WorkerState
from tests.workers.driving import (
    ADAM,
    BOTH,
    COMPOSITIONS,
    INPUTS,
    WORKERS,
    assert_close,
    both,
    logistic,
    mesh_of,
    normal,
    scanned,
    step_of,
)
from tests.workers.twins_test import BATCHES, START

# Where the arrays are


@both
def test_the_caller_may_have_set_a_mesh(make):
    tx = dj.exchange.overlapped_mean(ADAM)
    with jax.set_mesh(mesh_of(WORKERS)):
        workers = make(step_of(tx, logistic))
        split = workers.init((START, tx.init(START)), BATCHES[0])
        after, _ = jax.eval_shape(workers.step, split, BATCHES[0])
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, split)


def test_a_split_goes_on_under_the_other_execution():
    """What one checkpoints is the same: steps may alternate."""
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
    tx = dj.delayed(dj.exchange.mean(ADAM), 2)
    workers = BOTH["run"](step_of(tx, logistic))
    split = workers.init((START, tx.init(START)), BATCHES[0])
    mesh = mesh_of(WORKERS)
    for leaf, axes in zip(jax.tree.leaves(split.state), split.axes, strict=True):
        assert leaf.sharding == NamedSharding(mesh, P(*axes))
    assert split.state[1].gradients.slots["w"].addressable_shards[0].data.shape == (
        *(1, 3, INPUTS),
    )


def test_more_workers_than_devices_run_under_jit():
    tx = dj.exchange.overlapped_mean(ADAM)
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


SHARDED_PARAMS = {"w": jnp.asarray(normal(1, 8, 3)), "b": jnp.asarray(normal(2, 3))}
SHARDED = {
    "overlapped": dj.exchange.overlapped_mean(ADAM),
    "late": dj.delayed(
        optax.chain(dj.compensate_delay(0.1), dj.exchange.mean(ADAM)),
        2,
        keep_params=True,
    ),
}


@pytest.mark.parametrize("name", SHARDED)
def test_histories_are_sharded_like_sharded_parameters(name):
    tx = SHARDED[name]
    step = step_of(
        tx, lambda p, data: jnp.mean((data @ p["w"] + p["b"][None]) ** 2), "workers"
    )
    mesh = mesh_of(2, 2, names=("workers", "fsdp"))
    places = {"w": P("fsdp"), "b": P()}
    params = jax.device_put(
        SHARDED_PARAMS, jax.tree.map(lambda p: NamedSharding(mesh, p), places)
    )
    data = jnp.asarray(normal(3, 5, 2, 4, 8), jnp.float32)
    workers = dj.workers.run(step, mesh)
    split = workers.init((params, tx.init(params)), data[0])
    specs = jax.tree.map(lambda x: x.sharding.spec, split.state)
    program = jax.jit(workers.step, donate_argnums=0)
    for batch in data:
        split, _ = program(split, batch)
    after = jax.tree.map(lambda x: x.sharding.spec, split.state)
    assert after == specs
    sharded = [spec for spec in jax.tree.leaves(after) if "fsdp" in spec]
    # w, its two moments, and the outbox; or the history and the snapshots
    assert len(sharded) == {"overlapped": 4, "late": 5}[name]

    plain = dj.workers.simulate(step, 2)
    state = SHARDED_PARAMS, tx.init(SHARDED_PARAMS)
    expected = scanned(plain, plain.init(state, data[0]), data)[0]
    assert_close(split.state, expected.state)


def test_shardings_keep_how_a_leaf_is_sharded_over_other_axes():
    mesh = mesh_of(2, 2, names=("workers", "fsdp"))
    leaf = jax.device_put(
        jnp.zeros((2, 3, 4)), NamedSharding(mesh, P(None, None, "fsdp"))
    )
    split = WorkerState((leaf, jnp.zeros(3)), (("workers",), ()))
    places = split.shardings(mesh).state
    assert [p.spec for p in places] == [P("workers", None, "fsdp"), P()]


def test_one_is_the_state_of_one_worker():
    split = WorkerState(
        (jnp.asarray(5), jnp.arange(6).reshape(2, 3), jnp.arange(3)),
        ((), ("groups", "members"), ("members",)),
    )
    picked = split.one(worker={"groups": 1, "members": 2})
    assert picked == (5, 5, 2)
    first = split.one()
    assert first == (5, 0, 0)
    own = WorkerState(jnp.arange(4), (("workers",),))
    for index in (2, np.int64(2), jnp.int32(2)):
        assert own.one(worker=index) == 2


def test_there_is_no_worker_beyond_the_last():
    split = WorkerState(jnp.arange(4), (("workers",),))
    with pytest.raises(ValueError, match=r"`worker` must lie in 0 .. 3.*got 4"):
        split.one(worker=4)
    with pytest.raises(ValueError, match=r"`worker` must lie in 0 .. 3.*got -1"):
        split.one(worker=-1)
