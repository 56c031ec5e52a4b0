"""Leaves that differ between workers are found; drift is refused with its name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax.workers import WorkerState
from tests.exchange import oracle
from tests.support.steps import step_with
from tests.workers.driving import (
    ADAM,
    BOTH,
    INPUTS,
    MOMENTUM,
    PER_WORKER,
    RATE,
    WORKERS,
    assert_close,
    both,
    logistic,
    mesh_of,
    step_of,
)
from tests.workers.steps_test import both_ways
from tests.workers.twins_test import BATCHES, START, alone

PARAMS = {"layer": {"w": jnp.ones(INPUTS)}, "b": jnp.zeros(())}
DATA = BATCHES[0]


def deep(params, data):
    return logistic({"w": params["layer"]["w"], "b": params["b"]}, data)


def started(make, step, tx, **options):
    return make(step).init((PARAMS, tx.init(PARAMS)), DATA, **options)


def at_vary(params, batch):
    return jax.grad(deep)(dj.workers.vary(params), batch)


def finite(grads, memory, params, **extra_args):
    return jnp.isfinite(optax.tree.norm(grads)), grads, memory


LATE_MEAN = dj.delayed(dj.exchange.mean(ADAM), 2)
REFUSES_APART = (
    r"\[0\].* would drift.*\.mean\(\.\.\.\) and refuse the same steps on all"
)
DRIFT = r"\[0\]\['b'\], \[0\]\['layer'\]\['w'\] would drift.*\.mean.*shared="
SUMMED = r"`exchange\.\w*mean` got a gradient that is the same.*\['b'\].*vary"
NOT_AT_VARY = r"summed over the workers, as `vmap` would not: .*workers\.vary\(params\)"
# name: (transformation, gradient, message)
REFUSED = {
    "plain": (MOMENTUM, at_vary, DRIFT),
    "delayed": (dj.delayed(MOMENTUM, 2), at_vary, DRIFT),
    "a delay a worker": (dj.delayed(ADAM, PER_WORKER, max_delay=3), at_vary, DRIFT),
    "a leaf alone": (
        optax.masked(dj.exchange.mean(MOMENTUM), {"layer": True, "b": False}),
        at_vary,
        r"copies of \[0\]\['b'\] would drift",
    ),
    "by a staleness of its own": (
        dj.delayed(
            dj.drop_stale(dj.exchange.mean(MOMENTUM), 1), PER_WORKER, max_delay=3
        ),
        at_vary,
        REFUSES_APART,
    ),
    "by a rule of its own": (
        dj.refusing(LATE_MEAN, finite, axis_name="workers"),
        at_vary,
        REFUSES_APART,
    ),
    # JAX types what a `cond` returns as the same on all workers (jax issue 40823)
    "by a branch of its own": (
        dj.averaging.local_sgd(optax.apply_if_finite(ADAM, 3), period=2),
        at_vary,
        r"If you do, a `cond` depends on one .*apply_if_finite: use dj\.refusing",
    ),
    "an exchange in a branch": (
        optax.MultiSteps(dj.exchange.mean(ADAM), 2),
        at_vary,
        r"`exchange\.mean` must be outside of optax\.MultiSteps",
    ),
    "summed already": (dj.exchange.mean(ADAM), jax.grad(deep), SUMMED),
    "summed already, overlapped": (
        dj.exchange.overlapped_mean(ADAM),
        jax.grad(deep),
        SUMMED,
    ),
    "summed already, late": (LATE_MEAN, jax.grad(deep), SUMMED),
    # `run` would sum it and `simulate` would not
    "neither at vary nor exchanged": (MOMENTUM, jax.grad(deep), NOT_AT_VARY),
}


@pytest.mark.parametrize("name", REFUSED)
@both
def test_a_step_after_which_workers_would_differ_is_refused_by_name(make, name):
    tx, gradient, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        started(make, step_with(tx, gradient), tx)


@pytest.mark.parametrize("part", ["gradient", "step"])
def test_jit_inside_of_a_step_hides_no_drift(part):
    """`jit` caches a trace: a second look must find what the first one found."""
    step = step_with(MOMENTUM, jax.jit(at_vary))
    step = jax.jit(step) if part == "step" else step
    for make in [*BOTH.values()] * 2:
        with pytest.raises(ValueError, match=r"\[0\]\['b'\].* would drift apart"):
            started(make, step, MOMENTUM)


class TheirOwnError(ValueError):
    pass


@pytest.mark.parametrize("when", ["vmap", "shard_map"])
@both
def test_an_error_of_the_step_comes_through_unchanged(make, when):
    """For any error, in any of the traces."""
    error = TheirOwnError("out_axes is wrong: not taken at workers.vary(params)")

    def step(state, batch):
        if ("vmap" in when) != bool(jax.sharding.get_abstract_mesh().manual_axes):
            raise error
        return state, {}

    with pytest.raises(TheirOwnError) as raised:
        make(step).init(PARAMS, DATA)
    assert raised.value is error
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        (jnp.ones((8, 3)), r"\(8, 3\) at the root"),
        (jnp.ones(()), r"\(\) at the root"),
        ({"x": DATA, "y": np.ones(3)}, r"\(3,\) at \['y'\]"),
    ],
    ids=["long", "scalar", "tree"],
)
@both
def test_a_batch_must_be_for_all_workers(make, batch, shape):
    workers = make(lambda state, batch: (state, {}))
    axes = r"`batch` must have leading axes \(4,\), the workers along \('workers',\)"
    match = rf"{axes}, got shape {shape}"
    with pytest.raises(ValueError, match=match):
        workers.init(PARAMS, batch)
    split = workers.init(PARAMS, DATA)
    with pytest.raises(ValueError, match=match):
        workers.step(split, batch)


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (lambda s, b: (s["layer"], {}), r"None for float32\[\] at \['b'\]"),
        (
            lambda s, b: ({**s, "b": s["b"].astype(jnp.bfloat16)}, {}),
            r"bfloat16\[\] for float32\[\] at \['b'\]",
        ),
        (
            lambda s, b: ({**s, "b": s["b"][None]}, {}),
            r"float32\[1\] for float32\[\] at \['b'\]",
        ),
    ],
    ids=["tree", "dtype", "shape"],
)
@both
def test_a_step_must_return_a_state_like_its_own(make, step, match):
    with pytest.raises(TypeError, match=match):
        make(step).init(PARAMS, DATA)


@both
def test_a_split_of_another_step_is_refused_by_name(make):
    tx = dj.exchange.overlapped_mean(ADAM)
    split = started(make, step_of(tx, deep), tx)
    all_shared = WorkerState(
        jax.tree.map(lambda x: x, (PARAMS, tx.init(PARAMS))), ((),) * len(split.axes)
    )
    with pytest.raises(ValueError, match=r"\[1\]\.outbox\['b'\].* would differ"):
        make(step_of(tx, deep)).step(all_shared, DATA)


def test_a_split_of_another_number_of_workers_is_refused_by_name():
    tx = dj.exchange.overlapped_mean(ADAM)
    split = started(BOTH["simulate"], step_of(tx, deep), tx)
    for workers in (
        dj.workers.simulate(step_of(tx, deep), 2),
        dj.workers.run(step_of(tx, deep), mesh_of(2)),
    ):
        match = r"`workers_state` must have .* \(2,\).*\(4,\) at \[1\]\.outbox\['b'\]"
        with pytest.raises(ValueError, match=match):
            workers.step(split, DATA[:2])


def test_the_number_and_the_mesh_are_checked():
    def step(state, batch):
        return state, {}

    with pytest.raises(ValueError, match="`num_workers` must be at least 1, got 0"):
        dj.workers.simulate(step, 0)
    with pytest.raises(TypeError, match="`num_workers` must be a static integer, got"):
        dj.workers.simulate(step, 4.0)
    other, axes = mesh_of(4, names=("data",)), (("workers",),)
    for use in (
        lambda: dj.workers.run(step, other),
        lambda: WorkerState(jnp.ones((4, 2)), axes).shardings(other),
    ):
        message = r"`mesh` must have axes \('workers',\), got Mesh\('data': 4,"
        with pytest.raises(ValueError, match=message):
            use()


@pytest.mark.parametrize("shared", [False, (False, False)], ids=["all", "parts"])
def test_replicas_are_trained_where_they_are_asked_for(shared):
    """P trainings side by side, each equal to a single one."""
    inner = step_of(MOMENTUM, logistic)
    state = START, MOMENTUM.init(START)
    end = both_ways(lambda s, b: (inner(s, b)[0], {}), state, BATCHES, shared)
    assert set(end.axes) == {("workers",)}
    for p in range(WORKERS):
        expected = alone(oracle.momentum(RATE, 0.5), BATCHES[:, p])
        assert_close(end.one(worker=p)[0], expected)


@both
def test_a_leaf_that_differs_a_step_later_is_found(make):
    """The second leaf gets the batch; the first gets the old value of the second."""
    workers = make(lambda state, batch: ((state[1], batch), {}))
    split = workers.init((jnp.zeros(()), jnp.zeros(())), jnp.arange(4.0), shared=False)
    assert split.axes == (("workers",), ("workers",))
    for batch in (1 + jnp.arange(4.0), jnp.zeros(4)):
        split, _ = workers.step(split, batch)
    np.testing.assert_array_equal(split.state[0], 1 + jnp.arange(4.0))


@pytest.mark.parametrize("shared", [(True, False, False), (True, None)], ids=str)
@both
def test_shared_is_a_prefix_of_the_state(make, shared):
    with pytest.raises(ValueError, match="`shared` must be one value or a prefix"):
        started(make, step_of(MOMENTUM, deep), MOMENTUM, shared=shared)


@both
def test_a_state_that_is_no_pair_must_be_shared_unless_it_is_said(make):
    def step(state, batch):
        return {"x": state["x"], "own": batch}, {}

    start = {"x": jnp.zeros(()), "own": jnp.zeros(())}
    workers, batch = make(step), jnp.arange(4.0)
    with pytest.raises(ValueError, match=r"copies of \['own'\] would drift apart"):
        workers.init(start, batch)
    with pytest.raises(ValueError, match=r"copies of \['own'\] would drift apart"):
        workers.init(start, batch, {"x": False, "own": True})
    split = workers.init(start, batch, {"x": True, "own": False})
    assert workers.step(split, batch)[0].axes == (("workers",), ())
