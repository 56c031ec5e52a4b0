"""Updates at parameters that stay, of gradients that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj

PARAMS = {"w": jnp.arange(3.0), "b": jnp.ones(2)}
SGD = optax.sgd(0.1)
MODULATED = optax.chain(SGD, dj.scale_by_staleness(dj.modulation.inverse))


def gradient(step):
    return jax.tree.map(lambda p: jnp.cos(p + step), PARAMS)


def updates_of(tx, steps=6):
    """All updates, at parameters that stay."""
    state, result = tx.init(PARAMS), []
    update = jax.jit(tx.update)
    for t in range(steps):
        updates, state = update(gradient(t), state, PARAMS)
        result.append(updates)
    return result


def assert_close(ours, theirs):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        *(ours, theirs),
    )
