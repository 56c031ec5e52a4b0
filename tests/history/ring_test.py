import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import delayjax as dj

AxisType = jax.sharding.AxisType


def item(value):
    """A tree of two depths: a float32 vector and a bfloat16 scalar."""
    return {
        "v": jnp.full(2, value, jnp.float32),
        "s": jnp.asarray(-value, jnp.bfloat16),
    }


def nbytes(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def newest(values, age, capacity):
    """What a list says the ring holds at `age`: zero where nothing was pushed."""
    kept = values[::-1][:capacity]
    return kept[age] if age < len(kept) else 0


@hypothesis.settings(
    max_examples=30, deadline=None, derandomize=True, database=None, print_blob=False
)
@hypothesis.given(
    values=st.lists(st.integers(1, 100), max_size=9),
    capacities=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    fraction=st.floats(0, 1, exclude_max=True),
    age_type=st.sampled_from([int, np.int32, jnp.asarray]),
)
def test_ring_is_a_list_that_forgets(values, capacities, fraction, age_type):
    capacity = dict(zip("vs", capacities, strict=True))
    ring = dj.ring.init(item(0), capacity)
    for value in values:
        ring = dj.ring.push(ring, item(value))
    age = {name: int(fraction * depth) for name, depth in capacity.items()}
    ages = {name: age_type(a) for name, a in age.items()}
    read = dj.ring.read(ring, ages, item(0))
    expected = {
        name: item(newest(values, age[name], capacity[name]))[name] for name in "vs"
    }
    chex.assert_trees_all_equal(read, expected, strict=True)


def test_a_traced_age_is_clipped_to_the_depth():
    ring = dj.ring.init(jnp.zeros(()), 3)
    for value in (1.0, 2.0, 3.0, 4.0):
        ring = dj.ring.push(ring, jnp.asarray(value))
    ages = jnp.array([-1, 0, 2, 3, 99])
    read = jax.vmap(lambda age: dj.ring.read(ring, age, jnp.zeros(())))
    assert read(ages).tolist() == [4, 4, 2, 2, 2]


@pytest.mark.parametrize("capacity", [4, 64])
def test_a_donated_push_and_read_touches_one_slot(capacity):
    leaf = jnp.zeros(10_000)
    ring = jax.eval_shape(lambda: dj.ring.init(leaf, capacity))

    def step(ring, leaf, age):
        ring = dj.ring.push(ring, leaf)
        return ring, dj.ring.read(ring, age, leaf)

    program = jax.jit(step, donate_argnums=0).lower(ring, leaf, 2).compile()
    memory = program.memory_analysis()
    # the whole ring is reused as output, and no item is kept on the side
    assert memory.alias_size_in_bytes >= nbytes(ring)
    assert memory.temp_size_in_bytes < nbytes(leaf)
    # one write and one read, each a load and a store; slack for the clock's scalars
    assert program.cost_analysis()["bytes accessed"] <= 4 * nbytes(leaf) + 1000


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_each_slot_is_sharded_as_its_item(axis_type):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(axis_type,))
    sharding = jax.NamedSharding(mesh, jax.P("data", None))
    slots = jax.NamedSharding(mesh, jax.P(None, "data", None))
    for dtype in (jnp.float32, jnp.bfloat16):
        leaf = jax.device_put(jnp.ones((8, 2), dtype), sharding)
        with jax.set_mesh(mesh):
            empty = dj.ring.init(leaf, 3)
            traced = jax.eval_shape(lambda leaf: dj.ring.init(leaf, 3), leaf)
            ring = jax.jit(dj.ring.push)(empty, leaf)
            read = jax.jit(dj.ring.read)(ring, 0, leaf)
        assert jax.tree.map(jax.typeof, ring) == jax.tree.map(jax.typeof, empty)
        if axis_type == AxisType.Explicit:
            assert jax.typeof(traced.slots) == jax.typeof(empty.slots)
        for stored in (empty.slots, ring.slots):
            assert stored.sharding.is_equivalent_to(slots, 3)
        assert read.sharding.is_equivalent_to(sharding, 2)
        chex.assert_trees_all_equal(read, leaf, strict=True)
