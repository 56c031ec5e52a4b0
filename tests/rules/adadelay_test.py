"""AdaDelay against a loop written from the paper's equation, in numpy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.drawn import SEEDS, STEPS, drawn, updates_of

# AdaDelay


def adadelay(grads, staleness, smoothness, scale, per_coordinate):
    """Sra et al.: t counts from 1."""
    updates, squares = [], np.zeros(grads.shape[1])
    for t, (g, tau) in enumerate(zip(grads, staleness, strict=True), start=1):
        squares += g.astype(np.float64) ** 2
        typical = np.sqrt(squares / t) if per_coordinate else 1.0
        updates.append(-g / (smoothness + scale * typical * np.sqrt(t + tau)))
    return updates


@SEEDS
@pytest.mark.parametrize("per_coordinate", [False, True])
def test_adadelay_is_the_papers_loop(per_coordinate, seed):
    grads, staleness, _ = drawn(seed, largest=30)
    grads *= np.array([1.0, 5.0, 0.1], np.float32)
    tx = dj.step_sizes.adadelay(2.0, 0.7, per_coordinate=per_coordinate)
    ours, _ = updates_of(tx, grads, staleness)
    theirs = adadelay(grads, staleness, 2.0, 0.7, per_coordinate)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    # the delay is felt
    fresh = adadelay(grads, [0] * STEPS, 2.0, 0.7, per_coordinate)
    assert np.abs(np.array(fresh) - theirs).max() > 0.01


def test_adadelay_per_coordinate_is_adagrad_where_nothing_is_late():
    """c_i sqrt(t) = sqrt(sum g_i^2), and a small L is AdaGrad's eps."""
    grads, _, _ = drawn(1)
    tx = dj.step_sizes.adadelay(1e-7, 10.0, per_coordinate=True)
    ours, _ = updates_of(tx, grads, [0] * STEPS)
    adagrad = optax.adagrad(0.1, initial_accumulator_value=0.0)
    theirs, _ = updates_of(optax.with_extra_args_support(adagrad), grads, [0] * STEPS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("per_coordinate", [False, True])
def test_adadelay_takes_a_staleness_for_each_leaf(per_coordinate):
    tx = dj.step_sizes.adadelay(1.0, 0.5, per_coordinate=per_coordinate)
    grads = {"w": jnp.ones(2), "b": jnp.ones(())}
    state = tx.init(grads)
    updates, _ = tx.update(grads, state, staleness={"w": 3, "b": 8})
    # t = 1: 1 / (1 + 2/2) and 1 / (1 + 3/2)
    assert updates["w"].tolist() == [-0.5, -0.5]
    np.testing.assert_allclose(updates["b"], -0.4, rtol=1e-6)


@pytest.mark.parametrize("per_coordinate", [False, True])
def test_a_masked_adadelay_reads_its_part_of_the_staleness(per_coordinate):
    rule = dj.step_sizes.adadelay(1.0, 0.5, per_coordinate=per_coordinate)
    tx = dj.delayed(optax.masked(rule, {"w": True, "b": False}), {"w": 3, "b": 1})
    grads = {"w": jnp.ones(2), "b": jnp.ones(())}
    state, updates = tx.init(grads), grads
    for _ in range(6):
        updates, state = tx.update(grads, state, grads)
    np.testing.assert_allclose(updates["w"], -1 / (1 + 0.5 * 3), rtol=1e-6)  # t + tau 9
    assert updates["b"] == 1


def test_a_mean_square_in_bfloat16_would_stick():
    tx = dj.step_sizes.adadelay(1.0, 1.0, per_coordinate=True)
    grads = jnp.ones(2, jnp.bfloat16)
    state = tx.init(grads)._replace(step=jnp.int32(999))
    _, state = tx.update(grads, state, staleness=0)
    np.testing.assert_allclose(state.mean_square, 1 / 1000, rtol=1e-6)
