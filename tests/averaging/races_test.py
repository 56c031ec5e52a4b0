"""What workers read and lose without a lock; loops in other tests check the methods."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from delayjax import averaging
from tests.support.cases import shortened


@functools.partial(jax.jit, static_argnums=1)
def draws(key, max_age, steps=400, workers=5, size=20):
    races = averaging.races(key, max_age, lost=0.3)

    def of_visit(visit):
        step, worker = jnp.divmod(visit, workers)
        model = jnp.zeros(size)
        return races.ages(step, worker, model), races.lost(step, worker, model)

    result = jax.lax.map(of_visit, jnp.arange(steps * workers))
    return jax.tree.map(lambda x: x.reshape(steps, workers, size), result)


def all_draws(seed, max_age):
    """Ages and losses of visits, [T, P, n], if 0.3 of the writes are lost."""
    return jax.tree.map(np.asarray, draws(jax.random.key(seed), max_age))


@pytest.mark.parametrize("max_age", [0, 1, 6])
@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
def test_each_age_is_as_likely_and_losses_come_at_their_rate(max_age, seed):
    ages, lost = all_draws(seed, max_age)
    shares = np.bincount(ages.ravel(), minlength=max_age + 1) / ages.size
    p = 1 / (max_age + 1)
    np.testing.assert_allclose(shares, p, atol=4 * np.sqrt(p * (1 - p) / ages.size))
    assert abs(lost.mean() - 0.3) < 4 * np.sqrt(0.21 / lost.size)


def test_draws_of_steps_workers_and_coordinates_tell_nothing_of_each_other():
    ages, lost = all_draws(1, 6)
    pairs = [(ages, lost)]
    for drawn in (ages, lost):
        pairs += [(drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])]
        pairs += [(drawn[..., 1:], drawn[..., :-1])]
    for one, other in pairs:
        seen = np.corrcoef(one.ravel(), other.ravel())[0, 1]
        assert abs(seen) < 4 / np.sqrt(one.size)


def test_leaves_of_one_shape_are_drawn_apart():
    model = {"a": jnp.zeros(50), "b": jnp.zeros(50)}
    races = averaging.races(jax.random.key(1), 6, lost=0.5)
    for drawn in (races.ages(0, 0, model), races.lost(0, 0, model)):
        assert (drawn["a"] != drawn["b"]).any()


def test_a_rate_of_losses_may_be_traced():
    def share(lost):
        races = averaging.races(jax.random.key(1), 0, lost=lost)
        return races.lost(0, 0, jnp.zeros(20_000)).mean()

    rates = jnp.asarray([0.0, 0.2, 0.9])
    seen = jax.jit(jax.vmap(share))(rates)
    np.testing.assert_allclose(seen, rates, atol=4 * 0.5 / np.sqrt(20_000))
