import chex
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj


def test_cast_keeps_half_the_bytes_and_reads_rounded_values():
    values = jnp.asarray(np.random.default_rng(1).normal(size=(6, 5)), jnp.float32)
    storage = dj.ring.cast(jnp.bfloat16)
    ring, plain = storage.init(values[0], 4), dj.ring.init(values[0], 4)
    for value in values:
        ring = storage.push(ring, value)
    assert 2 * ring.slots.nbytes == plain.slots.nbytes
    for age in range(4):
        rounded = values[5 - age].astype(jnp.bfloat16).astype(jnp.float32)
        read = storage.read(ring, age, values[0])
        chex.assert_trees_all_equal(read, rounded, strict=True)


@pytest.mark.parametrize("leaf", [jnp.zeros(2, jnp.int32), jnp.zeros(2, jnp.complex64)])
def test_cast_refuses_what_it_cannot_round(leaf):
    storage = dj.ring.cast(jnp.bfloat16)
    message = rf"`cast` stores real floating-point .*{leaf.dtype} at \['n'\]"
    with pytest.raises(TypeError, match=message):
        storage.init({"n": leaf}, 3)
    ring = storage.init({"n": jnp.zeros(2)}, 3)
    with pytest.raises(TypeError, match=message):
        storage.push(ring, {"n": leaf})


def test_cast_refuses_an_integer_type():
    with pytest.raises(
        TypeError, match=r"`dtype` must be a floating-point type, got.*int8"
    ):
        dj.ring.cast(jnp.int8)
