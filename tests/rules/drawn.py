"""What tests of step sizes share: random gradients, their staleness and their moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.cases import shortened

STEPS = 100


SEEDS = pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))


def drawn(seed, *, largest=7):
    """Random gradients [T, 3], their staleness [T] and the parameters they saw."""
    rng = np.random.default_rng(seed)
    staleness = [int(min(t, rng.integers(largest + 1))) for t in range(STEPS)]
    grads = rng.normal(size=(STEPS, 3)).astype(np.float32)
    moves = rng.normal(size=(STEPS, 3)).astype(np.float32)
    return grads, staleness, moves


def updates_of(tx, grads, staleness, params=None, stale_params=None):
    """All updates of one scan, and the last state."""
    if params is None:
        params = stale_params = jnp.zeros_like(grads)

    def step(state, row):
        g, tau, x, stale = row
        u, state = tx.update(g, state, x, staleness=tau, stale_params=stale)
        return state, u

    rows = jnp.asarray(grads), jnp.asarray(staleness), params, stale_params
    state, updates = jax.lax.scan(step, tx.init(rows[2][0]), rows)
    return updates, state


# Dutta et al. and DASA: the distance that the parameters moved


def moved_rows(seed):
    """Gradients, and parameters at distances of about 0.1 to 3 from stale ones."""
    grads, staleness, moves = drawn(seed)
    stale = np.roll(grads, 1, axis=0)
    far = np.random.default_rng(seed).uniform(0.05, 2.0, (STEPS, 1))
    return grads, staleness, (stale + far * moves).astype(np.float32), stale
