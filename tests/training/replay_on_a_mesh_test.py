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
