import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from delayjax._src.ground import extras


def test_require_hands_a_value_through():
    assert extras.require(0, "staleness", "rule", "wrap it") == 0


def test_require_names_the_argument_who_needs_it_and_the_remedy():
    match = r"`rule` needs the extra argument `staleness`.*wrap it.*`staleness=`"
    with pytest.raises(TypeError, match=match):
        extras.require(None, "staleness", "rule", "wrap it")


def test_integer_gradients_are_named_by_path():
    grads = {"a": jnp.ones(2), "b": [jnp.ones(2, jnp.bfloat16), jnp.ones(2, int)]}
    with pytest.raises(TypeError, match=r"`rule` needs.*int.*\['b'\]\[1\].*masked"):
        extras.check_gradients("rule", grads)
    extras.check_gradients("rule", {"a": grads["a"], "b": grads["b"][:1]})


@pytest.mark.parametrize("bad", [1.5, -1, True, np.arange(3)])
def test_staleness_that_is_no_count_of_steps_is_named(bad):
    rule = re.escape(f"got {bad!r}")
    match = rf"`staleness` handed to `rule` must be a non-negative integer.*{rule}"
    with pytest.raises(ValueError, match=match):
        extras.check_staleness("rule", {"a": 0, "b": bad})


def test_staleness_becomes_int32_leaf_by_leaf():
    staleness = {"a": 1, "b": [np.int64(2), jnp.int8(3)]}
    checked = extras.check_staleness("rule", staleness)
    assert jax.tree.map(int, checked) == {"a": 1, "b": [2, 3]}
    assert {leaf.dtype for leaf in jax.tree.leaves(checked)} == {jnp.dtype("int32")}
