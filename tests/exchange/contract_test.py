"""What every exchange promises, whatever it exchanges."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj
from delayjax import testing
from tests.exchange.driving import (
    WORKERS,
    as_workers,
    drive_all,
    executions,
    shared_buffers,
)

ADAM = optax.adam(0.1)
PARAMS = {"w": jnp.ones((2, 3)), "b": jnp.ones(())}


def every_other(step):
    return (step + jax.lax.axis_index("workers")) % 2 == 0


def half_of_the_time(tree, step):
    return jax.tree.map(lambda u: u * (step % 2 == 0), tree), lambda message: message


def late_reduce(inner):
    """Of gradients like the parameters: those of a single shard."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    widen = optax.stateless(lambda g, _: jax.tree.map(lambda x: x[None], g))
    return optax.chain(widen, dj.exchange.late_reduce(inner, mesh, keep_params=True))


def late_between_groups(inner):
    """Each worker is a group with one member."""
    axes = "workers", "members"
    exchange = dj.exchange.late_between_groups(inner, 1, axis_name=axes)

    def update(grads, state, params=None, **extra_args):
        def member(_):
            return exchange.update(grads, state, params, **extra_args)

        alone = jax.vmap(member, axis_name="members")(jnp.zeros(1))
        return jax.tree.map(lambda leaf: leaf[0], alone)

    return optax.GradientTransformationExtraArgs(exchange.init, update)


# name: inner -> transformation
TABLE = {
    "mean": dj.exchange.mean,
    "overlapped_mean": lambda inner: dj.exchange.overlapped_mean(
        inner, keep_params=True, weight=dj.modulation.inverse
    ),
    "late_between_groups": late_between_groups,
    "late_reduce": late_reduce,
    "partial_mean": lambda inner: dj.exchange.partial_mean(inner, every_other),
    "error_feedback": lambda inner: dj.exchange.error_feedback(inner, half_of_the_time),
    "a2sgd": dj.exchange.a2sgd,
}
# these need other axes, or a model of each worker's own
OTHERWISE = "late_between_groups", "late_reduce", "a2sgd"
# how transformations of others stand inside and outside of it
WRAPPED = {
    "alone": lambda exchange: exchange(ADAM),
    "several inside": lambda exchange: exchange(optax.MultiSteps(ADAM, 2)),
    "finite inside": lambda exchange: exchange(optax.apply_if_finite(ADAM, 3)),
    "several outside": lambda exchange: optax.MultiSteps(exchange(ADAM), 2),
    "finite outside": lambda exchange: optax.apply_if_finite(exchange(ADAM), 3),
}
members = pytest.mark.parametrize("name", TABLE)


def test_the_table_has_every_exchange():
    transformations = {
        name
        for name, function in inspect.getmembers(dj.exchange, inspect.isfunction)
        if inspect.signature(function).return_annotation
        is optax.GradientTransformationExtraArgs
    }
    assert transformations == set(TABLE)


@pytest.mark.parametrize("name", [n for n in TABLE if n not in OTHERWISE])
def test_an_exchange_keeps_its_contract(name):
    tx = TABLE[name](ADAM)
    testing.check(tx, PARAMS, axis_name="workers").require()


def test_an_exchange_between_models_keeps_the_contract_of_these():
    testing.check_averaging(TABLE["a2sgd"], params=PARAMS).require()


@members
def test_parameters_and_state_are_buffers_of_their_own_and_may_be_donated(name):
    """As `init` makes them, outside of `jit`, and after a step."""
    txs = {how: wrap(TABLE[name]) for how, wrap in WRAPPED.items()}
    held = {}
    for how, tx in txs.items():
        params = jax.tree.map(jnp.copy, PARAMS)
        held[how] = params, tx.init(params)

    def of_one(states):
        def step(tx, params, state):
            updates, state = tx.update(params, state, params)
            return optax.apply_updates(params, updates), state

        return {how: step(txs[how], *state) for how, state in states.items()}

    @jax.jit(donate_argnums=0)
    def step(states):
        alone = jax.vmap(
            of_one, in_axes=None, out_axes=0, axis_name="workers", axis_size=1
        )
        return jax.tree.map(lambda leaf: leaf[0], alone(states))

    for _ in range(2):
        assert shared_buffers(held) == []
        held = step(held)
    assert shared_buffers(held) == []
    assert not jnp.all(held["alone"][0]["w"] == 1)


# a2sgd refuses complex gradients, late_reduce stands in no step of a worker, and on
# devices JAX sums nothing over an axis of `vmap` that does not differ along it
LINEAR = {
    name: exchange(optax.sgd(0.1, momentum=0.5))
    for name, exchange in TABLE.items()
    if name not in ("a2sgd", "late_between_groups", "late_reduce")
}


@executions
def test_a_complex_gradient_is_its_two_parts(execution):
    """What is exchanged is linear in it, so are the updates."""
    rng = np.random.default_rng(1)
    real, imaginary = rng.normal(size=(2, 6, WORKERS, 3)).astype(np.float32)
    grads = {"z": real + 1j * imaginary, "x": real, "y": imaginary}
    params = {"z": jnp.zeros(3, jnp.complex64), "x": jnp.zeros(3), "y": jnp.zeros(3)}
    for _, updates in drive_all(execution, LINEAR, grads, params).values():
        z, x, y = (np.asarray(updates[name]) for name in "zxy")
        assert z.dtype == np.complex64
        np.testing.assert_allclose(z, x + 1j * y, rtol=1e-5, atol=1e-6)
        assert np.abs(z.imag).max() > 0.01


# with one axis, over which gradients are exchanged in the step itself
of_one_axis = pytest.mark.parametrize(
    "name", ["a2sgd", "error_feedback", "partial_mean"]
)


@of_one_axis
def test_without_the_axis_the_remedy_is_named(name):
    tx = TABLE[name](optax.sgd(0.1))
    with pytest.raises(NameError, match=r"workers\.simulate"):
        tx.update(jnp.ones(()), tx.init(jnp.ones(())))


@of_one_axis
def test_gradients_summed_already_are_refused(name):
    tx = TABLE[name](optax.sgd(0.1))

    def step(x, batch):
        grad = jax.grad(lambda x: (x * batch).sum())(x)
        return tx.update(grad, tx.init(x))[0], {}

    with pytest.raises(ValueError, match=rf"exchange\.{name}.*summed already"):
        as_workers("run", step).init(jnp.ones(()), jnp.ones(WORKERS))


@of_one_axis
def test_integer_gradients_are_refused(name):
    def step(grad):
        tx = TABLE[name](optax.sgd(0.1))
        return tx.update(grad, tx.init(jnp.ones(())))[0]

    with pytest.raises(TypeError, match="needs floating-point gradients, got int"):
        jax.vmap(step, axis_name="workers")(jnp.ones(WORKERS, jnp.int32))


@of_one_axis
def test_an_inner_that_is_no_transformation_is_refused(name):
    with pytest.raises(TypeError, match="`inner` must be an Optax transformation"):
        TABLE[name](None)
