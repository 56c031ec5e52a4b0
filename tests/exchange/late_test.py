"""`late_reduce`: gradients of plain `jit`, summed one step late, on four devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen
from jax.sharding import AxisType, NamedSharding, reshard
from jax.sharding import PartitionSpec as P

import delayjax as dj
from tests.exchange.driving import bytes_summed, shared_buffers
from tests.support.cases import shortened

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
STEPS, ROWS, INPUTS, HIDDEN = 12, 16, 8, 4
ADAM = optax.adam(0.1)
LATE_ADAM = dj.delayed(ADAM, 2)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


PARAMS = {
    "inner": normal(1, INPUTS, HIDDEN),
    "bias": normal(2, HIDDEN),
    "outer": normal(3, HIDDEN),
    "scale": np.float64(0.5),
}
DATA = normal(4, STEPS, ROWS, INPUTS)
# parameters replicated; split over another axis; split over the axis of the shards
SPLITS = {
    "replicated": ((4,), ("data",), {}),
    "tensor": (
        *((2, 2), ("data", "tensor")),
        {"inner": P(None, "tensor"), "bias": P("tensor"), "outer": P("tensor")},
    ),
    "fsdp": ((4,), ("data",), {"inner": P("data")}),
}
CASES = {
    "auto, replicated, late": (AUTO, "replicated", "per shard", LATE_ADAM),
    "auto, tensor": (AUTO, "tensor", "per shard", ADAM),
    "explicit, tensor": (EXPLICIT, "tensor", "per shard", ADAM),
    "unreduced, replicated, late": (EXPLICIT, "replicated", "unreduced", LATE_ADAM),
    "unreduced, tensor": (EXPLICIT, "tensor", "unreduced", ADAM),
    "unreduced, fsdp": (EXPLICIT, "fsdp", "unreduced", ADAM),
}


def mesh_of(sizes=(4,), names=("data",), kind=AUTO):
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(names))


def loss(params, rows):
    hidden = jnp.tanh(rows @ params["inner"] + params["bias"][None])
    output = params["scale"] * jnp.sum(hidden * params["outer"][None], axis=1)
    return jnp.mean(output * output)


def unreduced_loss(params, rows):
    """`loss`, but parameters are broadcast to the rows of each shard first."""

    def on_rows(leaf, *shape):
        spec = jax.typeof(leaf).sharding.spec.partitions
        wide = jnp.broadcast_to(leaf, (len(rows), *shape))
        return reshard(wide, P("data", *spec))

    hidden = jnp.tanh(rows @ params["inner"] + on_rows(params["bias"], HIDDEN))
    products = hidden * on_rows(params["outer"], HIDDEN)
    output = on_rows(params["scale"]) * jnp.sum(products, axis=1)
    return jnp.mean(output * output)


def gathered(params, **kind):
    """Explicit parameters, no longer split over the axis of the shards."""

    def of(leaf):
        spec = jax.typeof(leaf).sharding.spec.partitions
        return reshard(leaf, P(*(None if s == "data" else s for s in spec), **kind))

    return jax.tree.map(of, params)


def gradients(form, kind, shards):
    """A function (params, rows) -> gradient that is not summed over the shards."""
    if form == "unreduced":
        return lambda params, rows: jax.grad(unreduced_loss)(
            gathered(params, reduced={"data"}), rows
        )

    def per_shard(params, rows):
        explicit = kind == EXPLICIT
        params = gathered(params) if explicit else params
        placed = {"out_sharding": P("data")} if explicit else {}
        parts = rows.reshape(shards, -1, INPUTS, **placed)
        grads = jax.vmap(jax.grad(loss), (None, 0), spmd_axis_name="data")
        return grads(params, parts)

    return per_shard


@functools.cache
def expected(shards, inner):
    """The parameters after training with `overlapped_mean` of simulated workers."""
    tx = dj.exchange.overlapped_mean(inner)

    def step(state, rows):
        params, opt_state = state
        grads = jax.grad(loss)(dj.workers.vary(params), rows)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    workers = dj.workers.simulate(step, shards)
    params = jax.tree.map(jnp.asarray, PARAMS)
    data = DATA.reshape(STEPS, shards, -1, INPUTS)
    split = workers.init((params, tx.init(params)), data[0])
    scan = jax.jit(lambda split: jax.lax.scan(workers.step, split, data)[0])
    return scan(split).state[0]


def placed(tree, mesh, specs):
    shardings = {name: NamedSharding(mesh, specs.get(name, P())) for name in tree}
    return jax.device_put(tree, shardings)


def parts_of(tree):
    """The shape of the part of each leaf that one device holds."""
    return jax.tree.map(lambda x: x.sharding.shard_shape(x.shape), tree)


@pytest.mark.parametrize(
    "case",
    shortened(CASES, "auto, replicated, late", "explicit, tensor", "unreduced, fsdp"),
)
def test_it_is_the_overlapped_mean_of_workers(case):
    """In float64, on every mesh, with a donated state in `scan`."""
    kind, split, form, inner = CASES[case]
    sizes, names, specs = SPLITS[split]
    mesh = mesh_of(sizes, names, kind)
    tx = dj.exchange.late_reduce(inner, mesh)
    gradient = gradients(form, kind, sizes[0])

    def step(state, rows):
        params, opt_state = state
        updates, opt_state = tx.update(gradient(params, rows), opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    with jax.enable_x64(True):
        theirs = expected(sizes[0], inner)
        with jax.set_mesh(mesh):
            data = jax.device_put(DATA, NamedSharding(mesh, P(None, "data")))
            params = placed(PARAMS, mesh, specs)
            state = params, tx.init(params)
            before = parts_of(state)
            train = jax.jit(lambda s, d: jax.lax.scan(step, s, d)[0], donate_argnums=0)
            state = train(state, data)
        assert parts_of(state) == before
        # a device holds the gradient of its shard alone
        assert before[1].outbox["scale"] == (1,)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12),
            *(state[0], theirs),
        )


# The arguments that `inner` receives, and when


ONES = {"w": jnp.ones((2, 3)), "b": jnp.ones(())}
LATE = dj.exchange.late_reduce(optax.sgd(1.0), mesh_of())


def recorder(calls):
    """An optimizer that appends its arguments to `calls` and counts its updates."""

    def update(updates, count, params=None, **extra_args):
        calls.append(extra_args | {"updates": updates})
        return updates, count + 1

    def init(params):
        return jnp.zeros((), jnp.int32)

    return optax.GradientTransformationExtraArgs(init, update)


def of_shards(*means):
    """Gradients like `ONES`, one for each shard."""
    return jax.tree.map(
        lambda leaf: jnp.stack([mean * leaf for mean in means]).astype(leaf.dtype), ONES
    )


def test_the_first_step_changes_nothing_and_the_second_is_the_mean_before():
    calls = []
    tx = dj.exchange.late_reduce(recorder(calls), mesh_of())
    updates, state = tx.update(of_shards(1, 2, 3, 4), tx.init(ONES))
    assert not any(jnp.any(leaf) for leaf in jax.tree.leaves(updates))
    assert (state.inner_state, state.staleness) == (0, 0.0)
    updates, state = tx.update(of_shards(5, 6, 7, 8), state)
    jax.tree.map(np.testing.assert_array_equal, updates, optax.tree.scale(2.5, ONES))
    assert (state.inner_state, state.staleness) == (1, 1.0)
    assert calls[1]["staleness"] == 1
    assert calls[1]["staleness"].dtype == jnp.int32


def test_ages_add_and_parameters_and_the_loss_come_with_their_gradient():
    calls = []
    tx = dj.exchange.late_reduce(recorder(calls), mesh_of(), keep_params=True)
    state, read = tx.init(ONES), []
    for age in (3, 0, 5):
        read.append(optax.tree.scale(age, ONES))
        extras = {"staleness": age, "value": 7.0 + age}
        _, state = tx.update(of_shards(1, 1, 1, 1), state, read[-1], **extras)
        assert shared_buffers(read, state) == []  # not only under `jit`
    assert [step["staleness"] for step in calls[1:]] == [4, 1]
    assert [float(step["value"]) for step in calls[1:]] == [10.0, 7.0]
    assert dj.staleness(state) == 1
    for step, params in zip(calls[1:], read, strict=False):
        jax.tree.map(np.testing.assert_array_equal, step["stale_params"], params)


def test_the_mean_of_complex_gradients_is_complex():
    state = LATE.init(optax.tree.cast(ONES, jnp.complex64))
    grads = jax.tree.map(lambda g: g * (1 + 2j), of_shards(1, 2, 3, 4))
    _, state = LATE.update(grads, state)
    updates, _ = LATE.update(grads, state)
    for update in jax.tree.leaves(updates):
        np.testing.assert_array_equal(update, -2.5 - 5j)


def step_alone(tx, params, shards=4):
    """The compiled update on four devices, in which only the exchange sends."""
    mesh = mesh_of()
    grads = jax.tree.map(
        lambda p: jax.ShapeDtypeStruct(
            (shards, *p.shape), p.dtype, sharding=NamedSharding(mesh, P("data"))
        ),
        params,
    )
    jitted = jax.jit(tx.update, donate_argnums=1)
    return jitted.lower(grads, tx.init(params), params).compile()


def test_small_leaves_are_sent_together_once_and_the_outbox_is_written_in_place():
    big = {"w": jnp.zeros((300, 200), "float32"), "b": jnp.zeros(300, "float32")}
    gradient_bytes = 4 * 300 * 201
    program = step_alone(LATE, big)
    assert bytes_summed(program) == gradient_bytes
    assert program.as_text().count(" all-reduce(") == 1
    # each device holds the gradient of its shard alone
    memory = program.memory_analysis()
    assert memory.alias_size_in_bytes == pytest.approx(gradient_bytes, abs=64)


def test_a_mesh_of_one_device_and_a_shard_of_all_rows_are_one_step_late():
    for kind in (AUTO, EXPLICIT):
        mesh = mesh_of((1,), kind=kind)
        tx = dj.exchange.late_reduce(optax.sgd(1.0), mesh)
        with jax.set_mesh(mesh):
            x = jax.device_put(jnp.ones(3), NamedSharding(mesh, P()))
            _, state = tx.update(2 * x[None], tx.init(x), x)
            updates, _ = tx.update(x[None], state, x)
            np.testing.assert_array_equal(updates, [-2.0, -2.0, -2.0])


def test_names_of_flax_s_axes_fit_what_they_name():
    names = linen.LogicallyPartitioned(jnp.ones((2, 3)), ("rows", "columns"))
    state = jax.eval_shape(LATE.init, {"w": names})
    assert linen.get_partition_spec(state.outbox) == {"w": P(None, "rows", "columns")}
    boxed = {"w": names.replace_boxed(jnp.ones((4, 2, 3)))}
    updates, after = jax.eval_shape(LATE.update, boxed, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.structure(updates) == jax.tree.structure({"w": names})


# Errors


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_a_gradient_that_is_summed_already_is_refused_by_name(kind):
    mesh = mesh_of(kind=kind)
    tx = dj.exchange.late_reduce(optax.sgd(1.0), mesh)
    with jax.set_mesh(mesh):
        grads = of_shards(1, 2, 3, 4) | {"b": jnp.ones(())}
        match = r"`exchange\.late_reduce` needs gradients that are not summed over"
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(tx.update, grads, tx.init(ONES))


def test_a_gradient_that_is_unreduced_over_another_axis_is_refused():
    mesh = mesh_of((2, 2), ("data", "model"), EXPLICIT)
    tx = dj.exchange.late_reduce(optax.sgd(1.0), mesh)
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones(3), NamedSharding(mesh, P()))

        def step(x):
            return tx.update(reshard(x, P(unreduced={"model"})), tx.init(x))

        with pytest.raises(
            ValueError,
            match=r"`exchange\.late_reduce` needs gradients that are not summed over",
        ):
            jax.eval_shape(step, x)
