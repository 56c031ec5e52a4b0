"""Visits of a center: their order, and that rounds are the same as single visits."""

import functools
import heapq

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
    drive,
    executions,
    mostly_simulated,
    side_by_side,
)

VISITS = 60
MOMENTUM = 0.5
SLOWDOWNS = {"exponential": [1.0, 1.0, 1.0, 1.0], "a slow one": [1.0, 4.0, 1.0, 1.0]}
# [worker, gradient of this worker, n]: each worker counts its own gradients
NOISE = np.random.default_rng(2).normal(size=(WORKERS, 3 * VISITS, 5))


def cluster_of(slowdown):
    service = dj.cluster.exponential(1.0)
    return dj.cluster.Cluster(WORKERS, service, slowdown=SLOWDOWNS[slowdown])


def arrivals(slowdown):
    """The worker whose gradient is ready next, by a separate event loop."""
    cluster, factors = cluster_of(slowdown), SLOWDOWNS[slowdown]
    times = [iter(factors[p] * cluster.draw(p, VISITS, seed=1)) for p in range(WORKERS)]
    queue = sorted((next(times[p]), p) for p in range(WORKERS))
    for _ in range(VISITS):
        now, p = heapq.heappop(queue)
        yield now, p
        heapq.heappush(queue, (now + next(times[p]), p))


class Replicas:
    """P models, each with its own count of steps, and a center; methods are visits."""

    def __init__(self):
        self.x, self.v = np.tile(START, (WORKERS, 1)), np.zeros((WORKERS, 5))
        self.center, self.velocity = START.copy(), np.zeros(5)
        self.z, self.clock = START.copy(), [0] * WORKERS

    def step(self, p):
        gradient = CURVATURE * (self.x[p] - MINIMA[p]) + NOISE[p, self.clock[p]]
        self.v[p] = MOMENTUM * self.v[p] - ETA * gradient
        self.clock[p] += 1
        return self.v[p].copy()

    def elastic(self, p):
        d = 0.3 * (self.x[p] - self.center)
        self.x[p] += self.step(p) - d
        self.center = self.z = self.center + d

    def push_and_pull(self, p):
        before = self.x[p].copy()
        for _ in range(3):
            self.x[p] += self.step(p)
        self.velocity = 0.5 * self.velocity + (self.x[p] - before)
        self.center = self.center + self.velocity
        visits = sum(self.clock) // 3
        self.z = self.z + (self.center - self.z) / visits
        self.x[p] = self.center


def easgd(inner, order):
    return averaging.easgd(inner, order=order, moving_rate=0.3)


def downpour(inner, order):
    return averaging.downpour(
        inner,
        order=order,
        period=3,
        server=optax.trace(0.5),
        average=lambda k: 1 / (k + 1.0),
    )


METHODS = {  # name: (the method, its visit, local steps from one visit to the next)
    "EASGD": (easgd, Replicas.elastic, 1),
    "ADOWNPOUR, H = 3, momentum at the server": (downpour, Replicas.push_and_pull, 3),
}


def rounds_of(slowdown):
    rule = dj.cluster.protocols.k_async(1)
    trace = dj.cluster.simulate(cluster_of(slowdown), rule, VISITS, seed=1)
    visits = cluster.visits_to_rounds(trace.worker, trace.num_workers)
    assert WORKERS < len(visits) < VISITS
    return trace, visits


def stepped_in_rounds(key, method, slowdown):
    """The transformation, a worker's step, and its noise [T, P, n] for `key`."""
    make, _, steps = METHODS[method]
    visits = np.repeat(rounds_of(slowdown)[1], steps, axis=0)
    mask = np.isfinite(visits)
    clock = np.cumsum(mask, axis=0) - 1
    # NaN for workers that do not come: their gradients must not be used
    noise = np.where(mask[:, :, None], NOISE[np.arange(WORKERS)[None], clock], np.nan)
    order = averaging.first_come(visits)
    inner = optax.sgd(ETA, momentum=MOMENTUM)
    tx = make(averaging.only_on_visit(inner, order), order)

    def step(state, batch):
        x, opt_state = state
        minimum, noises = batch
        grad = jnp.asarray(CURVATURE) * (x - minimum) + noises[key]
        updates, opt_state = tx.update(grad, opt_state, x)
        x = optax.apply_updates(x, updates)
        memory = opt_state.memory
        z = getattr(memory, "average", memory.center)
        return (x, opt_state), (x, memory.center, z)

    return tx, step, noise


@functools.cache
def by_rounds(execution):
    """Models [R, P, n], centers and their averages [R, n] after each round, in float64.

    By method and slowdown. One program trains all; extra steps are cut off.
    """
    keys = {f"{m} {s}": (m, s) for m in METHODS for s in SLOWDOWNS}
    with jax.enable_x64(True):
        made = {key: stepped_in_rounds(key, *pair) for key, pair in keys.items()}
        longest = max(len(noise) for _, _, noise in made.values())
        minima = np.tile(MINIMA, (longest, 1, 1))
        noises = {k: np.resize(noise, minima.shape) for k, (*_, noise) in made.items()}
        batches = jax.tree.map(jnp.asarray, (minima, noises))
        step = side_by_side({key: step for key, (_, step, _) in made.items()})
        held, start = as_workers(execution, step), jnp.asarray(START)
        states = {key: (start, tx.init(start)) for key, (tx, _, _) in made.items()}
        first = jax.tree.map(lambda leaf: leaf[0], batches)
        split = held.init(states, first, shared=False)
        seen = jax.jit(lambda s, b: jax.lax.scan(held.step, s, b)[1])(split, batches)
    result = {}
    for key, (method, slowdown) in keys.items():
        steps = METHODS[method][2]
        last = slice(steps - 1, len(made[key][2]), steps)
        result[method, slowdown] = [np.asarray(x)[last] for x in seen[key]]
    return result


@mostly_simulated
@pytest.mark.parametrize("slowdown", SLOWDOWNS)
@pytest.mark.parametrize("name", METHODS)
def test_training_in_rounds_is_training_visit_by_visit(execution, name, slowdown):
    replicas, xs, centers, averages, seconds = Replicas(), [], [], [], []
    for now, p in arrivals(slowdown):
        METHODS[name][1](replicas, p)
        xs.append(replicas.x.copy())
        centers.append(replicas.center.copy())
        averages.append(replicas.z.copy())
        seconds.append(now)

    trace, visits = rounds_of(slowdown)
    last = np.where(np.isfinite(visits), visits, -1).max(axis=1).astype(int)
    for seen, path in zip(
        by_rounds(execution)[name, slowdown], (xs, centers, averages), strict=True
    ):
        assert_follows(seen, np.stack(path)[last])
    np.testing.assert_allclose(trace.seconds[last], np.stack(seconds)[last], rtol=1e-12)


# the order of visits


def places(order, workers, steps=1):
    """The place of each worker at each step, [T, P]."""
    over = jax.vmap(lambda _, step: order(step), in_axes=(0, None), axis_name="workers")
    return [over(jnp.zeros(workers), step).tolist() for step in range(steps)]


def test_ranks_are_places():
    assert places(averaging.by_rank(), 4, 2) == [[0, 1, 2, 3]] * 2


def test_who_comes_first_is_served_first_equals_by_rank_and_the_table_starts_again():
    order = averaging.first_come([[3.0, 1.0, 1.0, np.inf], [0.0, 2.0, 1.0, 3.0]])
    assert places(order, 4, 3) == [[2, 0, 1, -1], [0, 2, 1, 3], [2, 0, 1, -1]]


# an optimizer that steps only when its worker visits

ROUNDS = 30
TIMES = np.random.default_rng(1).random((ROUNDS, WORKERS))
TIMES[TIMES < 0.4] = np.inf
GRADS = np.random.default_rng(3).normal(size=(ROUNDS, WORKERS, 3)).astype(np.float32)


@executions
def test_a_worker_s_optimizer_sees_the_gradients_of_its_own_visits_alone(execution):
    inner = optax.adam(optax.linear_schedule(0.1, 0.0, 20))
    tx = averaging.only_on_visit(inner, averaging.first_come(TIMES))
    split, updates = drive(execution, tx, GRADS, jnp.ones(3), shared=False)
    seen = split.state[1]
    assert seen.step == ROUNDS
    for p in range(WORKERS):
        state, expected = inner.init(jnp.ones(3)), np.zeros((ROUNDS, 3))
        for t in np.flatnonzero(np.isfinite(TIMES[:, p])):
            expected[t], state = inner.update(GRADS[t, p], state, jnp.ones(3))
        held = jax.tree.map(lambda leaf, p=p: leaf[p], seen.inner_state)
        for ours, theirs in zip(
            jax.tree.leaves((updates[:, p], held)),
            jax.tree.leaves((expected, state)),
            strict=True,
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)
