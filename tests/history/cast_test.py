import chex
import jax.numpy as jnp
import numpy as np

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
