"""What a law does before and behind the optimizer (design: one idea)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj

STEPS = 12
TAU = 4
LAW = dj.modulation.inverse  # 1/4 at TAU: a power of two, so scaling is exact

SCALE_FREE = {
    "adam": optax.adam(0.1),
    "lion": optax.lion(0.1),
    "muon": optax.contrib.muon(0.1),
}
OPTIMIZERS = {"sgd": optax.sgd(0.1, momentum=0.5), **SCALE_FREE}


def start():
    rng = np.random.default_rng(1)
    return {
        "matrix": jnp.asarray(rng.normal(size=(4, 3)), jnp.float32),
        "vector": jnp.asarray(rng.normal(size=3), jnp.float32),
    }


def train(inner):
    """Noisy gradients of |x|^2 / 2 at a staleness of TAU from the first update on."""
    tx = dj.delayed(inner, TAU, warmup="skip")

    def step(carry, key):
        x, state = carry
        noise = optax.tree.random_like(key, x, jax.random.normal)
        updates, state = tx.update(optax.tree.add(x, noise), state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), (x, dj.staleness(state))

    x = start()
    keys = jax.random.split(jax.random.key(1), STEPS + TAU)
    _, (iterates, staleness) = jax.lax.scan(step, (x, tx.init(x)), keys)
    assert staleness[TAU:].tolist() == [TAU] * STEPS
    return jax.tree.map(np.asarray, iterates)


@functools.cache
def plain(name):
    return train(SCALE_FREE[name])


def assert_close(ours, theirs, **tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **tolerance), ours, theirs
    )


@pytest.mark.parametrize("name", SCALE_FREE)
def test_a_law_before_a_scale_free_optimizer_changes_nothing(name):
    before = train(optax.chain(dj.scale_by_staleness(LAW), SCALE_FREE[name]))
    # A factor on all gradients cancels in m / (sqrt(v) + eps), in a sign, and in
    # m / (|m| + eps): what is left is eps = 1e-8 against gradients near 1, and
    # float32's own rounding over the run.
    assert_close(before, plain(name), rtol=0, atol=1e-5)


def test_without_eps_a_law_before_adam_changes_no_bit():
    grads = jnp.array([0.3, -1.7, 2.9])
    adam = optax.adam(0.1, eps=0.0)
    before = optax.chain(dj.scale_by_staleness(LAW), adam)
    plain_state, state = adam.init(grads), before.init(grads)
    for step in range(1, 6):
        expected, plain_state = adam.update(grads / step, plain_state)
        updates, state = before.update(grads / step, state, staleness=TAU)
        np.testing.assert_array_equal(updates, expected)


def test_a_law_before_sgd_scales_the_step():
    before = train(optax.chain(dj.scale_by_staleness(LAW), optax.sgd(0.1)))
    # exact but for how XLA fuses the two programs
    assert_close(before, train(optax.sgd(0.1 / TAU)), rtol=0, atol=1e-6)
    unscaled = train(optax.sgd(0.1))
    assert np.max(np.abs(before["vector"] - unscaled["vector"])) > 0.1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_law_behind_any_optimizer_scales_every_update_exactly(name):
    optimizer = OPTIMIZERS[name]
    tx = optax.chain(optimizer, dj.scale_by_staleness(LAW))
    params = start()
    plain_state, state = optimizer.init(params), tx.init(params)
    for step, staleness in enumerate([0, 2, 4, 8, 1]):
        grads = jax.tree.map(lambda x, step=step: jnp.cos(x + step), params)
        expected, plain_state = optimizer.update(grads, plain_state, params)
        updates, state = tx.update(grads, state, params, staleness=staleness)
        factor = 1 / max(1, staleness)
        jax.tree.map(
            lambda u, e, factor=factor: np.testing.assert_array_equal(u, factor * e),
            updates,
            expected,
        )


@pytest.mark.parametrize("name", SCALE_FREE)
def test_a_law_behind_a_scale_free_optimizer_changes_the_run(name):
    scaled = train(optax.chain(SCALE_FREE[name], dj.scale_by_staleness(LAW)))
    assert np.max(np.abs(scaled["matrix"] - plain(name)["matrix"])) > 0.1


AGES = np.array([0, 1, 2, 4])


def mean_of_workers(before):
    """Each step's mean over workers of gradients that are `AGES` steps late."""
    tx = dj.delayed(before, dj.delays.per_worker(AGES), max_delay=4)

    def worker(grads):
        def step(state, g):
            updates, state = tx.update(g, state)
            return state, jax.lax.pmean(updates, "workers")

        return jax.lax.scan(step, tx.init(grads[0]), grads)[1]

    rng = np.random.default_rng(2)
    grads = rng.normal(size=(len(AGES), STEPS, 3)).astype(np.float32)
    means = jax.vmap(worker, axis_name="workers")(jnp.asarray(grads))[0]
    return grads, means


def test_a_law_before_a_mean_weights_gradients_of_different_ages():
    """n-softsync: (1/K) sum_l g_l / max(1, tau_l), Zhang et al. 2016."""
    grads, means = mean_of_workers(dj.scale_by_staleness(LAW))
    for t in range(max(AGES), STEPS):
        late = [g[t - tau] / max(1, tau) for g, tau in zip(grads, AGES, strict=True)]
        np.testing.assert_allclose(means[t], np.mean(late, axis=0), rtol=0, atol=1e-6)


def test_a_law_before_a_mean_is_felt_even_behind_adam():
    """Weights that differ within a mean turn it: no optimizer can cancel that."""
    _, weighted = mean_of_workers(dj.scale_by_staleness(LAW))
    _, even = mean_of_workers(optax.identity())

    def adam(grads):
        tx = optax.adam(0.1)

        def step(state, g):
            updates, state = tx.update(g, state)
            return state, updates

        return jax.lax.scan(step, tx.init(grads[0]), grads)[1]

    assert np.max(np.abs(adam(weighted) - adam(even))) > 0.02  # of steps of 0.1
