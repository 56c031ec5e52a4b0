"""One table of every method that averages, and what each of them promises."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import averaging, testing
from delayjax._src.averaging.averaged import AveragingState
from tests.averaging.methods import methods
from tests.exchange.driving import (
    WORKERS,
    bytes_summed,
    drive_all,
    owners,
    program,
)
from tests.ground.donation_test import INNERS, assert_apart
from tests.support.cases import shortened

SGD = optax.sgd(0.1)
STEPS = 9  # the last is not the end of a period of two
TABLE = methods(WORKERS)
members = pytest.mark.parametrize("name", TABLE)
STATIC = ["adaptive_period", "delayed_average", "delayed_average, at once", "dga"]
# one of each method and a history: all follow numpy in both executions elsewhere
FIRST = [n for n in TABLE if "," not in n] + ["wagma, late"]
# a center, a history, weights, and a function of the step
FEW = ("easgd", "wagma, late", "sgp", "adaptive_period")
few = pytest.mark.parametrize("name", FEW)  # what the engine does for every method
# these add up what the workers learn, or weigh what is late apart
OTHERWISE = ["easgd", "downpour", "wagma, late", "sgp, some silent"]

PARAMS = {
    "w": jnp.asarray(np.random.default_rng(2).normal(size=(3, 2)), jnp.float32),
    "b": jnp.ones((4,), jnp.bfloat16),
    "c": jnp.float32(0.5),
}
GRADS = jax.tree.map(
    lambda p: jnp.asarray(
        np.random.default_rng(3).normal(size=(STEPS, WORKERS, *p.shape)), p.dtype
    ),
    PARAMS,
)
GRADS["c"] = GRADS["c"].astype(jnp.bfloat16)  # narrower than its parameter


def build(name, period=2, inner=None):
    return TABLE[name](optax.adam(0.1) if inner is None else inner, period)


@functools.cache
def driven():
    """By name, the split after all steps and the updates of each.

    By a scan, which refuses a carry of another type.
    """
    txs = {name: build(name) for name in TABLE}
    return drive_all("simulate", txs, GRADS, PARAMS, shared=False)


def test_the_table_has_every_method():
    methods = {
        name
        for name, value in inspect.getmembers(averaging, inspect.isfunction)
        if inspect.signature(value).return_annotation
        is optax.GradientTransformationExtraArgs
    }
    assert methods == {name.split(",")[0] for name in TABLE}


def test_every_method_is_made_by_the_engine():
    for name in TABLE:
        assert isinstance(build(name).init(PARAMS), AveragingState), name


# these mix at every second step alone, if that is their period
PERIODIC = [
    *("easgd", "easgd, in turn", "easgd, lock_free"),
    *("downpour", "downpour, averaged", "downpour, lock_free"),
    *("gossip", "gossip, push", "d_psgd", "d_psgd, after the step", "ad_psgd", "sgp"),
    *("local_sgd", "delayed_average", "delayed_average, at once"),
]
# these leave the mean of the models as local steps make it
CONSERVING = [
    *("wagma", "d_psgd", "d_psgd, after the step", "ad_psgd", "sgp"),
    *("local_sgd", "adaptive_period", "delayed_average", "delayed_average, at once"),
    *("dga",),
]


@pytest.mark.parametrize(
    ("name", "devices"),
    shortened(
        [(name, devices) for devices in (1, WORKERS) for name in TABLE],
        *((name, WORKERS if name in FEW else 1) for name in FIRST),
    ),
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


@members
def test_models_and_moments_are_the_workers_own_and_the_schedule_is_shared(name):
    split, _ = driven()[name]
    params, state = owners(split)
    assert all(jax.tree.leaves(params))
    (adam, *_) = state.inner_state
    assert all(jax.tree.leaves((adam.mu, adam.nu)))
    assert not any((state.step, adam.count))
    for shared in ("center", "versions", "server_state", "average", "period"):
        assert not any(jax.tree.leaves(getattr(state.memory, shared, ())))
    for own in ("begun", "outbox", "pushed", "weight"):
        assert all(jax.tree.leaves(getattr(state.memory, own, ())))


@pytest.mark.parametrize(
    "name", ["easgd", "downpour", "local_sgd", "delayed_average", "dga"]
)
def test_a_step_on_devices_sends_one_model(name):
    params = {"w": jnp.zeros((8, 4)), "b": jnp.zeros(3)}
    step = program(build(name, 1, optax.sgd(0.1)), params, shared=False)
    assert bytes_summed(step) == 4 * 35
    assert "all-gather" not in step.as_text()


@members
def test_updates_have_the_parameters_types(name):
    split, updates = driven()[name]
    for leaf, after, update in zip(
        *map(jax.tree.leaves, (PARAMS, split.state[0], updates)), strict=True
    ):
        assert leaf.dtype == after.dtype == update.dtype
        assert np.isfinite(np.asarray(after, np.float32)).all()
        assert np.ptp(np.asarray(after, np.float32), axis=0).max() > 0


MAY_BE_TRACED = [n for n in TABLE if n not in STATIC]


@functools.cache
def at_a_traced_period():
    """By name, the types of the state after all steps."""

    def trained(period):
        txs = {name: build(name, period) for name in MAY_BE_TRACED}
        found = drive_all("simulate", txs, GRADS, PARAMS, shared=False)
        return {name: split.state for name, (split, _) in found.items()}

    return jax.eval_shape(trained, jnp.int32(2))


@pytest.mark.parametrize("name", MAY_BE_TRACED)
def test_a_period_may_be_traced(name):
    state = driven()[name][0].state
    assert at_a_traced_period()[name] == jax.eval_shape(lambda: state)


AS_ONE = [n for n in TABLE if not {n, n.split(",")[0]} & set(OTHERWISE)]


@functools.cache
def agreeing():
    """By name, models [P, 3, 2] of workers with the same gradients; and that of one."""
    inner = optax.sgd(0.1, momentum=0.9)
    grads = jnp.broadcast_to(GRADS["w"][:, :1], GRADS["w"].shape)
    txs = {name: build(name, inner=inner) for name in AS_ONE}
    found = drive_all("simulate", txs, grads, PARAMS["w"], shared=False)
    x, state = PARAMS["w"], inner.init(PARAMS["w"])
    for grad in grads[:, 0]:
        updates, state = inner.update(grad, state, x)
        x = optax.apply_updates(x, updates)
    return {name: split.state[0] for name, (split, _) in found.items()}, x


@pytest.mark.parametrize("name", AS_ONE)
def test_workers_that_agree_go_the_way_of_one(name):
    models, expected = agreeing()
    for own in models[name]:
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)


@few
def test_inner_is_told_what_its_worker_is(name):
    inner = optax.chain(
        dj.drop_stale(optax.sgd(1.0), 1), optax.scale(1.0)
    )  # needs staleness=
    tx = build(name, inner=inner)

    def one(x, staleness):
        grads = jnp.ones_like(x)
        return tx.update(grads, tx.init(x), x, staleness=staleness, weather="fair")[0]

    over = jax.jit(jax.vmap(one, in_axes=(0, None), axis_name="workers"))
    still, moving = over(jnp.zeros(4), 5), over(jnp.zeros(4), 0)
    np.testing.assert_array_equal(still, np.zeros(4))
    assert (np.asarray(moving) < 0).any()


@members
def test_an_empty_tree_stays_empty(name):
    empty = {"layer": {}, "head": ()}
    tx = build(name)

    def one(_):
        updates, state = tx.update(empty, tx.init(empty), empty)
        assert updates == empty
        assert jax.tree.structure(state) == jax.tree.structure(tx.init(empty))
        return ()

    jax.eval_shape(jax.vmap(one, axis_name="workers"), jnp.zeros(4))


def over_workers(name, step):
    return jax.vmap(functools.partial(step, build(name)), axis_name="workers")


@few
def test_an_axis_that_is_not_there_is_named(name):
    tx, x = build(name), jnp.ones(2)
    with pytest.raises(NameError, match=r"no axis 'workers' here: take the step in"):
        tx.update(x, tx.init(x), x)


@few
def test_parameters_must_be_given(name):
    def step(tx, x):
        return tx.update(x, tx.init(x))

    with pytest.raises(TypeError, match="needs the extra argument `params`"):
        over_workers(name, step)(jnp.ones(4))


@few
def test_gradients_must_be_floating_point(name):
    def step(tx, x):
        return tx.update(jnp.int32(1), tx.init(x), x)

    with pytest.raises(TypeError, match="needs floating-point gradients, got int32"):
        over_workers(name, step)(jnp.ones(4))


def saying(answer):
    return lambda *args: answer


NONSENSE = {
    "average(step)": lambda f: averaging.downpour(SGD, average=f),
    "learning_rate(step)": lambda f: averaging.adaptive_period(
        SGD, f, sampling_steps=2
    ),
    "order(step)": lambda f: averaging.easgd(SGD, order=f),
    "lateness(step)": lambda f: averaging.wagma(SGD, lateness=f),
    "participates(step)": lambda f: averaging.sgp(SGD, participates=f),
}


@pytest.mark.parametrize("answer", [1j, jnp.ones((7, 7))], ids=repr)
@pytest.mark.parametrize("asked", NONSENSE)
def test_a_function_that_answers_nonsense_is_named(asked, answer):
    tx = NONSENSE[asked](saying(answer))

    def step(x):
        return tx.update(x, tx.init(x), x)

    with pytest.raises((TypeError, ValueError), match=f"`{re.escape(asked)}` must "):
        jax.eval_shape(jax.vmap(step, axis_name="workers"), jnp.ones((4, 2)))


@few
def test_parameters_that_are_not_said_to_be_own_are_refused(name):
    """Their gradient is summed over the workers, or they would drift apart."""
    tx = build(name)

    def step(state, batch):
        x, opt_state = state
        grad = jax.grad(lambda x: jnp.sum((x - batch) ** 2))(x)
        updates, opt_state = tx.update(grad, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), {}

    held = dj.workers.simulate(step, 4)
    x = jnp.zeros(2)
    with pytest.raises(
        ValueError, match=r"same on all workers|drift apart|sums a grad"
    ):
        held.init((x, tx.init(x)), jnp.ones((4, 2)))


LINEAR = [n for n in TABLE if "," not in n]


@functools.cache
def complex_models():
    """By name, models [P, 3]: one complex, and its two parts beside it."""
    rng = np.random.default_rng(1)
    real, imaginary = rng.normal(size=(2, STEPS, WORKERS, 3)).astype(np.float32)
    grads = {"z": real + 1j * imaginary, "x": real, "y": imaginary}
    params = {"z": jnp.zeros(3, jnp.complex64), "x": jnp.zeros(3), "y": jnp.zeros(3)}
    inner = optax.sgd(0.1, momentum=0.5)
    txs = {name: build(name, inner=inner) for name in LINEAR}
    found = drive_all("simulate", txs, grads, params, shared=False)
    return {name: split.state[0] for name, (split, _) in found.items()}


@pytest.mark.parametrize("name", LINEAR)
def test_a_complex_model_is_its_two_parts(name):
    """Each method is linear in the models."""
    z, x, y = (np.asarray(complex_models()[name][part]) for part in "zxy")
    assert z.dtype == np.complex64
    np.testing.assert_allclose(z, x + 1j * y, rtol=1e-5, atol=1e-6)
    assert np.abs(z.imag).max() > 0.01


AROUND = {
    "finite alone": lambda tx: optax.apply_if_finite(tx, 3),
    "accumulated": lambda tx: optax.MultiSteps(tx, 2),
}


@members
def test_a_state_holds_no_buffer_twice_and_none_of_the_parameters(name):
    """Both are donated, and a buffer can be donated once."""
    for inner in INNERS.values():
        assert_apart((PARAMS, build(name, inner=inner).init(PARAMS)))
    for around in AROUND.values():
        assert_apart((PARAMS, around(build(name)).init(PARAMS)))


def test_a_server_s_optimizer_keeps_no_buffer_of_the_parameters():
    for server in INNERS.values():
        tx = averaging.downpour(optax.sgd(0.1), server=server, average=0.1)
        assert_apart((PARAMS, tx.init(PARAMS)))


def test_a_worker_that_is_seldom_there_has_a_state_of_its_own_memory():
    for inner in INNERS.values():
        tx = averaging.only_on_visit(inner, averaging.by_rank())
        assert_apart((PARAMS, tx.init(PARAMS)))


def test_a_first_step_and_a_second_may_donate_parameters_and_state():
    """On worker 0 of workers that all begin alike."""
    names = "easgd", "downpour", "adaptive_period", "dga"
    txs = {name: build(name, inner=INNERS["dog"]) for name in names}
    params = {name: jax.tree.map(jnp.copy, PARAMS) for name in txs}
    states = {name: tx.init(params[name]) for name, tx in txs.items()}

    def step(params, states):
        def one(rank):
            grads = optax.tree.scale(1.0 + rank, PARAMS)
            for name, tx in txs.items():
                own = params[name]
                updates, state = tx.update(grads, states[name], own)
                yield name, (optax.apply_updates(own, updates), state)

        ranks = jnp.arange(WORKERS, dtype=jnp.float32)
        after = jax.vmap(lambda rank: dict(one(rank)), axis_name="workers")(ranks)
        first = jax.tree.map(lambda leaf: leaf[0], after)
        return tuple({name: both[i] for name, both in first.items()} for i in range(2))

    donating = jax.jit(step, donate_argnums=(0, 1))
    for _ in range(2):
        params, states = donating(params, states)
    for name in txs:
        assert np.isfinite(params[name]["w"]).all()
        assert np.any(params[name]["w"] != PARAMS["w"])
