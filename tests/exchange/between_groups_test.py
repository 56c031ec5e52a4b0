"""Late between groups: each member holds and sends a share of its group's mean."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import delayjax as dj
from tests.exchange.driving import (
    bytes_summed,
    executions,
    fed,
    parted,
    scanned,
    side_by_side,
)

AXES, GROUPS, MEMBERS = ("groups", "members"), 2, 2
RATE, STEPS = 0.5, 3
SHAPES = {  # and the dimension that is split among the members
    "rows": ((128, 160), 0),
    "columns": ((5, 4096), 1),
    "odd": ((129, 131), None),
    "small": ((128, 127), None),
    "scalar": ((), None),
}
PARAMS = {name: jnp.zeros(shape, jnp.float32) for name, (shape, _) in SHAPES.items()}
LATE = dj.exchange.late_between_groups(optax.sgd(RATE), MEMBERS)


def as_workers(execution, step):
    if execution == "simulate":
        return dj.workers.simulate(step, (GROUPS, MEMBERS), axis_name=AXES)
    kinds = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((GROUPS, MEMBERS), AXES, axis_types=kinds)
    return dj.workers.run(step, mesh, axis_name=AXES)


def gradients(steps=STEPS):
    """[steps, groups, members, *shape]; integers, so that sums are exact."""
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(-64, 64, (steps, GROUPS, MEMBERS, *shape)).astype(np.float32)
        for name, (shape, _) in SHAPES.items()
    }


def drive(execution, tx, batches, params=PARAMS):
    """The state after all steps, and the updates of each step."""
    held = as_workers(execution, fed(tx))
    return scanned(held, (params, tx.init(params)), batches, None)


@functools.cache
def driven(execution):
    """The state and the updates of `LATE`, for several tests."""
    return drive(execution, LATE, gradients())


@executions
def test_the_mean_of_all_workers_is_one_step_late(execution):
    grads = gradients()
    _, moves = driven(execution)
    for name, grad in grads.items():
        expected = -RATE * grad.mean((1, 2))
        assert not moves[name][0].any()
        np.testing.assert_array_equal(moves[name][1:], expected[:-1])


@executions
def test_a_member_holds_its_share_of_the_mean_of_its_group(execution):
    grads = gradients()
    held, _ = driven(execution)
    outbox = held.state[1].outbox
    for name, (_, axis) in SHAPES.items():
        of_groups = grads[name][-1].mean(1)  # [groups, *shape]
        if axis is None:
            np.testing.assert_array_equal(outbox[name], of_groups)
            continue
        shares = np.split(of_groups, MEMBERS, axis=1 + axis)
        np.testing.assert_array_equal(outbox[name], np.stack(shares, axis=1))


def test_between_groups_only_shares_are_summed():
    """In bytes of all-reduces; leaves without a share are summed over members, too."""
    held = as_workers("run", fed(LATE))
    grads = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), gradients(1))
    state = held.init((PARAMS, LATE.init(PARAMS)), grads)
    step = jax.jit(lambda s, g: held.step(s, g)[0], donate_argnums=0)
    program = step.lower(state, grads).compile()
    expected = 0
    for name, (_, axis) in SHAPES.items():
        size = 4 * PARAMS[name].size
        expected += 2 * size if axis is None else size / MEMBERS
    assert bytes_summed(program) == expected
    text = program.as_text()
    assert "reduce-scatter(" in text and "all-gather(" in text


POLYAK = optax.polyak_sgd(max_learning_rate=10.0)
AGES = dj.delays.per_worker([0, 2, 1, 2], axis_name=AXES)


def by_age(inner):
    halved = dj.scale_by_staleness(lambda tau: 0.5**tau)
    return optax.chain(inner, halved)


# the optimizer behind the mean, options of the exchange, and wrappers around it
RULES = {
    "staleness": (
        by_age(optax.adam(0.1)),
        {},
        lambda tx: dj.delayed(tx, AGES, max_delay=2),
    ),
    "value": (POLYAK, {}, lambda tx: tx),
    "stale_params": (
        optax.chain(dj.compensate_delay(0.5), optax.sgd(RATE)),
        {"keep_params": True},
        lambda tx: dj.delayed(tx, 1, keep_params=True),
    ),
}


@executions
def test_updates_are_those_of_a_late_mean_of_all_workers(execution):
    """With all extra arguments that it hands on."""
    shares, at_once = {}, {}
    for name, (inner, options, wrap) in RULES.items():
        late = dj.exchange.late_between_groups(inner, MEMBERS, **options)
        twin = dj.exchange.overlapped_mean(inner, axis_name=AXES, **options)
        shares[name], at_once[name] = wrap(late), wrap(twin)
    losses = 1.0 + np.arange(5.0 * GROUPS * MEMBERS).reshape(5, GROUPS, MEMBERS)
    grads = {name: gradients(5)[name] for name in ("rows", "odd")}
    batches = grads, {"value": np.float32(losses)}
    txs = {f"{name}, in shares": tx for name, tx in shares.items()} | at_once
    step = side_by_side({name: fed(tx, extras=True) for name, tx in txs.items()})
    held = as_workers(execution, step)
    params = {name: PARAMS[name] for name in grads}
    states = {name: (params, tx.init(params)) for name, tx in txs.items()}
    state, moves = scanned(held, states, batches, dict.fromkeys(txs, (True, False)))
    state = parted(state)
    for name in at_once:
        for leaf in params:
            ours, theirs = (moves[n][leaf] for n in (f"{name}, in shares", name))
            assert theirs[-1].any()
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        ages = [dj.staleness(state[n].state[1]) for n in (f"{name}, in shares", name)]
        np.testing.assert_allclose(*ages)


def test_a_number_of_members_that_is_not_the_axis_is_refused():
    tx = dj.exchange.late_between_groups(optax.sgd(RATE), 4)
    with pytest.raises(
        ValueError, match=r"`num_members` must be 2, the size of the axis, got 4\."
    ):
        drive("simulate", tx, gradients())


@pytest.mark.parametrize(
    ("kind", "rows"), [(AxisType.Auto, 32), (AxisType.Explicit, 64)]
)
def test_parameters_may_be_sharded_over_a_further_axis(kind, rows):
    """JAX does not scatter what is sharded over Explicit axes: it is sent whole."""
    mesh = jax.make_mesh((1, MEMBERS, 2), (*AXES, "model"), axis_types=(kind,) * 3)
    workers = dj.workers.run(fed(LATE), mesh, axis_name=AXES)
    grads = {"rows": gradients()["rows"][:, :1]}
    with jax.set_mesh(mesh):
        place = NamedSharding(mesh, PartitionSpec("model"))
        params = jax.device_put({"rows": PARAMS["rows"]}, place)
        first = jax.tree.map(lambda leaf: leaf[0], grads)
        state = workers.init((params, LATE.init(params)), first)
        for t in range(STEPS):
            batch = jax.tree.map(lambda leaf, t=t: leaf[t], grads)
            state, _ = jax.jit(workers.step)(state, batch)
    expected = -RATE * grads["rows"][:-1].mean((1, 2)).sum(0)
    np.testing.assert_array_equal(state.state[0]["rows"], expected)
    part = state.state[1].outbox["rows"].addressable_shards[0].data.shape
    assert part[-2:] == (rows, 160)
