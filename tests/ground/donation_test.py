"""No buffer occurs twice in what a training step donates."""

import jax
import jax.numpy as jnp
import optax
import pytest

import delayjax as dj
from delayjax._src.ground import donation
from tests.exchange.driving import shared_buffers

PARAMS = {
    "w": jnp.arange(6.0).reshape(3, 2),
    "b": jnp.ones(4, jnp.bfloat16),
    "c": jnp.float32(0.5),
}
# the last four keep the first parameters unchanged
INNERS = {
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.1),
    "accumulated": optax.MultiSteps(optax.adam(0.1), 2),
    "finite alone": optax.apply_if_finite(optax.adam(0.1), 3),
    "schedule-free": optax.contrib.schedule_free_sgd(0.1),
    "dog": optax.contrib.dog(),
    "dowg": optax.contrib.dowg(),
    "prodigy": optax.contrib.prodigy(),
    "mechanic": optax.contrib.mechanize(optax.sgd(0.1)),
}


def test_an_array_that_stands_twice_is_copied_and_no_other_is():
    x, y, z = jnp.ones(3), jnp.zeros(2), jax.random.key(0)
    state = {"a": x, "b": (y, y), "c": {"x": x, "z": z, "y": y}}
    given = {"x": x}
    copied = donation.unshared(state, given)
    assert shared_buffers(copied, given) == []
    assert (copied["b"][0] is y, copied["c"]["z"] is z) == (True, True)
    assert jax.tree.map(jax.typeof, copied) == jax.tree.map(jax.typeof, state)
    equal = jax.tree.map(lambda a, b: bool((a == b).all()), copied, state)
    assert all(jax.tree.leaves(equal))


def test_what_is_no_array_stays_as_it_is_and_shapes_are_no_values():
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    state = {"n": 1, "m": 1, "shapes": (shape, shape)}
    assert donation.unshared(state) == state
    assert donation.made(lambda x: x[None], shape) == shape.update(shape=(1, 2))
    traced = jax.eval_shape(lambda x: donation.unshared((x, x), x), shape)
    assert traced == (shape, shape)


def quadratic(params, batch, key, model_state):
    grads = jax.tree.map(lambda p: p - batch.astype(p.dtype), params)
    return ({"loss": batch}, model_state), grads


def replay(tx):
    cluster = dj.cluster.Cluster(2, dj.cluster.constant(1.0))
    trace = dj.cluster.simulate(cluster, dj.cluster.protocols.k_async(1), 4, seed=0)
    each = dj.compensate_delay(0.1, adaptive=True)
    tables = dj.cluster.protocols.ringleader().aggregation(2)
    training = dj.replay(trace, quadratic, tx, each=each, aggregation=tables)
    row = jax.tree.map(lambda leaf: leaf[0], trace.arrivals(0, 1))
    return training.init, lambda state: training.step(state, (row, jnp.ones(1)))


def adasync(tx):
    training = dj.adasync(
        dj.cluster.Cluster(2, dj.cluster.constant(1.0)),
        quadratic,
        tx,
        scheme=dj.cluster.protocols.k_async(1),
        interval_seconds=1.0,
        loss=lambda metrics: metrics["loss"],
        seed=0,
        max_staleness=2,
        draws=4,
    )
    return training.init, lambda state: training.step(state, jnp.ones(2))


@pytest.mark.parametrize("make", [replay, adasync])
def test_a_server_s_state_holds_no_buffer_twice_and_none_of_the_caller_s(make):
    key = jax.random.key(0)
    # tied weights, and an average of the model that begins at its parameters
    params = PARAMS | {"tied": PARAMS["w"]}
    for inner in INNERS.values():
        init, _ = make(inner)
        state = init(params, key, model_state=PARAMS)
        assert shared_buffers(state, PARAMS, key) == []


@pytest.mark.parametrize("make", [replay, adasync])
def test_a_server_s_state_and_the_caller_s_parameters_may_both_be_donated(make):
    init, take_step = make(INNERS["dog"])
    params = jax.tree.map(jnp.copy, PARAMS)
    state = init(params, jax.random.key(0), model_state=params)

    def both(params, state):
        return optax.tree.scale(2.0, params), take_step(state)[0]

    step = jax.jit(both, donate_argnums=(0, 1))
    for _ in range(2):
        params, state = step(params, state)
    trained = getattr(state, "training", state)  # of adasync
    assert jnp.isfinite(trained.params["w"]).all()
