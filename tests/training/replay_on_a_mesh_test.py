"""`replay` on a mesh: its devices share an update's gradients, or each gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj

UPDATES = 20
TRACE = dj.cluster.simulate(
    dj.cluster.Cluster(8, dj.cluster.exponential(1.0)),
    dj.cluster.protocols.k_async(4),
    UPDATES,
    seed=0,
)
BATCHES = np.random.default_rng(0).normal(size=(UPDATES, 4, 8, 6)).astype(np.float32)
WHOLE = {"up": P(), "down": P()}
SPLIT = {"up": P(None, "model"), "down": P("model")}


def loss(params, batch, key):
    return jnp.mean((jnp.tanh(batch @ params["up"]) @ params["down"] - 1.0) ** 2)


def trained(params_specs=None, batch_spec=None, mesh=None):
    params = {
        "up": 0.1 * jax.random.normal(jax.random.key(1), (6, 16)),
        "down": jnp.full(16, 0.1),
    }
    batches = BATCHES
    if mesh is not None:
        for name, spec in params_specs.items():
            params[name] = jax.device_put(params[name], NamedSharding(mesh, spec))
        batches = jax.device_put(BATCHES, NamedSharding(mesh, batch_spec))
    training = dj.replay(TRACE, jax.value_and_grad(loss), optax.adam(1e-2))
    state = training.init(params, jax.random.key(0))
    rows = TRACE.arrivals(0, UPDATES), batches

    def scan(state, rows):
        return jax.lax.scan(training.step, state, rows)

    compiled = jax.jit(scan).lower(state, rows).compile()
    return *compiled(state, rows), compiled.cost_analysis()["flops"]


@pytest.fixture(scope="module", name="alone")
def trained_on_one_device():
    return trained()


@pytest.mark.parametrize("batch", [P(None, "data"), P(None, None, "data")])
@pytest.mark.parametrize("params", [WHOLE, SPLIT])
def test_devices_divide_the_work_and_the_numbers_are_those_of_one(alone, params, batch):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    state, report, flops = trained(params, batch, mesh)
    one, its_report, its_flops = alone
    # the devices add in another order
    np.testing.assert_allclose(report.metrics, its_report.metrics, rtol=1e-5)
    for name, leaf in state.params.items():
        np.testing.assert_allclose(leaf, one.params[name], atol=1e-6)
    assert flops < 0.8 * its_flops
    if params is SPLIT and batch == P(None, "data"):
        assert_sharded_as_parameters(state)


def assert_sharded_as_parameters(state):
    """History and optimizer."""
    for name, spec in SPLIT.items():
        slots = state.versions.slots.item.params[name]
        moment = state.opt_state[0].mu[name]
        assert state.params[name].sharding.spec == spec
        assert moment.sharding.spec == spec
        assert slots.sharding.spec == P(None, *spec)


def test_on_explicit_axes_the_examples_are_sharded(alone):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        state, _, _ = trained(WHOLE, P(None, None, "data"), mesh)
    for name, leaf in state.params.items():
        np.testing.assert_allclose(leaf, alone[0].params[name], atol=1e-6)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_table_of_all_workers_is_sharded_as_the_parameters(kind):
    mesh = jax.make_mesh((4,), ("model",), axis_types=(kind,))
    workers = dj.cluster.Cluster(3, dj.cluster.constant(1.0), slowdown=[1.0, 2.3, 7.1])
    protocols = dj.cluster.protocols
    for protocol in protocols.malenia(1.0), protocols.ia2sgd(), protocols.ringleader():
        trace = dj.cluster.simulate(workers, protocol, 8, seed=0)
        training = dj.replay(
            trace,
            lambda x, batch, key: (0.0, jax.tree.map(lambda leaf: leaf - 1.0, x)),
            optax.sgd(0.1),
            aggregation=protocol.aggregation(3),
        )
        batches = np.zeros(trace.arrivals(0, 8).worker.shape)
        ends = []
        for spec in P(), P(None, "model"):
            with jax.set_mesh(mesh):
                x = jax.device_put(jnp.zeros((3, 8)), NamedSharding(mesh, spec))
                state = training.init({"x": x}, jax.random.key(0))
                state, _ = training.run(state, batches)
            ends.append(np.asarray(state.params["x"]))
        table = jax.tree.leaves(state.aggregation_state)[0]
        assert table.sharding.spec.partitions[-2:] == spec.partitions
        np.testing.assert_array_equal(*ends)
