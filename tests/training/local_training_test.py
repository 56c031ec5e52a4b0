"""Local training against a client's loop, and under servers of deltas."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax.cluster import protocols
from tests.support.cases import shortened
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

KEY = jax.random.key(0)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_delta_is_how_far_the_client_moved(steps, split):
    """Of any step size and proximal term: a grid of them is one program."""

    @jax.jit
    @jax.vmap
    def trained(rate, rho, batch):
        tx = optax.sgd(rate, MOMENTUM)
        local = dj.local_training(grad_fn, tx, steps, split=split, proximal=rho)
        return local(x, batch, KEY)

    x = np.array([1.0, -2.0, 0.5], np.float32)
    cells = list(itertools.product((0.01, RATE), (0.0, 0.7), (1, 2, 3)))
    rates, rhos, seeds = zip(*cells, strict=True)
    batches = [drawn(seed, 12) for seed in seeds]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    losses, deltas = trained(jnp.array(rates), jnp.array(rhos), stacked)
    for i, batch in enumerate(batches):
        numbers = dict(split=split, rho=rhos[i], rate=rates[i])
        end, mean_loss = client(x, batch, steps, **numbers)
        np.testing.assert_allclose(deltas[i], x - end, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(losses[i], mean_loss, rtol=1e-5)


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


SPEEDS = np.array([4.0, 3.1, 1.0, 0.3])  # steps of a client in a second
H = 6
STEPS_OF = np.maximum(np.floor(SPEEDS / SPEEDS.max() * H), 1).astype(int)  # 6 4 1 1
PROTOCOLS = {
    "k_async(1)": protocols.k_async(1),
    "k_async(2)": protocols.k_async(2),
    "hardsync": protocols.hardsync(),
}


def kept(*parts):
    """What clients have: their steps, or their velocity, or both."""
    opt_state = optax.sgd(RATE, MOMENTUM).init(jnp.zeros(SIZE))
    state = {
        "steps": jnp.asarray(STEPS_OF, jnp.int32),
        "opt_state": jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), opt_state),
    }
    return {name: state[name] for name in parts}


def clients_along(trace, batches, parts):
    """All versions, and the velocity of each client after its last round, in float64.

    n_w = floor(v_w / max v H) steps from the version read, on the first n_w of H parts
    of the batch; v <- beta v + g goes on from round to round, or begins at 0.
    """
    models, velocity = [np.array([1.0, -2.0, 0.5])], np.zeros((4, SIZE))
    for t in range(trace.num_updates):
        deltas = []
        for k, n in enumerate(np.flatnonzero(trace.update == t)):
            w = trace.worker[n]
            start = x = models[trace.read_version[n]]
            v = velocity[w] if "opt_state" in parts else np.zeros(SIZE)
            for i in range(STEPS_OF[w] if "steps" in parts else H):
                inputs, targets = (
                    np.float64(leaf[t, k, 2 * i : 2 * i + 2]) for leaf in batches
                )
                v = MOMENTUM * v + inputs.T @ (inputs @ x - targets) / 2
                x = x - RATE * v
            velocity[w] = v
            deltas.append(start - x)
        models.append(models[-1] - 0.5 * np.mean(deltas, axis=0))
    return np.stack(models[1:]), velocity


PARTS = ("steps",), ("opt_state",), ("steps", "opt_state")


@pytest.mark.parametrize(
    ("protocol", "parts", "chunk"),
    shortened(
        itertools.product(PROTOCOLS, PARTS, (None, 1, 3)),
        *((protocol, PARTS[2], None) for protocol in PROTOCOLS),
        *(("hardsync", PARTS[2], chunk) for chunk in (1, 3)),
        *(("k_async(2)", parts, None) for parts in PARTS[:2]),
    ),
)
def test_clients_take_steps_by_their_speed_and_keep_their_optimizer(
    protocol, parts, chunk
):
    seconds = [
        dj.cluster.constant(n / v) for n, v in zip(STEPS_OF, SPEEDS, strict=True)
    ]
    clients = dj.cluster.Cluster(4, seconds)
    trace = dj.cluster.simulate(clients, PROTOCOLS[protocol], 40, seed=0)
    assert len(np.unique(trace.worker)) == 4
    local = dj.local_training(grad_fn, optax.sgd(RATE, MOMENTUM), H)
    training = dj.replay(trace, local, optax.sgd(0.5), chunk=chunk)
    batches = drawn(2, 2 * H, 40, trace.max_gradients)
    rows = trace.arrivals(0, 40), jax.tree.map(jnp.asarray, batches)

    def step(state, row):
        state, _ = training.step(state, row)
        return state, state.params

    begun = training.init(
        jnp.array([1.0, -2.0, 0.5]), jax.random.key(0), worker_state=kept(*parts)
    )
    state, versions = jax.jit(lambda s: jax.lax.scan(step, s, rows))(begun)
    expected, velocity = clients_along(trace, batches, parts)
    np.testing.assert_allclose(versions, expected, rtol=1e-4, atol=1e-5)
    if "opt_state" in parts:
        held = optax.tree.get(state.worker_state, "trace")
        np.testing.assert_allclose(held, velocity, rtol=1e-4, atol=1e-5)


def test_a_client_s_metrics_are_of_its_steps_and_nan_if_they_are_not_1_to_n():
    x, batch = jnp.array([1.0, -2.0, 0.5]), drawn(1, 2 * H)
    local = jax.jit(dj.local_training(grad_fn, optax.sgd(RATE, MOMENTUM), H))
    for n in (1, 4, 6):
        (loss, _, after), _ = local(x, batch, KEY, None, {"steps": jnp.int32(n)})
        _, expected = client(x, [leaf[: 2 * n] for leaf in batch], n)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        assert after == {"steps": n}
    for n in (0, -1, 7):
        (loss, _, _), _ = local(x, batch, KEY, None, {"steps": jnp.int32(n)})
        assert np.isnan(loss)


@pytest.mark.parametrize(
    ("protocol", "worker_state", "message"),
    [
        (
            protocols.k_async(1),
            {"steps": jnp.ones(3, int)},
            r"of 4 workers, got .*\(3,\)",
        ),
        (
            protocols.k_async(1),
            {"speed": jnp.ones(4)},
            r"`worker_state` must have `steps` or `opt_state`, got \{'speed':",
        ),
        (
            protocols.k_async(1),
            jnp.ones(4),
            "`worker_state` must have `steps` or `opt_state`, got JitTracer",
        ),
        (
            protocols.k_async(1),
            {"opt_state": jnp.ones(4)},
            "the state of `tx` as `opt_",
        ),
        (protocols.k_batch_async(3), kept("steps"), "two gradients of one worker"),
    ],
)
def test_a_worker_state_that_does_not_fit_is_named(protocol, worker_state, message):
    clients = dj.cluster.Cluster(4, [dj.cluster.constant(1 / v) for v in SPEEDS])
    trace = dj.cluster.simulate(clients, protocol, 9, seed=0)
    local = dj.local_training(grad_fn, optax.sgd(RATE, MOMENTUM), 3)
    training = dj.replay(trace, local, optax.sgd(0.5))
    with pytest.raises((TypeError, ValueError), match=message):
        state = training.init(jnp.ones(SIZE), KEY, worker_state=worker_state)
        training.run(state, drawn(2, 6, 9, trace.max_gradients))


def test_a_batch_that_does_not_split_is_named():
    local = dj.local_training(grad_fn, optax.sgd(0.1), 5)
    with pytest.raises(
        ValueError, match=r"cannot reshape array of size 36 into shape \(5,newaxis,3\)"
    ):
        local(jnp.ones(SIZE), drawn(1, 12), KEY)
    with pytest.raises(TypeError, match=r"cannot reshape array of shape \(\)"):
        local(jnp.ones(SIZE), jnp.zeros(()), KEY)


def test_an_optimizer_that_changes_shapes_is_named():
    wrong = optax.stateless(lambda updates, params: updates[0])
    local = dj.local_training(grad_fn, wrong, 2)
    with pytest.raises(TypeError, match="`tx` must return updates"):
        local(jnp.ones(SIZE), drawn(1, 12), KEY)
