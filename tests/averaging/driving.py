"""Replicas on quadratics with minima of their own, in float64; and in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.exchange.driving import WORKERS, as_workers, parted, side_by_side

STEPS = 50
ETA = 0.1
CURVATURE = np.asarray([1.0, 0.5, 2.0, 0.1, 1.5])
START = np.asarray([1.0, -2.0, 0.5, 3.0, 0.0])
MINIMA = np.random.default_rng(0).normal(size=(WORKERS, 5))
NOISE = np.random.default_rng(1).normal(size=(STEPS, WORKERS, 5))
# when workers arrive at a center; not every worker every time
SECONDS = np.random.default_rng(5).random((7, WORKERS))
SECONDS[2, 1] = SECONDS[4, 0] = SECONDS[4, 3] = np.inf


def everyone_at_once(t):
    return None


def by_rank(t):
    return list(range(WORKERS))


def by_arrival(t):
    row = SECONDS[t % len(SECONDS)]
    return [p for p in np.argsort(row, kind="stable") if np.isfinite(row[p])]


def gradient(t, x):
    """Of every worker's own quadratic, with its noise of step t, [P, n]."""
    return CURVATURE * (x - MINIMA) + NOISE[t]


def replicas():
    """x [P, n] at the start, all the same."""
    return np.tile(START, (WORKERS, 1))


def step_of(tx, at):
    """A worker's step; the gradient is taken `at` a point of parameters and state."""

    def step(state, batch):
        x, opt_state = state
        minimum, noise = batch
        grad = jnp.asarray(CURVATURE) * (at(x, opt_state) - minimum) + noise
        updates, opt_state = tx.update(grad, opt_state, x)
        x = optax.apply_updates(x, updates)
        return (x, opt_state), x

    return step


def at_the_model(params, opt_state):
    return params


def train(execution, makes, *, at=at_the_model):
    """By name, x [T, P, n] after each step, and the split after the last, in float64.

    All that `makes` makes is trained side by side.
    """
    with jax.enable_x64(True):
        txs = {name: make() for name, make in makes.items()}
        steps = {name: step_of(tx, at) for name, tx in txs.items()}
        held = as_workers(execution, side_by_side(steps))
        start = jnp.asarray(START)
        batches = jnp.asarray(np.tile(MINIMA, (STEPS, 1, 1))), jnp.asarray(NOISE)
        first = jax.tree.map(lambda leaf: leaf[0], batches)
        states = {name: (start, tx.init(start)) for name, tx in txs.items()}
        split = held.init(states, first, shared=False)
        program = jax.jit(lambda s, b: jax.lax.scan(held.step, s, b), donate_argnums=0)
        split, xs = program(split, batches)
        return {
            name: (np.asarray(xs[name]), own) for name, own in parted(split).items()
        }


def assert_follows(seen, expected):
    """To the rounding of float64, over all steps."""
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(seen, expected, rtol=1e-10, atol=1e-10)


def plain_sgd():
    """The path of SGD with the workers' mean gradient, whose mean model it is."""
    x, xs = START, []
    for t in range(STEPS):
        x = x - ETA * (CURVATURE * (x - MINIMA.mean(axis=0)) + NOISE[t].mean(axis=0))
        xs.append(x)
    return np.stack(xs)
