"""Zeno++ against a server written from the paper's pseudocode, in plain Python."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.liars import (
    CURVATURE,
    START,
    STEPS,
    Run,
    served,
    train,
    trained,
)
from tests.support.cases import shortened
from tests.support.refusing_server import Zeno


def validation(x):
    """The gradient of a loss with another minimum than the workers'."""
    return x * jnp.asarray(CURVATURE, x.dtype) - 0.1


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
@pytest.mark.parametrize(
    ("rho", "eps", "refresh_every"), [(0.0, 0.0, 1), (0.05, 0.0, 7), (0.1, 0.02, 10)]
)
def test_zeno_plus_plus_is_the_papers_server(seed, rho, eps, refresh_every):
    run = Run(seed, 4, liars=2)
    numbers = {"learning_rate": 0.1, "rho": rho, "eps": eps}
    tx = dj.zeno_plus_plus(
        optax.sgd(0.1, momentum=0.5), validation, **numbers, refresh_every=refresh_every
    )
    ours, accepted, state = train(run, tx)
    server = Zeno(lambda x: CURVATURE * x - 0.1, **numbers, refresh_every=refresh_every)
    theirs, accepted_by_theirs = served(run, server)
    assert accepted == accepted_by_theirs
    assert 0.1 * STEPS < sum(accepted) < 0.9 * STEPS  # both happen
    # float32: a hundred steps' rounding
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-5)
    in_row = accepted[::-1].index(True)
    assert (state.dropped, state.dropped_in_row) == (accepted.count(False), in_row)
    # refused ones count, too: the last refresh was at the last multiple of the period
    assert state.memory.step == STEPS
    last = (STEPS - 1) // refresh_every * refresh_every
    before = np.array([START, *theirs])[last]
    wanted = CURVATURE * before - 0.1
    np.testing.assert_allclose(state.memory.validation, wanted, atol=3e-5)


@pytest.mark.parametrize("rho", [0.0, 0.5])
@pytest.mark.parametrize("factor", shortened([1e-3, 1.0, 1e6], 1e6))
def test_the_size_of_a_gradient_says_nothing_to_zeno(rho, factor):
    """It is scaled to |v|: accepted iff its cosine with v is at least rho/eta."""
    numbers = {"learning_rate": 1.0, "rho": rho, "eps": 0.0, "refresh_every": 1}
    tx = dj.zeno_plus_plus(optax.sgd(1.0), lambda x: x, **numbers)
    x = jnp.array([3.0, 0.0])
    for angle in np.linspace(0.05, 3.1, 20):
        direction = np.array([np.cos(angle), np.sin(angle)])
        g = jnp.asarray(factor * direction, jnp.float32)
        updates, _ = tx.update(g, tx.init(x), x)
        wanted = -3.0 * direction if np.cos(angle) >= rho else 0 * direction
        np.testing.assert_allclose(updates, wanted, rtol=0, atol=1e-5)


def test_zeno_takes_a_gradient_of_zeros_for_zeros():
    numbers = {"learning_rate": 1.0, "rho": 1.0, "eps": 0.0, "refresh_every": 1}
    tx = dj.zeno_plus_plus(optax.sgd(1.0), lambda x: x, **numbers)
    updates, state = tx.update(jnp.zeros(2), tx.init(jnp.ones(2)), jnp.ones(2))
    assert not updates.any() and state.dropped == 0


def test_zeno_withstands_a_majority_of_attackers():
    """Seven of ten: no vote would help, but the server has data of its own."""
    curvature = jnp.linspace(0.2, 1.0, 10)
    tx = dj.zeno_plus_plus(
        *(optax.sgd(0.05), lambda x: curvature * x),
        **{"learning_rate": 0.05, "rho": 0.005, "eps": 0.0, "refresh_every": 10},
    )
    losses, state = trained(tx, 1000, attackers=range(7))
    assert losses[-1] < 0.05 * losses[0]
    assert 0.5 * 1000 < state.dropped < 0.9 * 1000
