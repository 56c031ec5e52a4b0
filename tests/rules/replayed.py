"""What tests of momenta in `replay` share: a noisy bowl along a trace, in float64."""

import jax
import jax.numpy as jnp
import numpy as np

import delayjax as dj

STEPS = 100
CURVATURE = np.array([0.2, 1.0, 3.0])
START = np.array([1.0, -2.0, 0.5])


def noise(steps=STEPS):
    return np.random.default_rng(0).normal(size=(steps, 1, 3))


def gradient(x, batch):
    return CURVATURE * x + batch


def grad_fn(params, batch, key):
    return {}, jnp.asarray(CURVATURE) * params + batch


def trace_of(workers, service, updates=STEPS):
    cluster = dj.cluster.Cluster(workers, service)
    protocol = dj.cluster.protocols.k_async(1)
    return dj.cluster.simulate(cluster, protocol, updates, seed=1)


def replayed(trace, batches, tx, grad_fn=grad_fn, **options):
    """The parameters at first and after each update, and the last state."""
    with jax.enable_x64(True):
        training = dj.replay(trace, grad_fn, tx, **options)
        state = training.init(jnp.asarray(START), jax.random.key(0))

        def step(state, given):
            state, _ = training.step(state, given)
            return state, state.params

        given = trace.arrivals(0, len(batches)), jnp.asarray(batches)
        state, xs = jax.jit(lambda state: jax.lax.scan(step, state, given))(state)
        state = jax.tree.map(np.asarray, state._replace(key=()))
        return np.concatenate([START[None], xs]), state
