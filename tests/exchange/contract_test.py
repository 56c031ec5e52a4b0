"""The promises that all exchanges keep."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax import testing
from tests.exchange.driving import (
    WORKERS,
    drive_all,
    executions,
    lowered,
    program,
)
from tests.support.promises import Promises

ADAM, SGD = optax.adam(0.1), optax.sgd(0.5)
PARAMS = {"w": jnp.ones((2, 3)), "half": jnp.ones(5, jnp.bfloat16)}


def every_other(step):
    return (step + jax.lax.axis_index("workers")) % 2 == 0


def half_of_the_time(tree, step):
    return jax.tree.map(lambda u: u * (step % 2 == 0), tree), lambda message: message


def late_reduce(inner):
    """With gradients of a single shard, which have the shapes of the parameters."""
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
# these need other axes, or a different model on each worker
OTHERWISE = "late_between_groups", "late_reduce", "a2sgd"
promises = Promises()


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


@promises.of(TABLE)
def state_keeps_the_parameters_dtype_and_inner_sees_the_gradients(name):
    """Updates have the dtype of the gradients, too."""
    check_dtypes(name, jnp.float32, jnp.bfloat16)
    check_dtypes(name, jnp.bfloat16, jnp.float32)


def check_dtypes(name, dtype, grad_dtype):
    seen = []
    recorder = optax.stateless(lambda g, _: (seen.append(g), g)[1])
    tx = TABLE[name](optax.chain(recorder, SGD))
    params = optax.tree.cast(PARAMS, dtype)
    grads = optax.tree.cast(PARAMS, grad_dtype)

    def of_worker(_):
        before = tx.init(params)
        updates, after = tx.update(grads, before, params)
        return updates, before, after

    over = jax.vmap(of_worker, axis_name="workers")
    updates, before, after = jax.eval_shape(over, jnp.zeros(WORKERS))
    assert before == after
    fed = jax.tree.leaves((seen[-1], updates))
    assert {leaf.dtype for leaf in fed} == {jnp.dtype(grad_dtype)}


@pytest.mark.parametrize("name", TABLE)
def test_an_exchange_keeps_all_promises(name):
    promises.require(name)


# a2sgd refuses complex gradients, late_reduce stands in no step of a worker, and on
# devices JAX sums nothing over an axis of `vmap` that does not differ along it
LINEAR = {
    name: exchange(optax.sgd(0.1, momentum=0.5))
    for name, exchange in TABLE.items()
    if name not in ("a2sgd", "late_between_groups", "late_reduce")
}


@pytest.mark.parametrize("name", ["partial_mean", "error_feedback", "a2sgd"])
def test_a_state_made_inside_of_a_mesh_begins_as_what_it_becomes(name):
    tx = TABLE[name](ADAM)
    types = []

    def worker(params):
        state = tx.init(params)
        grads = dj.workers.vary(params)
        types.extend([state, tx.update(grads, state, params)[1]])
        return ()

    mesh = jax.make_mesh((WORKERS,), ("workers",), axis_types=(AxisType.Auto,))
    everywhere = jax.shard_map(worker, mesh=mesh, in_specs=P(), out_specs=P())
    jax.eval_shape(everywhere, PARAMS)
    before, after = (jax.tree.map(jax.typeof, state) for state in types)
    assert before == after


@executions
def test_a_complex_gradient_is_its_two_parts(execution):
    """The exchange is linear in the gradient, and so are the updates."""
    rng = np.random.default_rng(1)
    real, imaginary = rng.normal(size=(2, 6, WORKERS, 3)).astype(np.float32)
    grads = {"z": real + 1j * imaginary, "x": real, "y": imaginary}
    params = {"z": jnp.zeros(3, jnp.complex64), "x": jnp.zeros(3), "y": jnp.zeros(3)}
    for _, updates in drive_all(execution, LINEAR, grads, params).values():
        z, x, y = (np.asarray(updates[name]) for name in "zxy")
        assert z.dtype == np.complex64
        np.testing.assert_allclose(z, x + 1j * y, rtol=1e-5, atol=1e-6)
        assert np.abs(z.imag).max() > 0.01


@pytest.mark.parametrize("name", ["error_feedback", "a2sgd"])
def test_an_inner_on_each_worker_is_told_what_its_worker_is(name):
    received = {}

    def update(updates, state, params=None, **extra_args):
        received.update(extra_args)
        return updates, state

    tx = TABLE[name](optax.GradientTransformationExtraArgs(lambda _: (), update))
    extras = {"staleness": 3, "stale_params": "hers", "worker": 2}

    def step(grad):
        return tx.update(grad, tx.init(grad), **extras)[0]

    jax.vmap(step, axis_name="workers")(jnp.ones(2))
    assert received == extras


BLOCKS = dj.exchange.random_blocks(jax.random.key(1), 0.01)


@pytest.mark.parametrize(
    ("tx", "most"),  # the memory, in models
    [
        # the sent gradient, and its sum
        (dj.exchange.partial_mean(SGD, every_other, bucket_bytes=0), 2.01),
        # the whole gradient, the sent part, the mean
        (dj.exchange.error_feedback(SGD, BLOCKS), 3.1),
    ],
    ids=["partial_mean", "error_feedback"],
)
def test_what_a_worker_keeps_is_updated_in_place(tx, most):
    big = {"w": jnp.zeros((300, 200), "f4"), "b": jnp.zeros(100, "f4")}
    memory = program(tx, big).memory_analysis()
    one = 4 * (300 * 200 + 100)
    assert memory.alias_size_in_bytes >= 2 * one  # the parameters and the state
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < one / 100
    assert memory.temp_size_in_bytes < most * one


@pytest.mark.parametrize(
    ("exchange", "answer", "sums"),
    [
        # 24 and 4 bytes of gradient, 4 of kept numbers and 4 of ages
        (dj.exchange.partial_mean, every_other, {0: 4, 4: 4, 28: 2, 36: 1}),
        # blocks of 12 and 4 bytes
        (
            dj.exchange.error_feedback,
            dj.exchange.random_blocks(jax.random.key(1), 0.5),
            {0: 2, 16: 1},
        ),
    ],
    ids=["partial_mean", "error_feedback"],
)
def test_a_bucket_holds_so_many_bytes(exchange, answer, sums):
    params = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(())}
    for bucket_bytes, expected in sums.items():
        tx = exchange(SGD, answer, bucket_bytes=bucket_bytes)
        text = lowered(tx, params).as_text()
        assert text.count('"stablehlo.all_reduce"') == expected
