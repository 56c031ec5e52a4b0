"""What tests of local training share: clients and their traces."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from delayjax.cluster import protocols

RATE, MOMENTUM, SIZE = 0.05, 0.9, 3


def grad_fn(x, batch, key):
    """Least squares; no noise of its own."""
    inputs, targets = batch
    residual = inputs @ x - targets
    return 0.5 * (residual**2).mean(), inputs.T @ residual / len(targets)


def drawn(seed, size, *shape):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(*shape, size, SIZE)).astype(np.float32)
    return inputs, rng.normal(size=(*shape, size)).astype(np.float32)


def client(x, batch, steps, *, split=True, rho=0.0, rate=RATE, momentum=MOMENTUM):
    """x_n and the mean loss, in float64."""
    inputs, targets = (np.asarray(leaf, np.float64) for leaf in batch)
    start = x = np.asarray(x, np.float64)
    velocity, losses = np.zeros_like(x), []
    for i in range(steps):
        n = len(targets) // steps
        rows = slice(i * n, (i + 1) * n) if split else slice(None)
        residual = inputs[rows] @ x - targets[rows]
        losses.append(0.5 * (residual**2).mean())
        grad = inputs[rows].T @ residual / len(residual) + rho * (x - start)
        velocity = momentum * velocity + grad
        x = x - rate * velocity
    return x, np.mean(losses)


# Servers, along the trace of clients.

CLIENTS, LOCAL, UPDATES = 12, 3, 100


@functools.cache
def trace_of(buffer):
    clients = dj.cluster.Cluster(CLIENTS, dj.cluster.lognormal(1.0, 1.0))
    rule = protocols.fedbuff(buffer, concurrency=6)
    return dj.cluster.simulate(clients, rule, UPDATES, seed=1)


def trained(buffer, tx, each=None):
    """All versions of the server's model, and the batches of the clients."""
    trace = trace_of(buffer)
    local = dj.local_training(grad_fn, optax.sgd(RATE, MOMENTUM), LOCAL)
    training = dj.replay(trace, local, tx, each=each)
    batches = drawn(2, 6, UPDATES, buffer)
    rows = trace.arrivals(0, UPDATES), jax.tree.map(jnp.asarray, batches)

    def step(state, row):
        state, _ = training.step(state, row)
        return state, state.params

    begun = training.init(jnp.array([1.0, -2.0, 0.5]), jax.random.key(0))
    versions = jax.jit(lambda s: jax.lax.scan(step, s, rows)[1])(begun)
    return trace, np.asarray(versions), batches
