"""The stored tables: a loop that shares no code with them gives the same losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import delayjax as dj
from experiments import tasks
from experiments.comparison import clusters, page, stored

TASK = tasks.digits_mlp(batch_size=32)
BUDGET, FIRST_SEED = 500, 1_000_000
LOSS = jax.jit(jax.value_and_grad(TASK.loss))


def sgd(grads, old, state, numbers, **_):
    """m = beta m + (1 - beta) g."""
    decay = numbers["decay"]
    moment = state or jax.tree.map(jnp.zeros_like, grads)
    moment = jax.tree.map(lambda m, g: (1 - decay) * m + decay * g, moment, grads)
    return moment, moment


def slow(grads, old, state, numbers, **_):
    """g + share (m - g), m as of `sgd`."""
    moment, state = sgd(grads, old, state, numbers)
    share = numbers["own"]
    return jax.tree.map(lambda g, m: g + share * (m - g), grads, moment), state


def compensated(grads, old, state, numbers, *, params):
    """DC-ASGD-c: g + lam g g (x - x_old), then SGD."""
    lam = numbers["own"]
    corrected = jax.tree.map(
        lambda g, x, y: g + lam * g * g * (x - y), grads, params, old
    )
    return sgd(corrected, old, state, numbers)


def clipped(grads, old, state, numbers, **_):
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, numbers["own"] / norm)
    return sgd(jax.tree.map(lambda g: g * scale, grads), old, state, numbers)


def by_age(grads, old, state, numbers, *, age, **_):
    """SGD, then the polynomial law: the step of age tau times (1 + tau)^-a."""
    step, state = sgd(grads, old, state, numbers)
    factor = (1.0 + age) ** -numbers["own"]
    return jax.tree.map(lambda u: u * factor, step), state


def adam(grads, old, state, numbers, **_):
    """m / (sqrt(v) + 1e-8), both averages without bias, beta2 = 0.999."""
    b1, b2 = 1 - numbers["decay"], 0.999
    zeros = jax.tree.map(jnp.zeros_like, grads)
    m, v, count = state or (zeros, zeros, 0)
    count = count + 1
    m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, grads)
    v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, grads)
    step = jax.tree.map(
        lambda m, v: m / (1 - b1**count) / (jnp.sqrt(v / (1 - b2**count)) + 1e-8), m, v
    )
    return step, (m, v, count)


def orthogonal(x):
    """Five steps of Newton and Schulz, which bring all singular values near to 1."""
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (jnp.sqrt(jnp.sum(x**2)) + 1e-8)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if is_tall else x


def muon(grads, old, state, numbers, **_):
    """Nesterov's momentum, orthogonal, of RMS 0.2; Adam with beta 0.9 for vectors."""
    zeros = jax.tree.map(jnp.zeros_like, grads)
    m, v, count = state or (zeros, zeros, 0)
    count = count + 1

    def betas(leaf):
        return 1 - numbers["decay"] if leaf.ndim == 2 else 0.9

    m = jax.tree.map(lambda m, g: betas(g) * m + (1 - betas(g)) * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)

    def direction(m, v, g):
        b = betas(g)
        ahead = b * m / (1 - b ** (count + 1)) + (1 - b) * g / (1 - b**count)
        if g.ndim == 2:
            return 0.2 * max(g.shape) ** 0.5 * orthogonal(ahead)
        return ahead / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

    return jax.tree.map(direction, m, v, grads), (m, v, count)


CELLS = [
    ("sgd", "plain", "no delay", sgd),
    ("sgd", "plain", "memoryless, 16", sgd),
    ("sgd", "DC-ASGD-c", "straggler, 4", compensated),
    ("sgd", "clipping", "heavy tails, 16", clipped),
    ("sgd", "polynomial law", "memoryless, 4", by_age),
    ("sgd", "one slow momentum", "memoryless, 4", slow),
    ("adam", "plain", "memoryless, 4", adam),
    ("muon", "plain", "straggler, 4", muon),
]


@pytest.mark.parametrize(("optimizer", "rule", "cluster", "direction"), CELLS)
def test_a_list_of_past_parameters_trains_to_the_stored_loss(
    optimizer, rule, cluster, direction
):
    table = page.losses_of("digits").table
    keys = {"optimizer": optimizer, "rule": rule, "cluster": cluster, "search": 0}
    own = (table[list(keys)] == pd.Series(keys)).all(axis=1)
    (row,) = table[own].to_dict("records")
    numbers = stored.numbers(row["numbers"])
    protocol = dj.cluster.protocols.k_batch_async(1)
    trace = dj.cluster.simulate(
        clusters.clusters()[cluster], protocol, BUDGET, seed=FIRST_SEED
    )
    order = np.random.SeedSequence([0, FIRST_SEED]).generate_state(1)[0]
    batches = TASK.batches(int(order), 0, BUDGET)
    params = TASK.init(jax.random.key(FIRST_SEED))
    step = jax.jit(direction)
    versions, state = [params], None
    for t in range(BUDGET):
        age = t - int(trace.read_version[t])
        old = versions[t - age]
        _, grads = LOSS(old, jax.tree.map(lambda leaf, t=t: leaf[t], batches))
        told = {"age": age} if direction is by_age else {}
        told |= {"params": params} if direction is compensated else {}
        update, state = step(grads, old, state, numbers, **told)
        params = jax.tree.map(
            lambda x, u: x - numbers["learning_rate"] * u, params, update
        )
        versions.append(params)
    loss = float(TASK.evaluate(params)["train_loss"])
    assert loss == pytest.approx(row["loss_0"], rel=1e-4)
