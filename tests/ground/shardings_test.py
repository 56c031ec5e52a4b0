"""Steps under a mesh that the caller has set, with Auto and with Explicit axes."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax.workers import WorkerState
from tests.support.cases import shortened
from tests.support.steps import step_with

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
WORKERS = 2
# arrays of NumPy, which are on no mesh
WEIGHTS = {
    "w": np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(8, 4),
    "b": np.linspace(0.5, -0.5, 4, dtype=np.float32),
}
DATA = np.random.default_rng(0).normal(size=(3, WORKERS, 4, 8)).astype(np.float32)
SGD = optax.sgd(0.1, momentum=0.9)
EXCHANGES = {
    "mean": dj.exchange.mean(SGD),
    "overlapped, late": dj.delayed(
        dj.exchange.overlapped_mean(SGD), 2, keep_params=True
    ),
}
MESHES = {
    "no further axis": (("workers",), (AUTO,)),
    "no further axis, Explicit": (("workers",), (EXPLICIT,)),
    "a further axis": (("workers", "model"), (AUTO, AUTO)),
    "a further axis, Explicit": (("workers", "model"), (EXPLICIT, EXPLICIT)),
    "Explicit workers alone": (("workers", "model"), (EXPLICIT, AUTO)),
}


def mesh_of(name):
    names, kinds = MESHES[name]
    return jax.make_mesh((2,) * len(names), names, axis_types=kinds)


def loss(params, data):
    return jnp.mean((jnp.tanh(data @ params["w"]) + params["b"][None]) ** 2)


def step_of(tx):
    def step(state, batch):
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(dj.workers.vary(params), batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        metrics = {"loss": jax.lax.pmean(value, "workers"), "own": value}
        return (optax.apply_updates(params, updates), opt_state), metrics

    return step


def stepped(workers, held, data):
    program = jax.jit(workers.step, donate_argnums=0)
    results = []
    for batch in data:
        held, metrics = program(held, batch)
        results.append(metrics)
    return held, jax.tree.map(lambda *leaves: np.stack(leaves), *results)


def scanned(workers, held, data):
    return jax.jit(lambda s, b: jax.lax.scan(workers.step, s, b))(held, data)


def trained(make, tx, params, loop=scanned):
    workers = make(step_of(tx))
    held = workers.init((params, tx.init(params)), DATA[0])
    if jax.sharding.get_abstract_mesh().explicit_axes:
        assert all(len(leaf.devices()) > 1 for leaf in jax.tree.leaves(held))
    shapes, _ = jax.eval_shape(workers.step, held, DATA[0])
    assert shapes == jax.eval_shape(lambda held: held, held)  # the types, too
    return loop(workers, held, DATA)


@functools.cache
def alone(name):
    """The same training without a mesh."""
    params = jax.tree.map(jnp.asarray, WEIGHTS)
    held, metrics = trained(simulate, EXCHANGES[name], params)
    return jax.tree.map(np.asarray, (held.state, metrics))


def simulate(step):
    return dj.workers.simulate(step, WORKERS)


def assert_close(ours, theirs):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), ours, theirs
    )


def placed(mesh):
    """Parameters, sharded over the axis "model" if the mesh has it."""
    specs = {"w": P("model") if "model" in mesh.shape else P(), "b": P()}
    places = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    return jax.device_put(jax.tree.map(jnp.asarray, WEIGHTS), places)


@pytest.mark.parametrize("loop", shortened([stepped, scanned], scanned))
@pytest.mark.parametrize("name", shortened(MESHES, "a further axis, Explicit"))
def test_workers_are_simulated_where_a_mesh_is_set(name, loop):
    tx = EXCHANGES["overlapped, late"]
    params = jax.tree.map(jnp.asarray, WEIGHTS)  # made before the mesh was set
    with jax.set_mesh(mesh_of(name)):
        held, metrics = trained(simulate, tx, params, loop)
    assert_close((held.state, metrics), alone("overlapped, late"))


@pytest.mark.parametrize(
    ("name", "exchange", "is_set"),
    shortened(
        itertools.product(MESHES, EXCHANGES, [True, False]),
        ("a further axis", "overlapped, late", False),
        ("a further axis, Explicit", "overlapped, late", True),
    ),
)
def test_devices_take_the_same_steps_where_a_mesh_is_set(name, exchange, is_set):
    mesh = mesh_of(name)
    make = functools.partial(dj.workers.run, mesh=mesh)
    loop = stepped if is_set else scanned
    params = placed(mesh)
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        held, metrics = trained(make, EXCHANGES[exchange], params, loop)
    assert_close((held.state, metrics), alone(exchange))
    spec = (*held.axes[0], *placed(mesh)["b"].sharding.spec)  # "b" is the first leaf
    assert jax.tree.leaves(held.state)[0].sharding.is_equivalent_to(
        NamedSharding(mesh, P(*spec)), 1
    )


FURTHER = shortened(["a further axis", "a further axis, Explicit"], "a further axis")


@pytest.mark.parametrize("name", FURTHER)
def test_a_step_may_name_the_further_axis(name):
    """Where the gradient is taken, and where types and sums are traced."""
    mesh = mesh_of(name)
    explicit = mesh.abstract_mesh.explicit_axes
    pin = jax.sharding.reshard if explicit else jax.lax.with_sharding_constraint
    tx = EXCHANGES["mean"]
    plain = step_of(tx)

    def step(state, batch):
        (params, opt_state), metrics = plain(state, batch)
        whole = pin(pin(params["w"], P("model")), P())  # sharded again
        return (params | {"w": whole}, opt_state), metrics

    makes = [functools.partial(dj.workers.run, mesh=mesh)]
    if not explicit:  # simulated workers have Auto axes
        makes.append(simulate)
    with jax.set_mesh(mesh):
        for make in makes:
            workers, params = make(step), placed(mesh)
            held = workers.init((params, tx.init(params)), DATA[0])
            held, metrics = scanned(workers, held, DATA)
            assert_close((held.state, metrics), alone("mean"))
            w = held.state[0]["w"].addressable_shards[0].data
            assert w.shape == (4, 4)


@pytest.mark.parametrize("name", FURTHER)
def test_simulated_workers_lie_on_a_mesh_as_their_shardings_say(name):
    mesh, tx = mesh_of(name), EXCHANGES["overlapped, late"]
    workers = simulate(step_of(tx))
    with jax.set_mesh(mesh):
        params = placed(mesh)
        held = workers.init((params, tx.init(params)), DATA[0])
        places = held.shardings(mesh)
        held = jax.device_put(held, places)
        outbox = held.state[1].inner_state.outbox["w"]
        assert outbox.addressable_shards[0].data.shape == (1, 4, 4)
        held, metrics = stepped(workers, held, DATA)
        assert_close((held.state, metrics), alone("overlapped, late"))
        outbox = held.state[1].inner_state.outbox["w"]
        assert outbox.addressable_shards[0].data.shape[1:] == (4, 4)


IN_BFLOAT16 = {
    "mean": dj.exchange.mean,
    "overlapped_mean": dj.exchange.overlapped_mean,
    "late_between_groups": lambda inner: dj.exchange.late_between_groups(inner, 2),
}


@pytest.mark.parametrize("name", IN_BFLOAT16)
def test_bfloat16_is_summed_beside_a_model_axis(name):
    """Otherwise XLA ends the process, on a CPU.

    One leaf is sharded over the axis and one is not. The mean of the gradients 1 .. P
    (of this step or of the one before) is exact in bfloat16.
    """
    tx = IN_BFLOAT16[name](optax.sgd(1.0))
    axes = ("groups", "members") if name == "late_between_groups" else ("workers",)
    names = (*axes, "model")
    sizes = (1, 2, 2) if len(axes) > 1 else (2, 2)
    mesh = jax.make_mesh(sizes, names, axis_types=(AUTO,) * len(names))
    kinds = {"matrix": P(None, "model"), "vector": P()}
    shapes = {"matrix": (256, 128), "vector": (8,)}
    params = {
        key: jax.device_put(
            jnp.zeros(shapes[key], jnp.bfloat16), NamedSharding(mesh, spec)
        )
        for key, spec in kinds.items()
    }

    def constant(params, batch):
        model = dj.workers.vary(params, axis_name=axes)
        return jax.tree.map(lambda p: p * 0 + batch.astype(p.dtype), model)

    workers = dj.workers.run(step_with(tx, constant), mesh, axis_name=axes)
    batch = jnp.reshape(jnp.arange(1.0, 3.0), sizes[:-1])
    held = workers.init((params, tx.init(params)), batch)
    program = jax.jit(workers.step)
    for _ in range(2):
        held, _ = program(held, batch)
    moved = 2 if name == "mean" else 1
    for key, leaf in held.state[0].items():
        assert leaf.dtype == jnp.bfloat16
        assert leaf.sharding.spec == kinds[key]
        np.testing.assert_array_equal(np.asarray(leaf, np.float32), -1.5 * moved)


@pytest.mark.parametrize("name", ["a further axis, Explicit", "Explicit workers alone"])
def test_simulated_workers_on_explicit_axes_compile_their_step_once(name):
    """Also if parameters are not sharded: P() and P(None) are the same sharding."""
    mesh = mesh_of(name)
    workers = simulate(step_of(EXCHANGES["mean"]))
    with jax.set_mesh(mesh):
        whole = NamedSharding(mesh, P())
        params = {key: jax.device_put(w, whole) for key, w in WEIGHTS.items()}
        held = workers.init((params, EXCHANGES["mean"].init(params)), DATA[0])
        held = jax.device_put(held, held.shardings(mesh))
        program = jax.jit(workers.step, donate_argnums=0)
        for batch in DATA:
            held, _ = program(held, batch)
        assert program._cache_size() == 1


def test_a_sum_that_was_not_asked_for_is_refused_on_explicit_axes():
    mesh, tx = mesh_of("a further axis, Explicit"), dj.delayed(SGD, 2)
    params = placed(mesh)
    with jax.set_mesh(mesh):
        workers = dj.workers.run(step_with(tx, jax.grad(loss)), mesh)  # not at vary
        with pytest.raises(
            ValueError, match=r"summed over the workers, as .*workers\.vary"
        ):
            workers.init((params, tx.init(params)), DATA[0])


def test_explicit_axes_beside_auto_workers_are_refused():
    mesh = jax.make_mesh((2, 2), ("workers", "model"), axis_types=(AUTO, EXPLICIT))
    with pytest.raises(ValueError, match=r"\('workers',\) of type Explicit"):
        dj.workers.run(lambda state, batch: (state, {}), mesh)


def test_simulated_workers_on_explicit_axes_need_the_mesh_to_be_set():
    mesh = mesh_of("no further axis, Explicit")
    held = WorkerState(jnp.zeros((WORKERS, 3)), (("workers",),))
    held = jax.device_put(held, held.shardings(mesh))
    workers = simulate(lambda state, batch: (state + batch, {}))
    with pytest.raises(ValueError, match=r"use jax\.set_mesh"):
        workers.step(held, np.ones((WORKERS, 3), np.float32))
    with jax.set_mesh(mesh):
        held, _ = workers.step(held, np.ones((WORKERS, 3), np.float32))
    np.testing.assert_array_equal(held.state, np.ones((WORKERS, 3)))
    assert held.state.addressable_shards[0].data.shape == (1, 3)


# Parameters sharded over another axis (FSDP). XLA would shard some results
# differently: "c" over the axis, and the gradient of "e" in its second dimension.

SPECS = {"b": P(), "c": P(), "e": P("fsdp"), "v": P(None, "fsdp"), "w": P("fsdp")}
SHAPES = {"b": (8,), "c": (8,), "e": (16, 8), "v": (8, 8), "w": (8, 8)}
POINTS = np.random.default_rng(1).normal(size=(3, WORKERS, 4, 16)).astype(np.float32)


def weights_on(mesh):
    def placed(name, spec):
        values = np.linspace(-1, 1, np.prod(SHAPES[name]), dtype=np.float32)
        values = values.reshape(SHAPES[name])
        return jax.device_put(values, NamedSharding(mesh, spec))

    return {name: placed(name, spec) for name, spec in SPECS.items()}


def deep_loss(params, data):
    hidden = jnp.tanh(data @ params["e"] @ params["w"] + params["b"][None])
    return jnp.mean((hidden @ params["v"] + params["c"][None]) ** 2)


KEPT = {
    "mean": dj.exchange.mean(SGD),
    "overlapped": dj.exchange.overlapped_mean(SGD, keep_params=True),
    "late": dj.delayed(dj.exchange.mean(SGD), 2),
    "late and overlapped": dj.delayed(
        dj.exchange.overlapped_mean(optax.adam(0.1)), 2, keep_params=True
    ),
    "a history behind the mean": dj.exchange.mean(dj.delayed(SGD, 2)),
    "partial": dj.exchange.partial_mean(
        SGD, lambda step: (jax.lax.axis_index("workers") + step) % 2 == 0
    ),
    "with an error": dj.exchange.error_feedback(
        SGD, dj.exchange.random_blocks(jax.random.key(0), 0.5)
    ),
    "two means": dj.exchange.a2sgd(SGD),
    "delivered": dj.delivered(dj.exchange.mean(SGD), 2, max_delay=3),
}


@pytest.mark.parametrize(
    ("name", "kind", "loop"),
    shortened(
        [
            *((name, AUTO, "a step") for name in KEPT),
            ("overlapped", EXPLICIT, "a step"),
            ("late and overlapped", AUTO, "a loop"),
        ],
        ("late and overlapped", AUTO, "a loop"),
    ),
)
def test_every_leaf_stays_where_it_is_sharded(name, kind, loop):
    tx = KEPT[name]
    mesh = jax.make_mesh((2, 2), ("workers", "fsdp"), axis_types=(kind, kind))

    def gradient(params, batch):
        return jax.grad(deep_loss)(dj.workers.vary(params), batch)

    params = weights_on(mesh)
    workers = dj.workers.run(step_with(tx, gradient), mesh)
    shared = False if name == "two means" else None
    held = workers.init((params, tx.init(params)), POINTS[0], shared)
    before = jax.tree.leaves_with_path(held.state)
    places = [(path, leaf.sharding) for path, leaf in before]
    parts = [leaf.addressable_shards[0].data.shape for _, leaf in before]
    # an item and its history have the name of the parameter last
    for (path, leaf), part in zip(before, parts, strict=True):
        spec = SPECS.get(getattr(path[-1], "key", None), P())
        assert np.prod(leaf.shape) // np.prod(part) == (
            (2 if "fsdp" in spec else 1) * (2 if "workers" in leaf.sharding.spec else 1)
        )
    program = jax.jit(
        lambda held, batches: (
            jax.lax.scan(workers.step, held, batches)
            if loop == "a loop"
            else workers.step(held, batches[0])
        ),
        donate_argnums=0,
    )
    for _ in range(3):
        held, _ = program(held, POINTS)
    after = jax.tree.leaves_with_path(held.state)
    assert [(path, leaf.sharding) for path, leaf in after] == places
    assert [leaf.addressable_shards[0].data.shape for _, leaf in after] == parts
    assert program._cache_size() == 1


@pytest.mark.long
def test_a_late_reduce_stays_sharded_with_the_shardings_of_its_state():
    """In plain `jit`, XLA chooses the places of results that have no sharding."""
    mesh = jax.make_mesh((2, 2), ("data", "fsdp"), axis_types=(AUTO, AUTO))
    tx = dj.exchange.late_reduce(SGD, mesh)
    params = weights_on(mesh)
    # the counters are on the mesh, too
    state = jax.tree.map(
        lambda x: jax.device_put(x, NamedSharding(mesh, P())) if x.ndim == 0 else x,
        (params, tx.init(params)),
    )
    places = jax.tree.map(lambda x: x.sharding, state)

    def step(state, batch):
        params, opt_state = state
        grads = jax.vmap(jax.grad(deep_loss), (None, 0))(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    program = jax.jit(step, donate_argnums=0, out_shardings=places)
    for batch in POINTS:
        state = program(state, batch)
    outbox = state[1].outbox
    parts = {name: x.addressable_shards[0].data.shape for name, x in outbox.items()}
    halved = {"e": (1, 8, 8), "v": (1, 8, 4), "w": (1, 4, 8)}
    assert parts == {"b": (1, 8), "c": (1, 8), **halved}
    assert program._cache_size() == 1


@pytest.mark.parametrize(
    ("kind", "overlapped"),
    shortened(
        [(AUTO, True), (AUTO, False), (EXPLICIT, True), (EXPLICIT, False)],
        (AUTO, True),
    ),
)
def test_leaves_that_are_whole_are_sent_together(kind, overlapped):
    """20 small leaves in one transfer, and each of 4 sharded leaves in its own."""
    mesh = jax.make_mesh((2, 2), ("workers", "fsdp"), axis_types=(kind, kind))
    exchange = dj.exchange.overlapped_mean if overlapped else dj.exchange.mean
    tx = exchange(optax.sgd(0.1))

    def scaled(params, batch):
        return jax.tree.map(lambda x: x * batch, dj.workers.vary(params))

    def placed(shape, spec):
        return jax.device_put(np.ones(shape, np.float32), NamedSharding(mesh, spec))

    large = [placed((128, 256), P("fsdp")) for _ in range(4)]
    params = large + [placed((3 + i,), P()) for i in range(20)]
    workers = dj.workers.run(step_with(tx, scaled), mesh)
    batch = np.ones(WORKERS, np.float32)
    held = workers.init((params, tx.init(params)), batch)
    lowered = jax.jit(workers.step).lower(held, batch)
    assert lowered.as_text().count('"stablehlo.all_reduce"') == 4 + 1
    lines = lowered.compile().as_text().splitlines()
    sums = [line for line in lines if " all-reduce(" in line]
    types = [kind for line in sums for kind in line.split(" all-reduce(")[0].split()]
    assert sum("f32[64,256]" in kind for kind in types) == 4  # half of a leaf each
    assert sum("f32[250]" in kind for kind in types) == 1  # 3 + ... + 22
    gathered = kind == EXPLICIT and jax.__version__.startswith("0.10.")  # at the border
    assert gathered or not any(" all-gather(" in line for line in lines)
