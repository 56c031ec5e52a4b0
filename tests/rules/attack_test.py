"""Attacks: who lies, and how."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.liars import TREE, scaled

LIES = {
    "sign flip": (optax.scale(-1.0), lambda g: -g),
    "scaling": (optax.scale(-10.0), lambda g: -10 * g),
    "omission": (optax.set_to_zero(), lambda g: 0 * g),
}


@pytest.mark.parametrize("name", LIES)
def test_attackers_lie_and_nobody_else(name):
    inner, formula = LIES[name]
    tx = dj.attack(inner, attackers=[1, 4])
    gradient = jnp.array([1.5, -2.0])
    state = tx.init(gradient)
    for worker in range(6):
        sent, state = tx.update(gradient, state, worker=worker)
        wanted = formula(gradient) if worker in (1, 4) else gradient
        np.testing.assert_array_equal(sent, wanted)


def test_noise_has_its_variance_and_is_drawn_anew():
    tx = dj.attack(optax.add_noise(4.0, 0.0, jax.random.key(1)), attackers=[0])
    state = tx.init(jnp.zeros(4000))
    first, state = tx.update(jnp.zeros(4000), state, worker=0)
    none, state = tx.update(jnp.zeros(4000), state, worker=1)
    second, state = tx.update(jnp.zeros(4000), state, worker=0)
    assert not none.any()
    for noise in (first, second):
        # of 4000 draws: the variance is known to 1/sqrt(2000) of itself
        assert abs(noise.var() - 4.0) < 5 * 4.0 / np.sqrt(2000)
    assert abs((first * second).mean()) < 5 * 4.0 / np.sqrt(4000)


def test_an_omitted_nan_is_zero_and_an_honest_gradient_keeps_its_type():
    tx = dj.attack(optax.set_to_zero(), attackers=[0])
    bad = scaled(np.nan)
    sent, _ = tx.update(bad, tx.init(TREE), worker=0)
    assert all(not leaf.any() for leaf in jax.tree.leaves(sent))
    sent, _ = tx.update(TREE, tx.init(TREE), worker=1)
    jax.tree.map(np.testing.assert_array_equal, sent, TREE)
    assert jax.tree.map(jax.typeof, sent) == jax.tree.map(jax.typeof, TREE)


def test_nobody_attacks_where_the_list_is_empty():
    tx = dj.attack(optax.scale(-1.0), attackers=[])
    assert tx.update(jnp.ones(()), tx.init(jnp.ones(())), worker=0)[0] == 1
