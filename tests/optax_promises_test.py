"""What Optax's tests ask of its optimizers, asked of every public transformation."""

import jax
import jax.numpy as jnp
import optax
import pytest

from tests import contract_test
from tests.averaging.contract_test import TABLE as METHODS
from tests.exchange.contract_test import TABLE as EXCHANGES
from tests.exchange.driving import WORKERS


def shapes(head, *layer):
    """Matrices, two by three, one of each dtype; a head as one row's delays name it."""
    matrices = {dtype: jax.ShapeDtypeStruct((3, 2), dtype) for dtype in layer}
    return {"head": jax.ShapeDtypeStruct((3, 2), head), "layer": matrices}


SMALL = shapes("float32", "float32")
REAL = shapes("float64", "float16", "bfloat16", "float32")
COMPLEX = shapes("complex128", "complex64", "float32")


def momentum(rate):
    return optax.sgd(rate, momentum=0.5)


# name: inner -> transformation; all of these need the workers' axis
OF_INNER = EXCHANGES | {
    name: lambda inner, method=method: method(inner, 2)
    for name, method in METHODS.items()
}
# name: (transformation, params -> extra arguments)
TABLE = {
    name: (make(momentum(0.1)), lambda params: {}) for name, make in OF_INNER.items()
} | {
    name: (make(2), lambda params, extras=extras: extras(2, params))
    for name, (make, extras) in contract_test.TABLE.items()
}
FIRST = tuple(name for name in TABLE if "," not in name)
AROUND = [(name, optax.MultiSteps) for name in FIRST] + [
    (name, optax.apply_if_finite) for name in ("delayed", "kardam", "easgd")
]
WRAPPED = {
    f"{name}, in {around.__name__}": (around(TABLE[name][0], 2), TABLE[name][1])
    for name, around in AROUND
}


def kinds(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def traced(step, params):
    """The trace of a step on all workers."""
    everywhere = jax.vmap(step, axis_name="workers", axis_size=WORKERS, in_axes=None)
    return jax.make_jaxpr(everywhere)(params)


def two_steps(tx, extras):
    """Makes a state and takes two steps, in a scan: it refuses a type that changes."""

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(params, state, params, **extras(params))
        assert kinds(updates) == kinds(params)
        return (optax.apply_updates(params, updates), state), None

    return lambda params: jax.lax.scan(step, (params, tx.init(params)), length=2)


@pytest.mark.parametrize("name", FIRST)
def test_init_needs_shapes_alone(name):
    """Also of these dtypes: `testing.check` asks the usual ones, of all members."""
    tx, _ = TABLE[name]
    with jax.enable_x64(True):
        assert kinds(tx.init(REAL)) == kinds(jax.eval_shape(tx.init, REAL))


@pytest.mark.parametrize("name", TABLE | WRAPPED)
def test_a_step_keeps_every_type(name):
    tx, extras = (TABLE | WRAPPED)[name]
    with jax.enable_x64(True):
        traced(two_steps(tx, extras), REAL)


# a2sgd takes means of signs, and bfloat16 has no imaginary part: both refuse by name
@pytest.mark.parametrize(
    "name", [n for n in TABLE if n not in ("a2sgd", "delayed, history in bfloat16")]
)
def test_a_step_keeps_complex_types(name):
    """A number beside the parameters, a weight or a spread, stays real."""
    tx, extras = TABLE[name]
    with jax.enable_x64(True):
        traced(two_steps(tx, extras), COMPLEX)
        state = jax.tree.leaves(jax.eval_shape(tx.init, COMPLEX))
    assert not any(jnp.iscomplexobj(leaf) for leaf in state if leaf.ndim == 0)


@pytest.mark.parametrize("name", OF_INNER)
def test_the_rate_of_what_is_inside_may_be_injected(name):
    def make(rate):
        return OF_INNER[name](momentum(rate))

    tx = optax.inject_hyperparams(make)(rate=0.1)
    traced(two_steps(tx, lambda params: {}), SMALL)


# `testing.check` asks the others
@pytest.mark.parametrize("name", OF_INNER)
def test_unknown_extra_arguments_change_no_operation(name):
    tx, _ = TABLE[name]

    def with_more(**more):
        def update(params):
            return tx.update(params, tx.init(params), params, **more)

        return str(traced(update, SMALL))

    assert with_more(weather="fair") == with_more()


# Optax looks for parameters by a leaf in their place, which fits no tree of delays
@pytest.mark.parametrize(
    "name",
    [n for n in TABLE if not n.endswith(("leaf by leaf", "layer by layer"))],
)
def test_all_that_is_of_a_parameter_is_found_as_such(name):
    """`optax.tree.map_params` reaches it; the rest has no shape, or one of slots."""
    tx, _ = TABLE[name]
    state = tx.init(jax.tree.map(lambda p: jnp.ones(p.shape, p.dtype), SMALL))
    rest = []
    found = optax.tree.map_params(
        tx, lambda leaf: leaf, state, transform_non_params=rest.append
    )
    assert len(jax.tree.leaves(found)) + len(rest) == len(jax.tree.leaves(state))
    assert max(map(jnp.ndim, rest), default=0) <= 1
