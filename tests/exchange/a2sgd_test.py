import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.exchange.driving import (
    WORKERS,
    bytes_summed,
    drive,
    executions,
    owners,
    program,
)
from tests.support.cases import shortened

STEPS = 30
IDENTITY = optax.identity()
PARAMS = {"w": jnp.zeros((5, 3), jnp.float32), "b": jnp.float32(0)}
seeds = pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))


def normal(seed):
    """Gradients [T, P, ...]."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: rng.normal(size=(STEPS, WORKERS, *p.shape)).astype(np.float32), PARAMS
    )


def flat(tree):
    """[..., 16]: the whole gradient of each worker, in float64."""
    w, b = (np.asarray(tree[name], np.float64) for name in ("w", "b"))
    return np.concatenate([w.reshape(*b.shape, 15), b[..., None]], axis=-1)


def signs_mean(g, positive):
    """mu+, the mean of entries >= 0, or mu-, the mean size of the others, by a loop."""
    part = [abs(x) for x in g if (x >= 0) == positive]
    return sum(part) / len(part) if part else 0.0


def encode(g, plus, minus):
    return np.asarray([plus if x >= 0 else -minus for x in g])


def exchanged(grads):
    """D.13 for the gradients [P, n] of one step."""
    means = [(signs_mean(g, True), signs_mean(g, False)) for g in grads]
    common = np.mean(means, axis=0)
    return np.stack(
        [
            g - encode(g, *mu) + encode(g, *common)
            for g, mu in zip(grads, means, strict=True)
        ]
    )


@pytest.mark.parametrize(
    ("execution", "seed"),
    shortened(
        [("simulate", 1), ("simulate", 2), ("simulate", 3), ("run", 1)],
        *(("simulate", 1), ("run", 1)),
    ),
)
def test_gradients_are_those_of_the_paper_s_equations(execution, seed):
    """The optimizer behind the exchange has a momentum on each worker."""
    grads = normal(seed)
    tx = dj.exchange.a2sgd(optax.sgd(0.5, momentum=0.9))
    split, updates = drive(execution, tx, grads, PARAMS, shared=False)
    velocity, expected = 0.0, []
    for step in flat(grads):
        velocity = 0.9 * velocity + exchanged(step)
        expected.append(-0.5 * velocity)
    np.testing.assert_allclose(flat(updates), np.stack(expected), rtol=1e-5, atol=2e-5)
    models = np.sum(expected, axis=0)
    np.testing.assert_allclose(flat(split.state[0]), models, rtol=1e-4, atol=1e-4)
    assert np.ptp(models, axis=0).min() > 0.1
    assert all(jax.tree.leaves(owners(split)[0]))


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_that_agree_keep_their_gradient_bitwise(workers):
    tx = dj.exchange.a2sgd(IDENTITY)
    grad = jnp.asarray(np.random.default_rng(1).normal(size=100), jnp.float32)

    def step(_):
        return tx.update(grad, tx.init(grad))[0]

    seen = jax.vmap(step, axis_name="workers")(jnp.arange(workers))
    np.testing.assert_array_equal(seen, np.stack([grad] * workers))


def test_a_zero_is_positive_and_a_sign_that_lacks_counts_as_zero():
    tx = dj.exchange.a2sgd(IDENTITY)
    grads = jnp.asarray([[0.0, 4.0, 0.0, 4.0], [-8.0, -8.0, 2.0, -8.0]])
    step = jax.jit(jax.vmap(lambda g: tx.update(g, ())[0], axis_name="workers"))
    seen = step(grads)
    # mu+ = 2 and 2, mu- = 0 and 8
    np.testing.assert_array_equal(seen, [[0, 4, 0, 4], [-4, -4, 2, -4]])


def test_means_are_taken_in_float32_whatever_the_gradient():
    """In bfloat16, 1 + 1 + ... would not grow beyond 256."""
    tx = dj.exchange.a2sgd(IDENTITY)
    grads = jnp.stack([jnp.ones(1000), 3 * jnp.ones(1000)]).astype(jnp.bfloat16)
    step = jax.jit(jax.vmap(lambda g: tx.update(g, ())[0], axis_name="workers"))
    seen = step(grads)
    assert seen.dtype == jnp.bfloat16
    np.testing.assert_array_equal(seen, 2 * np.ones((2, 1000)))


@executions
def test_parameters_that_are_meant_to_be_shared_are_refused(execution):
    with pytest.raises(ValueError, match=r"\['w'\].* would drift apart.*shared="):
        drive(execution, dj.exchange.a2sgd(optax.sgd(0.5)), normal(1), PARAMS)


@jax.jit
def variance_apart(noise, curvature, eta):
    """Variance between replicas with noise [T, P, n], without the first 100 steps."""
    tx = dj.exchange.a2sgd(optax.sgd(eta))

    def replica(noise):
        def step(state, noise):
            x, opt_state = state
            updates, opt_state = tx.update(curvature * x + noise, opt_state, x)
            return (optax.apply_updates(x, updates), opt_state), x

        x = jnp.zeros(100, jnp.float32)
        return jax.lax.scan(step, (x, tx.init(x)), noise)[1]

    xs = jax.vmap(replica, in_axes=1, axis_name="workers")(noise)
    return xs[:, 100:].var(axis=0).mean()


@seeds
def test_on_noise_replicas_drift_as_far_as_with_no_exchange_at_all(seed):
    """Without exchange the variance at curvature h is eta / (h (2 - eta h)), and
    (1 - 1 / P) of that lies between replicas; two means of a hundred entries change
    little of it.
    """
    eta, workers, curvature = 0.5, 8, np.geomspace(0.5, 1.0, 100, dtype=np.float32)
    noise = np.random.default_rng(seed).normal(size=(1500, workers, 100))
    spread = variance_apart(noise.astype(np.float32), curvature, eta)
    alone = np.mean(eta / (curvature * (2 - eta * curvature)))
    np.testing.assert_allclose(spread, (1 - 1 / workers) * alone, rtol=0.05)


@pytest.mark.parametrize("entries", [10, 10_000])
def test_two_numbers_travel_whatever_the_size_of_the_model(entries):
    compiled = program(
        dj.exchange.a2sgd(optax.sgd(0.1)),
        {"w": jnp.zeros(entries, jnp.bfloat16), "b": jnp.zeros(3, jnp.float32)},
        shared=False,
    )
    assert bytes_summed(compiled) == 2 * 4
