"""Compressors: levels, errors of few bits, blocks, and the effect of error feedback."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.support.cases import shortened

seeds = pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
widths = pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])


def sent(tree, bits, step=0):
    message, restore = dj.exchange.quantized(bits)(tree, jnp.int32(step))
    return restore(message)


@seeds
@widths
def test_each_leaf_has_levels_on_a_scale_of_its_own(seed, bits):
    """round(L x / max |x|) of them, in float64 on integers that float32 holds."""
    most = 2 ** (bits - 1) - 1
    rng = np.random.default_rng(seed)
    # multiples of a power of two, the largest of them L times it: the scale is exact
    small = rng.integers(-4 * most, 4 * most + 1, (5, 7)) / 4.0
    small[0, 0] = most
    tree = {"a": np.float32(small), "b": np.float32(8.0 * small)}
    expected = np.round(small)
    got = jax.jit(lambda tree: sent(tree, bits))(tree)
    np.testing.assert_array_equal(got["a"], expected)
    np.testing.assert_array_equal(got["b"], 8.0 * expected)


@seeds
@widths
def test_no_entry_moves_by_more_than_half_a_level_and_the_largest_by_none(seed, bits):
    x = np.random.default_rng(seed).normal(size=200).astype(np.float32)
    moved = np.abs(np.asarray(sent(x, bits)) - x)
    largest = np.abs(x).max()
    rounding = 1e-6 * largest
    assert moved.max() <= largest / (2 ** (bits - 1) - 1) / 2 + rounding
    assert moved[np.abs(x).argmax()] <= rounding
    assert np.square(moved).sum() < np.square(x).sum()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_leaf_keeps_its_dtype_and_zeros_and_no_entries_stay(dtype):
    tree = {"zeros": jnp.zeros(3, dtype), "none": jnp.zeros((0, 2), dtype)}
    got = sent(tree | {"one": jnp.ones((), dtype)}, 4)
    assert {leaf.dtype for leaf in got.values()} == {jnp.dtype(dtype)}
    np.testing.assert_array_equal(got["zeros"], tree["zeros"])
    assert got["none"].shape == (0, 2) and got["one"] == 1


@seeds
def test_a_leaf_of_a_narrow_dtype_is_rounded_in_float32(seed):
    """In bfloat16 the scale would be wrong by up to 1 / 256, and 16 bits by more."""
    narrow = jnp.asarray(np.random.default_rng(seed).normal(size=200), jnp.bfloat16)
    for bits in (4, 8, 16):
        wide = sent(narrow.astype(jnp.float32), bits)
        np.testing.assert_array_equal(sent(narrow, bits), wide.astype(jnp.bfloat16))


@seeds
def test_the_mean_is_that_of_what_each_worker_has_rounded(seed):
    """Each worker has its scale, as if each sent its integers and its scale to all."""
    pushes = np.random.default_rng(seed).normal(size=(3, 40)).astype(np.float32)
    pushes *= np.float32([[1.0], [10.0], [100.0]])
    levels = np.abs(pushes).max(axis=1, keepdims=True).astype(np.float64) / 7
    expected = (np.round(pushes / levels) * levels).mean(axis=0)
    tx = dj.exchange.error_feedback(optax.identity(), dj.exchange.quantized(4))

    def of_worker(push):
        return tx.update(push, tx.init(push))[0]

    mean = jax.vmap(of_worker, axis_name="workers")(pushes)
    np.testing.assert_allclose(mean[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [2, 4])
def test_what_rounding_leaves_out_is_sent_later(bits):
    """All parts are sent at last, except for the errors that the workers still keep."""
    steps, updates = 50, jnp.asarray([1.0, 0.1, 0.01, -0.3])
    tx = dj.exchange.error_feedback(optax.identity(), dj.exchange.quantized(bits))

    def of_worker(push):
        def step(state, _):
            move, state = tx.update(push, state)
            return state, move

        state, moves = jax.lax.scan(step, tx.init(push), None, steps)
        return state.error, moves.sum(axis=0)

    pushes = jnp.stack([updates, 2.0 * updates])
    errors, total = jax.vmap(of_worker, axis_name="workers")(pushes)
    all_of_them = steps * pushes.mean(axis=0)
    np.testing.assert_allclose(total[0] + errors.mean(axis=0), all_of_them, rtol=1e-4)
    # without memory the smallest entry would never be sent
    if bits > 2:
        assert total[0][2] > 0


def kept(compress, tree, step):
    """A tree in which only the kept entries are not zero."""
    message, restore = compress(tree, step)
    return restore(message)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def rows(key, fraction, entries, steps):
    compress = dj.exchange.random_blocks(key, fraction)
    ones = jnp.ones(entries)
    return jax.lax.map(lambda step: kept(compress, ones, step), jnp.arange(steps))


def positions(fraction, entries, steps, seed=0):
    """The entries of a vector that are kept in each step, bool [T, n]."""
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
    # the block may go around the end: it has one beginning, unless it is everything
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
        # the message is the block, in the order of its entries
        assert set(np.asarray(message["half"]).tolist()) <= set(
            np.asarray(tree["half"]).tolist()
        )


@seeds
def test_restoring_the_mean_is_the_mean_of_what_is_restored(seed):
    compress = dj.exchange.random_blocks(jax.random.key(seed), 0.4)
    rng = np.random.default_rng(seed)
    vectors = jnp.asarray(rng.integers(-9, 10, (4, 11)), jnp.float32)
    results = [compress(vector, seed) for vector in vectors]
    mean = sum(restore(message) for message, restore in results) / 4
    messages, restores = zip(*results, strict=True)
    for restore in restores:  # the same on all workers
        np.testing.assert_array_equal(restore(sum(messages) / 4), mean)


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
