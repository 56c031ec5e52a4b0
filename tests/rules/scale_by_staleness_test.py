"""Updates times a law, leaf by leaf, in the dtype that they had."""

import jax.numpy as jnp

import delayjax as dj


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
