"""Attacks: who lies, and how."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.liars import START, TREE, TRUST, on_workers, scaled

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


def test_a_grid_of_attackers_is_one_program():
    def lie(attackers):
        tx = dj.attack(optax.scale(-1.0), attackers=attackers)
        return tx.update(jnp.ones(()), tx.init(jnp.ones(())), worker=2)[0]

    sent = jax.vmap(lie)(jnp.array([[0, 1], [1, 2], [2, 2]]))
    assert sent.tolist() == [1.0, -1.0, -1.0]


def test_nobody_attacks_where_the_list_is_empty():
    tx = dj.attack(optax.scale(-1.0), attackers=[])
    assert tx.update(jnp.ones(()), tx.init(jnp.ones(())), worker=0)[0] == 1


def attacked_mean(x, batch, accepts):
    """A step of 0.1 along the mean, where worker 2 sends -10 times its gradient."""
    gradients = (x - 0.1 * batch) * np.array([[1], [1], [-10], [1]])
    return x - 0.1 * np.mean([accepts(x, g) for g in gradients], axis=0)


def plain(x, gradient):
    return gradient


def trusted(x, gradient):
    """Zeno++ whose own gradient is x: ascents become zeros, the others as long as x."""
    scaled = gradient * np.linalg.norm(x) / np.linalg.norm(gradient)
    return scaled if scaled @ x - 0.01 * scaled @ scaled >= 0 else 0 * scaled


@pytest.mark.parametrize(
    ("rule", "accepts"),
    [
        (optax.identity(), plain),
        (dj.zeno_plus_plus(optax.identity(), lambda x: x, **TRUST), trusted),
    ],
    ids=["attack", "zeno_plus_plus"],
)
def test_an_attacked_mean_is_the_same_simulated_and_on_devices(rule, accepts):
    lies = dj.attack(optax.scale(-10.0), attackers=[2])
    tx = optax.chain(lies, rule, dj.exchange.mean(optax.sgd(0.1)))

    def step(state, batch):
        x, opt_state = state
        gradient = dj.workers.vary(x) - 0.1 * batch
        updates, opt_state = tx.update(
            gradient, opt_state, x, worker=jax.lax.axis_index("workers")
        )
        return (optax.apply_updates(x, updates), opt_state), ()

    x = jnp.asarray(START, jnp.float32)
    simulated, ran = on_workers(step, (x, tx.init(x)))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), simulated, ran
    )
    wanted = START
    for batch in np.asarray(jax.random.normal(jax.random.key(3), (6, 4, 3))):
        wanted = attacked_mean(wanted, batch, accepts)
    # six steps' rounding of float32
    np.testing.assert_allclose(ran[0], wanted, rtol=1e-5)
