"""Logistic regression in float64 under a delay, which both corrections train."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj

STEPS = 40


STALENESS = [min(t, (5 * t * t + t) % 7) for t in range(STEPS)]  # 0 .. 6, no period


class Logistic:
    """Logistic regression on another small batch at each step."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.inputs = rng.normal(size=(STEPS, 4, 3))
        self.labels = rng.choice([-1.0, 1.0], size=(STEPS, 4))
        self.start = rng.normal(size=3)

    def grad(self, x, version):
        inputs, labels = self.inputs[version], self.labels[version]
        margins = labels * (inputs @ x)
        return -(inputs.T @ (labels / (1 + np.exp(margins)))) / len(labels)

    def loss(self, x, batch):
        inputs, labels = batch
        return jnp.mean(jax.nn.softplus(-labels * (inputs @ x)))


def train(problem, tx, delay, max_delay):
    """Every iterate of the library, in float64."""
    with jax.enable_x64(True):
        tx = dj.delayed(tx, delay, max_delay=max_delay, keep_params=True)
        batches = jnp.asarray(problem.inputs), jnp.asarray(problem.labels)

        def step(carry, batch):
            x, state = carry
            updates, state = tx.update(jax.grad(problem.loss)(x, batch), state, x)
            x = optax.apply_updates(x, updates)
            return (x, state), x

        start = jnp.asarray(problem.start)
        _, iterates = jax.lax.scan(step, (start, tx.init(start)), batches)
        return np.asarray(iterates)
