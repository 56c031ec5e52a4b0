import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj

seeds = pytest.mark.parametrize("seed", [1, 2, 3])


def kept(compress, tree, step):
    """What is left of a tree, its other entries zero."""
    message, restore = compress(tree, step)
    return restore(message)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def rows(key, fraction, entries, steps):
    compress = dj.exchange.random_blocks(key, fraction)
    ones = jnp.ones(entries)
    return jax.lax.map(lambda step: kept(compress, ones, step), jnp.arange(steps))


def positions(fraction, entries, steps, seed=0):
    """Which of a vector's entries are kept at each step, bool [T, n]."""
    return np.asarray(rows(jax.random.key(seed), fraction, entries, steps)) == 1


@pytest.mark.parametrize(
    ("fraction", "entries", "size"),
    [
        *[(0.01, 100, 1), (0.01, 99, 1), (0.3, 10, 3), (0.39, 10, 3), (0.7, 10, 7)],
        *[(1.0, 7, 7), (0.5, 1, 1), (0.5, 2, 1), (1, 1, 1)],
    ],
)
def test_what_is_kept_is_one_block_of_the_size_asked_for(fraction, entries, size):
    mask = positions(fraction, entries, 200)
    assert (mask.sum(axis=1) == size).all()
    # around a circle: it begins once, unless it is all
    begins = (mask & ~np.roll(mask, 1, axis=1)).sum(axis=1)
    assert (begins == (size < entries)).all()


@seeds
def test_the_block_starts_everywhere_equally_often(seed):
    steps, entries, size = 4000, 10, 3
    mask = positions(0.3, entries, steps, seed)
    starts = (mask & ~np.roll(mask, 1, axis=1)).mean(axis=0)
    four_errors = 4 * np.sqrt(0.1 * 0.9 / steps)
    np.testing.assert_allclose(starts, 1 / entries, atol=four_errors)
    # so each entry is kept equally often
    four_errors = 4 * np.sqrt(0.3 * 0.7 / steps)
    np.testing.assert_allclose(mask.mean(axis=0), size / entries, atol=four_errors)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9, 1.0])
def test_what_is_kept_is_kept_bitwise_and_the_rest_is_zero(fraction):
    compress = dj.exchange.random_blocks(jax.random.key(2), fraction)
    tree = {
        "matrix": jax.random.normal(jax.random.key(0), (4, 5)),
        "half": jax.random.normal(jax.random.key(1), (7,), jnp.bfloat16),
        "scalar": jnp.float32(3.0),
        "empty": jnp.zeros((0, 3)),
    }

    @jax.jit
    def compressed(tree, step):
        message, restore = compress(tree, step)
        return message, restore(message)

    for step in range(20):
        message, sent = compressed(tree, step)
        assert jax.tree.structure(message) == jax.tree.structure(tree)
        for name, leaf in tree.items():
            size = min(leaf.size, max(1, int(fraction * leaf.size)))
            assert message[name].shape == (size,)
            assert message[name].dtype == leaf.dtype
        _, ones = compressed(jax.tree.map(jnp.ones_like, tree), step)
        jax.tree.map(
            lambda s, x, one: np.testing.assert_array_equal(s, jnp.where(one, x, 0)),
            *(sent, tree, ones),
        )
        assert jax.tree.map(jnp.shape, sent) == jax.tree.map(jnp.shape, tree)
        # the message is the block in its order
        assert set(np.asarray(message["half"]).tolist()) <= set(
            np.asarray(tree["half"]).tolist()
        )


@seeds
def test_restoring_the_mean_is_the_mean_of_what_is_restored(seed):
    compress = dj.exchange.random_blocks(jax.random.key(seed), 0.4)
    rng = np.random.default_rng(seed)
    vectors = jnp.asarray(rng.integers(-9, 10, (4, 11)), jnp.float32)
    results = [compress(vector, seed) for vector in vectors]
    apart = sum(restore(message) for message, restore in results) / 4
    messages, restores = zip(*results, strict=True)
    for restore in restores:  # the same on all workers
        np.testing.assert_array_equal(restore(sum(messages) / 4), apart)


def test_blocks_differ_from_step_to_step_and_from_leaf_to_leaf():
    compress = dj.exchange.random_blocks(jax.random.key(0), 0.01)
    two = {"a": jnp.ones(1000), "b": jnp.ones(1000)}
    rows = jax.jit(jax.vmap(lambda step: kept(compress, two, step)))(jnp.arange(20))
    starts = np.stack([np.argmax(rows[name], axis=1) for name in two], axis=1)
    assert (starts[1:] != starts[:-1]).all()
    assert (starts[:, 0] != starts[:, 1]).mean() > 0.8


def test_workers_draw_the_same_blocks():
    compress = dj.exchange.random_blocks(jax.random.key(0), 0.2)
    one = jax.vmap(lambda x: kept(compress, x, 3), axis_name="workers")
    rows = jax.jit(one)(jnp.ones((4, 50)))
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))


def test_blocks_of_complex_numbers_are_those_of_their_parts():
    compress = dj.exchange.random_blocks(jax.random.key(0), 0.5)
    real, imaginary = np.random.default_rng(1).normal(size=(2, 9)).astype(np.float32)
    x, y, z = (kept(compress, v, 3) for v in (real, imaginary, real + 1j * imaginary))
    np.testing.assert_array_equal(z, x + 1j * y)
    assert np.count_nonzero(z) == 4
