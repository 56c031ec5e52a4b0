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


@pytest.mark.parametrize("capacity", [1, 3])
def test_one_capacity_and_one_age_hold_for_every_leaf(capacity):
    ring = dj.ring.init(item(0), capacity)
    for value in (1, 2, 3, 4):
        ring = dj.ring.push(ring, item(value))
    for age in range(capacity):
        chex.assert_trees_all_equal(dj.ring.read(ring, age, item(0)), item(4 - age))


def test_a_subtree_shares_one_capacity_and_one_age():
    tree = {"a": (jnp.zeros(()), jnp.zeros(())), "b": jnp.zeros(())}
    ring = dj.ring.init(tree, {"a": 2, "b": 4})
    for value in (1.0, 2.0, 3.0, 4.0):
        ring = dj.ring.push(ring, jax.tree.map(lambda x, v=value: x + v, tree))
    read = dj.ring.read(ring, {"a": 1, "b": 3}, tree)
    chex.assert_trees_all_equal(
        read, {"a": (jnp.array(3.0), jnp.array(3.0)), "b": jnp.array(1.0)}
    )


def test_a_traced_age_beyond_the_depth_reads_the_oldest():
    ring = dj.ring.init(jnp.zeros(()), 3)
    for value in (1.0, 2.0, 3.0, 4.0):
        ring = dj.ring.push(ring, jnp.asarray(value))
    read = jax.jit(dj.ring.read)
    item = jnp.zeros(())
    assert [float(read(ring, age, item)) for age in (-1, 0, 2, 3, 99)] == [
        4,
        4,
        2,
        2,
        2,
    ]


def test_an_empty_tree_has_an_empty_history():
    ring = dj.ring.push(dj.ring.init({}, 3), {})
    assert dj.ring.read(ring, 2, {}) == {}
    assert int(ring.pushed) == 1


def test_shapes_are_enough_to_start_a_ring():
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), item(1))
    chex.assert_trees_all_equal(
        dj.ring.init(shapes, 3), dj.ring.init(item(1), 3), strict=True
    )


def test_push_keeps_every_type():
    ring = dj.ring.init(item(0), {"v": 2, "s": 5})
    pushed = dj.ring.push(ring, item(1))
    assert jax.tree.map(jax.typeof, pushed) == jax.tree.map(jax.typeof, ring)


def test_scan_is_the_loop():
    items = jax.vmap(item)(jnp.arange(1.0, 8.0))
    ages = jnp.array([0, 1, 2, 1, 0, 2, 2])

    def step(ring, inputs):
        ring = dj.ring.push(ring, inputs[0])
        return ring, dj.ring.read(ring, inputs[1], inputs[0])

    ring, read = jax.lax.scan(step, dj.ring.init(item(0), 3), (items, ages))
    looped, rows = dj.ring.init(item(0), 3), []
    for i in range(7):
        looped, row = step(looped, (jax.tree.map(lambda x, i=i: x[i], items), ages[i]))
        rows.append(row)
    chex.assert_trees_all_equal(ring, looped, strict=True)
    chex.assert_trees_all_equal(read, jax.tree.map(lambda *x: jnp.stack(x), *rows))


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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_each_slot_is_sharded_as_its_item(axis_type, transform, dtype):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(axis_type,))
    sharding = jax.NamedSharding(mesh, jax.P("data", None))
    leaf = jax.device_put(jnp.ones((8, 2), dtype), sharding)
    with jax.set_mesh(mesh):
        empty = dj.ring.init(leaf, 3)
        ring = transform(dj.ring.push)(empty, leaf)
        read = transform(dj.ring.read)(ring, 0, leaf)
    assert jax.tree.map(jax.typeof, ring) == jax.tree.map(jax.typeof, empty)
    assert jax.typeof(read) == jax.typeof(leaf)
    slots = jax.NamedSharding(mesh, jax.P(None, "data", None))
    for stored in jax.tree.leaves((empty.slots, ring.slots)):
        assert stored.sharding.is_equivalent_to(slots, 3)
    assert read.sharding.is_equivalent_to(sharding, 2)
    chex.assert_trees_all_equal(read, leaf)


def test_a_compiled_init_keeps_explicit_shardings():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    leaf = jax.device_put(jnp.ones((8, 2)), jax.NamedSharding(mesh, jax.P("data")))
    with jax.set_mesh(mesh):
        eager, compiled = (
            transform(lambda x: dj.ring.init(x, 3))(leaf)
            for transform in (lambda f: f, jax.jit)
        )
    assert jax.typeof(eager.slots).sharding.spec == jax.P(None, "data", None)
    assert jax.typeof(compiled.slots) == jax.typeof(eager.slots)


ITEM = {"w": jnp.zeros(2)}
RING = dj.ring.init(ITEM, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dj.ring.init(jnp.zeros(2), 0), ValueError, r"`capacity` .* got 0\."),
        (lambda: dj.ring.init(jnp.zeros(2), -2), ValueError, r"`capacity` .* got -2\."),
        (lambda: dj.ring.init(jnp.zeros(2), 2.0), TypeError, r"`capacity` .* got 2\.0"),
        (
            lambda: jax.jit(lambda k: dj.ring.init(jnp.zeros(2), k))(3),
            TypeError,
            r"`capacity` must be a static integer",
        ),
        (
            lambda: dj.ring.init({"w": jnp.zeros(2)}, {"v": 3}),
            ValueError,
            r"`capacity` must be one value or a prefix .* got \{'v': 3\}",
        ),
        (
            lambda: dj.ring.push(RING, {"v": jnp.zeros(2)}),
            ValueError,
            r"`tree` must have the structure .*'w'.* got .*'v'",
        ),
        (
            lambda: dj.ring.push(RING, {"w": jnp.zeros(3)}),
            ValueError,
            r"`tree` must be like .*\['w'\] is float32\[3\], .* hold float32\[2\]",
        ),
        (
            lambda: dj.ring.push(
                dj.ring.init(jnp.zeros(2, jnp.bfloat16), 3),
                jnp.ones(2, jnp.complex64),
            ),
            ValueError,
            r"`tree` must be like .* the root is complex64\[2\], .* bfloat16",
        ),
        (lambda: dj.ring.read(RING, 3, ITEM), ValueError, r"`age` .*\[0, 2\].* got 3"),
        (
            lambda: dj.ring.read(RING, -1, ITEM),
            ValueError,
            r"`age` .*\[0, 2\].* got -1",
        ),
        (
            lambda: dj.ring.read(RING, {"v": 0}, ITEM),
            ValueError,
            r"`age` must be one value or a prefix .* got \{'v': 0\}",
        ),
    ],
)
def test_a_bad_argument_is_named_with_its_value(call, error, message):
    with pytest.raises(error, match=message):
        call()
