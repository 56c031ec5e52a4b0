"""Step-size rules against loops written from the papers' equations, in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj
from tests.support import markov
from tests.support.cases import shortened

STEPS = 100
SEEDS = pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))


def drawn(seed, *, largest=7):
    """Random gradients [T, 3], their staleness [T] and the parameters they saw."""
    rng = np.random.default_rng(seed)
    staleness = [int(min(t, rng.integers(largest + 1))) for t in range(STEPS)]
    grads = rng.normal(size=(STEPS, 3)).astype(np.float32)
    moves = rng.normal(size=(STEPS, 3)).astype(np.float32)
    return grads, staleness, moves


def updates_of(tx, grads, staleness, params=None, stale_params=None):
    """All updates of one scan, and the last state."""
    if params is None:
        params = stale_params = jnp.zeros_like(grads)

    def step(state, row):
        g, tau, x, stale = row
        u, state = tx.update(g, state, x, staleness=tau, stale_params=stale)
        return state, u

    rows = jnp.asarray(grads), jnp.asarray(staleness), params, stale_params
    state, updates = jax.lax.scan(step, tx.init(rows[2][0]), rows)
    return updates, state


def slowly_growing(seed, length, largest):
    """Staleness that grows by at most 1 in a step, as the delay of a table does."""
    rng = np.random.default_rng(seed)
    staleness = [0]
    while len(staleness) < length:
        oldest = min(staleness[-1] + 1, largest)
        staleness.append(
            int(rng.integers(oldest + 1)) if rng.random() < 0.2 else oldest
        )
    return staleness


# Wu et al.: a budget


def adaptive_1(staleness, budget, *, share=0.8, window=np.inf):
    """The step sizes of Adaptive 1; none for a gradient older than the window."""
    steps = []
    for t, tau in enumerate(staleness):
        used = sum(steps[max(t - tau, 0) : t])
        step = share * max(budget - used, 0.0)
        steps.append(step if tau <= window else 0.0)
    return steps


def adaptive_2(staleness, budget, *, window=np.inf):
    """The step sizes of Adaptive 2; none for a gradient older than the window."""
    steps = []
    for t, tau in enumerate(staleness):
        used, step = sum(steps[max(t - tau, 0) : t]), budget / (tau + 1)
        # a budget that is used up exactly may be missed by a rounding
        fits = used + step <= budget * (1 + 1e-6)
        steps.append(step if fits and tau <= window else 0.0)
    return steps


BUDGETED = {
    "adaptive_1": (
        lambda budget, depth: dj.step_sizes.adaptive_1(budget, depth, share=0.8),
        adaptive_1,
    ),
    "adaptive_2": (dj.step_sizes.adaptive_2, adaptive_2),
}
budgeted = pytest.mark.parametrize("name", BUDGETED)


@SEEDS
@budgeted
def test_the_steps_within_a_budget_are_the_papers_loop(name, seed):
    make, oracle = BUDGETED[name]
    grads, staleness, _ = drawn(seed)
    ours, _ = updates_of(make(0.7, 7), grads, staleness)
    steps = np.array(oracle(staleness, 0.7))
    assert len(set(steps.round(6))) > 3  # the delays are felt
    # the budget that is left is a difference of float32 numbers near 0.7
    np.testing.assert_allclose(ours, -steps[:, None] * grads, rtol=1e-5, atol=1e-6)


def steps_of(make, staleness, budget, depth):
    ones = np.ones((len(staleness), 1), np.float32)
    updates, _ = updates_of(make(budget, depth), ones, staleness)
    return -np.asarray(updates, np.float64)[:, 0]


@SEEDS
@budgeted
def test_the_steps_that_a_gradient_misses_and_its_own_keep_to_the_budget(name, seed):
    make, _ = BUDGETED[name]
    staleness = slowly_growing(seed, 400, 12)
    steps = steps_of(make, staleness, 0.7, 12)
    for t, tau in enumerate(staleness):
        assert steps[t - tau : t + 1].sum() <= 0.7 * (1 + 1e-6)
    assert steps.sum() > 0.7 * 400 / 13 / 2  # and are no smaller than need be


@SEEDS
@budgeted
def test_a_staleness_that_jumps_stops_a_step_and_breaks_no_budget(name, seed):
    """Nothing can undo the steps before a jump: the step after it is zero."""
    make, _ = BUDGETED[name]
    _, staleness, _ = drawn(seed, largest=30)
    steps = steps_of(make, staleness, 0.7, 30)
    sums = np.array([steps[t - tau : t + 1].sum() for t, tau in enumerate(staleness)])
    assert (sums[steps > 0] <= 0.7 * (1 + 1e-6)).all()
    assert (sums > 0.8).any()


def longest_at_the_worst_time(seed, length, depth):
    """A staleness that keeps the gradient with the sign that drives furthest away."""
    rng = np.random.default_rng(seed)
    return np.minimum(np.arange(length), rng.choice([0, 1, depth], length)).tolist()


@SEEDS
@budgeted
def test_a_budget_below_1_over_l_is_stable_at_any_delays(name, seed):
    """On f = L x^2 / 2 no iterate is larger than the first one, and the last is small.

    x_{t+1} = x_t - eta_t L x_{t-tau} differs from (1 - eta_t L) x_{t-tau} by the steps
    missed, at most (h - eta_t L) max |x|: it lies in [-h, 1] max |x|, or its negative.
    """
    make, _ = BUDGETED[name]
    curvature, depth, length = 4.0, 20, 2000
    for staleness in (
        drawn(seed, largest=depth)[1] * (length // STEPS),
        longest_at_the_worst_time(seed, length, depth),
        slowly_growing(seed, length, depth),
    ):
        steps = steps_of(make, staleness, 0.99 / curvature, depth)
        xs = [1.0]
        for t, tau in enumerate(staleness):
            xs.append(xs[t] - steps[t] * curvature * xs[max(t - tau, 0)])
        assert np.abs(xs).max() <= 1.0 + 1e-6
        assert abs(xs[-1]) < 1e-3


@budgeted
def test_the_same_step_at_every_staleness_is_not_stable(name):
    """The largest step of the rule, at each staleness: the budget is what bounds it."""
    make, _ = BUDGETED[name]
    xs, staleness = [1.0], slowly_growing(1, 2000, 20)
    largest = steps_of(make, staleness, 0.99 / 4.0, 20).max()
    for t, tau in enumerate(staleness):
        xs.append(xs[t] - largest * 4.0 * xs[max(t - tau, 0)])
    assert np.abs(xs).max() > 10.0


@budgeted
def test_a_gradient_later_than_the_window_takes_no_step(name):
    make, oracle = BUDGETED[name]
    staleness = [5, 0, 1, 2, 3, 4, 9, 0, 2, 3, 5, 1]
    steps = steps_of(make, staleness, 0.7, 3)
    np.testing.assert_allclose(steps, oracle(staleness, 0.7, window=3), atol=1e-6)
    late = np.array(staleness) > 3
    assert (steps[late] == 0).all() and (steps_of(make, staleness, 0.7, 9)[late]).any()


@budgeted
def test_a_mean_staleness_is_rounded_up(name):
    make, _ = BUDGETED[name]
    tx = make(0.7, 7)

    def update(tau):
        state = tx.init(None)._replace(recent=jnp.full(7, 0.1))
        return tx.update(jnp.ones(()), state, staleness=tau)[0]

    assert update(jnp.float32(2.25)) == update(3) != update(2)


@budgeted
def test_a_budget_needs_one_staleness(name):
    make, _ = BUDGETED[name]
    tx, params = make(0.7, 7), {"w": jnp.ones(2), "b": jnp.ones(())}
    with pytest.raises(TypeError, match=rf"`{name}`.*one number.*optax.partition"):
        tx.update(params, tx.init(params), staleness={"w": 1, "b": 2})
    with pytest.raises(TypeError, match=rf"`{name}`.*`staleness`.*delayed\(optax.ch"):
        tx.update(params, tx.init(params))
    with pytest.raises(ValueError, match=rf"`staleness` handed to `{name}`.*-1"):
        tx.update(params, tx.init(params), staleness=-1)


@pytest.mark.parametrize("bad", [-1.0, 0.0, np.nan, np.inf])
@budgeted
def test_a_budget_that_is_not_positive_is_named(name, bad):
    with pytest.raises(ValueError, match=rf"`budget` must be .*, got {bad}"):
        getattr(dj.step_sizes, name)(bad, 4)


@pytest.mark.parametrize(("bad", "error"), [(-1, ValueError), (1.5, TypeError)])
@budgeted
def test_a_window_that_is_no_count_is_named(name, bad, error):
    with pytest.raises(error, match=rf"`max_delay` must be .*, got {bad}"):
        getattr(dj.step_sizes, name)(0.1, bad)


@pytest.mark.parametrize("bad", [-1.0, 0.0, 1.0, np.nan])
def test_a_share_outside_of_0_and_1_is_named(bad):
    with pytest.raises(ValueError, match=rf"`share` must be .*, got {bad}"):
        dj.step_sizes.adaptive_1(0.1, 4, share=bad)


# AdaDelay


def adadelay(grads, staleness, smoothness, scale, per_coordinate):
    """Sra et al.: t counts from 1."""
    updates, squares = [], np.zeros(grads.shape[1])
    for t, (g, tau) in enumerate(zip(grads, staleness, strict=True), start=1):
        squares += g.astype(np.float64) ** 2
        typical = np.sqrt(squares / t) if per_coordinate else 1.0
        updates.append(-g / (smoothness + scale * typical * np.sqrt(t + tau)))
    return updates


@SEEDS
@pytest.mark.parametrize("per_coordinate", [False, True])
def test_adadelay_is_the_papers_loop(per_coordinate, seed):
    grads, staleness, _ = drawn(seed, largest=30)
    grads *= np.array([1.0, 5.0, 0.1], np.float32)
    tx = dj.step_sizes.adadelay(2.0, 0.7, per_coordinate=per_coordinate)
    ours, _ = updates_of(tx, grads, staleness)
    theirs = adadelay(grads, staleness, 2.0, 0.7, per_coordinate)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    # the delay is felt
    fresh = adadelay(grads, [0] * STEPS, 2.0, 0.7, per_coordinate)
    assert np.abs(np.array(fresh) - theirs).max() > 0.01


def test_adadelay_per_coordinate_is_adagrad_where_nothing_is_late():
    """c_i sqrt(t) = sqrt(sum g_i^2), and a small L is AdaGrad's eps."""
    grads, _, _ = drawn(1)
    tx = dj.step_sizes.adadelay(1e-7, 10.0, per_coordinate=True)
    ours, _ = updates_of(tx, grads, [0] * STEPS)
    adagrad = optax.adagrad(0.1, initial_accumulator_value=0.0)
    theirs, _ = updates_of(optax.with_extra_args_support(adagrad), grads, [0] * STEPS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("per_coordinate", [False, True])
def test_adadelay_takes_a_staleness_for_each_leaf(per_coordinate):
    tx = dj.step_sizes.adadelay(1.0, 0.5, per_coordinate=per_coordinate)
    grads = {"w": jnp.ones(2), "b": jnp.ones(())}
    state = tx.init(grads)
    updates, _ = tx.update(grads, state, staleness={"w": 3, "b": 8})
    # t = 1: 1 / (1 + 2/2) and 1 / (1 + 3/2)
    assert updates["w"].tolist() == [-0.5, -0.5]
    np.testing.assert_allclose(updates["b"], -0.4, rtol=1e-6)


@pytest.mark.parametrize("per_coordinate", [False, True])
def test_a_masked_adadelay_reads_its_part_of_the_staleness(per_coordinate):
    rule = dj.step_sizes.adadelay(1.0, 0.5, per_coordinate=per_coordinate)
    tx = dj.delayed(optax.masked(rule, {"w": True, "b": False}), {"w": 3, "b": 1})
    grads = {"w": jnp.ones(2), "b": jnp.ones(())}
    state, updates = tx.init(grads), grads
    for _ in range(6):
        updates, state = tx.update(grads, state, grads)
    np.testing.assert_allclose(updates["w"], -1 / (1 + 0.5 * 3), rtol=1e-6)  # t + tau 9
    assert updates["b"] == 1


def test_a_mean_square_in_bfloat16_would_stick():
    tx = dj.step_sizes.adadelay(1.0, 1.0, per_coordinate=True)
    grads = jnp.ones(2, jnp.bfloat16)
    state = tx.init(grads)._replace(step=jnp.int32(999))
    _, state = tx.update(grads, state, staleness=0)
    np.testing.assert_allclose(state.mean_square, 1 / 1000, rtol=1e-6)


# Dutta et al. and DASA: the distance that the parameters moved


def moved_rows(seed):
    """Gradients, and parameters at distances of about 0.1 to 3 from stale ones."""
    grads, staleness, moves = drawn(seed)
    stale = np.roll(grads, 1, axis=0)
    far = np.random.default_rng(seed).uniform(0.05, 2.0, (STEPS, 1))
    return grads, staleness, (stale + far * moves).astype(np.float32), stale


@SEEDS
def test_distance_capped_is_the_papers_loop(seed):
    grads, staleness, params, stale = moved_rows(seed)
    ours, _ = updates_of(
        dj.step_sizes.distance_capped(0.3, 0.5), grads, staleness, params, stale
    )
    capped, theirs = 0, []
    for g, x, y in zip(grads, params, stale, strict=True):
        distance = sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
        theirs.append(-min(0.5 / distance, 0.3) * g)
        capped += 0.5 / distance < 0.3
    assert 10 < capped < STEPS - 10
    # the distance is a difference of float32 numbers near 1, squared
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_parameters_that_did_not_move_take_the_full_step():
    tx, x = dj.step_sizes.distance_capped(0.5, 1e-6), jnp.array([3.0, -1.0])
    update, _ = tx.update(x, tx.init(x), x, stale_params=x)
    np.testing.assert_array_equal(update, -0.5 * x)


@SEEDS
def test_dasa_is_the_papers_loop(seed):
    """x_{t+1} = x_t - eta (1/P) sum_i 1{||x_t - x_{t-tau_i}|| <= eps} g_i."""
    grads, staleness, params, stale = moved_rows(seed)
    eta, reach = 0.2, 8.0
    ours, state = updates_of(
        dj.step_sizes.dasa(eta, reach), grads, staleness, params, stale
    )
    theirs, dropped = [], 0
    for g, x, y in zip(grads, params, stale, strict=True):
        near = np.linalg.norm(x - y) <= reach * eta
        theirs.append(g if near else np.zeros(3))
        dropped += not near
    assert 10 < dropped < STEPS - 10
    np.testing.assert_array_equal(ours, theirs)
    assert state.dropped == dropped


def test_the_threshold_of_dasa_follows_a_schedule():
    tx = dj.step_sizes.dasa(lambda step: 1.0 / (1 + step), 1.0)
    x, state, kept = jnp.zeros(()), tx.init(None), []
    for _ in range(4):  # a move of 0.4 is within 1, 1/2; not within 1/3, 1/4
        update, state = tx.update(jnp.ones(()), state, x, stale_params=x + 0.4)
        kept.append(float(update))
    assert kept == [1.0, 1.0, 0.0, 0.0]


def test_dasa_drops_a_nan():
    tx, x = dj.step_sizes.dasa(0.1, 1.0), jnp.zeros(2)
    update, _ = tx.update(x + jnp.nan, tx.init(x), x, stale_params=x + 1.0)
    assert (update == 0).all()


DISTANT = {
    "distance_capped": dj.step_sizes.distance_capped(0.1, 1.0),
    "dasa": dj.step_sizes.dasa(0.1, 1.0),
}


@pytest.mark.parametrize("name", DISTANT)
def test_the_distance_needs_both_parameters(name):
    rule, x = DISTANT[name], jnp.ones(2)
    with pytest.raises(TypeError, match=rf"`{name}`.*`stale_params`.*keep_params=True"):
        rule.update(x, rule.init(x), x)
    with pytest.raises(TypeError, match=rf"`{name}`.*`params`.*call `update"):
        rule.update(x, rule.init(x), stale_params=x)
    with pytest.raises(ValueError, match=rf"`stale_params` handed to `{name}`"):
        rule.update(x, rule.init(x), x, stale_params=jnp.ones(()))


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("smoothness", lambda bad: dj.step_sizes.adadelay(bad, 1.0)),
        ("scale", lambda bad: dj.step_sizes.adadelay(1.0, bad)),
        ("learning_rate", lambda bad: dj.step_sizes.distance_capped(bad, 1.0)),
        ("reach", lambda bad: dj.step_sizes.distance_capped(0.1, bad)),
        ("learning_rate", lambda bad: dj.step_sizes.dasa(bad, 1.0)),
        ("reach", lambda bad: dj.step_sizes.dasa(0.1, bad)),
    ],
)
def test_negative_and_non_finite_arguments_are_named(name, make, bad):
    with pytest.raises(ValueError, match=rf"`{name}` must be .*, got {bad}"):
        make(bad)


# DASA on TD(0): the rate follows the mean delay

ETA, START, CLOSE, TD_STEPS, LARGEST = 0.2, 5000.0, 10.0, 5000, 500


def rare(largest, mean=5):
    """Delays of `largest`, so rare that their mean is 5, and of 0 otherwise."""
    late = np.random.default_rng(0).random(TD_STEPS) < mean / largest
    return np.where(late, largest, 0)


def steps_until_close(rule, delays, seed):
    """The step from which on TD(0) stays near its fixed point, [] for each delays."""
    seen = markov.walk(seed, TD_STEPS)
    rows = jnp.asarray(seen.features), jnp.asarray(seen.next_features), seen.rewards
    start = jnp.asarray(seen.solution + START, jnp.float32)

    def errors(delays):
        tx = dj.delayed(
            optax.chain(rule, optax.sgd(ETA)),
            lambda step: delays[step],
            max_delay=LARGEST,
            keep_params=True,
        )

        def step(carry, row):
            x, state = carry
            updates, state = tx.update(markov.gradient(x, *row), state, x)
            x = optax.apply_updates(x, updates)
            return (x, state), jnp.linalg.norm(x - seen.solution)

        return jax.lax.scan(step, (start, tx.init(start)), rows)[1]

    far = np.asarray(jax.jit(errors)(jnp.asarray(delays))) > CLOSE
    return int(np.flatnonzero(far)[-1]) + 1


def total(rule, delays):
    return sum(steps_until_close(rule, delays, seed) for seed in (1, 2, 3))


def test_the_rate_of_dasa_follows_the_mean_delay_and_plain_td_follows_the_largest():
    rule, plain = dj.step_sizes.dasa(ETA, 20.0), optax.identity()
    always_5 = np.full(TD_STEPS, 5)
    bounded = total(rule, always_5)
    for largest in (50, LARGEST):
        assert abs(rare(largest).mean() - 5) < 1
        assert total(rule, rare(largest)) <= bounded
    # where nearly all gradients are fresh, no late one does harm
    assert total(rule, rare(LARGEST)) < 1.2 * total(plain, np.zeros(TD_STEPS, int))
    assert total(plain, rare(LARGEST)) > 2 * total(plain, always_5)


def test_the_steps_of_dasa_grow_with_the_mean_delay():
    """At a constant delay it takes one gradient, then drops those that missed it."""
    rule = dj.step_sizes.dasa(ETA, 20.0)
    fresh, late, later = (total(rule, np.full(TD_STEPS, d)) for d in (0, 5, 10))
    assert 2 * fresh < late < 6 * fresh
    assert late < later < 3 * late


def test_the_fixed_point_of_td_is_where_its_gradients_vanish_in_the_mean():
    seen = markov.walk(1, 20_000)
    grads = jax.vmap(markov.gradient, (None, 0, 0, 0))(
        jnp.asarray(seen.solution, jnp.float32),
        *(seen.features, seen.next_features, seen.rewards),
    )
    error = np.std(grads, axis=0) / np.sqrt(len(grads))
    assert (np.abs(np.mean(grads, axis=0)) < 4 * error).all()
    assert (np.abs(np.mean(grads, axis=0)) < 0.05).all()


# with workers

WORKERS, AGES = 4, [0, 3, 1, 2]
WITH_WORKERS = {
    "adaptive_1": dj.step_sizes.adaptive_1(0.3, 3),
    "adaptive_2": dj.step_sizes.adaptive_2(0.3, 3),
    "adadelay": dj.step_sizes.adadelay(2.0, 1.0),
    "adadelay, per coordinate": dj.step_sizes.adadelay(2.0, 1.0, per_coordinate=True),
    "distance_capped": dj.step_sizes.distance_capped(0.2, 0.02),
    "dasa": optax.chain(dj.step_sizes.dasa(0.2, 1.0), optax.scale(-0.2)),
    "dasgd": dj.step_sizes.dasgd(0.2),
    "delay_adaptive": optax.chain(
        optax.scale(-0.2),
        dj.scale_by_staleness(dj.modulation.delay_adaptive(0.2, 0, bound=0.2)),
    ),
}
PLACES = [
    *((name, True) for name in WITH_WORKERS),
    # behind the mean there are no parameters at which the gradient was taken
    *((name, False) for name in WITH_WORKERS if name not in DISTANT),
]


@pytest.mark.parametrize(
    ("name", "is_before"),
    shortened(
        PLACES,
        *((name, True) for name in WITH_WORKERS),
        *((name, False) for name in ("adadelay, per coordinate", "dasgd")),
    ),
)
def test_simulated_workers_and_devices_agree_with_a_loop(name, is_before):
    """Each worker has the rule before the mean, or the server has it behind."""
    rule = WITH_WORKERS[name]
    tx, ages = dj.exchange.mean(rule), [2] * WORKERS
    if is_before:
        tx, ages = optax.chain(rule, dj.exchange.mean(optax.identity())), AGES
    delay = dj.delays.per_worker(ages) if is_before else 2
    tx = dj.delayed(tx, delay, max_delay=3, keep_params=True)

    def step(state, target):
        x, opt_state = state
        grads = dj.workers.vary(x) - target
        updates, opt_state = tx.update(grads, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), ()

    targets = jax.random.normal(jax.random.key(0), (12, WORKERS, 3))
    start = jnp.array([2.0, -1.0, 0.5])
    mesh = jax.make_mesh((WORKERS,), ("workers",), axis_types=(AxisType.Auto,))
    ends = []
    for workers in (
        dj.workers.simulate(step, WORKERS),
        dj.workers.run(step, mesh),
    ):
        held = workers.init((start, tx.init(start)), targets[0])
        held, _ = jax.jit(lambda h, ts, w=workers: jax.lax.scan(w.step, h, ts))(
            held, targets
        )
        ends.append(np.asarray(held.state[0]))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-5, atol=1e-6)
    by_hand = loop(rule, ages, start, targets, is_before)
    np.testing.assert_allclose(ends[0], by_hand, rtol=1e-5, atol=1e-6)


def loop(rule, ages, start, targets, is_before):
    """The same with lists: a state a worker before the mean, one state behind it."""
    xs, states = [start], [rule.init(start) for _ in range(WORKERS)]
    for t in range(len(targets)):
        seen = [t - min(age, t) for age in ages]
        grads = [xs[s] - targets[s][w] for w, s in enumerate(seen)]
        if not is_before:
            grads = [sum(grads) / WORKERS]
        steps = []
        for w, g in enumerate(grads):
            age = jnp.int32(t - seen[w])
            u, states[w] = rule.update(
                g, states[w], xs[t], staleness=age, stale_params=xs[seen[w]]
            )
            steps.append(u)
        xs.append(xs[t] + sum(steps) / len(steps))
    return xs[-1]
