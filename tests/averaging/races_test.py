import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from delayjax import averaging
from delayjax._src.averaging.races import Locked
from tests.support.cases import shortened

TREE = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(4)}


@functools.partial(jax.jit, static_argnums=1)
def draws(key, max_age, steps=400, workers=5, size=20):
    races = averaging.races(key, max_age, lost=0.3)

    def of_visit(visit):
        step, worker = jnp.divmod(visit, workers)
        like = jnp.zeros(size)
        return races.ages(step, worker, like), races.lost(step, worker, like)

    found = jax.lax.map(of_visit, jnp.arange(steps * workers))
    return jax.tree.map(lambda x: x.reshape(steps, workers, size), found)


def all_draws(seed, max_age):
    """Ages and losses of visits, [T, P, n]; 0.3 are lost."""
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
    pairs = [
        (ages[1:], ages[:-1]),
        (ages[:, 1:], ages[:, :-1]),
        (ages[..., 1:], ages[..., :-1]),
        (lost[1:], lost[:-1]),
        (lost[:, 1:], lost[:, :-1]),
        (lost[..., 1:], lost[..., :-1]),
        (ages, lost),
    ]
    for one, other in pairs:
        seen = np.corrcoef(one.ravel(), other.ravel())[0, 1]
        assert abs(seen) < 4 / np.sqrt(one.size)


def test_leaves_of_one_shape_are_drawn_apart():
    like = {"a": jnp.zeros(50), "b": jnp.zeros(50)}
    races = averaging.races(jax.random.key(1), 6, lost=0.5)
    for drawn in (races.ages(0, 0, like), races.lost(0, 0, like)):
        assert (drawn["a"] != drawn["b"]).any()


def test_a_rate_of_losses_may_be_traced():
    def share(lost):
        races = averaging.races(jax.random.key(1), 0, lost=lost)
        return races.lost(0, 0, jnp.zeros(20_000)).mean()

    rates = jnp.asarray([0.0, 0.2, 0.9])
    seen = jax.jit(jax.vmap(share))(rates)
    np.testing.assert_allclose(seen, rates, atol=4 * 0.5 / np.sqrt(20_000))


@pytest.mark.parametrize("max_age", [0, 2, 9])
@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
def test_what_is_read_is_what_the_center_was_some_visits_ago(max_age, seed):
    """Against a list of all versions; not every worker comes."""
    races = averaging.races(jax.random.key(seed), max_age)
    rng = np.random.default_rng(seed)
    center = jax.tree.map(lambda leaf: leaf + 1.0, TREE)
    versions, listed = races.begin(center), [center]
    for step in range(12):
        for worker in range(2):
            seen = races.read(center, versions, step, worker)
            ages = races.ages(step, worker, center)
            for name in TREE:
                held = np.stack([version[name] for version in reversed(listed)])
                age = np.minimum(ages[name], len(listed) - 1)
                expected = np.take_along_axis(held, age[None], axis=0)[0]
                np.testing.assert_array_equal(seen[name], expected)
            there = bool(rng.random() < 0.6)
            if there:
                center = jax.tree.map(
                    lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype),
                    center,
                )
                listed.append(center)
            versions = races.record(center, versions, there)


def test_what_is_lost_of_a_write_is_zero_and_the_rest_is_whole():
    races = averaging.races(jax.random.key(1), 0, lost=0.5)
    moved = jax.tree.map(lambda leaf: leaf + 3.0, TREE)
    lost = races.lost(2, 1, TREE)
    landed = races.land(moved, 2, 1)
    for name in TREE:
        np.testing.assert_array_equal(landed[name], np.where(lost[name], 0.0, 3.0))
        assert set(np.unique(landed[name])) == {0.0, 3.0}


def test_with_a_lock_there_are_no_versions_and_nothing_is_lost():
    center = jax.tree.map(lambda leaf: leaf + 1.0, TREE)
    locked = Locked()
    assert locked.begin(center) == locked.record(center, (), True) == ()
    assert locked.read(center, (), 0, 0) is center
    assert locked.land(center, 0, 0) is center


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: averaging.races(jax.random.key(0), -1),
            ValueError,
            "`max_age` must be non-negative, got -1",
        ),
        (
            lambda: averaging.races(jax.random.key(0), 1.5),
            TypeError,
            "`max_age` must be a static integer, got 1.5",
        ),
        (
            lambda: averaging.races(jax.random.key(0), 1, lost=1.0),
            ValueError,
            r"`lost` must be in \[0, 1.0\), got 1.0",
        ),
        (
            lambda: averaging.races(jax.random.key(0), 1, lost="some"),
            TypeError,
            "`lost` must be a number, got 'some'",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
