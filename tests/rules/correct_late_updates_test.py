"""What is applied in place of late updates is taken back when they are there."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj

STEPS = 100


def drawn(seed, *, largest=7):
    rng = np.random.default_rng(seed)
    ages = [int(min(t, rng.integers(largest + 1))) for t in range(STEPS)]
    return rng.normal(size=(STEPS, 3)).astype(np.float32), ages


def applied(updates, ages, tx=None, dtype=jnp.float32):
    """All updates that the rule makes of given ones, and its last state."""
    tx = tx or dj.correct_late_updates()

    def step(state, row):
        update, state = tx.update(row[0], state, staleness=row[1])
        return state, update

    rows = jnp.asarray(updates), jnp.asarray(ages)
    state, out = jax.lax.scan(step, tx.init(rows[0][0].astype(dtype)), rows)
    return np.asarray(out), state


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_rule_is_its_equation(seed):
    updates, ages = drawn(seed)
    moves, state = applied(updates, ages)
    before = np.zeros(3)
    for t in range(STEPS):
        ahead = ages[t] * updates[t].astype(np.float64)
        expected = updates[t] + ahead - before
        np.testing.assert_allclose(moves[t], expected, rtol=1e-5, atol=1e-5)
        before = ahead
    np.testing.assert_allclose(state.ahead, before, rtol=1e-6)


def test_fresh_updates_are_untouched():
    updates, _ = drawn(1)
    out, _ = applied(updates, np.zeros(STEPS, int))
    np.testing.assert_array_equal(out, updates)


@pytest.mark.parametrize("make", [optax.sgd, optax.adam], ids=["sgd", "adam"])
def test_a_constant_gradient_leaves_no_trace_of_a_delay(make):
    # SGD and Adam make steps of one size of it: x_t is where it is without a delay
    tau, target = 3, jnp.asarray([3.0, -1.0])
    late = dj.delayed(optax.chain(make(0.1), dj.correct_late_updates()), tau)
    fresh = make(0.1)

    def run(tx):
        def step(carry, _):
            x, state = carry
            update, state = tx.update(target, state, x)
            return (x + update, state), None

        return jax.lax.scan(step, (target, tx.init(target)), None, length=20)[0][0]

    # "fresh": the first gradient is used again while the history fills
    ahead = tau * -0.1 * (target if make is optax.sgd else jnp.sign(target))
    np.testing.assert_allclose(run(late), run(fresh) + ahead, rtol=1e-5)


def radius(tau, momentum, step):
    """Of (z - 1)(z - beta) z^tau + eta lam ((1 + tau) z - tau)."""
    coefficients = np.zeros(tau + 3)
    coefficients[:3] = 1.0, -(1 + momentum), momentum
    coefficients[-2:] += step * (1 + tau), -step * tau
    return abs(np.roots(coefficients)).max()


def one_step_limit(momentum):
    m = 1 - momentum
    return (np.sqrt(m**2 + 4 * m) - m) / 2


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.5, 0.7, 0.9, 0.95])
def test_the_limit_at_one_step_is_its_closed_form(momentum):
    limit = one_step_limit(momentum)
    assert radius(1, momentum, 0.999 * limit) < 1
    assert radius(1, momentum, 1.001 * limit) > 1
    # without the rule it is 1 - beta: the rule helps above a momentum of 1/2 alone
    plain = dj.stability.Dynamics(1, momentum=momentum).step_limit()
    np.testing.assert_allclose(plain, 1 - momentum, rtol=1e-6)
    assert (limit > plain * 1.001) == (momentum > 0.5)
    assert (limit < plain * 0.999) == (momentum < 0.5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("tau", [1, 2, 4, 8])
def test_its_limits_are_those_of_an_extrapolation_by_the_delay(tau, momentum):
    # on a quadratic (1 + tau) g_t - tau g_{t-1} is the gradient at x + tau (x - x')
    dynamics = dj.stability.Dynamics(tau, momentum=momentum, extrapolation=tau)
    limit = dynamics.step_limit()
    assert radius(tau, momentum, 0.999 * limit) < 1
    assert radius(tau, momentum, 1.001 * limit) > 1


def test_the_docstring_s_factors():
    gain = {beta: one_step_limit(beta) / (1 - beta) for beta in (0.0, 0.9, 0.95)}
    assert [round(value, 2) for value in gain.values()] == [0.62, 2.7, 4.0]


@jax.jit
def sizes_of_a_run(rate, momentum, tau):
    """|x| in a bowl of curvature 1, at each step: one program for all numbers."""
    tx = optax.chain(optax.sgd(rate, momentum), dj.correct_late_updates())
    tx = dj.delayed(tx, tau, max_delay=4)

    def step(carry, _):
        x, state = carry
        update, state = tx.update(x, state, x)
        return (x + update, state), x

    x = jnp.ones(())
    return jnp.abs(jax.lax.scan(step, (x, tx.init(x)), None, length=3000)[1])


@pytest.mark.parametrize(
    ("tau", "momentum"), [(1, 0.0), (1, 0.9), (2, 0.9), (4, 0.5), (4, 0.95)]
)
def test_a_run_shrinks_below_the_limit_and_grows_above_it(tau, momentum):
    dynamics = dj.stability.Dynamics(tau, momentum=momentum, extrapolation=tau)
    limit = dynamics.step_limit()
    for rate, grows in ((0.97 * limit, False), (1.03 * limit, True)):
        sizes = sizes_of_a_run(jnp.float32(rate), jnp.float32(momentum), tau)
        early, late = jnp.max(sizes[100:400]), jnp.max(sizes[-300:])
        assert (np.nan_to_num(late, nan=np.inf) > early) == grows


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("tau", [1, 2, 4])
def test_a_slow_mode_decays_as_without_a_delay(tau, momentum):
    # second order without the rule, third order with it: the error falls by 4, by 8
    def error(step, extrapolation):
        late = dj.stability.Dynamics(
            tau, momentum=momentum, extrapolation=extrapolation
        )
        fresh = dj.stability.Dynamics(0, momentum=momentum)
        return late.spectral_radius(step) - fresh.spectral_radius(step)

    step = 1e-2 * (1 - momentum) ** 2
    for extrapolation, order in ((0.0, 2), (tau, 3)):
        first, half = (error(s, extrapolation) for s in (step, step / 2))
        assert abs(np.log2(first / half) - order) < 0.2


@pytest.mark.parametrize(("tau", "momentum"), [(1, 0.0), (1, 0.9), (4, 0.0), (4, 0.9)])
def test_noise_is_larger_by_its_formula(tau, momentum):
    noise = jax.random.normal(jax.random.key(0), (40_000,))
    tx = optax.chain(optax.sgd(1.0, momentum), dj.correct_late_updates())
    ages = np.full(len(noise), tau)
    ratio = applied(noise, ages, tx)[0].var() / applied(noise, 0 * ages, tx)[0].var()
    expected = 1 + 2 * tau * (1 + tau) * (1 - momentum)
    np.testing.assert_allclose(ratio, expected, rtol=0.1)


def test_a_mean_staleness_is_taken_as_it_is():
    tx = dj.correct_late_updates()
    update, _ = tx.update(jnp.ones(()), tx.init(jnp.ones(())), staleness=1.5)
    assert update == 2.5


def test_narrow_updates_are_corrected_by_what_was_applied():
    # p is kept as it was rounded, so that as much is taken back
    tx = dj.correct_late_updates()
    state = tx.init(jnp.zeros((), jnp.bfloat16))
    first, state = tx.update(jnp.asarray(1.0, jnp.bfloat16), state, staleness=100)
    second, state = tx.update(jnp.asarray(0.0, jnp.bfloat16), state, staleness=0)
    assert first.dtype == second.dtype == jnp.bfloat16
    assert (float(first), float(second)) == (101.0, -100.0)


def test_wide_updates_of_narrow_parameters_pay_back_to_the_last_bit():
    updates, ages = drawn(2)
    out, state = applied(updates, ages, dtype=jnp.bfloat16)
    ahead = np.asarray(state.ahead, np.float32)
    # float32 sums of 100
    np.testing.assert_allclose(out.sum(0) - updates.sum(0), ahead, atol=1e-4)
