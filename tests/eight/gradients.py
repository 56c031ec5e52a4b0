"""A logistic regression whose workers exchange gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from tests.eight.processes import WORKERS

STEPS, INPUTS = 50, 4
RATE, DELAY = 0.1, 2
WEIGHT_DECAY = 0.1
SHARED = None

# what the loop of `tests.exchange.oracle` is told of each of `transformations`
OPTIONS = {
    "mean": {},
    "late and overlapped": {
        "overlapped": True,
        "delay": lambda worker, step: DELAY,
    },
    "a delay a worker": {
        "delay": lambda worker, step: worker % 4,
        "weight": lambda tau: 0.5**tau,
    },
}


def transformations():
    """By name; made once the devices are known."""
    adam = optax.adam(RATE)
    weighted = dj.exchange.mean(adam, weight=lambda tau: 0.5**tau)
    per_worker = dj.delays.per_worker(np.arange(WORKERS) % 4)
    return {
        "mean": dj.exchange.mean(adam),
        "late and overlapped": dj.delayed(dj.exchange.overlapped_mean(adam), DELAY),
        "a delay a worker": dj.delayed(weighted, per_worker, max_delay=3),
    }


def data():
    """Rows [T, P, 3, inputs + 1]; the last column is a label, 1 or -1."""
    rows = np.random.default_rng(1).normal(size=(STEPS, WORKERS, 3, INPUTS + 1))
    rows[..., -1] = np.sign(rows[..., -1])
    return rows


def start():
    """Parameters [inputs]."""
    return np.random.default_rng(2).normal(size=INPUTS)


def loss(x, rows):
    """Strongly convex."""
    margins = rows[:, -1] * (rows[:, :-1] @ x)
    return jnp.mean(jnp.log1p(jnp.exp(-margins))) + WEIGHT_DECAY / 2 * jnp.sum(x**2)


def gradient(x, rows):
    """Its gradient, in numpy."""
    inputs, labels = rows[:, :-1], rows[:, -1]
    push = -labels / (1 + np.exp(labels * (inputs @ x)))
    return inputs.T @ push / len(rows) + WEIGHT_DECAY * x


def step_of(tx):
    """A worker's step."""

    def step(state, batch):
        x, opt_state = state
        grads = jax.grad(loss)(dj.workers.vary(x), batch)
        updates, opt_state = tx.update(grads, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), {}

    return step
