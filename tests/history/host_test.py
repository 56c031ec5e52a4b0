"""A history in host memory equals one in device memory, bit for bit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.support.cases import shortened
from tests.support.steps import step_with

PARAMS = {
    "w": jnp.zeros((3, 5)),
    "m": jnp.zeros((8, 128)),
    "b": jnp.zeros((), jnp.bfloat16),
}


MOMENTUM = optax.sgd(0.1, momentum=0.9)


def gradients(step):
    rng = np.random.default_rng(step)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), PARAMS)


def kinds(state):
    slots = jax.tree.leaves(state.gradients.slots)
    return {x.sharding.memory_kind for x in slots}


def test_what_is_read_is_what_was_pushed_also_in_a_scan():
    delay = {"w": 0, "m": 1, "b": 3}
    plain = dj.delayed(optax.identity(), delay)
    held = dj.delayed(optax.identity(), delay, history=dj.ring.on_host())
    many = jax.tree.map(lambda *leaves: np.stack(leaves), *map(gradients, range(7)))

    def scanned(states):
        def step(states, grads):
            a, first = plain.update(grads, states[0])
            b, second = held.update(grads, states[1])
            return (first, second), (a, b)

        return jax.lax.scan(step, states, many)

    states = plain.init(PARAMS), held.init(PARAMS)
    states, (a, b) = jax.jit(scanned, donate_argnums=0)(states)
    chex.assert_trees_all_equal(a, b, strict=True)
    assert kinds(states[1]) == {"pinned_host"}


def test_narrower_and_on_the_host():
    both = dj.ring.cast(jnp.bfloat16, storage=dj.ring.on_host())
    ring = both.push(both.init(PARAMS, 3), gradients(0))
    assert {x.dtype for x in jax.tree.leaves(ring.slots)} == {jnp.dtype(jnp.uint16)}
    chex.assert_trees_all_equal(
        both.read(ring, 0, gradients(0)),
        optax.tree.cast_like(optax.tree.cast(gradients(0), jnp.bfloat16), PARAMS),
    )


def of_all(history):
    return dj.exchange.mean(dj.delayed(MOMENTUM, 2, history=history))


def one_each(history):
    return dj.delayed(dj.exchange.mean(MOMENTUM), 2, history=history)


def on_devices(step):
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))
    return dj.workers.run(step, mesh)


def simulated(step):
    return dj.workers.simulate(step, 4)


def shifted(params, batch):
    return jax.tree.map(lambda x: x + batch.astype(x.dtype), dj.workers.vary(params))


def trained(make, tx):
    workers = make(step_with(tx, shifted))
    split = workers.init((PARAMS, tx.init(PARAMS)), jnp.zeros(4))
    take = jax.jit(workers.step, donate_argnums=0)
    for i in range(4):
        split, _ = take(split, jnp.arange(4.0) + i)
    return split.state


@pytest.mark.parametrize(
    ("make", "wrap"),
    shortened(
        [(on_devices, of_all), (on_devices, one_each), (simulated, of_all)],
        *((on_devices, one_each), (simulated, of_all)),
    ),
)
def test_workers_keep_on_the_host_what_they_would_keep_on_a_device(make, wrap):
    held, plain = (trained(make, wrap(h)) for h in (dj.ring.on_host(), None))
    chex.assert_trees_all_close(held[0], plain[0], rtol=1e-5)
    assert kinds(held[1]) == {"pinned_host"}


def test_workers_that_are_simulated_have_none_of_their_own():
    with pytest.raises(
        ValueError,
        match=r"A history on the host has no `vmap`: use history=None there\.",
    ):
        trained(simulated, one_each(dj.ring.on_host()))
