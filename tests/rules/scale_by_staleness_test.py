"""Updates times a law, leaf by leaf, in the dtype that they had."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj


def test_a_strongly_typed_law_keeps_bfloat16_momentum_in_a_scan():
    def law(staleness):
        return 1 / (1 + staleness.astype(jnp.float32))

    tx = dj.delayed(optax.chain(dj.scale_by_staleness(law), optax.trace(0.5)), 2)
    params = jnp.ones(3, jnp.bfloat16)

    def step(carry, _):
        updates, state = tx.update(params, carry[1])
        return (updates, state), None

    # scan refuses a carry whose type changes
    (updates, _), _ = jax.lax.scan(step, (params, tx.init(params)), length=3)
    assert updates.dtype == jnp.bfloat16
    # weights 1, 1/2, 1/3 and momentum 1/2; bfloat16 keeps 8 bits
    np.testing.assert_allclose(
        updates.astype(jnp.float32), 1 / 4 + 1 / 4 + 1 / 3, rtol=2**-7
    )


def test_a_staleness_for_each_leaf_scales_leaf_by_leaf():
    updates = {"w": jnp.ones(2), "b": {"x": jnp.ones(()), "y": jnp.ones(3)}}
    tx = dj.scale_by_staleness(dj.modulation.inverse)
    staleness = {"w": 2, "b": {"x": jnp.int32(4), "y": 8}}
    scaled, _ = tx.update(updates, tx.init(updates), staleness=staleness)
    assert scaled["w"].tolist() == [1 / 2, 1 / 2]
    assert scaled["b"]["x"] == 1 / 4
    assert scaled["b"]["y"].tolist() == [1 / 8] * 3
    # a prefix of the tree is enough
    scaled, _ = tx.update(updates, tx.init(updates), staleness={"w": 2, "b": 4})
    assert scaled["b"]["y"].tolist() == [1 / 4] * 3


def test_a_delay_for_each_leaf_reaches_the_law_leaf_by_leaf():
    tx = dj.delayed(dj.scale_by_staleness(dj.modulation.inverse), {"w": 2, "b": 4})
    ones = {"w": jnp.ones(()), "b": jnp.ones(())}
    state = tx.init(ones)
    for _ in range(6):
        updates, state = tx.update(ones, state)
    assert updates == {"w": 1 / 2, "b": 1 / 4}


CONSUMERS = {
    "scale_by_staleness": dj.scale_by_staleness(dj.modulation.inverse),
    "drop_stale": dj.drop_stale(optax.sgd(0.1), 2),
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_history_beside_a_consumer_hands_it_nothing(name):
    tx = optax.chain(dj.delayed(optax.identity(), 1), CONSUMERS[name])
    params = jnp.ones(2)
    match = rf"`{name}`.*`staleness`.*`delayed\(optax.chain\(...\), delay\)`"
    with pytest.raises(TypeError, match=match):
        tx.update(params, tx.init(params), params)


def test_the_mean_staleness_of_several_gradients_need_not_be_whole():
    tx = dj.scale_by_staleness(dj.modulation.inverse)
    updates, _ = tx.update(jnp.ones(2), tx.init(None), staleness=jnp.float32(2.5))
    np.testing.assert_array_equal(updates, np.float32(1 / 2.5))


@pytest.mark.parametrize("name", CONSUMERS)
def test_staleness_that_is_no_number_of_steps_is_refused(name):
    tx = CONSUMERS[name]
    params = jnp.ones(2)
    with pytest.raises(ValueError, match=rf"`staleness` handed to `{name}`.*True"):
        tx.update(params, tx.init(params), staleness=True)
    with pytest.raises(ValueError, match=rf"`staleness` handed to `{name}`.*-1"):
        tx.update(params, tx.init(params), staleness=-1)


def test_a_staleness_of_another_tree_is_refused():
    tx = dj.scale_by_staleness(dj.modulation.inverse)
    params = {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match="`staleness` must be one value or a prefix"):
        tx.update(params, tx.init(params), staleness={"v": 1})
