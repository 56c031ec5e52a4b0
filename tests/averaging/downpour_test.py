import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import averaging
from tests.averaging.driving import (
    ETA,
    SECONDS,
    STEPS,
    assert_follows,
    by_arrival,
    by_rank,
    everyone_at_once,
    gradient,
    replicas,
    train,
)
from tests.exchange.driving import WORKERS, executions


def sgd():
    return optax.sgd(ETA)


def push_and_pull(order, *, period=1, momentum=0.0, at_server=0.0, average=None):
    """D.2: models, centre, and its average z; `order` of the pushes."""
    x, v = replicas(), np.zeros((WORKERS, 5))
    pushes, velocity = np.zeros((WORKERS, 5)), np.zeros(5)
    centre, z, xs, exchanges = x[0].copy(), x[0].copy(), [], 0
    for t in range(STEPS):
        v = momentum * v - ETA * gradient(t, x)
        x, pushes = x + v, pushes + v
        if (t + 1) % period == 0:
            visitors = order(t)
            if visitors is None:
                velocity = at_server * velocity + pushes.sum(axis=0)
                centre = centre + velocity
                x, pushes = np.tile(centre, (WORKERS, 1)), np.zeros_like(pushes)
            for i in visitors or []:
                velocity = at_server * velocity + pushes[i]
                centre = centre + velocity
                x[i], pushes[i] = centre, 0
            if average is not None:
                z = z + average(exchanges) * (centre - z)
            exchanges += 1
        xs.append(x.copy())
    return np.stack(xs), centre, z


def mean_so_far(k):
    return 1 / (k + 1.0)


FAMILY = {
    "DOWNPOUR, H = 4": (
        lambda: averaging.downpour(sgd(), period=4, turn=averaging.first_come(SECONDS)),
        lambda: push_and_pull(by_arrival, period=4),
    ),
    "DOWNPOUR, H = 1, all at once": (
        lambda: averaging.downpour(optax.sgd(ETA, momentum=0.5)),
        lambda: push_and_pull(everyone_at_once, momentum=0.5),
    ),
    "MDOWNPOUR": (
        lambda: averaging.downpour(
            optax.scale(-ETA), server=optax.trace(0.5), turn=averaging.round_robin()
        ),
        lambda: push_and_pull(by_rank, at_server=0.5),
    ),
    "MDOWNPOUR, some away": (
        lambda: averaging.downpour(
            optax.scale(-ETA),
            server=optax.trace(0.5),
            turn=averaging.first_come(SECONDS),
        ),
        lambda: push_and_pull(by_arrival, at_server=0.5),
    ),
    "ADOWNPOUR, H = 3": (
        lambda: averaging.downpour(sgd(), period=3, average=mean_so_far),
        lambda: push_and_pull(everyone_at_once, period=3, average=mean_so_far),
    ),
    "MVADOWNPOUR": (
        lambda: averaging.downpour(sgd(), average=0.25, turn=averaging.round_robin()),
        lambda: push_and_pull(by_rank, average=lambda k: 0.25),
    ),
}


@executions
@pytest.mark.parametrize("name", FAMILY)
def test_models_and_centre_follow_the_paper_s_loop(execution, name):
    make, loop = FAMILY[name]
    xs, split = train(execution, make)
    expected, centre, z = loop()
    assert_follows(xs, expected)
    state = split.state[1]
    assert_follows(state.centre, centre)
    for leaf in jax.tree.leaves(state.average):
        assert_follows(leaf, z)


@executions
def test_two_levels_are_workers_around_a_server_and_threads_in_each(execution):
    """DPSGD: threads share a model, late by a draw each; workers push every B steps."""
    groups, threads, steps = 2, 2, 24
    rates = np.random.default_rng(1).normal(size=(steps, groups, threads, 3))
    names = ("workers", "threads")
    late = np.random.default_rng(2).integers(0, 3, (steps, threads))

    def delay(step):
        return jnp.asarray(late)[step, jax.lax.axis_index("threads")]

    with jax.enable_x64(True):
        within = dj.exchange.mean(optax.sgd(ETA), axis_name="threads")
        tx = averaging.downpour(dj.delayed(within, delay, max_delay=2), period=4)

        def step(state, noise):
            x, opt_state = state
            grad = dj.workers.vary(x, axis_name=names) - noise
            updates, opt_state = tx.update(grad, opt_state, x)
            x = optax.apply_updates(x, updates)
            return (x, opt_state), x

        if execution == "simulate":
            held = dj.workers.simulate(step, (groups, threads), axis_name=names)
        else:
            kinds = (jax.sharding.AxisType.Auto,) * 2
            mesh = jax.make_mesh((groups, threads), names, axis_types=kinds)
            held = dj.workers.run(step, mesh, axis_name=names)
        start = jnp.zeros(3)
        split = held.init((start, tx.init(start)), rates[0], (True, False))
        xs = jax.lax.scan(held.step, split, jnp.asarray(rates))[1]

    x, centre, made = np.zeros((groups, 3)), np.zeros(3), []
    for t in range(steps):
        made.append(x[:, None] - rates[t])
        read = [
            np.mean(
                [made[t - min(t, late[t, k])][w, k] for k in range(threads)], axis=0
            )
            for w in range(groups)
        ]
        before = x if t % 4 else np.tile(centre, (groups, 1))
        x = before - ETA * np.stack(read)
        if t % 4 == 3:
            centre = centre + (x - centre).sum(axis=0)
            x = np.tile(centre, (groups, 1))
        seen = np.asarray(xs[t])
        seen = seen if seen.ndim == 2 else seen[:, 0]
        assert_follows(seen, x)


def test_one_worker_s_push_is_its_own_step():
    tx = averaging.downpour(optax.sgd(0.5), turn=averaging.round_robin())

    def run(x):
        updates, state = tx.update(jnp.ones(3), tx.init(x), x)
        return x + updates, state.centre

    x, centre = jax.vmap(run, axis_name="workers")(jnp.zeros((1, 3)))
    np.testing.assert_array_equal(x, np.full((1, 3), -0.5))
    np.testing.assert_array_equal(centre, x)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: averaging.downpour(None), TypeError, "`inner` must be an Optax"),
        (lambda: averaging.downpour(sgd(), period=0), ValueError, "`period` must be"),
        (
            lambda: averaging.downpour(sgd(), server="momentum"),
            TypeError,
            "`server` must be an Optax transformation",
        ),
        (
            lambda: averaging.downpour(sgd(), average=1.5),
            ValueError,
            r"`average` must be in \(0, 1\], got 1.5",
        ),
        (
            lambda: averaging.downpour(sgd(), average=0.0),
            ValueError,
            "`average` must be finite and positive",
        ),
        (lambda: averaging.downpour(sgd(), turn=0), TypeError, "`turn` must be a func"),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
