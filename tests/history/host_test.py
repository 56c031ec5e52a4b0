"""A history in the host's memory is the one on the device, bit for bit."""

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

import delayjax as dj
from tests.support.cases import shortened

PARAMS = {
    "w": jnp.zeros((3, 5)),
    "m": jnp.zeros((8, 128)),
    "b": jnp.zeros((), jnp.bfloat16),
}


def gradients(step):
    key = jax.random.fold_in(jax.random.key(0), step)
    return jax.tree.map(
        lambda x: jax.random.normal(key, x.shape).astype(x.dtype), PARAMS
    )


def kinds(state):
    slots = jax.tree.leaves(state.gradients.slots)
    return {x.sharding.memory_kind for x in slots}


@pytest.mark.parametrize("delay", [2, {"w": 0, "m": 1, "b": 3}])
def test_what_is_read_is_what_was_pushed(delay):
    plain = dj.delayed(optax.identity(), delay)
    held = dj.delayed(optax.identity(), delay, history=dj.ring.on_host())
    states = [plain.init(PARAMS), held.init(PARAMS)]
    updates = [jax.jit(tx.update, donate_argnums=1) for tx in (plain, held)]
    for step in range(7):
        (a, states[0]), (b, states[1]) = (
            update(gradients(step), state)
            for update, state in zip(updates, states, strict=True)
        )
        chex.assert_trees_all_equal(a, b, strict=True)
        assert kinds(states[1]) == {"pinned_host"}


def test_a_scan_keeps_it_on_the_host():
    tx = dj.delayed(optax.sgd(0.1), 2, history=dj.ring.on_host())
    plain = dj.delayed(optax.sgd(0.1), 2)
    many = jax.vmap(gradients)(jnp.arange(9))

    def scanned(tx):
        return jax.jit(
            lambda state: jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], state, many),
            donate_argnums=0,
        )(tx.init(PARAMS))

    (state, used), (_, expected) = scanned(tx), scanned(plain)
    chex.assert_trees_all_equal(used, expected, strict=True)
    assert kinds(state) == {"pinned_host"}


def test_narrower_and_on_the_host():
    both = dj.ring.cast(jnp.bfloat16, storage=dj.ring.on_host())
    ring = both.push(both.init(PARAMS, 3), gradients(0))
    assert {x.dtype for x in jax.tree.leaves(ring.slots)} == {jnp.dtype(jnp.uint16)}
    chex.assert_trees_all_equal(
        both.read(ring, 0, gradients(0)),
        optax.tree.cast_like(optax.tree.cast(gradients(0), jnp.bfloat16), PARAMS),
    )


def on(mesh):
    return lambda step: dj.workers.run(step, mesh)


def trained(make, wrap, history):
    tx = wrap(history)

    def step(state, batch):
        params, opt_state = state
        own = dj.workers.vary(params)
        grads = jax.tree.map(lambda x: x + batch.astype(x.dtype), own)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    workers = make(step)
    split = workers.init((PARAMS, tx.init(PARAMS)), jnp.zeros(4))
    take = jax.jit(workers.step, donate_argnums=0)
    for i in range(6):
        split, _ = take(split, jnp.arange(4.0) + i)
    return split.state


@pytest.mark.parametrize("whose", shortened(["of all", "each its own"], "each its own"))
def test_on_several_devices_each_keeps_its_own(whose):
    own = whose == "each its own"

    def wrap(history):
        if own:
            return dj.delayed(dj.exchange.mean(optax.adam(0.1)), 2, history=history)
        return dj.exchange.mean(dj.delayed(optax.adam(0.1), 2, history=history))

    mesh = jax.make_mesh((4,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))
    on_host = trained(on(mesh), wrap, dj.ring.on_host())
    plain = trained(on(mesh), wrap, None)
    chex.assert_trees_all_close(on_host[0], plain[0], rtol=1e-5)
    assert kinds(on_host[1]) == {"pinned_host"}


def test_workers_that_are_simulated_share_one_behind_the_mean():
    def wrap(history):
        return dj.exchange.mean(dj.delayed(optax.adam(0.1), 2, history=history))

    def four(step):
        return dj.workers.simulate(step, 4)

    on_host, plain = (trained(four, wrap, h) for h in (dj.ring.on_host(), None))
    chex.assert_trees_all_close(on_host[0], plain[0], rtol=1e-5)
    assert kinds(on_host[1]) == {"pinned_host"}


def test_workers_that_are_simulated_have_none_of_their_own():
    tx = dj.delayed(dj.exchange.mean(optax.sgd(0.1)), 2, history=dj.ring.on_host())

    def step(state, batch):
        params, opt_state = state
        grads = dj.workers.vary(params) + batch
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    params = jnp.zeros(3)
    workers = dj.workers.simulate(step, 2)
    with pytest.raises(
        ValueError, match=r"no `vmap`: simulate workers .* history=None"
    ):
        split = workers.init((params, tx.init(params)), jnp.zeros(2))
        workers.step(split, jnp.zeros(2))


def test_it_is_resized_on_the_host():
    storage = dj.ring.on_host()
    ring = storage.init(PARAMS, 2)
    for step in range(4):
        ring = storage.push(ring, gradients(step))
    ring = dj.resize_history(ring, storage.init(PARAMS, 5))
    for age in range(2):
        chex.assert_trees_all_equal(storage.read(ring, age, PARAMS), gradients(3 - age))
    slots = jax.tree.leaves(ring.slots)
    assert {x.sharding.memory_kind for x in slots} == {"pinned_host"}
