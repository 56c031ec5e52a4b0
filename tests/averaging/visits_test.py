import functools
import heapq
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import averaging, cluster
from tests.averaging.driving import CURVATURE, ETA, MINIMA, START, assert_follows
from tests.exchange.driving import (
    WORKERS,
    as_workers,
    executions,
    side_by_side,
)

VISITS = 60
SLOWDOWNS = {"exponential": [1.0, 1.0, 1.0, 1.0], "a slow one": [1.0, 4.0, 1.0, 1.0]}
# of a worker's own gradients, not of the steps of all
NOISE = np.random.default_rng(2).normal(size=(WORKERS, 3 * VISITS, 5))


def cluster_of(slowdown):
    service = dj.cluster.exponential(1.0)
    return dj.cluster.Cluster(WORKERS, service, slowdown=SLOWDOWNS[slowdown])


def traced(slowdown, *, visits=VISITS, seed=1):
    rule = dj.cluster.protocols.k_async(1)
    return dj.cluster.simulate(cluster_of(slowdown), rule, visits, seed=seed)


def arrivals(slowdown):
    """Who has a gradient done next, by an event loop of its own."""
    cluster, factors = cluster_of(slowdown), SLOWDOWNS[slowdown]
    times = [iter(factors[p] * cluster.draw(p, VISITS, seed=1)) for p in range(WORKERS)]
    queue = sorted((next(times[p]), p) for p in range(WORKERS))
    for _ in range(VISITS):
        now, p = heapq.heappop(queue)
        yield now, p
        heapq.heappush(queue, (now + next(times[p]), p))


class Replicas:
    """P models with clocks of their own, and a center: what a visit makes of them."""

    def __init__(self, momentum):
        self.x, self.v = np.tile(START, (WORKERS, 1)), np.zeros((WORKERS, 5))
        self.center, self.velocity = START.copy(), np.zeros(5)
        self.clock, self.momentum = [0] * WORKERS, momentum

    def step(self, p):
        gradient = CURVATURE * (self.x[p] - MINIMA[p]) + NOISE[p, self.clock[p]]
        self.v[p] = self.momentum * self.v[p] - ETA * gradient
        self.clock[p] += 1
        return self.v[p].copy()

    def elastic(self, p, steps, rate):
        for _ in range(steps - 1):
            self.x[p] += self.step(p)
        d = rate * (self.x[p] - self.center)
        self.x[p] += self.step(p) - d
        self.center = self.center + d

    def push_and_pull(self, p, steps, at_server):
        before = self.x[p].copy()
        for _ in range(steps):
            self.x[p] += self.step(p)
        self.velocity = at_server * self.velocity + (self.x[p] - before)
        self.center = self.center + self.velocity
        self.x[p] = self.center


METHODS = {
    "EASGD": (
        lambda inner, order: averaging.easgd(inner, order=order, moving_rate=0.3),
        lambda replicas, p: replicas.elastic(p, 1, 0.3),
        1,
    ),
    "EASGD, H = 3": (
        lambda inner, order: averaging.easgd(inner, order=order, period=3),
        lambda replicas, p: replicas.elastic(p, 3, 0.9 / WORKERS),
        3,
    ),
    "DOWNPOUR": (
        lambda inner, order: averaging.downpour(inner, order=order),
        lambda replicas, p: replicas.push_and_pull(p, 1, 0.0),
        1,
    ),
    "DOWNPOUR, H = 3, momentum at the server": (
        lambda inner, order: averaging.downpour(
            inner, order=order, period=3, server=optax.trace(0.5)
        ),
        lambda replicas, p: replicas.push_and_pull(p, 3, 0.5),
        3,
    ),
}


PAIRS = list(itertools.product(METHODS, SLOWDOWNS))


def rounds_of(slowdown):
    trace = traced(slowdown)
    visits = cluster.visits_to_rounds(trace.worker, trace.num_workers)
    assert WORKERS < len(visits) < VISITS
    return trace, visits


def stepped_in_rounds(key, make, steps, visits, momentum):
    """The transformation, a worker's step, and its noise [T, P, n], of name `key`."""
    there = np.repeat(np.isfinite(visits), steps, axis=0)
    clock = np.cumsum(there, axis=0) - 1
    # what is computed of who stays away must not matter
    noise = np.where(there[:, :, None], NOISE[np.arange(WORKERS)[None], clock], np.nan)
    order = averaging.first_come(np.repeat(visits, steps, axis=0))
    inner = optax.sgd(ETA, momentum=momentum)
    tx = make(averaging.only_on_visit(inner, order), order)

    def step(state, batch):
        x, opt_state = state
        minimum, noises = batch
        grad = jnp.asarray(CURVATURE) * (x - minimum) + noises[key]
        updates, opt_state = tx.update(grad, opt_state, x)
        x = optax.apply_updates(x, updates)
        return (x, opt_state), (x, opt_state.memory.center)

    return tx, step, noise


@functools.cache
def by_rounds(execution, momentum=0.5):
    """Models [R, P, n] and centers [R, n] after each round, per pair, in float64.

    All at once; the shorter go on, unseen.
    """
    with jax.enable_x64(True):
        made = {}
        for name, slowdown in PAIRS:
            make, _, steps = METHODS[name]
            key, visits = f"{name} {slowdown}", rounds_of(slowdown)[1]
            made[key] = stepped_in_rounds(key, make, steps, visits, momentum)
        longest = max(len(noise) for _, _, noise in made.values())
        minima = np.tile(MINIMA, (longest, 1, 1))
        noises = {key: np.resize(own, minima.shape) for key, (*_, own) in made.items()}
        batches = jax.tree.map(jnp.asarray, (minima, noises))
        step = side_by_side({key: own for key, (_, own, _) in made.items()})
        held, start = as_workers(execution, step), jnp.asarray(START)
        states = {key: (start, tx.init(start)) for key, (tx, _, _) in made.items()}
        first = jax.tree.map(lambda leaf: leaf[0], batches)
        split = held.init(states, first, shared=False)
        seen = jax.jit(lambda s, b: jax.lax.scan(held.step, s, b)[1])(split, batches)
    found = {}
    for name, slowdown in PAIRS:
        key, steps = f"{name} {slowdown}", METHODS[name][2]
        last = slice(steps - 1, len(made[key][2]), steps)
        found[name, slowdown] = [np.asarray(x)[last] for x in seen[key]]
    return found


@executions
@pytest.mark.parametrize("slowdown", SLOWDOWNS)
@pytest.mark.parametrize("name", METHODS)
def test_training_in_rounds_is_training_visit_by_visit(execution, name, slowdown):
    _, visit, _ = METHODS[name]
    replicas, xs, centers, seconds = Replicas(0.5), [], [], []
    for now, p in arrivals(slowdown):
        visit(replicas, p)
        xs.append(replicas.x.copy())
        centers.append(replicas.center.copy())
        seconds.append(now)

    trace, visits = rounds_of(slowdown)
    last = np.where(np.isfinite(visits), visits, -1).max(axis=1).astype(int)
    seen, seen_centers = by_rounds(execution)[name, slowdown]
    assert_follows(seen, np.stack(xs)[last])
    assert_follows(seen_centers, np.stack(centers)[last])
    np.testing.assert_allclose(trace.seconds[last], np.stack(seconds)[last], rtol=1e-12)
