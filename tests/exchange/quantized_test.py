"""Few bits an entry: levels, errors, and what error feedback makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj

seeds = pytest.mark.parametrize("seed", [1, 2, 3])
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
    """Each has a scale of its own, as if all sent integers and scales to all."""
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
    """All that was to be sent arrives, but the errors that the workers still keep."""
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
