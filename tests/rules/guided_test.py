"""Consistent gradients are used again at each rho-th step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.support.compiled import (
    bytes_accessed,
    compile_as_usual,
    lowered,
    temporary,
)

TARGET = jnp.array([1.0, -2.0, 0.5])


def verification(x):
    return 0.5 * jnp.sum((x - TARGET) ** 2)


def oracle(gradients, losses, path, *, period, replays):
    """The gradients that `guided` hands on, and the number of replays, with lists."""
    kept, before, used, counts = [], 0.0, [], []
    for t, (g, loss, x) in enumerate(zip(gradients, losses, path, strict=True)):
        error = 0.5 * ((x - np.asarray(TARGET, float)) ** 2).sum()
        sign = 1.0 if error < before else -1.0
        for item in kept:  # [score, loss, gradient]
            item[0] += sign * (before - item[1])
        before = error
        if len(kept) > replays:
            kept.remove(min(kept, key=lambda item: item[0]))
        newest = [0.0, loss, g]
        used_again = []
        if (t + 1) % period == 0:
            used_again = [item[2] for item in kept if item[0] > 0]
            kept = []
        if np.isfinite(loss):
            kept.append(newest)
        used.append(g + sum(used_again))
        counts.append(len(used_again))
    return np.array(used), np.array(counts)


RANDOM = np.random.default_rng(0)
GRADIENTS = RANDOM.normal(size=(100, 3)).astype(np.float32)
# losses near the verification batch's: about half of the batches are consistent
LOSSES = (2.6 + 2.0 * RANDOM.normal(size=100)).astype(np.float32)
PATH = (0.5 * RANDOM.normal(size=(100, 3))).astype(np.float32)


def handed_on(tx, losses=LOSSES, path=PATH):
    def step(state, now):
        g, loss, x = now
        g, state = tx.update(g, state, x, value=loss)
        return state, (g, state)

    run = jax.jit(lambda rows: jax.lax.scan(step, tx.init(path[0]), rows)[1])
    return jax.tree.map(np.asarray, run((GRADIENTS, losses, path)))


def with_every_third(bad):
    return np.where(np.arange(100) % 3, LOSSES, np.float32(bad))


# name: (period, replays, losses, path)
RUNS = {
    "rare": (10, 4, LOSSES, PATH),
    "one replay": (7, 1, LOSSES, PATH),
    "often": (3, 5, LOSSES, PATH),
    "every step": (1, 2, LOSSES, PATH),
    # if the verification loss stays the same, batches with higher losses are consistent
    "still": (5, 4, LOSSES, 0 * PATH),
    "still, high losses": (5, 4, LOSSES + 99, 0 * PATH),
    "still, low losses": (5, 4, LOSSES - 99, 0 * PATH),
    "nan": (5, 4, with_every_third(np.nan), PATH),
    "inf": (5, 4, with_every_third(np.inf), PATH),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_hundred_steps_are_those_of_lists(name):
    period, replays, losses, path = RUNS[name]
    tx = dj.guided(verification, period=period, replays=replays)
    got, states = handed_on(tx, losses=losses, path=path)
    wide = (np.asarray(x, float) for x in (GRADIENTS, losses, path))
    wanted, counts = oracle(*wide, period=period, replays=replays)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.diff(states.replayed, prepend=0), counts)
    assert (counts.sum() > 0) == (name != "still, low losses")
    if name == "often":  # there is something to see
        assert set(counts[2::3]) >= {1, 2, 3}


def test_the_loss_of_a_late_gradient_stays_with_it():
    """Inside of `delayed`, the rule gets late gradients with the losses of these."""

    def record(updates, state, params=None, *, value, **extra):
        return updates, (updates, value, params)

    start = jnp.zeros(3), jnp.zeros(()), jnp.zeros(3)
    recorder = optax.GradientTransformationExtraArgs(lambda params: start, record)
    rule = dj.guided(verification, period=4, replays=2)
    used, states = handed_on(
        dj.delayed(
            optax.chain(recorder, rule),
            dj.delays.uniform(jax.random.key(1), 0, 3),
            max_delay=3,
        )
    )
    rows = (np.asarray(x, float) for x in states.inner_state[0])
    wanted, counts = oracle(*rows, period=4, replays=2)
    np.testing.assert_allclose(used, wanted, rtol=1e-5, atol=1e-5)
    assert counts.sum() > 0 and (states.inner_state[0][1] != LOSSES).any()


def test_narrow_gradients_are_kept_as_they_are_and_added_in_float32():
    x = {"w": jnp.zeros(2, jnp.bfloat16)}
    tx = dj.guided(lambda x: -x["w"].sum(), period=6, replays=5)
    state, update = tx.init(x), jax.jit(tx.update)
    for t in range(6):
        x = {"w": jnp.full(2, 0.01 * t, jnp.bfloat16)}
        g = {"w": jnp.full(2, 256.0 if t == 0 else 1.0, jnp.bfloat16)}
        got, state = update(g, state, x, value=-9.0)
    # each of five ones would be lost in bfloat16 beside 256
    assert got["w"].dtype == jnp.bfloat16 and state.replayed == 5
    np.testing.assert_array_equal(got["w"].astype(float), 260.0)
    assert state.gradients["w"].dtype == jnp.uint16


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_step_writes_one_gradient_whatever_the_number_kept(dtype):
    params = {"w": jnp.ones(5000, dtype), "b": jnp.ones(3, dtype)}

    def program(replays):
        guided = dj.guided(lambda x: x["b"].sum(), period=10, replays=replays)
        tx = optax.chain(guided, optax.sgd(0.1))
        return compile_as_usual(lowered(tx, params, value=jnp.float32(0)))

    few, many = program(2), program(34)
    # no copy: 32 gradients more are held, and written over where they lie
    assert temporary(many) - temporary(few) < 4 * params["w"].nbytes
    # their one reading stands in the branch of a step that replays
    assert "conditional" in many.as_text()
    read = 1.2 * 32 * params["w"].nbytes * (4 / params["w"].dtype.itemsize + 1)
    assert bytes_accessed(many) < bytes_accessed(few) + read
