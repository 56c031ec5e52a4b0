"""In bfloat16 and float16 an average neither grows nor shrinks the models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from delayjax import averaging

SGD = optax.sgd(0.05)
STEPS, LEAF = 400, 256


def mean_after(tx, workers, dtype):
    """The mean of all models, from 1, after steps along gradients of mean zero."""

    def steps(key):
        params = jnp.ones(LEAF, dtype)

        def step(held, k):
            params, state = held
            rank = jax.lax.axis_index("workers")
            half = jax.random.normal(jax.random.fold_in(k, rank), (LEAF // 2,))
            gradient = jnp.concatenate([half, -half]).astype(dtype)
            updates, state = tx.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), None

        held, _ = jax.lax.scan(
            step, (params, tx.init(params)), jax.random.split(key, STEPS)
        )
        return held[0]

    models = jax.jit(
        jax.vmap(steps, in_axes=None, axis_size=workers, axis_name="workers")
    )(jax.random.key(0))
    return float(np.mean(np.asarray(models, np.float64)))


@functools.cache
def exact(name, workers):
    return mean_after(METHODS[name](), workers, jnp.float32)


METHODS = {
    f"blended {share}": functools.partial(
        averaging.delayed_average, SGD, 1, period=1, merge=averaging.blended(share)
    )
    for share in (0.1, 0.4, 0.6, 0.9)
}
METHODS |= {
    "sgp of two peers": lambda: averaging.sgp(SGD, peers=2),
    "gossip": lambda: averaging.gossip(SGD, key=jax.random.key(1), push=True),
    "local SGD": lambda: averaging.local_sgd(SGD, period=1),
    "delayed average": lambda: averaging.delayed_average(SGD, 1, period=1),
    "D-PSGD": lambda: averaging.d_psgd(SGD),
}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", METHODS)
def test_the_mean_of_the_models_stays(name, dtype):
    """A share that is rounded to bfloat16 changes it by 10 to 600 percent."""
    workers = 4 if name.startswith(("blended", "sgp")) else 3
    result = mean_after(METHODS[name](), workers, dtype)
    assert abs(result - exact(name, workers)) < 0.03


def test_an_average_of_the_center_moves_by_less_than_a_digit_of_bfloat16():
    """z <- z + a (c - z) with a = 0.001, from 1, while the center is at 2."""
    tx = averaging.downpour(optax.sgd(1.0), period=1, average=0.001)

    def steps(_):
        params = jnp.ones((), jnp.bfloat16)
        first = jnp.where(jax.lax.axis_index("workers") == 0, -1.0, 0.0)

        def step(held, number):
            params, state = held
            gradient = jnp.where(number == 0, first, 0.0).astype(params.dtype)
            updates, state = tx.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), None

        held, _ = jax.lax.scan(step, (params, tx.init(params)), jnp.arange(1000))
        return held[1].memory.average, held[1].memory.center

    average, center = jax.vmap(steps, axis_name="workers")(jnp.arange(2))
    np.testing.assert_array_equal(center, 2.0)
    assert average.dtype == jnp.float32
    np.testing.assert_allclose(average, 2.0 - 0.999**1000, rtol=1e-3)
