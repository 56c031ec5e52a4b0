import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.exchange.driving import (
    WORKERS,
    bytes_summed,
    drive_all,
    owners_at_first,
    program,
)
from tests.support.cases import shortened

STEPS = 40
PARAMS = {"w": jnp.zeros((2, 3), jnp.float32), "b": jnp.float32(0)}
SEEDS = [1, 2, 3]
seeds = pytest.mark.parametrize("seed", shortened(SEEDS, SEEDS[0]))


def by_table(table):
    """Who takes part, bool [T, P]."""
    table = jnp.asarray(table)
    return lambda step: table[step, jax.lax.axis_index("workers")]


def whole_numbers(seed):
    """Gradients [T, P, ...] whose sums, and quarters of sums, are exact in float32."""
    rng = np.random.default_rng(seed)
    shape = STEPS, WORKERS
    return jax.tree.map(
        lambda p: rng.integers(-9, 10, (*shape, *p.shape)).astype(np.float32), PARAMS
    )


def in_time(seed):
    return np.random.default_rng(seed).random((STEPS, WORKERS)) < 0.4


def flat(tree):
    """The whole gradient as a vector, [..., 7], in float64."""
    w, b = (np.asarray(tree[name], np.float64) for name in ("w", "b"))
    return np.concatenate([w.reshape(*b.shape, 6), b[..., None]], axis=-1)


def in_lists(grads, ages, table, carry_once):
    """eager-SGD with a list of (the step of its birth, gradient) for each worker."""
    buffers = [[] for _ in range(WORKERS)]
    sums, staleness = [], []
    for t, row in enumerate(table):
        sent = []
        for p, takes_part in enumerate(row):
            fresh = t - ages[t, p], grads[t, p]
            if takes_part:
                sent += [*buffers[p], fresh]
                buffers[p] = []
            elif carry_once:
                sent += buffers[p]
                buffers[p] = [fresh]
            else:
                buffers[p].append(fresh)
        sums.append(sum((g for _, g in sent), np.zeros(grads.shape[2:])) / WORKERS)
        staleness.append(np.mean([t - born for born, _ in sent]) if sent else 0.0)
    return np.stack(sums), np.asarray(staleness), buffers


GRADS = whole_numbers(1)
AGES = np.random.default_rng(1).integers(0, 5, (STEPS, WORKERS)).astype(np.int32)
TABLES = {f"seed {seed}": in_time(seed) for seed in SEEDS} | {
    "all": np.ones((STEPS, WORKERS), bool),
    "nobody": np.zeros((STEPS, WORKERS), bool),
}
CASES = {f"{name}, {once}": (name, once) for name in TABLES for once in (False, True)}


def with_staleness(updates, state):
    return updates, state.staleness


@functools.cache
def driven(execution):
    """By case: the split and the reports of all steps; on devices, of one seed."""
    counting = optax.chain(optax.sgd(1.0), optax.scale_by_schedule(lambda count: 1.0))
    txs = {
        case: dj.exchange.partial_mean(
            counting, by_table(TABLES[name]), carry_once=carry_once
        )
        for case, (name, carry_once) in CASES.items()
        if execution == "simulate" or name == "seed 1"
    }
    batches = GRADS, {"staleness": AGES}
    return drive_all(execution, txs, batches, PARAMS, extras=True, see=with_staleness)


@pytest.mark.parametrize(
    ("execution", "case"),
    [("simulate", case) for case in CASES]
    + [("run", "seed 1, False"), ("run", "seed 1, True")],
)
def test_updates_ages_and_what_is_carried_are_those_of_lists(execution, case):
    """If nobody is in time, `inner` receives zeros of age zero, and takes a step."""
    name, carry_once = CASES[case]
    split, (updates, staleness) = driven(execution)[case]
    sums, ages, buffers = in_lists(flat(GRADS), AGES, TABLES[name], carry_once)
    np.testing.assert_array_equal(flat(updates), -sums)  # whole numbers, over 4
    np.testing.assert_allclose(staleness, ages, rtol=1e-6)  # one division
    _, state = split.state
    assert (state.step, optax.tree.get(state, "count")) == (STEPS, STEPS)
    carried = flat(state.carried.gradients)
    for p, buffer in enumerate(buffers):
        assert state.carried.held[p] == len(buffer)
        assert state.carried.ages[p] == sum(STEPS - 1 - born for born, _ in buffer)
        held = sum((g for _, g in buffer), np.zeros(7))
        np.testing.assert_array_equal(carried[p], held)


def test_workers_hold_what_they_carry_and_share_the_rest():
    tx = dj.exchange.partial_mean(optax.adam(0.1), by_table(in_time(1)))
    params, state = owners_at_first(tx, PARAMS)
    assert not any(jax.tree.leaves(params))
    assert all(jax.tree.leaves(state.carried))
    assert not any(jax.tree.leaves(state._replace(carried=())))


def test_what_differs_between_workers_is_not_handed_on():
    received = {}

    def update(updates, state, params=None, **extra_args):
        received.update(extra_args)
        return updates, state

    recorder = optax.GradientTransformationExtraArgs(lambda _: (), update)
    tx = dj.exchange.partial_mean(recorder, lambda step: step >= 0)

    def first(grad):
        extras = {"stale_params": grad, "worker": 0, "weather": "fair"}
        return tx.update(grad, tx.init(grad), staleness=3, **extras)[0]

    jax.vmap(first, axis_name="workers")(jnp.ones(WORKERS))
    assert set(received) == {"staleness", "weather"}
    assert received["staleness"].dtype == jnp.float32


def test_one_all_reduce_carries_the_gradient_and_two_numbers():
    tx = dj.exchange.partial_mean(optax.sgd(1.0), by_table(in_time(1)))
    compiled = program(tx, PARAMS)
    assert bytes_summed(compiled) == 4 * (2 * 3 + 1 + 2)
    assert compiled.as_text().count(" all-reduce(") == 1


def shares(participates, steps, workers):
    """Who takes part, bool [T, P]."""

    def row(step):
        return jax.vmap(lambda _: participates(step), axis_name="workers")(
            jnp.arange(workers)
        )

    return np.asarray(jax.jit(jax.vmap(row))(jnp.arange(steps)))


@functools.partial(jax.jit, static_argnums=2)
def majority_shares(key, seconds, steps):
    """The same for `majority`, compiled once for all keys."""
    majority = dj.exchange.majority(key, seconds)

    def row(step):
        return jax.vmap(lambda _: majority(step), axis_name="workers")(seconds[0])

    return jax.lax.map(row, jnp.arange(steps))


# integer seconds, so that some workers arrive together
TIES = np.random.default_rng(1).integers(0, 4, (11, 5)).astype(float)


def test_solo_is_those_that_arrive_first_and_starts_anew_at_the_end():
    first = TIES.min(axis=1, keepdims=True) == TIES
    assert (first.sum(axis=1) > 1).any()
    np.testing.assert_array_equal(
        shares(dj.exchange.solo(TIES), 33, 5), np.concatenate([first] * 3)
    )


def test_majority_is_all_that_are_no_later_than_one_and_the_same_worker():
    took_part = np.asarray(majority_shares(jax.random.key(1), TIES, 300))
    for row, arrived in zip(took_part, itertools.cycle(TIES)):
        assert any((row == (arrived <= trigger)).all() for trigger in arrived)


@seeds
def test_half_the_workers_and_half_a_worker_make_a_majority_on_average(seed):
    steps, workers = 2000, 6
    table = np.random.default_rng(seed).random((7, workers))
    took_part = np.asarray(majority_shares(jax.random.key(seed), table, steps))
    # the number is uniform on 1 ... P; four standard errors
    deviation = np.sqrt((workers**2 - 1) / 12 / steps)
    assert abs(took_part.sum(axis=1).mean() - (workers + 1) / 2) < 4 * deviation
    # the k-th to arrive is in time with probability (P - k + 1) / P
    order = np.argsort(np.resize(table, (steps, workers)), axis=1)
    by_rank = np.take_along_axis(took_part, order, axis=1).mean(axis=0)
    expected = (workers - np.arange(workers)) / workers
    np.testing.assert_allclose(by_rank, expected, atol=4 * 0.5 / np.sqrt(steps))


def test_a_table_on_a_clock_keeps_its_small_differences():
    clock = TIES + 1e-3 * np.arange(5) + 1e9 * np.arange(1, 12)[:, None]
    exact = clock - clock.min(axis=1, keepdims=True)
    assert (np.ptp(np.float32(clock), axis=1) == 0).any()  # cast first, they tie
    np.testing.assert_array_equal(
        shares(dj.exchange.solo(clock), 11, 5), shares(dj.exchange.solo(exact), 11, 5)
    )
    assert (shares(dj.exchange.solo(clock), 11, 5).sum(axis=1) == 1).all()


def test_solo_over_two_axes_numbers_the_workers_along_both():
    names = ("groups", "members")
    table = np.asarray([[3.0, 2.0, 9.0, 1.0, 5.0, 6.0]])
    solo = dj.exchange.solo(table, axis_name=names)

    def one(_):
        return solo(0)

    group = jax.vmap(one, axis_name="members")
    rows = jax.vmap(group, axis_name="groups")(jnp.zeros((2, 3)))
    np.testing.assert_array_equal(rows.ravel(), table[0] == 1.0)


@jax.jit
def ages_under(key, seconds):
    """The staleness that `solo` and `majority` hand on in each step."""

    def age(participates):
        tx = dj.exchange.partial_mean(optax.sgd(1.0), participates)

        def step(state, _):
            _, state = tx.update(jnp.ones(()), state)
            return state, state.staleness

        def run(start):
            return jax.lax.scan(step, tx.init(start), length=len(seconds))[1]

        return jax.vmap(run, axis_name="workers")(jnp.zeros(seconds.shape[1]))[0]

    return age(dj.exchange.solo(seconds)), age(dj.exchange.majority(key, seconds))


@seeds
def test_solo_is_staler_than_majority(seed):
    """Solo sends gradients of ages 0 ... n - 1 of a worker; n is geometric, mean P."""
    workers = 8
    law = dj.cluster.exponential(1.0)
    draws = [law(np.random.default_rng([seed, p]), p) for p in range(workers)]
    blocks = [np.concatenate([next(d) for _ in range(12)])[:3000] for d in draws]
    seconds = np.stack(blocks, axis=1)
    solo, majority = map(np.asarray, ages_under(jax.random.key(seed), seconds))
    # n has variance P (P - 1): four standard errors of the mean of (n - 1) / 2
    error = 4 * np.sqrt(workers * (workers - 1) / 4 / len(solo))
    assert abs(solo[100:].mean() - (workers - 1) / 2) < error
    assert majority[100:].mean() < solo[100:].mean() / 3


def test_a_table_may_be_traced():
    def first(seconds):
        solo = dj.exchange.solo(seconds)
        return jax.vmap(lambda _: solo(1), axis_name="workers")(jnp.arange(5))

    expected = TIES[1] == TIES[1].min()
    np.testing.assert_array_equal(jax.jit(first)(TIES), expected)
