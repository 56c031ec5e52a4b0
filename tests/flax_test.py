"""Histories of Flax models have the names, shards and files of their parameters."""

import functools

import flax
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import train_state
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import delayjax as dj
from tests.support.cases import shortened

DEPTH = 3  # D + 1 = 4 slots: the mesh divides 4, so slots could be sharded by mistake
MESH = jax.make_mesh((4,), ("fsdp",), axis_types=(AxisType.Auto,))
X = jnp.linspace(-1.0, 1.0, 8 * 16).reshape(8, 16)
SPEC = P(None, "fsdp", None)
RULES = [("embed", "fsdp"), ("mlp", None), ("layers", None), ("fsdp", "fsdp")]

HISTORIES = {
    "plain": None,
    "cast": dj.ring.cast(jnp.bfloat16),
    "on_host": dj.ring.on_host(),
    "sharded": dj.ring.sharded("fsdp", mesh=MESH),
}


@pytest.fixture(autouse=True)
def mesh():
    with jax.set_mesh(MESH):
        yield


class Net(nnx.Module):
    def __init__(self, rngs, spec=("fsdp", None), **metadata):
        init = nnx.with_metadata(nnx.initializers.lecun_normal(), out_sharding=spec)
        self.inner = nnx.Linear(16, 8, rngs=rngs, kernel_init=init)
        self.outer = nnx.Linear(8, 2, rngs=rngs)
        for key, value in metadata.items():
            self.inner.kernel.set_metadata(key, value)

    def __call__(self, x):
        return self.outer(jnp.tanh(self.inner(x)))


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        logical = nn.with_logical_partitioning(init, ("embed", "mlp"))
        x = nn.Dense(8, kernel_init=logical, name="inner")(x)
        physical = nn.with_partitioning(init, ("fsdp", None))
        return nn.Dense(2, kernel_init=physical, name="outer")(x)


def optimizer_of(model, delay=DEPTH, **options):
    return nnx.Optimizer(
        model, dj.delayed(optax.adam(0.1), delay, **options), wrt=nnx.Param
    )


def loss(model, x):
    return jnp.mean((model(x) - 1.0) ** 2)


@nnx.jit(donate_argnums=(0, 1))
def step(model, optimizer, x):
    value, grads = nnx.value_and_grad(loss)(model, x)
    optimizer.update(model, grads)
    return value


def kernel(optimizer):
    return optimizer.opt_state.gradients.slots["inner"]["kernel"]


def trained(steps=5, **options):
    model = Net(nnx.Rngs(0))
    optimizer = optimizer_of(model, **options)
    losses = [float(step(model, optimizer, X)) for _ in range(steps)]
    return model, optimizer, losses


@pytest.mark.parametrize(
    ("spec", "stacked"),
    [
        (("fsdp", None), (None, "fsdp", None)),
        (P("fsdp", None), P(None, "fsdp", None)),
        (P("fsdp"), P(None, "fsdp")),
        (None, None),
    ],
)
def test_a_history_is_named_as_its_parameter_with_none_in_front(spec, stacked):
    model = Net(nnx.Rngs(0), spec)
    optimizer = optimizer_of(model, keep_params=True)
    for ring in (
        optimizer.opt_state.gradients.slots,
        optimizer.opt_state.origins.slots.params,
    ):
        result = ring["inner"]["kernel"].get_metadata("out_sharding", None)
        assert result == stacked
        assert type(result) is type(stacked)
        assert ring["inner"]["kernel"].get_value().shape == (DEPTH + 1, 16, 8)
    # the metadata of the model does not change
    assert model.inner.kernel.get_metadata("out_sharding", None) == spec


def test_a_sharding_meant_for_optimizers_is_lengthened_too():
    model = Net(nnx.Rngs(0), optimizer_sharding=(None, "fsdp"))
    result = kernel(optimizer_of(model))
    assert result.get_metadata("out_sharding") == (None, None, "fsdp")
    assert result.get_value().sharding.spec == P(None, None, "fsdp")


def test_an_older_name_of_the_metadata_is_lengthened_too():
    """Trainers that stack layers have `sharding_names` beside `out_sharding`."""
    model = Net(nnx.Rngs(0))
    model.inner.kernel._var_metadata["sharding_names"] = (None, "fsdp")
    slots = dj.ring.init(nnx.state(model, nnx.Param), 2).slots
    result = slots["inner"]["kernel"].get_metadata()
    assert result["out_sharding"] == (None, None, "fsdp")  # this does not change
    assert "sharding_names" not in result


def make_both():
    model = Net(nnx.Rngs(0))
    return model, optimizer_of(model)


@pytest.mark.parametrize("transform", [lambda f: f, nnx.jit], ids=["eager", "nnx.jit"])
def test_each_slot_of_an_nnx_history_is_sharded_as_its_kernel(transform):
    _, optimizer = transform(make_both)()
    sharding = kernel(optimizer).get_value().sharding
    assert sharding.is_equivalent_to(jax.NamedSharding(MESH, SPEC), 3)
    specs = nnx.get_partition_spec(optimizer.opt_state)
    assert specs.gradients.slots["inner"]["kernel"].get_value() == SPEC


def test_shapes_alone_are_named_too():
    _, optimizer = nnx.eval_shape(make_both)
    specs = nnx.get_partition_spec(nnx.state(optimizer))["opt_state"]
    assert specs["gradients"]["slots"]["inner"]["kernel"].get_value() == SPEC


def test_no_collective_moves_slots_between_devices():
    """With slots sharded over time, a step would send its history to other devices."""
    model, optimizer = make_both()
    text = step.lower(model, optimizer, X).compile().as_text()
    assert "all-to-all" not in text
    for line in text.splitlines():
        assert not ("all-gather" in line and f"[{DEPTH + 1}," in line), line


@functools.cache
def losses_of(name, delay=DEPTH):
    return trained(delay=delay, history=HISTORIES[name])[2]


@functools.cache
def losses_of_adam():
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    return [float(step(model, optimizer, X)) for _ in range(5)]


@pytest.mark.parametrize(
    "name", shortened(["cast", "sharded", "on_host"], "cast", "sharded")
)
def test_every_history_trains_an_nnx_model_alike(name):
    # bfloat16 rounds a gradient by 2^-9, and Adam divides by the gradient's size
    rtol = 2.0**-6 if name == "cast" else 1e-5
    np.testing.assert_allclose(losses_of(name), losses_of("plain"), rtol=rtol)


@pytest.mark.parametrize("name", HISTORIES)
def test_no_delay_is_the_plain_optimizer_bit_for_bit(name):
    assert losses_of(name, delay=0) == losses_of_adam()


@pytest.mark.parametrize("stripped", [False, True])
def test_an_nnx_history_changes_its_depth_in_mid_training(stripped):
    model, optimizer, _ = trained(steps=6)
    deeper = optimizer_of(model, 5)
    state = optimizer.opt_state
    state = dj.strip_history(state) if stripped else state
    deeper.opt_state = nnx.data(dj.resize_history(state, deeper.opt_state))
    assert kernel(deeper).get_metadata("out_sharding") == (None, "fsdp", None)
    seen = []
    for _ in range(4):
        step(model, deeper, X)
        seen.append(int(dj.staleness(deeper.opt_state)))
    # a deeper history begins with the items that it has: four, or none
    assert seen == [min(t, 5) for t in (range(4) if stripped else range(4, 8))]


@pytest.mark.parametrize("wrap", [dj.delayed, dj.delivered])
def test_frozen_parameters_of_an_nnx_model_have_no_history_and_do_not_move(wrap):
    for frozen in (
        lambda path, leaf: path.startswith("outer/"),
        {"outer": True, "inner": False},
    ):
        model = Net(nnx.Rngs(0))
        tx = wrap(optax.adam(0.1), DEPTH, frozen=frozen)
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        before = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
        for _ in range(4):
            step(model, optimizer, X)
        after = nnx.to_pure_dict(nnx.state(model, nnx.Param))
        for part in before:
            for name, leaf in before[part].items():
                assert jnp.array_equal(leaf, after[part][name]) == (part == "outer")
        state = optimizer.opt_state
        slots = (
            state.gradients.slots
            if wrap is dj.delayed
            else state.in_flight.slots.gradient
        )
        slots = nnx.to_pure_dict(slots)
        assert jax.tree.leaves(slots["outer"]) == [] != jax.tree.leaves(slots["inner"])
        assert int(dj.staleness(state)) == min(3, DEPTH)


def test_staleness_is_set_in_the_state_of_an_nnx_optimizer():
    law = optax.chain(optax.sgd(0.1), dj.scale_by_staleness(dj.modulation.inverse))

    @nnx.jit
    def update(model, optimizer, staleness):
        optimizer.opt_state.staleness[...] = staleness
        return optimizer.update(model, nnx.grad(loss)(model, X))

    def bias(staleness):
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, dj.inject_staleness(law), wrt=nnx.Param)
        return update(model, optimizer, staleness)["outer"]["bias"]

    np.testing.assert_allclose(4 * bias(4), bias(1), rtol=1e-6)


def delay_trees():
    state = nnx.state(Net(nnx.Rngs(0)), nnx.Param)
    return {
        "a State of Params": jax.tree.map(lambda _: 2, state),
        "a prefix State": nnx.State({"inner": 2, "outer": 0}),
        "a dict": {"inner": 2, "outer": 0},
    }


@pytest.mark.parametrize("name", ["a State of Params", "a prefix State", "a dict"])
def test_an_nnx_state_is_a_tree_of_delays(name):
    _, optimizer, _ = trained(delay=delay_trees()[name])
    result = dj.staleness(nnx.as_pure(optimizer.opt_state))
    assert result["inner"] == {"bias": 2, "kernel": 2}
    assert result["outer"]["bias"] == (2 if name == "a State of Params" else 0)


@pytest.mark.parametrize("kind", [flax.core.freeze, dict])
@pytest.mark.parametrize("delay", [{"a": 2, "b": 0}, {"a": {"w": 1}, "b": 2}])
def test_a_frozen_dict_is_a_tree_of_delays(delay, kind):
    params = flax.core.freeze({"a": {"w": jnp.ones(3)}, "b": jnp.ones(2)})
    tx = dj.delayed(optax.sgd(0.1), kind(delay))
    state = tx.init(params)
    for _ in range(3):
        _, state = tx.update(params, state, params)
    a = delay["a"] if isinstance(delay["a"], int) else delay["a"]["w"]
    assert dj.staleness(state) == {"a": {"w": a}, "b": delay["b"]}


MODEL = LinenNet()


def created(key, **options):
    tx = dj.delayed(optax.adam(0.1), DEPTH, keep_params=True, **options)
    params = MODEL.init(key, X)["params"]
    return train_state.TrainState.create(apply_fn=MODEL.apply, params=params, tx=tx)


def applied(state, x):
    def loss(params):
        return jnp.mean((MODEL.apply({"params": params}, x) - 1.0) ** 2)

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def logical_shardings(shapes):
    return nn.logical_to_mesh_sharding(nn.get_partition_spec(shapes), MESH, RULES)


def test_logical_and_physical_names_of_linen_travel_with_the_history():
    shapes = jax.eval_shape(created, jax.random.key(0))
    for ring in (
        shapes.opt_state.gradients.slots,
        shapes.opt_state.origins.slots.params,
    ):
        assert ring["inner"]["kernel"].names == (None, "embed", "mlp")
        assert ring["outer"]["kernel"].names == (None, "fsdp", None)
    state = jax.jit(created, out_shardings=logical_shardings(shapes))(jax.random.key(0))
    for layer in ("inner", "outer"):
        slots = state.opt_state.gradients.slots[layer]["kernel"].value
        assert slots.sharding.spec == SPEC


def test_a_linen_history_lies_on_the_host_where_its_state_is_made_eagerly():
    """The recipe of the page: specs have no memory kind, and place parameters alone."""
    tx = dj.delayed(optax.adam(0.1), DEPTH, history=dj.ring.on_host())

    def params_of(key):
        return MODEL.init(key, X)["params"]

    key = jax.random.key(0)
    shardings = logical_shardings(jax.eval_shape(params_of, key))
    params = jax.jit(params_of, out_shardings=shardings)(key)
    state = train_state.TrainState.create(apply_fn=MODEL.apply, params=params, tx=tx)
    step = jax.jit(applied, donate_argnums=0)
    for _ in range(2):
        for layer in ("inner", "outer"):
            slots = state.opt_state.gradients.slots[layer]["kernel"]
            assert slots.sharding.memory_kind == "pinned_host"
        state, _ = step(state, X)


class Stack(nnx.Module):
    """Two layers in one leaf, with logical names, as MaxText scans them."""

    def __init__(self, rngs):
        init = nnx.with_metadata(
            nnx.initializers.lecun_normal(), out_sharding=("embed", "mlp")
        )
        self.layers = nnx.vmap(
            lambda rngs: nnx.Linear(16, 16, rngs=rngs, kernel_init=init),
            out_axes=nnx.StateAxes({nnx.Param: 1, ...: 0}),
            transform_metadata={nnx.PARTITION_NAME: "layers"},
        )(rngs.split(2))


def shardings_by_rules(state):
    """As MaxText does: from the names in the metadata of shapes, on its mesh."""

    def sharding(variable):
        names = variable.get_metadata("out_sharding", None) or ()
        spec = nn.logical_to_mesh_axes(names, RULES)
        return jax.NamedSharding(MESH, P() if spec is None else spec)

    return jax.tree.map(
        lambda variable: variable.replace(sharding(variable)),
        state,
        is_leaf=lambda node: isinstance(node, nnx.Variable),
    )


def test_logical_names_of_stacked_layers_place_an_nnx_history():
    def make():
        model = Stack(nnx.Rngs(0))
        return nnx.state((model, optimizer_of(model)))

    with nn.logical_axis_rules(RULES):  # nnx places the new arrays by them
        shardings = shardings_by_rules(nnx.eval_shape(make))
        placed = jax.jit(make, out_shardings=shardings)()
    kernel = placed[0]["layers"]["kernel"]
    slots = placed[1]["opt_state"]["gradients"]["slots"]["layers"]["kernel"]
    assert kernel.get_metadata("out_sharding") == ("embed", "layers", "mlp")
    assert slots.get_metadata("out_sharding") == (None, "embed", "layers", "mlp")
    assert slots.get_value().shape == (DEPTH + 1, *kernel.get_value().shape)
    assert kernel.get_value().sharding.is_equivalent_to(
        jax.NamedSharding(MESH, P("fsdp")), 3
    )
    assert slots.get_value().sharding.is_equivalent_to(
        jax.NamedSharding(MESH, P(None, "fsdp")), 4
    )


def test_the_staleness_of_layers_has_no_names_that_would_shard_it():
    law = optax.chain(optax.sgd(0.1), dj.scale_by_staleness(dj.modulation.inverse))
    tx = dj.delayed(law, {"layers": dj.delays.Layers((3, 0), axis=1)})

    def make():
        model = Stack(nnx.Rngs(0))
        return nnx.state((model, nnx.Optimizer(model, tx, wrt=nnx.Param)))

    with nn.logical_axis_rules(RULES):
        shardings = shardings_by_rules(nnx.eval_shape(make))
        placed = jax.jit(make, out_shardings=shardings)()
    staleness = nnx.to_pure_dict(placed[1])["opt_state"]["staleness"]["layers"]
    assert staleness["kernel"].shape == (1, 2, 1) and staleness["bias"].shape == (1, 2)


def test_a_sharded_linen_state_trains_as_one_on_one_device():
    shapes = jax.eval_shape(created, jax.random.key(0))
    placed = jax.jit(created, out_shardings=logical_shardings(shapes))
    take = jax.jit(applied, donate_argnums=0)
    ways = [placed(jax.random.key(0)), nn.unbox(created(jax.random.key(0)))]
    losses = [[], []]
    for _ in range(6):
        for way in (0, 1):
            ways[way], value = take(ways[way], X)
            losses[way].append(float(value))
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("name", shortened(HISTORIES, "cast", "on_host"))
def test_flax_serialization_keeps_every_bit(name):
    params = {"w": jnp.ones((3, 2)), "h": jnp.full(2, 0.7, jnp.bfloat16)}
    tx = dj.delayed(optax.adam(0.1), 2, history=HISTORIES[name])
    _, state = tx.update(params, tx.init(params), params)
    data = flax.serialization.to_bytes(state)
    restored = flax.serialization.from_bytes(tx.init(params), data)
    equal = jax.tree.map(
        lambda a, b: a.dtype == b.dtype and np.array_equal(np.asarray(a), b),
        restored,
        state,
    )
    assert jax.tree.all(equal)


@pytest.mark.parametrize("history", [None, HISTORIES["cast"]], ids=["plain", "cast"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_compiled_init_shards_the_history_as_its_parameters(dtype, history):
    """On a mesh of Auto axes, whose types do not show how a parameter is sharded."""
    tx = dj.delayed(optax.sgd(0.1), DEPTH, keep_params=True, history=history)
    params = jax.device_put(jnp.ones((8, 4), dtype), jax.NamedSharding(MESH, P("fsdp")))
    state = jax.jit(tx.init)(params)
    for slots in (state.gradients.slots, state.origins.slots.params):
        assert slots.sharding.is_equivalent_to(jax.NamedSharding(MESH, SPEC), 3)
