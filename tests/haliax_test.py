"""Histories of arrays with Haliax names, placed as Levanter places a state.

Haliax is no requirement of these tests, so its array is written out here; the package
itself is tested in tests/trainers/levanter_test.py.
"""

import dataclasses
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj

MESH = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
RULES = {"embed": "data"}
DEPTH = 3  # D + 1 = 4 slots: the mesh divides 4, so slots could be sharded by mistake


@dataclasses.dataclass(frozen=True)
class Axis:
    name: str
    size: int


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class NamedArray:
    """As in haliax/core.py: the constructor checks, but a rebuilt tree does not."""

    array: jax.Array
    axes: tuple[Axis, ...]

    def __post_init__(self):
        if len({axis.name for axis in self.axes}) != len(self.axes):
            raise ValueError(f"Axes must be unique, but {self.axes} are not")
        if jnp.shape(self.array) != tuple(axis.size for axis in self.axes):
            raise ValueError(f"{jnp.shape(self.array)} does not match {self.axes}")

    def tree_flatten(self):
        return (self.array,), self.axes

    @classmethod
    def tree_unflatten(cls, axes, children):
        named = object.__new__(cls)
        vars(named).update(array=children[0], axes=axes)
        return named


def is_named(node):
    return isinstance(node, NamedArray)


@pytest.fixture(autouse=True)
def haliax(monkeypatch):
    module = types.ModuleType("haliax")
    module.Axis, module.NamedArray = Axis, NamedArray
    monkeypatch.setitem(sys.modules, "haliax", module)


IN, OUT = Axis("embed", 8), Axis("mlp", 4)


def named(*axes):
    size = np.prod([axis.size for axis in axes])
    values = jnp.sin(jnp.arange(size, dtype=jnp.float32))
    return NamedArray(values.reshape([axis.size for axis in axes]), axes)


def model():
    return {"kernel": named(IN, OUT), "bias": named(OUT), "scale": jnp.ones(())}


def frozen_bias(params):
    """`equinox.filter` removes the array from its box, and keeps the box."""
    bias = jax.tree.map(lambda _: None, params["bias"])
    return params | {"bias": bias}


def shardings_of(shapes):
    """As `infer_resource_partitions`: by the names of axes, else replicated."""

    def sharding(node):
        names = [axis.name for axis in node.axes] if is_named(node) else []
        return NamedSharding(MESH, P(*(RULES.get(name) for name in names)))

    return jax.tree.map(sharding, shapes, is_leaf=is_named)


def placed(init):
    """As `named_jit`: shapes first, then the state at the places of its names."""
    return jax.jit(init, out_shardings=shardings_of(jax.eval_shape(init)))()


HISTORIES = {"plain": None, "cast": dj.ring.cast(jnp.bfloat16)}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_named_history_is_placed_as_its_parameter(name):
    tx = dj.delayed(optax.adam(0.1), DEPTH, keep_params=True, history=HISTORIES[name])
    state = placed(lambda: tx.init(model()))
    slots_axis = Axis("delay_history", DEPTH + 1)
    for slots in (state.gradients.slots, state.origins.slots.params):
        assert slots["kernel"].axes == (slots_axis, IN, OUT)
        assert slots["bias"].axes == (slots_axis, OUT)
        assert slots["kernel"].array.shape == (DEPTH + 1, 8, 4)
        sharding = slots["kernel"].array.sharding
        assert sharding.is_equivalent_to(NamedSharding(MESH, P(None, "data")), 3)


def losses(tx, *, steps=6, make=model):
    """The step of Levanter: the model with names and its state, donated."""

    def step(params, state):
        def error(params):
            leaves = jax.tree.leaves(params)
            return sum(jnp.mean((jnp.tanh(leaf) - 0.5) ** 2) for leaf in leaves)

        value, grads = jax.value_and_grad(error)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    params, state = placed(make), placed(lambda: tx.init(make()))
    places = shardings_of(jax.eval_shape(step, params, state))
    step = jax.jit(step, donate_argnums=(0, 1), out_shardings=places)
    values = []
    for _ in range(steps):
        params, state, value = step(params, state)
        values.append(float(value))
    return values, state


def bare(tx, **options):
    """The same model with arrays that have no names."""

    def strip(tree):
        return jax.tree.map(
            lambda node: node.array if is_named(node) else node, tree, is_leaf=is_named
        )

    def update(grads, state, params, **extra_args):
        updates, state = tx.update(strip(grads), state, strip(params), **extra_args)
        leaves = jax.tree.leaves(updates)
        return jax.tree.unflatten(jax.tree.structure(params), leaves), state

    wrapped = optax.GradientTransformationExtraArgs(
        lambda params: tx.init(strip(params)), update
    )
    return losses(wrapped, **options)[0]


@pytest.mark.parametrize("make", [model, lambda: frozen_bias(model())])
def test_names_change_no_number(make):
    tx = dj.delayed(optax.adam(0.1), DEPTH)
    values, state = losses(tx, make=make)
    np.testing.assert_allclose(values, bare(tx, make=make), rtol=1e-6)
    assert int(dj.staleness(state)) == DEPTH


def test_a_parameter_that_is_frozen_has_no_history():
    _, state = losses(dj.delayed(optax.sgd(0.1), 1), make=lambda: frozen_bias(model()))
    slots = jax.tree.leaves(state.gradients.slots)
    assert {leaf.shape for leaf in slots} == {(2, 8, 4), (2,)}


def test_no_delay_keeps_the_bits_of_a_named_model():
    assert losses(dj.delayed(optax.adam(0.1), 0))[0] == losses(optax.adam(0.1))[0]


def test_delays_may_be_named_as_the_parameters_are():
    """A tree of delays made by `jax.tree.map` has the boxes of the model."""
    delays = jax.tree.map(lambda leaf: 2 if leaf.ndim else 0, model())
    _, state = losses(dj.delayed(optax.sgd(0.1), delays))
    result = dj.staleness(state)
    assert [int(age) for age in jax.tree.leaves(result)] == [2, 2, 0]


def test_a_named_history_changes_its_depth():
    _, state = losses(dj.delayed(optax.sgd(0.1), DEPTH))
    like = dj.delayed(optax.sgd(0.1), 5).init(model())
    slots = dj.resize_history(state, like).gradients.slots["kernel"]
    assert slots.axes == (Axis("delay_history", 6), IN, OUT)
    assert slots.array.shape == (6, 8, 4)
