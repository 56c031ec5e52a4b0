"""Old gradients are dropped, and nothing moves with them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj


def dropping_momentum(gradients, staleness, bound, learning_rate, momentum):
    """Momentum that a dropped gradient doesn't reach: updates, velocities, drops."""
    velocity, dropped = 0.0, 0
    updates, velocities, drops = [], [], []
    for g, tau in zip(gradients, staleness, strict=True):
        if tau > bound:
            dropped += 1
            updates.append(0.0)
        else:
            velocity = momentum * velocity + g
            updates.append(-learning_rate * velocity)
        velocities.append(velocity)
        drops.append(dropped)
    return updates, velocities, drops


@pytest.mark.parametrize("bound", [0, 2, 6])
def test_refused_gradients_reach_neither_parameters_nor_momentum(bound):
    steps = 16
    staleness = [min(t, (5 * t * t + t) % 7) for t in range(steps)]
    fresh = np.random.default_rng(1).integers(-9, 10, steps)
    tx = dj.delayed(
        dj.drop_stale(optax.sgd(0.25, momentum=0.5), bound),
        dj.delays.from_trace(staleness),
        max_delay=6,
    )

    def step(state, g):
        update, state = tx.update(g, state)
        velocity = optax.tree.get(state, "trace")
        return state, (update, velocity, state.inner_state.dropped)

    _, ours = jax.lax.scan(step, tx.init(jnp.zeros(())), jnp.float32(fresh))
    stale = [float(fresh[t - tau]) for t, tau in enumerate(staleness)]
    theirs = dropping_momentum(stale, staleness, bound, 0.25, 0.5)
    # small integers and halves: float32 holds every number exactly
    np.testing.assert_array_equal(ours, theirs)
    assert theirs[2][-1] == sum(tau > bound for tau in staleness)


def test_a_refused_nan_leaves_every_bit_of_the_inner_state():
    params = {"w": jnp.array([0.3, -1.7]), "b": jnp.ones((), jnp.bfloat16)}
    tx = dj.drop_stale(optax.adam(0.1), 3)
    _, before = tx.update(params, tx.init(params), params, staleness=3)
    nans = jax.tree.map(lambda x: x * jnp.nan, params)
    updates, after = tx.update(nans, before, params, staleness=4)
    jax.tree.map(np.testing.assert_array_equal, after.inner_state, before.inner_state)
    assert all(not leaf.any() for leaf in jax.tree.leaves(updates))
    assert (before.dropped, after.dropped) == (0, 1)
