import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.exchange.driving import (
    MIXED,
    WORKERS,
    as_workers,
    assert_agree,
    bytes_summed,
    drive,
    drive_all,
    executions,
    fed,
    lowered,
    owners,
    parted,
    program,
    side_by_side,
    types_inside,
)

STEPS = 40
SGD = optax.sgd(1.0)
PARAMS = {"w": jnp.zeros((2, 3), jnp.float32), "b": jnp.float32(0)}
once = pytest.mark.parametrize("carry_once", [False, True])
SEEDS = [1, 2, 3]
seeds = pytest.mark.parametrize("seed", SEEDS)


def by_table(table):
    """Who takes part, bool [T, P]."""
    table = jnp.asarray(table)
    return lambda step: table[step, jax.lax.axis_index("workers")]


def whole_numbers(seed, steps=STEPS, dtype=np.float32):
    """Gradients [T, P, ...] whose sums, and whose quarters, float32 holds exactly."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: rng.integers(-9, 10, (steps, WORKERS, *p.shape)).astype(dtype), PARAMS
    )


def in_time(seed, steps=STEPS):
    return np.random.default_rng(seed).random((steps, WORKERS)) < 0.4


def leaf(tree):
    return np.asarray(tree["w"], np.float64)


def in_lists(grads, ages, table, carry_once):
    """eager-SGD with a list of (step it was born at, gradient) for each worker."""
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


class Told(dict):
    """What a transformation was told at its last update."""

    def transformation(self):
        def update(updates, state, params=None, **extra_args):
            self.update(extra_args)
            return updates, state

        return optax.GradientTransformationExtraArgs(lambda _: (), update)


def reporting(tx):
    """`tx`, and the staleness of its state beside the updates."""

    def update(updates, state, params=None, **extra_args):
        updates, state = tx.update(updates, state, params, **extra_args)
        return {"w": updates["w"], "b": updates["b"] * 0 + state.staleness}, state

    return optax.GradientTransformationExtraArgs(tx.init, update)


def ages_of(seed):
    """Of the gradients of `whole_numbers`, [T, P]."""
    return np.random.default_rng(seed).integers(0, 5, (STEPS, WORKERS)).astype(np.int32)


@functools.cache
def driven(execution):
    """By seed and `carry_once`, the split and the updates: all at once."""
    seeds = SEEDS if execution == "simulate" else SEEDS[:1]
    batches = {s: (whole_numbers(s), {"staleness": ages_of(s)}) for s in seeds}
    steps, states = {}, {}
    for seed, carry_once in itertools.product(seeds, [False, True]):
        table = by_table(in_time(seed))
        tx = reporting(dj.exchange.partial_mean(SGD, table, carry_once=carry_once))
        own = fed(tx, extras=True)
        name = seed, carry_once
        steps[name] = lambda state, batch, own=own, seed=seed: own(state, batch[seed])
        states[name] = PARAMS, tx.init(PARAMS)
    held = as_workers(execution, side_by_side(steps))
    first = jax.tree.map(lambda leaf: leaf[0], batches)
    split = held.init(states, first, dict.fromkeys(states, (True, False)))
    program = jax.jit(lambda s, b: jax.lax.scan(held.step, s, b), donate_argnums=0)
    split, updates = program(split, batches)
    return {name: (own, updates[name]) for name, own in parted(split).items()}


@once
@pytest.mark.parametrize(
    ("execution", "seed"),
    [("simulate", 1), ("simulate", 2), ("simulate", 3), ("run", 1)],
)
def test_updates_ages_and_what_is_carried_are_those_of_lists(
    carry_once, execution, seed
):
    grads, table, ages = whole_numbers(seed), in_time(seed), ages_of(seed)
    split, updates = driven(execution)[seed, carry_once]
    sums, staleness, buffers = in_lists(leaf(grads), ages, table, carry_once)
    np.testing.assert_array_equal(updates["w"], -sums)  # whole numbers, over 4
    np.testing.assert_allclose(updates["b"], staleness, rtol=1e-6)  # one division
    _, state = split.state
    assert state.step == STEPS
    for p, buffer in enumerate(buffers):
        assert state.carried.held[p] == len(buffer)
        assert state.carried.ages[p] == sum(STEPS - 1 - born for born, _ in buffer)
        held = sum((g for _, g in buffer), np.zeros((2, 3)))
        np.testing.assert_array_equal(state.carried.gradients["w"][p], held)


@functools.cache
def by_who_is_in_time():
    """The gradients, and by seed and `carry_once` the split and the updates."""
    txs = {
        f"{seed} {carry_once}": dj.exchange.partial_mean(
            SGD, by_table(in_time(seed)), carry_once=carry_once
        )
        for seed, carry_once in itertools.product(SEEDS, [False, True])
    }
    grads = whole_numbers(1)
    return grads, drive_all("simulate", txs, grads, PARAMS)


@once
@seeds
def test_gradient_mass_is_conserved(carry_once, seed):
    grads, found = by_who_is_in_time()
    split, updates = found[f"{seed} {carry_once}"]
    _, state = split.state
    for name in PARAMS:
        fed = -WORKERS * np.asarray(updates[name]).sum(axis=0)
        carried = np.asarray(state.carried.gradients[name]).sum(axis=0)
        np.testing.assert_array_equal(fed + carried, grads[name].sum(axis=(0, 1)))


@executions
def test_all_in_time_is_the_mean(execution):
    rng = np.random.default_rng(1)
    grads = jax.tree.map(
        lambda p: rng.normal(size=(STEPS, WORKERS, *p.shape)).astype(np.float32), PARAMS
    )
    ours, theirs = (
        drive(execution, tx, grads, PARAMS)
        for tx in (
            dj.exchange.partial_mean(SGD, lambda step: step >= 0),
            dj.exchange.mean(SGD),
        )
    )
    # Two programs: XLA may add the gradients of four workers in another order, or
    # contract their mean with the step. An update then differs by a few units in the
    # last place of the largest gradient; the parameters add up all of them, and each
    # addition rounds as well.
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(grads))
    few = 4 * np.finfo(np.float32).eps * largest
    chex.assert_trees_all_close(ours[1], theirs[1], rtol=0, atol=few)
    params, expected = ours[0].state[0], theirs[0].state[0]
    chex.assert_trees_all_close(params, expected, rtol=0, atol=2 * STEPS * few)


@once
def test_where_nobody_is_in_time_inner_is_fed_zeros_of_age_zero(carry_once):
    told = Told()
    inner = optax.chain(told.transformation(), optax.adam(0.1))
    tx = dj.exchange.partial_mean(inner, lambda step: step < 0, carry_once=carry_once)

    def first(grad):
        return tx.update(grad, tx.init(grad))

    update, state = jax.vmap(first, axis_name="workers")(jnp.ones(WORKERS))
    np.testing.assert_array_equal(update, np.zeros(WORKERS))
    np.testing.assert_array_equal(state.staleness, np.zeros(WORKERS))
    assert (optax.tree.get(state, "count") == 1).all()


def test_once_carried_is_a_step_late_at_most():
    tx = dj.exchange.partial_mean(SGD, by_table(in_time(1)), carry_once=True)
    split, updates = drive("simulate", reporting(tx), whole_numbers(1), PARAMS)
    assert 0 < np.max(updates["b"]) <= 1
    assert np.max(split.state[1].carried.held) == 1


@functools.cache
def on_adam_and_in_bfloat16(execution):
    params = PARAMS | {"half": jnp.zeros((5,), jnp.bfloat16)}
    rng = np.random.default_rng(1)
    grads = jax.tree.map(
        lambda p: jnp.asarray(rng.normal(size=(STEPS, WORKERS, *p.shape)), p.dtype),
        params,
    )
    tx = dj.exchange.partial_mean(optax.adam(0.1), by_table(in_time(1)))
    return drive(execution, tx, grads, params)


def test_simulate_and_run_agree_in_bfloat16_too():
    simulated, ran = (on_adam_and_in_bfloat16(e) for e in ("simulate", "run"))
    assert simulated[0].axes == ran[0].axes
    assert_agree(simulated, ran, narrow=2.0**-6, wide=1e-5)


@MIXED
def test_what_is_carried_keeps_the_parameters_dtype_and_updates_the_gradients(
    dtype, grad_dtype
):
    params = {"w": jnp.zeros(3, dtype)}
    grads = {"w": jnp.ones((5, WORKERS, 3), grad_dtype)}
    tx = dj.exchange.partial_mean(SGD, by_table(in_time(1)))
    split, updates = drive("simulate", tx, grads, params)  # scan checks the carry
    assert updates["w"].dtype == grad_dtype
    assert split.state[1].carried.gradients["w"].dtype == dtype


def test_a_state_made_inside_of_a_mesh_begins_as_what_it_becomes():
    before, after = types_inside(
        dj.exchange.partial_mean(optax.adam(0.1), by_table(in_time(1))), PARAMS
    )
    assert before == after


@executions
def test_workers_hold_what_they_carry_and_share_the_rest(execution):
    split, _ = on_adam_and_in_bfloat16(execution)
    (params, state), apart = split.state, owners(split)
    assert not any(jax.tree.leaves(apart[0]))
    assert all(jax.tree.leaves(apart[1].carried))
    assert not any(jax.tree.leaves(apart[1]._replace(carried=())))
    assert state.carried.gradients["w"].shape == (WORKERS, *params["w"].shape)


def test_what_differs_between_workers_is_not_handed_on():
    told = Told()
    tx = dj.exchange.partial_mean(told.transformation(), lambda step: step >= 0)

    def first(grad):
        extras = {"stale_params": grad, "worker": 0, "weather": "fair"}
        return tx.update(grad, tx.init(grad), staleness=3, **extras)[0]

    jax.vmap(first, axis_name="workers")(jnp.ones(WORKERS))
    assert set(told) == {"staleness", "weather"}
    assert told["staleness"].dtype == jnp.float32


def test_ages_add_to_those_of_a_delay_outside():
    """Worker p is p late, and takes part in every second step: ages p and p + 1."""
    delays = dj.delays.per_worker(np.arange(WORKERS))
    tx = dj.exchange.partial_mean(SGD, lambda step: step % 2 == 1)
    late = dj.delayed(tx, delays, max_delay=WORKERS - 1)
    split, _ = drive("simulate", late, whole_numbers(1), PARAMS)
    mean = np.mean([p + carried for p in range(WORKERS) for carried in (0, 1)])
    assert STEPS % 2 == 0  # the last step was one of those
    assert dj.staleness(split.state[1]) == mean


def test_one_all_reduce_carries_the_gradient_and_two_numbers():
    tx = dj.exchange.partial_mean(SGD, by_table(in_time(1)))
    compiled = program(tx, PARAMS)
    assert bytes_summed(compiled) == 4 * (2 * 3 + 1 + 2)
    assert compiled.as_text().count(" all-reduce(") == 1


@pytest.mark.parametrize(("bucket_bytes", "sums"), [(0, 4), (4, 4), (28, 2), (36, 1)])
def test_a_bucket_holds_so_many_bytes(bucket_bytes, sums):
    """Of 24 and 4 bytes of gradient, 4 of numbers held and 4 of ages."""
    tx = dj.exchange.partial_mean(SGD, by_table(in_time(1)), bucket_bytes=bucket_bytes)
    assert lowered(tx, PARAMS).as_text().count('"stablehlo.all_reduce"') == sums


def test_the_state_is_updated_in_place():
    big = {"w": jnp.zeros((300, 200), "f4"), "b": jnp.zeros(100, "f4")}
    tx = dj.exchange.partial_mean(SGD, by_table(in_time(1)), bucket_bytes=0)
    memory = program(tx, big).memory_analysis()
    one = 4 * (300 * 200 + 100)
    assert memory.alias_size_in_bytes >= 2 * one  # parameters and what is carried
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < one / 100
    assert memory.temp_size_in_bytes < 2.01 * one  # what is sent, and its sum


def shares(participates, steps, workers):
    """Who takes part, bool [T, P]."""

    def row(step):
        return jax.vmap(lambda _: participates(step), axis_name="workers")(
            jnp.arange(workers)
        )

    return np.asarray(jax.jit(jax.vmap(row))(jnp.arange(steps)))


@functools.partial(jax.jit, static_argnums=2)
def majority_shares(key, seconds, steps):
    """The same of `majority`, compiled once for all keys."""
    majority = dj.exchange.majority(key, seconds)

    def row(step):
        return jax.vmap(lambda _: majority(step), axis_name="workers")(seconds[0])

    return jax.lax.map(row, jnp.arange(steps))


# whole seconds, so that some arrive together
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
    assert (np.ptp(np.float32(clock), axis=1) == 0).any()  # were it cast at once
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

    inside = jax.vmap(one, axis_name="members")
    rows = jax.vmap(inside, axis_name="groups")(jnp.zeros((2, 3)))
    np.testing.assert_array_equal(rows.ravel(), table[0] == 1.0)


@jax.jit
def ages_under(key, seconds):
    """The staleness that `solo` and `majority` hand on at each step."""

    def of(participates):
        tx = dj.exchange.partial_mean(SGD, participates)

        def step(state, _):
            _, state = tx.update(jnp.ones(()), state)
            return state, state.staleness

        def run(start):
            return jax.lax.scan(step, tx.init(start), length=len(seconds))[1]

        return jax.vmap(run, axis_name="workers")(jnp.zeros(seconds.shape[1]))[0]

    return of(dj.exchange.solo(seconds)), of(dj.exchange.majority(key, seconds))


@seeds
def test_solo_is_staler_than_majority(seed):
    """Solo sends one worker's gradients, ages 0 ... n - 1, n geometric of mean P."""
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


@pytest.mark.parametrize(
    ("participates", "extras", "error", "message"),
    [
        (lambda step: 1, {}, TypeError, "must be a bool, got int"),
        (
            lambda step: jnp.ones(4, bool),
            {},
            ValueError,
            r"must be a scalar, got shape \(4,\)",
        ),
        (lambda step: True, {"staleness": {"a": 1}}, TypeError, "have one age"),
        (lambda step: True, {"staleness": -1}, ValueError, "must be a non-negative"),
    ],
)
def test_a_bad_answer_or_age_is_refused(participates, extras, error, message):
    tx = dj.exchange.partial_mean(SGD, participates)

    def step(grad):
        return tx.update(grad, tx.init(grad), **extras)[0]

    with pytest.raises(error, match=message):
        jax.vmap(step, axis_name="workers")(jnp.ones(4))


@pytest.mark.parametrize(
    ("seconds", "error", "message"),
    [
        ([1.0, 2.0], ValueError, r"must have shape \[T, P\].*got \(2,\)"),
        (np.zeros((0, 3)), ValueError, r"got \(0, 3\)"),
        ([[1.0, np.inf]], ValueError, "`seconds` must be finite"),
        ([[1.0, np.nan]], ValueError, "`seconds` must be finite"),
        ([[True, False]], ValueError, r"must have shape .* with numbers .* of bool"),
        ([["a", "b"]], ValueError, r"must have shape .* with numbers .* of <U1"),
    ],
)
@pytest.mark.parametrize(
    "schedule",
    [
        dj.exchange.solo,
        lambda seconds: dj.exchange.majority(jax.random.key(0), seconds),
    ],
    ids=["solo", "majority"],
)
def test_bad_seconds_are_refused(schedule, seconds, error, message):
    with pytest.raises(error, match=message):
        schedule(seconds)


def test_a_table_for_other_workers_is_refused():
    solo = dj.exchange.solo(np.ones((3, 5)))
    with pytest.raises(ValueError, match="one column for each of the 4 workers"):
        shares(solo, 1, 4)


def test_a_table_may_be_traced():
    def first(seconds):
        solo = dj.exchange.solo(seconds)
        return jax.vmap(lambda _: solo(1), axis_name="workers")(jnp.arange(5))

    expected = TIES[1] == TIES[1].min()
    np.testing.assert_array_equal(jax.jit(first)(TIES), expected)
