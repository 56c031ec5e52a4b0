"""Step sizes against loops written from the papers' equations, in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.drawn import SEEDS, STEPS, drawn, moved_rows, updates_of
from tests.support import markov

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


# a step size capped by the distance


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


# DASA


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
