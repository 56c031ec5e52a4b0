"""Local training against a client's loop, and under servers of deltas."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
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
