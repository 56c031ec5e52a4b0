import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from delayjax import averaging
from tests.averaging.driving import (
    ETA,
    SECONDS,
    SGD,
    START,
    assert_follows,
    by_arrival,
    by_rank,
    everyone_at_once,
    path,
    raced,
    seen_of,
    train,
    version,
    wild,
)
from tests.exchange.driving import WORKERS, executions, mostly_simulated


def push_and_pull(
    order, *, period=1, momentum=0.0, at_server=0.0, average=None, races=None
):
    """D.2: the models, the center, and its average z; they push in this `order`."""
    pushes, velocity = np.zeros((WORKERS, 5)), np.zeros(5)
    center, z, versions, exchanges = START.copy(), START.copy(), [START], 0

    def serve(push):
        nonlocal velocity, center, z, exchanges
        velocity = at_server * velocity + push
        center = center + velocity
        if average is not None:
            z, exchanges = z + average(exchanges) * (center - z), exchanges + 1

    def mix(t, x, v):
        nonlocal pushes
        x, pushes = x + v, pushes + v
        if (t + 1) % period:
            return x
        visitors = order(t)
        if visitors is None:
            serve(pushes.sum(axis=0))
            x, pushes = np.tile(center, (WORKERS, 1)), np.zeros_like(pushes)
        for i in visitors or []:
            ages, written = raced(races, t, i)
            serve(np.where(written, pushes[i], 0))
            versions.append(center)
            x[i], pushes[i] = version(versions, ages), 0
        return x

    return path(mix, momentum=momentum), center, z


def mean_so_far(k):
    return 1 / (k + 1.0)


def a_quarter(k):
    return 0.25


DOWNPOUR, FIRST_COME = averaging.downpour, averaging.first_come(SECONDS)
MOMENTUM = {"server": optax.trace(0.5)}
FAMILY = {
    "DOWNPOUR, H = 4": (
        DOWNPOUR(SGD, period=4, order=FIRST_COME),
        lambda: push_and_pull(by_arrival, period=4),
    ),
    "DOWNPOUR, H = 1, all at once": (
        DOWNPOUR(optax.sgd(ETA, momentum=0.5)),
        lambda: push_and_pull(everyone_at_once, momentum=0.5),
    ),
    "MDOWNPOUR": (
        DOWNPOUR(optax.scale(-ETA), **MOMENTUM, order=averaging.by_rank()),
        lambda: push_and_pull(by_rank, at_server=0.5),
    ),
    "MDOWNPOUR, some away": (
        DOWNPOUR(optax.scale(-ETA), **MOMENTUM, order=FIRST_COME),
        lambda: push_and_pull(by_arrival, at_server=0.5),
    ),
    "ADOWNPOUR, H = 3": (
        DOWNPOUR(SGD, period=3, average=mean_so_far),
        lambda: push_and_pull(everyone_at_once, period=3, average=mean_so_far),
    ),
    "ADOWNPOUR, H = 3, in turn, some away": (
        DOWNPOUR(SGD, period=3, average=mean_so_far, order=FIRST_COME),
        lambda: push_and_pull(by_arrival, period=3, average=mean_so_far),
    ),
    "MVADOWNPOUR": (
        DOWNPOUR(SGD, average=0.25, order=averaging.by_rank()),
        lambda: push_and_pull(by_rank, average=a_quarter),
    ),
    "Hogwild SGD with local models": (
        DOWNPOUR(SGD, order=FIRST_COME, lock_free=wild(5, lost=0.3)),
        lambda: push_and_pull(by_arrival, races=wild(5, lost=0.3)),
    ),
    "the same, H = 3, momentum at the server, averaged": (
        DOWNPOUR(
            SGD,
            **MOMENTUM,
            period=3,
            average=0.25,
            order=averaging.by_rank(),
            lock_free=wild(2, lost=0.3),
        ),
        lambda: push_and_pull(
            by_rank,
            period=3,
            at_server=0.5,
            average=a_quarter,
            races=wild(2, lost=0.3),
        ),
    ),
}


@executions
def test_models_and_center_follow_the_paper_s_loop(execution):
    trained = train(execution, {name: tx for name, (tx, _) in FAMILY.items()})
    for name, (_, loop) in FAMILY.items():
        xs, split = trained[name]
        expected, center, z = loop()
        assert_follows(xs, expected, name)
        memory = split.state[1].memory
        assert_follows(memory.center, center, name)
        for leaf in jax.tree.leaves(memory.average):
            assert_follows(leaf, z, name)


RACES = {
    "none": None,
    "as by a lock": wild(0),
    "old": wild(7),
    "losses": wild(0, lost=0.4),
}
MOVES = np.random.default_rng(1).normal(size=(20, 8, 3))


@functools.cache
def pushed_blindly():
    """By the races, centers [T, n] and models [T, P, n] as workers push `MOVES`."""
    txs = {
        name: DOWNPOUR(optax.sgd(1.0), order=averaging.by_rank(), lock_free=races)
        for name, races in RACES.items()
    }

    def center_and_model(x, state):
        return state.memory.center, x

    seen = seen_of(txs, np.zeros((8, 3)), -MOVES, see=center_and_model)
    return {name: (centers[:, 0], xs) for name, (centers, xs) in seen.items()}


def test_races_lose_no_push_however_old_what_is_read():
    centers, xs = pushed_blindly()["old"]
    np.testing.assert_allclose(centers, MOVES.sum(axis=1).cumsum(axis=0), rtol=1e-12)
    assert np.abs(xs - centers[:, None]).max() > 1


def test_a_lost_write_is_a_push_s_coordinate_that_the_center_never_gets():
    centers, _ = pushed_blindly()["losses"]
    written = np.asarray(
        [[raced(RACES["losses"], t, i, 3)[1] for i in range(8)] for t in range(20)]
    )
    kept = np.where(written, MOVES, 0).sum(axis=1)
    np.testing.assert_allclose(centers, kept.cumsum(axis=0), rtol=1e-12, atol=1e-12)
    assert 0.5 < written.mean() < 0.7


def test_races_without_age_are_a_lock():
    locked, raced = (pushed_blindly()[name] for name in ("none", "as by a lock"))
    # XLA may contract the two differently. A push adds, which enlarges no error; each
    # rounds at most 8 results, by half a unit in the last place.
    rounding = 20 * 8 * 8 * np.finfo(np.float64).eps * abs(locked[0]).max()
    for ours, theirs in zip(raced, locked, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=rounding)


@mostly_simulated
def test_two_levels_are_workers_around_a_server_and_threads_in_each(execution):
    """DPSGD: threads share a model, with random delays; workers push every B steps."""
    groups, threads, steps = 2, 2, 24
    rates = np.random.default_rng(1).normal(size=(steps, groups, threads, 3))
    names = ("workers", "threads")
    late = np.random.default_rng(2).integers(0, 3, (steps, threads))

    def delay(step):
        return jnp.asarray(late)[step, jax.lax.axis_index("threads")]

    with jax.enable_x64(True):
        mean = dj.exchange.mean(optax.sgd(ETA), axis_name="threads")
        tx = DOWNPOUR(dj.delayed(mean, delay, max_delay=2), period=4)

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

    x, center, models = np.zeros((groups, 3)), np.zeros(3), []
    for t in range(steps):
        models.append(x[:, None] - rates[t])
        read = [models[t - min(t, late[t, k])][:, k] for k in range(threads)]
        before = x if t % 4 else np.tile(center, (groups, 1))
        x = before - ETA * np.mean(read, axis=0)
        if t % 4 == 3:
            center = center + (x - center).sum(axis=0)
            x = np.tile(center, (groups, 1))
        assert_follows(np.asarray(xs[t]), x)
