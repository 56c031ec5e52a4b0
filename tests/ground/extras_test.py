import jax
import jax.numpy as jnp
import numpy as np
import pytest

from delayjax._src.ground import extras


def test_staleness_becomes_int32_leaf_by_leaf():
    """The tables of invalid arguments have the other requirements."""
    staleness = {"a": 1, "b": [np.int64(2), jnp.int8(3)]}
    _, checked = extras.staleness_of("rule", jnp.ones(2), staleness)
    assert jax.tree.map(int, checked) == {"a": 1, "b": [2, 3]}
    assert {leaf.dtype for leaf in jax.tree.leaves(checked)} == {jnp.dtype("int32")}


@pytest.mark.parametrize("age", [-1, 0, 2**31 - 2, 2**31 - 1])
def test_the_last_number_of_int32_is_no_staleness(age):
    """Larger numbers are clipped to it; if it is traced, the gradient becomes NaN."""
    is_sound = 0 <= age < 2**31 - 1

    def gradient(age):
        return extras.staleness_of("rule", jnp.ones(2), age)[0]

    seen = jax.jit(gradient)(np.int32(age))
    np.testing.assert_array_equal(seen, [1.0, 1.0] if is_sound else [np.nan, np.nan])
    if is_sound:
        np.testing.assert_array_equal(gradient(age), [1.0, 1.0])
        return
    with pytest.raises(ValueError, match=r"integer below 2\^31 - 1.* got"):
        gradient(age)
