import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj

PARAMS = {"w": jnp.arange(3.0), "b": jnp.ones(2)}
SGD = optax.sgd(0.1)


def gradient(step):
    return jax.tree.map(lambda p: jnp.cos(p + step), PARAMS)


def assert_close(ours, theirs):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        *(ours, theirs),
    )


MODULATED = optax.chain(SGD, dj.scale_by_staleness(dj.modulation.inverse))


def test_staleness_in_the_state_reaches_what_reads_it_and_ages_add():
    tx = dj.inject_staleness(dj.delayed(MODULATED, 2))
    state = tx.init(PARAMS)
    ages = [0, 5, 1, 7, 3]
    for t, age in enumerate(ages):
        state = state._replace(staleness=jnp.int32(age))
        updates, state = tx.update(gradient(t), state, PARAMS)
        taken = max(t - 2, 0)
        tau = min(t, 2) + ages[taken]
        assert dj.staleness(state) == tau
        expected = optax.tree.scale(-0.1 / max(1, tau), gradient(taken))
        assert_close(updates, expected)


def test_staleness_in_the_state_and_in_the_call_add():
    tx = dj.inject_staleness(MODULATED)
    state = tx.init(PARAMS)._replace(staleness=jnp.int32(2))
    updates, _ = tx.update(gradient(0), state, PARAMS, staleness=3)
    assert_close(updates, optax.tree.scale(-0.1 / 5, gradient(0)))
