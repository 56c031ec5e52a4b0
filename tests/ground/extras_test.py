import jax
import jax.numpy as jnp
import numpy as np

from delayjax._src.ground import extras


def test_staleness_becomes_int32_leaf_by_leaf():
    """What else is asked of extra arguments is in the tables of refused arguments."""
    staleness = {"a": 1, "b": [np.int64(2), jnp.int8(3)]}
    checked = extras.check_staleness("rule", staleness)
    assert jax.tree.map(int, checked) == {"a": 1, "b": [2, 3]}
    assert {leaf.dtype for leaf in jax.tree.leaves(checked)} == {jnp.dtype("int32")}
