import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

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


def wild(max_age=3, lost=0.0):
    return averaging.races(jax.random.key(3), max_age, lost=lost)


def sgd():
    return optax.sgd(ETA)


def elastic(
    order, *, rate=0.9 / WORKERS, period=1, momentum=0.0, ahead=0.0, races=None
):
    """D.3: every worker's model, and the center, step by step; `order` of visits."""
    x, v = replicas(), np.zeros((WORKERS, 5))
    center, versions, xs = x[0].copy(), [x[0].copy()], []
    for t in range(STEPS):
        v = momentum * v - ETA * gradient(t, x + ahead * v)
        d = np.zeros_like(x)
        if (t + 1) % period == 0:
            visitors = order(t)
            if visitors is None:
                d = rate * (x - center)
                center = center + d.sum(axis=0)
            for i in visitors or []:
                read, written = center, True
                if races is not None:
                    with jax.enable_x64(True):
                        like = jnp.zeros(5)
                        ages = np.asarray(races.ages(jnp.int32(t), jnp.int32(i), like))
                        lost = races.lost(jnp.int32(t), jnp.int32(i), like)
                        written = ~np.asarray(lost)
                    ages = np.minimum(ages, len(versions) - 1)
                    read = [versions[-1 - age][n] for n, age in enumerate(ages)]
                d[i] = rate * (x[i] - read)
                center = center + np.where(written, d[i], 0)
                versions.append(center)
        x = x + v - d
        xs.append(x)
    return np.stack(xs), center


FAMILY = {
    "synchronous": (lambda: averaging.easgd(sgd()), lambda: elastic(everyone_at_once)),
    "synchronous, H = 4": (
        lambda: averaging.easgd(sgd(), moving_rate=0.1, period=4),
        lambda: elastic(everyone_at_once, rate=0.1, period=4),
    ),
    "round robin": (
        lambda: averaging.easgd(sgd(), order=averaging.by_rank()),
        lambda: elastic(by_rank),
    ),
    "asynchronous, H = 3": (
        lambda: averaging.easgd(
            sgd(), moving_rate=0.3, period=3, order=averaging.first_come(SECONDS)
        ),
        lambda: elastic(by_arrival, rate=0.3, period=3),
    ),
    "MEASGD": (
        lambda: averaging.easgd(
            optax.sgd(ETA, momentum=0.9), order=averaging.first_come(SECONDS)
        ),
        lambda: elastic(by_arrival, momentum=0.9),
    ),
    "EA-wild": (
        lambda: averaging.easgd(sgd(), order=averaging.by_rank(), lock_free=wild()),
        lambda: elastic(by_rank, races=wild()),
    ),
    "EA-wild, lost writes, absent workers": (
        lambda: averaging.easgd(
            sgd(),
            order=averaging.first_come(SECONDS),
            lock_free=wild(max_age=5, lost=0.3),
        ),
        lambda: elastic(by_arrival, races=wild(max_age=5, lost=0.3)),
    ),
}
EAMSGD = (
    lambda: averaging.easgd(optax.chain(optax.scale(-ETA), optax.trace(0.9)), period=2),
    lambda: elastic(everyone_at_once, momentum=0.9, ahead=0.9, period=2),
)


@functools.cache
def trained(execution):
    return train(execution, {name: make for name, (make, _) in FAMILY.items()})


@executions
@pytest.mark.parametrize("name", FAMILY)
def test_models_and_center_follow_the_paper_s_loop(execution, name):
    _, loop = FAMILY[name]
    xs, split = trained(execution)[name]
    expected, center = loop()
    assert_follows(xs, expected)
    assert_follows(split.state[1].memory.center, center)


@executions
def test_eamsgd_takes_its_gradient_a_velocity_ahead(execution):
    make, loop = EAMSGD
    (found,) = train(
        execution,
        {"EAMSGD": make},
        at=lambda x, state: averaging.look_ahead(x, state, 0.9),
    ).values()
    xs, split = found
    expected, center = loop()
    assert_follows(xs, expected)
    assert_follows(split.state[1].memory.center, center)


def test_lost_writes_and_old_reads_make_a_difference():
    xs, _ = trained("simulate")["EA-wild, lost writes, absent workers"]
    assert np.abs(xs - elastic(by_arrival)[0]).max() > 0.1


ORDERS = {
    "together": None,
    "by rank": averaging.by_rank(),
    "by arrival": averaging.first_come(np.random.default_rng(0).random((20, 8))),
}
# all by rank
RACES = {
    "as by a lock": wild(max_age=0),
    "old": wild(max_age=2),
    "older": wild(),
    "older, with losses": wild(lost=0.3),
}
SEEDS = [1, 2, 3]


@functools.cache
def exchanges_alone(workers=8, steps=20):
    """By seed and kind: models before, models after, and sums with the center [T, n].

    The gradients are zero.
    """
    kinds = {name: (order, None) for name, order in ORDERS.items()}
    kinds |= {name: (ORDERS["by rank"], races) for name, races in RACES.items()}
    with jax.enable_x64(True):
        txs = {
            name: averaging.easgd(
                optax.sgd(ETA), moving_rate=0.2, order=order, lock_free=races
            )
            for name, (order, races) in kinds.items()
        }

        def run(x):
            def step(carry, _):
                sums = {}
                for name, tx in txs.items():
                    x, state = carry[name]
                    updates, state = tx.update(jnp.zeros(3), state, x)
                    x = x + updates
                    carry = carry | {name: (x, state)}
                    sums[name] = jax.lax.psum(x, "workers") + state.memory.center
                return carry, sums

            states = {name: (x, tx.init(jnp.zeros(3))) for name, tx in txs.items()}
            states, sums = jax.lax.scan(step, states, length=steps)
            return {name: x for name, (x, _) in states.items()}, sums

        over = jax.jit(jax.vmap(run, axis_name="workers"))
        found = {}
        for seed in SEEDS:
            start = np.random.default_rng(seed).normal(size=(workers, 3))
            x, sums = jax.tree.map(np.asarray, over(jnp.asarray(start)))
            found |= {(seed, name): (start, x[name], sums[name][0]) for name in txs}
        return found


@pytest.mark.parametrize("order", ORDERS)
def test_an_elastic_exchange_conserves_the_sum_of_models_and_center(order):
    for seed in SEEDS:
        start, x, sums = exchanges_alone()[seed, order]
        expected = np.broadcast_to(start.sum(axis=0), sums.shape)  # the center is at 0
        np.testing.assert_allclose(sums, expected, rtol=1e-12, atol=1e-12)
        assert np.ptp(x, axis=0).max() < 0.1 * np.ptp(start, axis=0).max()


def test_races_conserve_the_sum_and_lost_writes_do_not():
    start, _, sums = exchanges_alone()[1, "older"]
    np.testing.assert_allclose(sums[-1], start.sum(axis=0), rtol=1e-12, atol=1e-12)
    _, _, sums = exchanges_alone()[1, "older, with losses"]
    assert np.abs(sums[-1] - start.sum(axis=0)).min() > 1e-3


def test_races_without_age_are_a_lock():
    start, locked, _ = exchanges_alone()[1, "by rank"]
    _, raced, _ = exchanges_alone()[1, "as by a lock"]
    # XLA may contract the two differently. A visit averages two numbers, which enlarges
    # no error; each rounds 8 results of it or fewer, by half a unit in the last place.
    rounding = 20 * 8 * 8 * np.finfo(np.float64).eps
    np.testing.assert_allclose(raced, locked, rtol=0, atol=rounding * abs(start).max())
    _, raced, _ = exchanges_alone()[1, "old"]
    assert np.abs(locked - raced).max() > 1e-3


def together_matrix(workers, a, rate):
    """All workers and the center on a quadratic, all at once, [P + 1, P + 1]."""
    matrix = (1 - a - rate) * np.eye(workers + 1)
    matrix[:-1, -1] = matrix[-1, :-1] = rate
    matrix[-1, -1] = 1 - workers * rate
    return matrix


def in_turn_matrix(workers, a, rate):
    """The same, by rank: a worker reads what those before it have left."""
    matrix = np.eye(workers + 1)
    for i in range(workers):
        visit = np.eye(workers + 1)
        visit[i, i], visit[i, -1] = 1 - a - rate, rate
        visit[-1, i], visit[-1, -1] = rate, 1 - rate
        matrix = visit @ matrix
    return matrix


def radius(matrix):
    return np.abs(np.linalg.eigvals(matrix)).max()


def test_the_limit_all_at_once_is_the_edge_of_stability():
    for workers, a in itertools.product([1, 2, 4, 16], [0.01, 0.5, 1.0, 1.9]):
        limit = averaging.moving_rate_limit(workers, step_size=a)
        assert radius(together_matrix(workers, a, 0.999 * limit)) < 1
        assert radius(together_matrix(workers, a, 1.001 * limit)) > 1


def test_the_limit_in_turn_is_stable_and_the_edge_for_one_worker():
    for workers, a in itertools.product([1, 2, 4, 16], [0.01, 0.5, 1.0, 1.9]):
        limit = averaging.moving_rate_limit(workers, step_size=a, in_turn=True)
        assert radius(in_turn_matrix(workers, a, 0.999 * limit)) < 1
        if workers == 1:
            assert radius(in_turn_matrix(workers, a, 1.001 * limit)) > 1


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_library_is_stable_below_the_limit_and_not_above(factor):
    a, workers = 0.5, 8
    rate = factor * averaging.moving_rate_limit(workers, step_size=a)

    def run(x):
        tx = averaging.easgd(optax.sgd(a), moving_rate=jnp.float32(rate))
        state = tx.init(jnp.float32(1))

        def step(carry, _):
            x, state = carry
            updates, state = tx.update(x, state, x)  # curvature 1
            return (x + updates, state), None

        return jax.lax.scan(step, (x, state), length=300)[0][0]

    x = jax.jit(jax.vmap(run, axis_name="workers"))(jnp.arange(1.0, 1 + workers))
    assert (np.abs(x).max() > 1e3) == (factor > 1)


def stationary(workers, a, rate):
    """Variances of the workers' mean and of the center, noise of variance 1 (D.3)."""
    step = np.asarray([[1 - a - rate, rate], [workers * rate, 1 - workers * rate]])
    noise = np.diag([a**2 / workers, 0.0])
    flat = np.linalg.solve(np.eye(4) - np.kron(step, step), noise.ravel())
    return np.diag(flat.reshape(2, 2))


def test_the_center_varies_less_than_the_mean_worker_as_the_equation_says():
    workers, a, seeds, steps = 8, 0.2, 4000, 200
    tx = averaging.easgd(optax.sgd(a))

    def run(noise):
        def step(carry, noise):
            x, state = carry
            updates, state = tx.update(x + noise, state, x)
            return (x + updates, state), None

        zero = jnp.zeros(())
        (x, state), _ = jax.lax.scan(step, (zero, tx.init(zero)), noise)
        return jax.lax.pmean(x, "workers"), state.memory.center

    noise = np.random.default_rng(0).normal(size=(seeds, workers, steps))
    over = jax.jit(jax.vmap(jax.vmap(run, axis_name="workers")))
    means, centers = over(jnp.asarray(noise, jnp.float32))
    mean, center = stationary(workers, a, 0.9 / workers)
    # a variance of n draws has a deviation of sqrt(2 / n): four of them
    tolerance = 4 * np.sqrt(2 / seeds)
    np.testing.assert_allclose(np.var(means[:, 0]), mean, rtol=tolerance)
    np.testing.assert_allclose(np.var(centers[:, 0]), center, rtol=tolerance)
    assert center < mean < a / ((2 - a) * workers)


def test_a_moving_rate_that_cannot_be_stable_is_warned_of():
    tx = averaging.easgd(optax.sgd(0.1), moving_rate=0.6)

    def step(x):
        return tx.update(x, tx.init(x), x)[0]

    with pytest.warns(
        UserWarning, match=r"`moving_rate` 0.6 is above 0.4, the stability limit"
    ):
        jax.vmap(step, axis_name="workers")(jnp.ones(4))
    jax.vmap(step, axis_name="workers")(jnp.ones(2))  # 2 / 3


def test_a_moving_rate_in_turn_is_warned_of_above_one():
    def step(x, rate):
        tx = averaging.easgd(
            optax.sgd(0.1), moving_rate=rate, order=averaging.by_rank()
        )
        return tx.update(x, tx.init(x), x)[0]

    over = jax.vmap(step, in_axes=(0, None), axis_name="workers")
    with pytest.warns(
        UserWarning, match=r"above 1, the stability limit .* \(in turn\)"
    ):
        jax.vmap(lambda x: step(x, 1.5), axis_name="workers")(jnp.ones(4))
    jax.jit(over)(jnp.ones(4), 1.5)  # traced: not known


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: averaging.easgd(None), TypeError, "`inner` must be an Optax"),
        (
            lambda: averaging.easgd(sgd(), moving_rate=-0.1),
            ValueError,
            "`moving_rate` must be finite and non-negative, got -0.1",
        ),
        (
            lambda: averaging.easgd(sgd(), period=jnp.int32(0)),
            ValueError,
            "`period` must be at least 1, got 0",
        ),
        (
            lambda: averaging.easgd(sgd(), order=averaging.by_rank(), lock_free="wild"),
            TypeError,
            "`lock_free` must be made by averaging.races, got 'wild'",
        ),
        (
            lambda: averaging.easgd(sgd(), period=jnp.float32(2)),
            TypeError,
            "`period` must be a static integer",
        ),
        (
            lambda: averaging.easgd(sgd(), lock_free=wild()),
            ValueError,
            "`lock_free` needs `order`",
        ),
        (
            lambda: averaging.moving_rate_limit(0),
            ValueError,
            "`num_workers` must be at least 1",
        ),
        (
            lambda: averaging.moving_rate_limit(2, step_size=2.0),
            ValueError,
            r"`step_size` must be in \[0, 2.0\)",
        ),
        (
            lambda: averaging.look_ahead(jnp.ones(2), optax.EmptyState(), 0.9),
            ValueError,
            "`opt_state` must hold one velocity, got 0",
        ),
        (
            lambda: averaging.look_ahead(jnp.ones(2), (), 1.0),
            ValueError,
            "`momentum` must be in",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
