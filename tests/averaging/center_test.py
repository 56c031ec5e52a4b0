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


@pytest.mark.parametrize("slowdown", SLOWDOWNS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rounds_hold_all_visits_in_order_and_are_as_long_as_can_be(slowdown, seed):
    trace = traced(slowdown, seed=seed)
    visits = cluster.visits_to_rounds(trace.worker, trace.num_workers)
    queues = [np.argsort(row)[: np.isfinite(row).sum()] for row in visits]
    np.testing.assert_array_equal(np.concatenate(queues), trace.worker)
    for queue, row in zip(queues, visits, strict=True):
        np.testing.assert_array_equal(np.diff(row[queue]), 1)
    for queue, after in itertools.pairwise(queues):
        assert after[0] in queue


def test_equal_workers_make_full_rounds():
    five = dj.cluster.Cluster(5, dj.cluster.constant(2.0))
    trace = dj.cluster.simulate(five, dj.cluster.protocols.k_async(1), 30, seed=0)
    visits = cluster.visits_to_rounds(trace.worker, 5)
    np.testing.assert_array_equal(np.sort(visits), np.arange(30).reshape(6, 5))


@pytest.mark.parametrize("workers", [1, 4, 16, 64])
def test_exponential_times_fill_a_round_as_birthdays_fill_a_year(workers):
    """Draws until one comes twice: sum_k P! / ((P - k)! P^k)."""
    drawn = np.random.default_rng(1).integers(0, workers, 40_000)
    held = np.isfinite(cluster.visits_to_rounds(drawn, workers)).sum(axis=1)
    shares = 1 - np.arange(workers) / workers
    expected = np.cumprod(shares).sum()
    deviation = held.std() / np.sqrt(len(held))
    assert abs(held.mean() - expected) <= 4 * deviation + workers / len(held)
    if workers == 64:
        assert expected == pytest.approx(np.sqrt(np.pi * workers / 2), rel=0.05)


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


INNERS = {
    "adam": optax.adam(0.1),
    "a schedule": optax.sgd(optax.linear_schedule(0.1, 0.0, 20), momentum=0.9),
}


def away(order, gradients, execution, inner):
    """Updates [T, P, n] of `only_on_visit`, and the counters of its state."""

    def step(state, gradient):
        updates, state = averaging.only_on_visit(inner, order).update(
            gradient, state, params
        )
        return state, updates

    params = jnp.ones(3)
    held = as_workers(execution, step)
    state = averaging.only_on_visit(inner, order).init(params)
    split = held.init(state, gradients[0], shared=False)
    return jax.jit(lambda s, g: jax.lax.scan(held.step, s, g))(split, gradients)


@executions
@pytest.mark.parametrize("name", INNERS)
def test_a_worker_s_optimizer_sees_the_gradients_of_its_own_visits_alone(
    execution, name
):
    inner = INNERS[name]
    trace = traced("a slow one")
    visits = cluster.visits_to_rounds(trace.worker, WORKERS)
    shape = (len(visits), WORKERS, 3)
    gradients = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    order = averaging.first_come(visits)
    split, updates = away(order, jnp.asarray(gradients), execution, inner)
    assert split.state.step == len(visits)
    for p in range(WORKERS):
        state, expected = inner.init(jnp.ones(3)), np.zeros((len(visits), 3))
        for r in np.flatnonzero(np.isfinite(visits[:, p])):
            update, state = inner.update(gradients[r, p], state, jnp.ones(3))
            expected[r] = update
        np.testing.assert_allclose(updates[:, p], expected, rtol=1e-6, atol=1e-7)
        for own, alone in zip(
            jax.tree.leaves(split.state.inner_state),
            jax.tree.leaves(state),
            strict=True,
        ):
            np.testing.assert_allclose(own[p], alone, rtol=1e-6, atol=1e-7)


def test_optax_s_mask_rests_in_the_same_rounds():
    order = averaging.first_come([[0.0, np.inf], [np.inf, 0.0], [1.0, 0.0]])
    ours = averaging.only_on_visit(optax.adam(0.1), order)
    theirs = optax.transforms.conditionally_mask(
        optax.adam(0.1), lambda step: order(step) >= 0
    )

    def updates(tx, gradients):
        return jax.lax.scan(
            lambda state, g: tx.update(g, state)[::-1],
            tx.init(gradients[0]),
            gradients,
        )[1]

    gradients = jnp.asarray(np.random.default_rng(1).normal(size=(2, 9)), jnp.float32)
    for one, other in zip(
        *(
            jax.vmap(lambda g, tx=tx: updates(tx, g), axis_name="workers")(gradients)
            for tx in (ours, theirs)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: cluster.visits_to_rounds([0.0, 1.0], 2),
            ValueError,
            r"`workers` must be a vector of integers in 0 .. 1, got \[0.0, 1.0\]",
        ),
        (
            lambda: cluster.visits_to_rounds([[0], [1]], 2),
            ValueError,
            r"`workers` must be a vector of integers in 0 .. 1, got \[\[0\], \[1\]\]",
        ),
        (
            lambda: cluster.visits_to_rounds([], 2),
            ValueError,
            r"`workers` must be a vector of integers in 0 .. 1, got \[\]",
        ),
        (
            lambda: cluster.visits_to_rounds([0, 2], 2),
            ValueError,
            r"`workers` must be .* in 0 .. 1, got \[0, 2\]",
        ),
        (
            lambda: cluster.visits_to_rounds([-1, 0], 2),
            ValueError,
            r"`workers` must be .* in 0 .. 1, got \[-1, 0\]",
        ),
        (
            lambda: cluster.visits_to_rounds([0], 0),
            ValueError,
            "`num_workers` must be at least 1, got 0",
        ),
        (
            lambda: cluster.visits_to_rounds([[0], [1, 0]], 2),
            TypeError,
            "`workers` must have rows of one length",
        ),
        (
            lambda: averaging.only_on_visit(None, averaging.by_rank()),
            TypeError,
            "`inner` must be an Optax transformation",
        ),
        (
            lambda: averaging.only_on_visit(optax.sgd(0.1), lambda step: 0.5).update(
                1.0, averaging.only_on_visit(optax.sgd(0.1), lambda step: 0.5).init(1.0)
            ),
            TypeError,
            r"`order\(step\)` must be an integer",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
