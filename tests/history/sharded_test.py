"""A history that is divided among devices reads like a whole one."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.support.cases import shortened
from tests.support.steps import step_with

AUTO = jax.sharding.AxisType.Auto
DEVICES = 4
PARAMS = {
    "w": jnp.zeros((3, 5), jnp.float32),
    "b": jnp.zeros((), jnp.bfloat16),
    "e": [jnp.zeros(300, jnp.float32), jnp.zeros((2, 0), jnp.float32)],
}


MOMENTUM = optax.sgd(0.1, momentum=0.9)


def mesh_of(devices, axis="data"):
    return jax.make_mesh(
        (devices,), (axis,), axis_types=(AUTO,), devices=jax.devices()[:devices]
    )


def gradients(step):
    rng = np.random.default_rng(step)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), PARAMS)


def nbytes_on_one(tree):
    return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("bucket_bytes", "devices"),
    shortened(
        [(size, devices) for devices in (1, 2, 4) for size in (0, 100, 4 * 2**20)],
        *((0, 2), (100, 4), (4 * 2**20, 4)),
    ),
)
def test_in_a_plain_jit_it_is_the_plain_history(devices, bucket_bytes):
    storage = dj.ring.sharded("data", mesh=mesh_of(devices), bucket_bytes=bucket_bytes)
    plain = dj.delayed(optax.identity(), 2)
    cut = dj.delayed(optax.identity(), 2, history=storage)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(states, grads):
        a, first = plain.update(grads, states[0])
        b, second = cut.update(grads, states[1])
        return (first, second), a, b

    states = plain.init(PARAMS), cut.init(PARAMS)
    for step in range(6):
        states, a, b = update(states, gradients(step))
        chex.assert_trees_all_equal(a, b, strict=True)
        slots = states[1].gradients.slots
        total = sum(x.nbytes for x in jax.tree.leaves(slots))
        assert nbytes_on_one(slots) * devices == total


def test_bytes_a_device_fall_as_one_over_n():
    params = jnp.zeros(2**18, jnp.float32)
    held = {
        n: nbytes_on_one(dj.ring.sharded("data", mesh=mesh_of(n)).init(params, 5).slots)
        for n in (1, 2, 4)
    }
    assert held == {n: 5 * params.nbytes // n for n in (1, 2, 4)}


def test_a_donated_step_gathers_one_item_and_copies_no_history():
    n, depth = 2**18, 16
    tx = dj.delayed(
        optax.sgd(0.1), depth, history=dj.ring.sharded("data", mesh=mesh_of(DEVICES))
    )
    params = jnp.zeros(n, jnp.float32)
    state = tx.init(params)
    program = jax.jit(tx.update, donate_argnums=1).lower(params, state).compile()
    gathered = re.findall(r" (f32\[[\d,]+\])\S* all-gather\(", program.as_text())
    assert [np.prod(eval(g[3:])) for g in gathered] == [n]
    assert program.memory_analysis().temp_size_in_bytes <= 3 * params.nbytes
    assert "all-to-all" not in program.as_text()


def waving(params, batch):
    model = dj.workers.vary(params)
    return jax.tree.map(lambda x: jnp.cos(x) * batch.astype(x.dtype), model)


def trained(make, history):
    tx = dj.exchange.mean(dj.delayed(MOMENTUM, 3, history=history))
    workers = make(step_with(tx, waving))
    split = workers.init((PARAMS, tx.init(PARAMS)), jnp.zeros(DEVICES))
    step = jax.jit(workers.step, donate_argnums=0)
    for i in range(8):
        split, _ = step(split, jnp.arange(DEVICES) - i * 1.0)
    return split.state


BOTH = {
    "simulate": lambda step: dj.workers.simulate(step, DEVICES),
    "run": lambda step: dj.workers.run(step, mesh_of(DEVICES, "workers")),
}


def test_behind_the_mean_workers_keep_one_history_together():
    whole = trained(BOTH["simulate"], None)
    for make in BOTH.values():
        cut = trained(make, dj.ring.sharded("workers", num_workers=DEVICES))
        chex.assert_trees_all_close(cut[0], whole[0], rtol=1e-5)
        assert all(x.shape[0] == DEVICES for x in cut[1].gradients.slots)
        held = sum(x.nbytes for x in jax.tree.leaves(cut[1].gradients.slots))
        # padded to rows of 128 and 256 items for each of two dtypes; four slots
        assert held == 4 * 256 * 128 * (4 + 2)


@pytest.mark.parametrize("name", BOTH)
def test_gradients_that_differ_are_refused(name):
    tx = dj.delayed(
        dj.exchange.mean(optax.sgd(0.1)),
        2,
        history=dj.ring.sharded("workers", num_workers=DEVICES),
    )
    workers = BOTH[name](step_with(tx, waving))
    with pytest.raises(
        ValueError,
        match=r"`tree` must be the same for all workers, but differs at \['b'\]:",
    ):
        workers.init((PARAMS, tx.init(PARAMS)), jnp.zeros(DEVICES))


@pytest.mark.parametrize("one_dtype", [False, True])
def test_wider_gradients_than_parameters_need_one_dtype(one_dtype):
    storage = dj.ring.sharded("data", mesh=mesh_of(DEVICES))
    if one_dtype:
        storage = dj.ring.cast(jnp.float32, storage=storage)
    tx = dj.delayed(optax.sgd(1.0), 1, history=storage)
    state, update = tx.init(PARAMS), jax.jit(tx.update)
    wide = [jax.tree.map(lambda g: g.astype(jnp.float32), gradients(s)) for s in (0, 1)]
    if not one_dtype:
        with pytest.raises(
            ValueError, match="`tree` must have the structure of the history's items,"
        ):
            update(wide[0], state, PARAMS)
        return
    for gradient in wide:
        updates, state = update(gradient, state, PARAMS)
    chex.assert_trees_all_equal(updates, jax.tree.map(jnp.negative, wide[0]))
