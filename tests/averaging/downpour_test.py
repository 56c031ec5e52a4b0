import functools

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


def wild(max_age=3, lost=0.0):
    return averaging.races(jax.random.key(3), max_age, lost=lost)


def raced(races, t, i, size=5):
    """Of each coordinate, how many visits ago it is read, and whether it is written."""
    if races is None:
        return np.zeros(size, int), np.ones(size, bool)
    with jax.enable_x64(True):
        visit = jnp.int32(t), jnp.int32(i), jnp.zeros(size)
        return np.asarray(races.ages(*visit)), ~np.asarray(races.lost(*visit))


def push_and_pull(
    order, *, period=1, momentum=0.0, at_server=0.0, average=None, races=None
):
    """D.2: models, center, and its average z; `order` of the pushes."""
    x, v = replicas(), np.zeros((WORKERS, 5))
    pushes, velocity = np.zeros((WORKERS, 5)), np.zeros(5)
    center, z, xs, exchanges = x[0].copy(), x[0].copy(), [], 0
    versions = [center]
    for t in range(STEPS):
        v = momentum * v - ETA * gradient(t, x)
        x, pushes = x + v, pushes + v
        if (t + 1) % period == 0:
            visitors = order(t)
            if visitors is None:
                velocity = at_server * velocity + pushes.sum(axis=0)
                center = center + velocity
                x, pushes = np.tile(center, (WORKERS, 1)), np.zeros_like(pushes)
            for i in visitors or []:
                ages, written = raced(races, t, i)
                velocity = at_server * velocity + np.where(written, pushes[i], 0)
                center = center + velocity
                versions.append(center)
                ages = np.minimum(ages, len(versions) - 1)
                x[i] = [versions[-1 - age][n] for n, age in enumerate(ages)]
                pushes[i] = 0
            if average is not None:
                z = z + average(exchanges) * (center - z)
            exchanges += 1
        xs.append(x.copy())
    return np.stack(xs), center, z


def mean_so_far(k):
    return 1 / (k + 1.0)


FAMILY = {
    "DOWNPOUR, H = 4": (
        lambda: averaging.downpour(
            sgd(), period=4, order=averaging.first_come(SECONDS)
        ),
        lambda: push_and_pull(by_arrival, period=4),
    ),
    "DOWNPOUR, H = 1, all at once": (
        lambda: averaging.downpour(optax.sgd(ETA, momentum=0.5)),
        lambda: push_and_pull(everyone_at_once, momentum=0.5),
    ),
    "MDOWNPOUR": (
        lambda: averaging.downpour(
            optax.scale(-ETA), server=optax.trace(0.5), order=averaging.by_rank()
        ),
        lambda: push_and_pull(by_rank, at_server=0.5),
    ),
    "MDOWNPOUR, some away": (
        lambda: averaging.downpour(
            optax.scale(-ETA),
            server=optax.trace(0.5),
            order=averaging.first_come(SECONDS),
        ),
        lambda: push_and_pull(by_arrival, at_server=0.5),
    ),
    "ADOWNPOUR, H = 3": (
        lambda: averaging.downpour(sgd(), period=3, average=mean_so_far),
        lambda: push_and_pull(everyone_at_once, period=3, average=mean_so_far),
    ),
    "MVADOWNPOUR": (
        lambda: averaging.downpour(sgd(), average=0.25, order=averaging.by_rank()),
        lambda: push_and_pull(by_rank, average=lambda k: 0.25),
    ),
    "Hogwild SGD with local models": (
        lambda: averaging.downpour(
            sgd(), order=averaging.first_come(SECONDS), lock_free=wild(5, lost=0.3)
        ),
        lambda: push_and_pull(by_arrival, races=wild(5, lost=0.3)),
    ),
    "the same, H = 3, momentum at the server, averaged": (
        lambda: averaging.downpour(
            sgd(),
            period=3,
            server=optax.trace(0.5),
            average=0.25,
            order=averaging.by_rank(),
            lock_free=wild(2, lost=0.3),
        ),
        lambda: push_and_pull(
            by_rank,
            period=3,
            at_server=0.5,
            average=lambda k: 0.25,
            races=wild(2, lost=0.3),
        ),
    ),
}


@functools.cache
def trained(execution):
    return train(execution, {name: make for name, (make, _) in FAMILY.items()})


@executions
@pytest.mark.parametrize("name", FAMILY)
def test_models_and_center_follow_the_paper_s_loop(execution, name):
    _, loop = FAMILY[name]
    xs, split = trained(execution)[name]
    expected, center, z = loop()
    assert_follows(xs, expected)
    state = split.state[1]
    assert_follows(state.memory.center, center)
    for leaf in jax.tree.leaves(state.memory.average):
        assert_follows(leaf, z)


RACES = {
    "none": None,
    "as by a lock": wild(0),
    "old": wild(7),
    "losses": wild(0, lost=0.4),
}


@functools.cache
def pushed_blindly(workers=8, steps=20):
    """By the races, centers [T, n], models [T, P, n] and what was pushed [T, P, n].

    Gradients do not depend on models.
    """
    moves = np.random.default_rng(1).normal(size=(steps, workers, 3))
    with jax.enable_x64(True):
        txs = {
            name: averaging.downpour(
                optax.sgd(1.0), order=averaging.by_rank(), lock_free=races
            )
            for name, races in RACES.items()
        }

        def step(carry, move):
            seen = {}
            for name, tx in txs.items():
                x, state = carry[name]
                updates, state = tx.update(-move, state, x)
                carry = carry | {name: (x + updates, state)}
                seen[name] = state.memory.center, x + updates
            return carry, seen

        def run(moves):
            zeros = jnp.zeros(3)
            start = {name: (zeros, tx.init(zeros)) for name, tx in txs.items()}
            return jax.lax.scan(step, start, moves)[1]

        over = jax.jit(jax.vmap(run, in_axes=1, out_axes=1, axis_name="workers"))
        seen = over(jnp.asarray(moves))
        return {
            name: (np.asarray(centers)[:, 0], np.asarray(xs), moves)
            for name, (centers, xs) in seen.items()
        }


def test_races_lose_no_push_however_old_what_is_read():
    centers, xs, moves = pushed_blindly()["old"]
    np.testing.assert_allclose(centers, moves.sum(axis=1).cumsum(axis=0), rtol=1e-12)
    assert np.abs(xs - centers[:, None]).max() > 1


def test_a_lost_write_is_a_push_s_coordinate_that_the_center_never_gets():
    centers, _, moves = pushed_blindly()["losses"]
    races = RACES["losses"]
    written = np.asarray(
        [[raced(races, t, i, 3)[1] for i in range(8)] for t in range(20)]
    )
    kept = np.where(written, moves, 0).sum(axis=1)
    np.testing.assert_allclose(centers, kept.cumsum(axis=0), rtol=1e-12, atol=1e-12)
    assert 0.5 < written.mean() < 0.7


def test_races_without_age_are_a_lock():
    centers, xs, _ = pushed_blindly()["none"]
    raced_centers, raced_xs, _ = pushed_blindly()["as by a lock"]
    # XLA may contract the two differently. A push adds, which enlarges no error; each
    # rounds 8 results of it or fewer, by half a unit in the last place.
    rounding = 20 * 8 * 8 * np.finfo(np.float64).eps * abs(centers).max()
    np.testing.assert_allclose(raced_centers, centers, rtol=0, atol=rounding)
    np.testing.assert_allclose(raced_xs, xs, rtol=0, atol=rounding)


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
        # the threads of a worker share its model, in one copy
        split = held.init((start, tx.init(start)), rates[0], ("threads", False))
        assert split.state[0].shape == (groups, 3)
        xs = jax.lax.scan(held.step, split, jnp.asarray(rates))[1]

    x, center, made = np.zeros((groups, 3)), np.zeros(3), []
    for t in range(steps):
        made.append(x[:, None] - rates[t])
        read = [
            np.mean(
                [made[t - min(t, late[t, k])][w, k] for k in range(threads)], axis=0
            )
            for w in range(groups)
        ]
        before = x if t % 4 else np.tile(center, (groups, 1))
        x = before - ETA * np.stack(read)
        if t % 4 == 3:
            center = center + (x - center).sum(axis=0)
            x = np.tile(center, (groups, 1))
        assert_follows(np.asarray(xs[t]), x)


def test_one_worker_s_push_is_its_own_step():
    tx = averaging.downpour(optax.sgd(0.5), order=averaging.by_rank())

    def run(x):
        updates, state = tx.update(jnp.ones(3), tx.init(x), x)
        return x + updates, state.memory.center

    x, center = jax.vmap(run, axis_name="workers")(jnp.zeros((1, 3)))
    np.testing.assert_array_equal(x, np.full((1, 3), -0.5))
    np.testing.assert_array_equal(center, x)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
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
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
