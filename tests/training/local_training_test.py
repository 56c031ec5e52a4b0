"""Local training against a client's loop, and under servers of deltas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj
from delayjax.cluster import protocols
from tests.training.clients import (
    LOCAL,
    MOMENTUM,
    RATE,
    SIZE,
    UPDATES,
    client,
    drawn,
    grad_fn,
    trained,
)

SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])


KEY = jax.random.key(0)


@SEEDS
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("rho", [0.0, 0.7])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_delta_is_how_far_the_client_moved(steps, rho, split, seed):
    x = np.array([1.0, -2.0, 0.5], np.float32)
    batch = drawn(seed, 12)
    local = dj.local_training(
        grad_fn, optax.sgd(RATE, MOMENTUM), steps, split=split, proximal=rho
    )
    loss, delta = jax.jit(local)(x, batch, jax.random.key(0))
    end, mean_loss = client(x, batch, steps, split=split, rho=rho)
    np.testing.assert_allclose(delta, x - end, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(loss, mean_loss, rtol=1e-5)


def test_one_step_of_gradient_descent_is_the_gradient_itself():
    x, batch = jnp.array([1.0, -2.0, 0.5]), drawn(1, 12)
    local = dj.local_training(grad_fn, optax.sgd(1.0), 1)
    ours, plain = (f(x, batch, KEY) for f in (local, grad_fn))
    # one is compiled, the other not
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_client_s_optimizer_begins_anew_in_each_call():
    x, batch = jnp.array([1.0, -2.0, 0.5]), drawn(1, 12)
    local = jax.jit(dj.local_training(grad_fn, optax.adam(0.1), 3))
    first, second = (local(x, batch, KEY) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    # Adam by hand: the delta is the sum of its steps
    tx = optax.adam(0.1)
    end, state = x, tx.init(x)
    for i in range(3):
        part = tuple(leaf[4 * i : 4 * i + 4] for leaf in batch)
        updates, state = tx.update(grad_fn(end, part, KEY)[1], state, end)
        end = optax.apply_updates(end, updates)
    np.testing.assert_allclose(first[1], x - end, rtol=1e-5, atol=1e-7)


def test_the_state_of_the_model_goes_from_step_to_step_and_each_has_a_key():
    def with_state(x, batch, key, state):
        seen = state["seen"].at[state["step"]].set(jax.random.uniform(key))
        state = {"step": state["step"] + 1, "seen": seen}
        return (jnp.bfloat16(batch.sum()), state), jnp.zeros_like(x)

    key, begun = jax.random.key(3), {"step": jnp.int32(0), "seen": jnp.zeros(4)}
    local = dj.local_training(with_state, optax.sgd(1.0), 3)
    (metric, state), _ = local(jnp.ones(2), jnp.arange(6.0), key, begun)
    assert state["step"] == 3
    keys = [jax.random.uniform(jax.random.fold_in(key, i)) for i in range(3)]
    np.testing.assert_array_equal(state["seen"], [*keys, 0.0])
    assert metric == 5.0 and metric.dtype == jnp.float32  # of 0 + 1, 2 + 3, 4 + 5


def test_steps_smaller_than_bfloat16_can_see_are_in_the_delta():
    def slope(x, batch, key):
        return 0.0, jnp.ones_like(x)

    x = jnp.ones((), jnp.bfloat16)  # 1 - 2^-10 is 1 in bfloat16
    local = dj.local_training(slope, optax.sgd(2.0**-10), 300)
    _, delta = local(x, jnp.zeros(300), KEY)  # and a sum in bfloat16 ends at 256
    assert delta.dtype == jnp.bfloat16 and delta == 300 * 2.0**-10


def test_a_grid_of_clients_is_one_program():
    x, batch = jnp.array([1.0, -2.0, 0.5]), drawn(1, 12)

    @jax.jit
    @jax.vmap
    def deltas(rate, rho):
        local = dj.local_training(grad_fn, optax.sgd(rate), 4, proximal=rho)
        return local(x, batch, KEY)[1]

    cells = [(0.01, 0.0), (0.1, 0.0), (0.1, 1.0)]
    for delta, (rate, rho) in zip(deltas(*jnp.array(cells).T), cells, strict=True):
        end, _ = client(x, batch, 4, rho=rho, rate=rate, momentum=0.0)
        np.testing.assert_allclose(delta, x - end, rtol=1e-4, atol=1e-6)


def test_fedbuff_is_the_papers_server():
    # the recipe: each delta by 1 / sqrt(1 + tau), and a server step eta_g of 0.5
    weight = dj.scale_by_staleness(dj.modulation.polynomial(0.5))
    trace, versions, batches = trained(4, optax.sgd(0.5), each=weight)
    models = [np.array([1.0, -2.0, 0.5])]
    for t in range(UPDATES):
        total = np.zeros(SIZE)
        for k, g in enumerate(np.flatnonzero(trace.update == t)):
            read = trace.read_version[g]
            end, _ = client(models[read], [leaf[t, k] for leaf in batches], LOCAL)
            total += (models[read] - end) / np.sqrt(1 + t - read)
        models.append(models[-1] - 0.5 * total / 4)
    np.testing.assert_allclose(versions, models[1:], rtol=1e-4, atol=1e-5)


def test_fresh_deltas_and_a_server_step_of_1_are_fedavg():
    cluster = dj.cluster.Cluster(4, dj.cluster.constant(1.0))
    trace = dj.cluster.simulate(cluster, protocols.hardsync(), 3, seed=0)
    local = dj.local_training(grad_fn, optax.sgd(RATE, MOMENTUM), LOCAL)
    training = dj.replay(trace, local, optax.sgd(1.0))
    x, batches = np.array([1.0, -2.0, 0.5]), drawn(2, 6, 3, 4)
    state = training.init(jnp.asarray(x, jnp.float32), jax.random.key(0))
    state, _ = training.run(state, batches)
    for t in range(3):
        ends = [client(x, [leaf[t, k] for leaf in batches], LOCAL)[0] for k in range(4)]
        x = np.mean(ends, axis=0)
    np.testing.assert_allclose(state.params, x, rtol=1e-4, atol=1e-5)


def test_simulated_clients_and_devices_agree():
    local = dj.local_training(grad_fn, optax.sgd(RATE), LOCAL)
    tx = dj.exchange.mean(optax.sgd(1.0))

    def step(state, batch):
        x, opt_state = state
        _, delta = local(dj.workers.vary(x), batch, KEY)
        updates, opt_state = tx.update(delta, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), ()

    x, batches = jnp.array([2.0, -1.0, 0.5]), drawn(4, 6, 5, 4)
    batches = jax.tree.map(jnp.asarray, batches)
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(AxisType.Auto,))
    ends = []
    for workers in (dj.workers.simulate(step, 4), dj.workers.run(step, mesh)):
        first = jax.tree.map(lambda leaf: leaf[0], batches)
        held = workers.init((x, tx.init(x)), first)
        held, _ = jax.jit(lambda h, b, w=workers: jax.lax.scan(w.step, h, b))(
            held, batches
        )
        ends.append(np.asarray(held.state[0]))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-5, atol=1e-6)


def test_a_batch_that_does_not_split_is_named():
    local = dj.local_training(grad_fn, optax.sgd(0.1), 5)
    with pytest.raises(
        ValueError, match=r"`batch` must split into 5 equal parts.*\[0\]"
    ):
        local(jnp.ones(SIZE), drawn(1, 12), KEY)
    with pytest.raises(ValueError, match="`batch` must split"):
        local(jnp.ones(SIZE), jnp.zeros(()), KEY)


def test_an_optimizer_that_changes_shapes_is_named():
    wrong = optax.stateless(lambda updates, params: updates[0])
    local = dj.local_training(grad_fn, wrong, 2)
    with pytest.raises(TypeError, match="`tx` must return updates"):
        local(jnp.ones(SIZE), drawn(1, 12), KEY)


@pytest.mark.parametrize("bad", [0, -1])
def test_steps_that_are_no_count_are_named(bad):
    with pytest.raises(ValueError, match="`steps` must be at least 1"):
        dj.local_training(grad_fn, optax.sgd(0.1), bad)


def test_a_negative_proximal_term_is_named():
    with pytest.raises(ValueError, match="`proximal` must be finite and non-negative"):
        dj.local_training(grad_fn, optax.sgd(0.1), 1, proximal=-1.0)


def test_what_is_no_function_is_named():
    with pytest.raises(TypeError, match="`law` must be a function"):
        dj.fedasync(0.5, law=0.5)
    with pytest.raises(TypeError, match="`grad_fn` must be a function"):
        dj.local_training(None, optax.sgd(0.1), 1)
