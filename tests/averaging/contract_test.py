"""One table of every averaging method, and the promises that each of them keeps."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import averaging, testing
from delayjax._src.averaging.step_then_mix import AveragingState
from tests.averaging.methods import methods
from tests.exchange.driving import (
    WORKERS,
    bytes_summed,
    drive_all,
    owners_at_first,
    program,
    shared_buffers,
)
from tests.ground.donation_test import INNERS
from tests.support.promises import Promises

STEPS = 9
TABLE = methods(WORKERS)
promises = Promises()
WRAPPERS = {"mean_of_state", "reset_every"}  # of an inner optimizer, not methods
STATIC = ["adaptive_period", "delayed_average", "delayed_average, at once", "dga"]
STATIC += ["eager_outer"]
# one of each method and of each history; other tests compare all with numpy
FIRST = [n for n in TABLE if "," not in n] + ["wagma, late", "outer, compressed"]
# run on all devices, too: a center, a history, weights, and a function of the step
FEW = ("easgd", "wagma, late", "sgp", "adaptive_period", "outer, compressed")
PARAMS = {
    "w": jnp.asarray(np.random.default_rng(2).normal(size=(3, 2)), jnp.float32),
    "b": jnp.ones((4,), jnp.bfloat16),
}


def build(name, period=2, inner=None):
    return TABLE[name](optax.adam(0.1) if inner is None else inner, period)


def test_the_table_has_every_method():
    methods = {
        name
        for name, value in inspect.getmembers(averaging, inspect.isfunction)
        if inspect.signature(value).return_annotation
        is optax.GradientTransformationExtraArgs
    }
    assert methods - WRAPPERS == {name.split(",")[0] for name in TABLE}


def test_every_method_is_made_by_the_engine():
    for name in TABLE:
        assert isinstance(build(name).init(PARAMS), AveragingState), name


# these mix at every second step, if their period is 2
PERIODIC = [
    *("easgd", "easgd, in turn", "easgd, lock_free"),
    *("downpour", "downpour, averaged", "downpour, lock_free"),
    *("gossip", "gossip, push", "d_psgd", "d_psgd, after the step", "ad_psgd", "sgp"),
    *("local_sgd", "delayed_average", "delayed_average, at once"),
    *("outer", "outer, compressed"),
]
# these leave the mean of the models unchanged when they mix
CONSERVING = [
    *("wagma", "d_psgd", "d_psgd, after the step", "ad_psgd", "sgp"),
    *("local_sgd", "adaptive_period", "delayed_average", "delayed_average, at once"),
    *("dga",),
]


@pytest.mark.parametrize(
    ("name", "devices"),
    [(name, 1) for name in FIRST]
    + [
        pytest.param(
            *(name, WORKERS),
            marks=pytest.mark.runs if name in FEW else pytest.mark.long,
        )
        for name in TABLE
    ],
)
def test_a_method_keeps_its_contract(name, devices):
    testing.check_averaging(
        lambda inner: build(name, inner=inner),
        params=PARAMS,
        period=2 if name in PERIODIC else None,
        conserves_mean=name in CONSERVING,
        workers=WORKERS,
        devices=jax.devices()[:devices],
    ).require()


@promises.of(TABLE)
def models_and_moments_are_the_workers_own_and_the_schedule_is_shared(name):
    params, state = owners_at_first(build(name), PARAMS, shared=False)
    assert all(jax.tree.leaves(params))
    (adam, *_) = state.inner_state
    assert all(jax.tree.leaves((adam.mu, adam.nu)))
    assert not any((state.step, adam.count))
    for shared in ("center", "versions", "server_state", "average", "period"):
        assert not any(jax.tree.leaves(getattr(state.memory, shared, ())))
    for fragment in getattr(state.memory, "fragments", ()):
        assert not any(jax.tree.leaves(fragment))
    for per_worker in ("begun", "outbox", "pushed", "weight", "error"):
        assert all(jax.tree.leaves(getattr(state.memory, per_worker, ())))
    for flight in filter(None, [getattr(state.memory, "flight", ())]):
        assert all(jax.tree.leaves((flight.begun, flight.outbox)))
        assert not any(jax.tree.leaves(flight.inbox))


def scan_types(tx):
    """Types a scan on devices, from a state of parameters that do not vary."""

    def worker(params, gradients):
        def step(carry, gradient):
            model, state = carry
            updates, state = tx.update(gradient, state, model)
            return (optax.apply_updates(model, updates), state), None

        start = dj.workers.vary(params), tx.init(params)
        return jax.lax.scan(step, start, gradients)[0][0]

    places = jax.P(), jax.P(None, "workers")
    jax.eval_shape(
        jax.shard_map(
            worker,
            mesh=jax.sharding.AbstractMesh((WORKERS,), ("workers",)),
            in_specs=places,
            out_specs=jax.P("workers"),
        ),
        PARAMS,
        jax.tree.map(lambda p: jnp.stack([jnp.tile(p.T, WORKERS).T] * STEPS), PARAMS),
    )


@promises.of(TABLE)
def the_first_state_has_the_types_of_later_states(name):
    scan_types(build(name))


def test_the_first_state_of_a_visitor_has_the_types_of_later_states():
    order = averaging.first_come([[0.0] * WORKERS])
    scan_types(averaging.only_on_visit(optax.adam(0.1), order))


@promises.of(["easgd", "downpour", "local_sgd", "delayed_average", "dga", "outer"])
def a_step_on_devices_sends_one_model(name):
    params = {"w": jnp.zeros((8, 4)), "b": jnp.zeros(3)}
    step = program(build(name, 1, optax.sgd(0.1)), params, shared=False)
    assert bytes_summed(step) == 4 * 35
    assert "all-gather" not in step.as_text()


def a_step(name, period):
    """Updates and state of one step; matrices have gradients of a narrower type."""
    tx = build(name, period)
    grads = PARAMS | {"w": PARAMS["w"].astype(jnp.bfloat16)}

    def of_worker(_):
        return tx.update(grads, tx.init(PARAMS), PARAMS)

    return jax.vmap(of_worker, axis_name="workers")(jnp.zeros(WORKERS))


@promises.of(TABLE)
def updates_have_the_parameters_dtypes(name):
    updates, _ = jax.eval_shape(lambda: a_step(name, 2))
    dtypes = [jax.tree.map(lambda leaf: leaf.dtype, x) for x in (updates, PARAMS)]
    assert dtypes[0] == dtypes[1]


@promises.of([n for n in TABLE if n not in STATIC])
def a_period_may_be_traced(name):
    known = jax.eval_shape(lambda: a_step(name, 2))
    assert jax.eval_shape(lambda period: a_step(name, period), jnp.int32(2)) == known


LINEAR = [n for n in TABLE if "," not in n]


@functools.cache
def complex_models():
    """By name, models [P, 3]: a complex one, and its two real parts, [P, 2, 3]."""
    parts = np.random.default_rng(1).normal(size=(STEPS, WORKERS, 2, 3))
    parts = parts.astype(np.float32)
    grads = {"whole": parts[:, :, 0] + 1j * parts[:, :, 1], "parts": parts}
    params = {"whole": jnp.zeros(3, jnp.complex64), "parts": jnp.zeros((2, 3))}
    inner = optax.sgd(0.1, momentum=0.5)
    txs = {name: build(name, inner=inner) for name in LINEAR}
    ends = drive_all("simulate", txs, grads, params, shared=False)
    return {name: split.state[0] for name, (split, _) in ends.items()}


@promises.of(LINEAR)
def a_complex_model_is_its_two_parts(name):
    """Because each method is linear in the models."""
    z, parts = (np.asarray(complex_models()[name][x]) for x in ("whole", "parts"))
    assert z.dtype == np.complex64
    np.testing.assert_allclose(z, parts[:, 0] + 1j * parts[:, 1], rtol=1e-5, atol=1e-6)
    assert np.abs(z.imag).max() > 0.01


def test_inner_is_told_what_its_worker_is():
    """The shared code of all methods hands the extra arguments on."""
    inner = dj.drop_stale(optax.sgd(1.0), 1)  # needs staleness=
    tx = build("local_sgd", inner=inner)

    def one(x, staleness):
        extra_args = {"staleness": staleness, "weather": "fair"}
        return tx.update(jnp.ones_like(x), tx.init(x), x, **extra_args)[0]

    step = jax.vmap(one, in_axes=(0, None), axis_name="workers")
    np.testing.assert_array_equal(step(jnp.zeros(4), 5), np.zeros(4))
    assert (np.asarray(step(jnp.zeros(4), 0)) < 0).all()


@pytest.mark.parametrize("name", TABLE)
def test_a_method_keeps_all_promises(name):
    promises.require(name)


@pytest.mark.parametrize("inner", ["accumulated", "mechanic"])
def test_an_optimizer_with_branches_may_be_inside(inner):
    """Its arrays like the parameters are each worker's; its counters are shared."""
    tx = build("outer", inner=INNERS[inner])
    _, state = owners_at_first(tx, {"w": PARAMS["w"]}, shared=False)
    for name in ("mu", "nu", "acc_grads", "x0"):
        for _, owners in optax.tree.get_all_with_path(state.inner_state, name):
            assert all(jax.tree.leaves(owners)), name
    for name in ("count", "mini_step", "gradient_step"):
        for _, owners in optax.tree.get_all_with_path(state.inner_state, name):
            assert not any(jax.tree.leaves(owners)), name


@pytest.mark.parametrize("inner", INNERS)
def test_nor_does_an_optimizer_s_inside_of_a_worker_or_a_server(inner):
    downpour = averaging.downpour(optax.sgd(0.1), server=INNERS[inner], average=0.1)
    seldom = averaging.only_on_visit(INNERS[inner], averaging.by_rank())
    outer = averaging.outer(optax.sgd(0.1), INNERS[inner], period=2, delay=1)
    fresh = averaging.reset_every(INNERS[inner], 3)
    for tx in (downpour, seldom, outer, fresh, build("easgd", inner=INNERS[inner])):
        assert shared_buffers(PARAMS, tx.init(PARAMS)) == []
