"""What tests of filters share: workers of which some lie, and rules that filter."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from delayjax.cluster import protocols
from tests.support.refusing_server import Arrival

STEPS = 100


CURVATURE = np.array([0.25, 1.0, 0.5])


START = np.array([1.0, -2.0, 3.0])


class Run:
    """Random workers, staleness and noise of gradients; some workers lie."""

    def __init__(self, seed, workers, liars=0):
        rng = np.random.default_rng(seed)
        self.workers = rng.integers(0, workers, STEPS)
        self.staleness = np.minimum(rng.integers(0, 7, STEPS), np.arange(STEPS))
        self.noise = 0.05 * rng.normal(size=(STEPS, 3))
        self.sign = np.where(self.workers < liars, -10.0, 1.0)

    def gradient(self, t, x):
        return self.sign[t] * (CURVATURE * x + self.noise[t])


def train(run, tx, steps=STEPS):
    """Every iterate of the library, and whether each gradient was accepted."""
    x = jnp.asarray(START, jnp.float32)
    xs, state, accepted = [x], tx.init(x), []
    update = jax.jit(tx.update)
    for t in range(steps):
        model = xs[t - run.staleness[t]]
        gradient = jnp.asarray(run.gradient(t, np.asarray(model)), jnp.float32)
        updates, new = update(
            gradient,
            state,
            xs[t],
            worker=run.workers[t],
            stale_params=model,
            staleness=run.staleness[t],
        )
        accepted.append(bool(new.applied))
        xs.append(optax.apply_updates(xs[t], updates))
        state = new
    return np.array(xs[1:]), accepted, state


def served(run, rule, every=1):
    """A server in NumPy: x moves by the mean of `every` accepted gradients.

    With momentum 1/2. Every iterate, and whether each gradient was accepted.
    """
    xs, accepted, velocity, waiting = [START], [], np.zeros(3), []
    for t, (worker, tau) in enumerate(zip(run.workers, run.staleness, strict=True)):
        x, model = xs[t], xs[t - tau]
        used, gradient = rule(Arrival(worker, run.gradient(t, model), model, x, tau))
        if used:
            waiting.append(gradient)
        if len(waiting) == every:
            velocity = 0.5 * velocity + sum(waiting) / every
            x, waiting = x - 0.1 * velocity, []
        xs.append(x)
        accepted.append(used)
    return np.array(xs[1:]), accepted


def quadratic(x, batch, key):
    """Ten curvatures from 0.2 to 1, and noise of deviation 1."""
    curvature = jnp.linspace(0.2, 1.0, 10)
    loss = 0.5 * (curvature * x**2).sum()
    return loss, curvature * x + jax.random.normal(key, x.shape)


def trained(tx, updates, *, attackers=(), workers=10, each=None):
    """The losses of ten workers in turn, three of which may attack, and the state."""
    ten = dj.cluster.Cluster(workers, dj.cluster.constant(1.0))
    trace = dj.cluster.simulate(ten, protocols.k_async(1), updates, seed=0)
    lies = dj.attack(optax.scale(-10.0), attackers=attackers)
    training = dj.replay(trace, quadratic, tx, each=lies)
    state = training.init(jnp.full(10, 3.0), jax.random.key(0))
    state, report = training.run(state, jnp.zeros((updates, 1)))
    return report.metrics, state.opt_state


ZENO = {"learning_rate": 0.1, "rho": 0.1, "eps": 0.0, "refresh_every": 2}


FILTERS = {
    "zeno_plus_plus": dj.zeno_plus_plus(
        optax.adam(0.1), lambda x: jax.tree.map(jnp.negative, x), **ZENO
    ),
    "kardam": dj.kardam(optax.adam(0.1), workers=3, attackers=1),
    "kardam, one attempt": dj.kardam(
        optax.adam(0.1), workers=3, attackers=1, patience=1
    ),
}


TREE = {"w": jnp.array([0.3, -1.7]), "b": jnp.ones((), jnp.bfloat16)}


def scaled(factor):
    return jax.tree.map(lambda x: (x * factor).astype(x.dtype), TREE)
