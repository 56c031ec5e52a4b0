"""Leaves that differ are found; what would drift is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax.workers import WorkerState
from tests.exchange import oracle
from tests.workers.driving import (
    ADAM,
    BOTH,
    GROUPS,
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

# What is refused, in the same words by both


PARAMS = {"layer": {"w": jnp.ones(INPUTS)}, "b": jnp.zeros(())}
DATA = BATCHES[0]


def deep(params, data):
    return logistic({"w": params["layer"]["w"], "b": params["b"]}, data)


def started(make, step, tx, **options):
    return make(step).init((PARAMS, tx.init(PARAMS)), DATA, **options)


@pytest.mark.parametrize(
    "tx",
    [MOMENTUM, dj.delayed(MOMENTUM, 2), dj.delayed(ADAM, PER_WORKER, max_delay=3)],
    ids=["plain", "delayed", "a delay a worker"],
)
@both
def test_replicas_that_would_drift_are_refused_by_name(make, tx):
    match = r"\[0\]\['b'\], \[0\]\['layer'\]\['w'\] would drift.*\.mean.*shared="
    with pytest.raises(ValueError, match=match):
        started(make, step_of(tx, deep), tx)


@both
def test_only_the_leaf_that_would_drift_is_named(make):
    tx = optax.masked(
        dj.exchange.mean(MOMENTUM), {"layer": True, "b": False}
    )  # b's gradient stays a worker's own
    with pytest.raises(ValueError, match=r"copies of \[0\]\['b'\] would drift"):
        started(make, step_of(tx, deep), tx)


@both
def test_refusing_by_a_staleness_of_its_own_makes_a_worker_drift(make):
    tx = dj.delayed(
        dj.drop_stale(dj.exchange.mean(MOMENTUM), 1), PER_WORKER, max_delay=3
    )
    with pytest.raises(ValueError, match=r"\[0\]\['b'\].* would drift apart"):
        started(make, step_of(tx, deep), tx)


@pytest.mark.parametrize("part", ["gradient", "step"])
def test_jit_inside_of_a_step_hides_no_drift(part):
    """Its cache remembers a trace: a second look must see what the first saw."""
    grads_of = jax.jit(lambda p, data: jax.grad(deep)(dj.workers.vary(p), data))

    def step(state, batch):
        params, opt_state = state
        updates, opt_state = MOMENTUM.update(grads_of(params, batch), opt_state)
        return (optax.apply_updates(params, updates), opt_state), {}

    step = jax.jit(step) if part == "step" else step
    for make in [*BOTH.values()] * 2:
        with pytest.raises(ValueError, match=r"\[0\]\['b'\].* would drift apart"):
            started(make, step, MOMENTUM)


def without_vary(tx):
    def step(state, batch):
        params, opt_state = state
        grads = jax.grad(deep)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    return step


@pytest.mark.parametrize(
    "tx",
    [
        dj.exchange.mean(ADAM),
        dj.exchange.overlapped_mean(ADAM),
        dj.delayed(dj.exchange.mean(ADAM), 0),
        dj.delayed(dj.exchange.mean(ADAM), 2),
    ],
    ids=["mean", "overlapped", "not delayed", "delayed"],
)
@both
def test_a_gradient_that_is_summed_already_is_refused_by_name(make, tx):
    match = r"`exchange\.\w*mean` got a gradient that is the same.*\['b'\].*vary"
    with pytest.raises(ValueError, match=match):
        started(make, without_vary(tx), tx)


class TheirOwnError(ValueError):
    pass


@pytest.mark.parametrize("when", ["vmap", "shard_map"])
@both
def test_an_error_of_the_step_comes_through_unchanged(make, when):
    """Whatever it says, and in whichever of the traces it is raised."""
    error = TheirOwnError("out_axes is wrong: not taken at workers.vary(params)")

    def step(state, batch):
        if ("vmap" in when) != bool(jax.sharding.get_abstract_mesh().manual_axes):
            raise error
        return state, {}

    with pytest.raises(TheirOwnError) as raised:
        make(step).init(PARAMS, DATA)
    assert raised.value is error
    assert raised.value.__cause__ is None


@both
def test_a_gradient_neither_at_vary_nor_exchanged_is_refused(make):
    """`run` would sum it and `simulate` would not."""
    message = r"not taken at workers\.vary\(params\).* \[0\]\[0\]\['b'\] of its \(state"
    with pytest.raises(ValueError, match=message):
        started(make, without_vary(MOMENTUM), MOMENTUM)


@pytest.mark.parametrize(
    ("batch", "where"),
    [
        (DATA[:3], r"\(3, 3, 5\) at the root"),
        (jnp.ones((8, 3)), r"\(8, 3\) at the root"),
        (jnp.ones(()), r"\(\) at the root"),
        ({"x": DATA, "y": np.ones(3)}, r"\(3,\) at \['y'\]"),
    ],
    ids=["short", "long", "scalar", "tree"],
)
@both
def test_a_batch_must_be_for_all_workers(make, batch, where):
    workers = make(lambda state, batch: (state, {}))
    match = rf"`batch` must have leading axes \(4,\).*got shape {where}"
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


@pytest.mark.parametrize(
    ("number", "error", "match"),
    [
        (0, ValueError, "`num_workers` must be at least 1, got 0"),
        (-2, ValueError, "`num_workers` must be at least 1, got -2"),
        (4.0, TypeError, "`num_workers` must be a static integer, got 4.0"),
        (None, TypeError, "`num_workers` must be a static integer, got None"),
    ],
    ids=str,
)
def test_the_number_of_workers_is_checked(number, error, match):
    with pytest.raises(error, match=match):
        dj.workers.simulate(lambda state, batch: (state, {}), number)


@pytest.mark.parametrize(("number", "names"), [(4, GROUPS), ((2, 2), "workers")])
def test_every_axis_needs_its_number(number, names):
    with pytest.raises(ValueError, match=r"zip\(\) argument 2"):
        dj.workers.simulate(lambda s, b: (s, {}), number, axis_name=names)


@pytest.mark.parametrize("names", [(), ("a", "a"), 3, ["workers"]], ids=str)
def test_axes_need_different_names(names):
    for make in (
        lambda: dj.workers.simulate(lambda s, b: (s, {}), (2, 2), axis_name=names),
        lambda: dj.workers.run(lambda s, b: (s, {}), mesh_of(4), axis_name=names),
    ):
        with pytest.raises(TypeError, match="`axis_name` must be a name"):
            make()


@pytest.mark.parametrize(
    ("mesh", "error", "match"),
    [
        (
            lambda: mesh_of(4, names=("data",)),
            ValueError,
            r"`mesh` must have axes \('workers',\).*'data'.*make_mesh",
        ),
    ],
    ids=["no such axis"],
)
def test_the_mesh_is_checked(mesh, error, match):
    with pytest.raises(error, match=match):
        dj.workers.run(lambda state, batch: (state, {}), mesh())
    with pytest.raises(error, match=match):
        WorkerState(jnp.ones((4, 2)), (("workers",),)).shardings(mesh())


def test_the_mesh_must_divide_the_workers():
    split = WorkerState(jnp.ones((6, 2)), (("workers",),))
    with pytest.raises(ValueError, match="evenly divide"):
        jax.device_put(split, split.shardings(mesh_of(4)))


# Replicas


@pytest.mark.parametrize("shared", [False, (False, False)], ids=["all", "parts"])
def test_replicas_are_trained_where_they_are_asked_for(shared):
    """P trainings side by side: each what it would be alone."""
    inner = step_of(MOMENTUM, logistic)
    state = START, MOMENTUM.init(START)
    end = both_ways(lambda s, b: (inner(s, b)[0], {}), state, BATCHES, shared)
    assert set(end.axes) == {("workers",)}
    for p in range(WORKERS):
        expected = alone(oracle.momentum(RATE, 0.5), BATCHES[:, p])
        assert_close(end.one(worker=p)[0], expected)


@both
def test_a_leaf_that_differs_a_step_later_is_found(make):
    """The second has the batch, and the first what the second had the step before."""
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
