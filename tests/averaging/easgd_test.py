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


def elastic(order, *, rate=0.9 / WORKERS, period=1, races=None, **options):
    """D.3: all workers' models, and the center, step by step; `order` of the visits."""
    center, versions = START.copy(), [START.copy()]

    def mix(t, x, v):
        nonlocal center
        d = np.zeros_like(x)
        if (t + 1) % period == 0:
            visitors = order(t)
            if visitors is None:
                d = rate * (x - center)
                center = center + d.sum(axis=0)
            for i in visitors or []:
                ages, written = raced(races, t, i)
                d[i] = rate * (x[i] - version(versions, ages))
                center = center + np.where(written, d[i], 0)
                versions.append(center)
        return x + v - d

    return path(mix, **options), center


EASGD, FIRST_COME = averaging.easgd, averaging.first_come(SECONDS)
FAMILY = {
    "synchronous": (EASGD(SGD), lambda: elastic(everyone_at_once)),
    "synchronous, H = 4": (
        EASGD(SGD, moving_rate=0.1, period=4),
        lambda: elastic(everyone_at_once, rate=0.1, period=4),
    ),
    "round robin": (
        EASGD(SGD, order=averaging.by_rank()),
        lambda: elastic(by_rank),
    ),
    "asynchronous, H = 3": (
        EASGD(SGD, moving_rate=0.3, period=3, order=FIRST_COME),
        lambda: elastic(by_arrival, rate=0.3, period=3),
    ),
    "MEASGD": (
        EASGD(optax.sgd(ETA, momentum=0.9), order=FIRST_COME),
        lambda: elastic(by_arrival, momentum=0.9),
    ),
    "EA-wild": (
        EASGD(SGD, order=averaging.by_rank(), lock_free=wild()),
        lambda: elastic(by_rank, races=wild()),
    ),
    "EA-wild, lost writes, absent workers": (
        EASGD(SGD, order=FIRST_COME, lock_free=wild(max_age=5, lost=0.3)),
        lambda: elastic(by_arrival, races=wild(max_age=5, lost=0.3)),
    ),
}


@executions
def test_models_and_center_follow_the_paper_s_loop(execution):
    trained = train(execution, {name: tx for name, (tx, _) in FAMILY.items()})
    for name, (_, loop) in FAMILY.items():
        xs, split = trained[name]
        expected, center = loop()
        assert_follows(xs, expected, name)
        assert_follows(split.state[1].memory.center, center, name)


@mostly_simulated
def test_eamsgd_takes_its_gradient_a_velocity_ahead(execution):
    inner = optax.chain(optax.scale(-ETA), optax.trace(0.9))

    def ahead(x, state):
        return averaging.look_ahead(x, state, 0.9)

    xs, split = train(execution, {"": EASGD(inner, period=2)}, point=ahead)[""]
    expected, center = elastic(everyone_at_once, momentum=0.9, ahead=0.9, period=2)
    assert_follows(xs, expected)
    assert_follows(split.state[1].memory.center, center)


ARRIVALS = np.random.default_rng(0).random((20, 8))
EXCHANGES = {  # order, races
    "together": (None, None),
    "by rank": (averaging.by_rank(), None),
    "by arrival": (
        averaging.first_come(np.random.default_rng(0).random((20, 8))),
        None,
    ),
    "as by a lock": (averaging.by_rank(), wild(max_age=0)),
    "old": (averaging.by_rank(), wild(max_age=2)),
    "old, with losses": (averaging.by_rank(), wild(lost=0.3)),
}
SEEDS = [1, 2, 3]


@functools.cache
def exchanges_alone():
    """Models at first [P, n]; by kind, models [T, P, n] and their sums with the center.

    The gradients are zero; the models of all seeds are next to each other.
    """
    draws = [np.random.default_rng(seed).normal(size=(8, 3)) for seed in SEEDS]
    start = np.concatenate(draws, axis=1)
    noise = np.zeros((21, *start.shape))
    noise[0] = -start  # before this step all are at the center
    txs = {
        name: EASGD(optax.sgd(1.0), moving_rate=0.2, order=order, lock_free=races)
        for name, (order, races) in EXCHANGES.items()
    }

    def models_and_center(x, state):
        return x, state.memory.center

    seen = seen_of(txs, np.zeros_like(start), noise, see=models_and_center)
    return start, {n: (x, x.sum(axis=1) + c[:, 0]) for n, (x, c) in seen.items()}


@pytest.mark.parametrize("kind", ["together", "by rank", "by arrival", "old"])
def test_an_elastic_exchange_conserves_the_sum_of_models_and_center(kind):
    start, exchanges = exchanges_alone()
    x, sums = exchanges[kind]
    expected = np.broadcast_to(start.sum(axis=0), sums.shape)
    np.testing.assert_allclose(sums, expected, rtol=1e-12, atol=1e-12)
    assert (np.ptp(x[-1], axis=0) < 0.1 * np.ptp(start, axis=0)).all()


def test_lost_writes_and_old_reads_make_a_difference_and_races_without_age_none():
    start, exchanges = exchanges_alone()
    locked, sums = exchanges["by rank"]
    # XLA may contract the two differently. A visit averages two numbers, which does not
    # enlarge an error; each rounds at most 8 results, by half a unit in the last place.
    rounding = 20 * 8 * 8 * np.finfo(np.float64).eps * abs(start).max()
    np.testing.assert_allclose(
        exchanges["as by a lock"][0], locked, rtol=0, atol=rounding
    )
    assert np.abs(locked - exchanges["old"][0])[-1].max() > 1e-3
    assert np.abs(sums - exchanges["old, with losses"][1])[-1].min() > 1e-3


def together_matrix(workers, a, rate):
    """The matrix of all workers and the center on a quadratic, [P + 1, P + 1]."""
    matrix = (1 - a - rate) * np.eye(workers + 1)
    matrix[:-1, -1] = matrix[-1, :-1] = rate
    matrix[-1, -1] = 1 - workers * rate
    return matrix


def in_turn_matrix(workers, a, rate):
    """The same in turn: a worker reads the center that those before it have left."""
    matrix = np.eye(workers + 1)
    for i in range(workers):
        visit = np.eye(workers + 1)
        visit[i, i], visit[i, -1] = 1 - a - rate, rate
        visit[-1, i], visit[-1, -1] = rate, 1 - rate
        matrix = visit @ matrix
    return matrix


@pytest.mark.parametrize(
    ("in_turn", "matrix"), [(False, together_matrix), (True, in_turn_matrix)]
)
def test_below_the_limit_it_is_stable_and_above_it_is_not(in_turn, matrix):
    """In turn, the limit is the edge for one worker, and sufficient for all workers."""
    for workers, a in itertools.product([1, 2, 4, 16], [0.01, 0.5, 1.0, 1.9]):
        limit = averaging.moving_rate_limit(workers, step_size=a, in_turn=in_turn)

        def radius(factor, workers=workers, a=a, limit=limit):
            return np.abs(np.linalg.eigvals(matrix(workers, a, factor * limit))).max()

        assert radius(0.999) < 1
        assert radius(1.001) > 1 or (in_turn and workers > 1)


def test_the_library_is_stable_below_the_limit_and_not_above():
    a, workers = 0.5, 8
    limit = averaging.moving_rate_limit(workers, step_size=a)
    txs = {
        factor: EASGD(optax.sgd(a), moving_rate=factor * limit) for factor in (0.9, 1.1)
    }
    noise = np.zeros((300, workers))
    with pytest.warns(UserWarning, match="the stability limit"):
        seen = seen_of(txs, np.ones(workers), noise, curvature=1.0)
    assert np.abs(seen[0.9][-1]).max() < 1
    assert np.abs(seen[1.1][-1]).max() > 1e3


@pytest.mark.parametrize(
    ("rate", "order", "stable", "message"),
    [
        (0.6, None, 2, "`moving_rate` 0.6 is above 0.4, the stability limit"),
        (1.5, averaging.by_rank(), None, r"1, the stability limit .* \(in turn\)"),
    ],
)
def test_a_moving_rate_that_cannot_be_stable_is_warned_of(rate, order, stable, message):
    def step(x, rate):
        tx = EASGD(optax.sgd(0.1), moving_rate=rate, order=order)
        return tx.update(x, tx.init(x), x)[0]

    with pytest.warns(UserWarning, match=message):
        jax.vmap(lambda x: step(x, rate), axis_name="workers")(jnp.ones(4))
    if stable:  # the limit of two is 2 / 3
        jax.vmap(lambda x: step(x, rate), axis_name="workers")(jnp.ones(stable))
    over = jax.vmap(step, in_axes=(0, None), axis_name="workers")
    jax.eval_shape(over, jnp.ones(4), rate)  # traced: the rate is not known
