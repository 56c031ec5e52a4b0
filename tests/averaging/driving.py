"""Replicas on quadratics with different minima, in float64, and the same in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax import averaging
from tests.exchange.driving import WORKERS, as_workers, parted, side_by_side

STEPS = 50
ETA = 0.1
SGD = optax.sgd(ETA)
CURVATURE = np.asarray([1.0, 0.5, 2.0, 0.1, 1.5])
START = np.asarray([1.0, -2.0, 0.5, 3.0, 0.0])
MINIMA = np.random.default_rng(0).normal(size=(WORKERS, 5))
NOISE = np.random.default_rng(1).normal(size=(STEPS, WORKERS, 5))
# the times at which workers reach a center; some do not come in some steps
SECONDS = np.random.default_rng(5).random((7, WORKERS))
SECONDS[2, 1] = SECONDS[4, 0] = SECONDS[4, 3] = np.inf


def everyone_at_once(t):
    return None


def by_rank(t):
    return list(range(WORKERS))


def by_arrival(t):
    row = SECONDS[t % len(SECONDS)]
    return [p for p in np.argsort(row, kind="stable") if np.isfinite(row[p])]


def wild(max_age=3, lost=0.0):
    return averaging.races(jax.random.key(3), max_age, lost=lost)


def raced(races, t, i, size=5):
    """Of each coordinate: how many visits old it is read, and whether it is written."""
    if races is None:
        return np.zeros(size, int), np.ones(size, bool)
    with jax.enable_x64(True):
        visit = jnp.int32(t), jnp.int32(i), jnp.zeros(size)
        return np.asarray(races.ages(*visit)), ~np.asarray(races.lost(*visit))


def version(versions, ages):
    """Each coordinate at its age in visits, or at the start if that is later."""
    ages = np.minimum(ages, len(versions) - 1)
    return np.asarray([versions[-1 - age][n] for n, age in enumerate(ages)])


def gradient(t, x):
    """The gradients of all workers' quadratics, with the noise of step t, [P, n]."""
    return CURVATURE * (x - MINIMA) + NOISE[t]


def replicas():
    """x [P, n] at the start, equal for all workers."""
    return np.tile(START, (WORKERS, 1))


def path(mix, *, momentum=0.0, ahead=0.0):
    """x [T, P, n]: v <- momentum v - eta g of each worker, then x <- mix(t, x, v)."""
    x, v, xs = replicas(), np.zeros((WORKERS, 5)), []
    for t in range(STEPS):
        v = momentum * v - ETA * gradient(t, x + ahead * v)
        x = mix(t, x, v)
        xs.append(x)
    return np.stack(xs)


def plain_sgd():
    """The path of SGD with the mean gradient; its model is the same on all workers."""
    return path(lambda t, x, v: x + v.mean(axis=0)).mean(axis=1)


def step_of(tx, point):
    """A worker's step, whose gradient is taken at point(parameters, state)."""

    def step(state, batch):
        x, opt_state = state
        minimum, noise = batch
        grad = jnp.asarray(CURVATURE) * (point(x, opt_state) - minimum) + noise
        updates, opt_state = tx.update(grad, opt_state, x)
        x = optax.apply_updates(x, updates)
        return (x, opt_state), x

    return step


def at_the_model(params, opt_state):
    return params


def train(execution, txs, *, point=at_the_model):
    """By name: x [T, P, n] after each step, and the last split, in float64.

    All of `txs` are trained in one program.
    """
    with jax.enable_x64(True):
        steps = {name: step_of(tx, point) for name, tx in txs.items()}
        held = as_workers(execution, side_by_side(steps))
        start = jnp.asarray(START)
        batches = jnp.asarray(np.tile(MINIMA, (STEPS, 1, 1))), jnp.asarray(NOISE)
        first = jax.tree.map(lambda leaf: leaf[0], batches)
        states = {name: (start, tx.init(start)) for name, tx in txs.items()}
        split = held.init(states, first, shared=False)
        program = jax.jit(lambda s, b: jax.lax.scan(held.step, s, b), donate_argnums=0)
        split, xs = program(split, batches)
        return {
            name: (np.asarray(xs[name]), end) for name, end in parted(split).items()
        }


def the_model(params, opt_state):
    return params


def seen_of(txs, start, noise, *, curvature=0.0, see=the_model):
    """By name: see(x, state) of each worker after each step, [T, P, ...], in float64.

    Under `vmap`; the gradient is curvature x + noise [T, P, n], the start [P, n].
    """

    def run(x, noise):
        def step(carry, noise):
            for name, tx in txs.items():
                x, state = carry[name]
                updates, state = tx.update(curvature * x + noise, state, x)
                carry = carry | {name: (x + updates, state)}
            return carry, {name: see(*pair) for name, pair in carry.items()}

        return jax.lax.scan(step, {n: (x, tx.init(x)) for n, tx in txs.items()}, noise)[
            1
        ]

    with jax.enable_x64(True):
        mapped = jax.vmap(run, in_axes=(0, 1), out_axes=1, axis_name="workers")
        return jax.tree.map(np.asarray, jax.jit(mapped)(start, noise))


def assert_follows(seen, expected, name=""):
    """Equal up to the rounding of float64, over all steps."""
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(seen, expected, rtol=1e-10, atol=1e-10, err_msg=name)
