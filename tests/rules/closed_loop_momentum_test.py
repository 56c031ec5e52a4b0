"""The closed loop against a loop in numpy, and against roots of its equation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.rules.steered import STEPS, noisy_bowl, runs_of, steered, trained
from tests.support.cases import shortened


def closed_loop(grad, start, staleness, *, rates, target, gain):
    """Iterates, momenta and estimates: papers, C.13, with three x in a row."""
    xs, seen = [start], []  # seen: staleness, x_{t-tau}, g(x_{t-tau})
    beta, estimate, betas, estimates = 0.0, 0.0, [], []
    velocity = np.zeros_like(start)
    for t, (tau, rate) in enumerate(zip(staleness, rates, strict=True)):
        seen.append((tau, xs[t - tau], grad(xs[t - tau], t - tau)))
        if t >= 2 and seen[-1][0] == seen[-2][0] == seen[-3][0]:
            (_, x0, _), (_, x1, g1), (_, x2, _) = seen[-3:]
            s = t - tau - 1  # x1 is x_s
            estimate = np.median((x2 - x1 + rates[s] * g1) / (x1 - x0))
            beta = np.clip(beta + gain * (target - estimate), -0.9999, 0.9999)
        velocity = beta * velocity - rate * seen[-1][2]
        xs.append(xs[t] + velocity)
        betas.append(beta)
        estimates.append(estimate)
    return xs[1:], betas, estimates


def seen(state):
    return state.momentum, state.loop.estimate


BOWL = {"size": 5, "rates": [0.05] * STEPS, "target": 0.3, "gain": 0.05}
CASES = {
    "no feedback": BOWL | {"gain": 0.0},
    "feedback": BOWL,
    # the mean of the two in the middle is the median
    "an even number of coordinates": BOWL | {"size": 4},
    "a schedule": BOWL | {"rates": [0.1 / (1 + t / 20) for t in range(STEPS)]},
}


@pytest.mark.parametrize("seed", shortened([1, 2, 3], 1))
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_papers_loop_where_neighbors_follow(seed, name):
    case = dict(CASES[name])
    grad, in_numpy, start = noisy_bowl(seed, case.pop("size"))
    staleness, rates = runs_of(seed), case["rates"]
    numbers = {"target": case["target"], "gain": case["gain"]}
    schedule = rates[0] if len(set(rates)) == 1 else lambda t: jnp.asarray(rates)[t]
    rule = dj.closed_loop_momentum(schedule, **numbers)
    delay = dj.delays.from_trace(staleness)
    _, ours = trained(rule, grad, start, delay, 7, seen=seen)
    theirs = closed_loop(in_numpy, start, staleness, **case)
    for one, other in zip(ours, theirs, strict=True):
        # float64; a ratio of small differences loses some digits
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


@jax.jit
def last_of_a_bowl(curvature, tau, rate, target, gain):
    """The state after 1500 steps without noise: one program for all numbers."""
    rule = dj.closed_loop_momentum(rate, target, gain=gain)
    start = jnp.linspace(1.0, 2.0, len(curvature))
    options = {"steps": 1500, "seen": lambda state: ()}
    return steered(rule, lambda x, t: curvature * x, start, tau, 8, **options)[0]


def settled(tau, rate, target, gain=0.01, curvature=(1.0, 1.0)):
    """The explicit momentum and the estimate at the end, without noise."""
    with jax.enable_x64(True):
        numbers = map(jnp.float64, (rate, target, gain))
        state = last_of_a_bowl(jnp.float64(curvature), jnp.int32(tau), *numbers)
        return float(state.momentum), float(state.loop.estimate)


RATES, DELAYS, TARGET = (0.01, 0.02, 0.03), (0, 1, 4, 8), 0.5


def slowest(*coefficients):
    """The largest root of a polynomial, real in all of these cases."""
    root = max(np.roots(coefficients), key=abs)
    assert abs(root.imag) < 1e-12
    return root.real


def test_the_estimate_settles_on_the_target():
    """No mode oscillates at this step: the ratio of one that does never settles."""
    curvature = (0.4, 0.7, 1.0, 1.3, 1.6)
    for tau, target in itertools.product(DELAYS, (0.3, 0.6)):
        _, estimate = settled(tau, 0.01, target, curvature=curvature)
        assert estimate == pytest.approx(target, abs=0.01)


@pytest.mark.parametrize("tau", shortened([0, 1, 4, 8], 4))
def test_with_noise_the_estimates_mean_settles_on_the_target(tau):
    key, size, target, steps = jax.random.key(0), 400, 0.5, 1500

    def grad(x, t):
        noise = jax.random.normal(jax.random.fold_in(key, t), (size,), jnp.float64)
        return x + 0.3 * noise

    rule = dj.closed_loop_momentum(0.02, target)
    start = np.linspace(1.0, 2.0, size)
    _, (*_, estimates) = trained(rule, grad, start, tau, tau, seen=seen, steps=steps)
    assert estimates[-500:].mean() == pytest.approx(target, abs=0.03)


def test_the_explicit_momentum_makes_room_for_the_delay():
    """beta = target - a (1 + 1/z + ... + z^{1-tau}), z the root of the target's ball.

    The delayed ball, (z - 1)(z - beta) + a z^{1-tau} = 0, must have the dominant root
    of the ball without delay, (z - 1)(z - target) + a z = 0.
    """
    result = []
    for a in RATES:
        z = slowest(1.0, a - 1 - TARGET, TARGET)
        for tau in DELAYS:
            momentum, _ = settled(tau, a, TARGET)
            theory = TARGET - a * sum(z**-k for k in range(tau))
            assert momentum == pytest.approx(theory, abs=2e-3)
            result.append(momentum)
    table = np.array(result).reshape(len(RATES), len(DELAYS))
    assert (np.diff(table, axis=1) < 0).all()  # falls as the delay grows
    assert (np.diff(table[:, 1:], axis=0) < 0).all()  # and as the step grows


def test_a_rising_rate_is_no_momentum():
    """Without delay the total is the explicit momentum, here 0, at every rate."""
    warm_up = optax.linear_schedule(0.0, 0.05, 400)
    rule = dj.closed_loop_momentum(warm_up, 0.0, gain=0.01)
    curvature = np.array([0.3, 0.5, 0.8, 1.1])

    def grad(x, version):
        return curvature * x

    _, (_, betas, estimates) = trained(rule, grad, np.ones(4), 0, 1, seen=seen)
    np.testing.assert_allclose(betas, 0.0, atol=1e-9)
    np.testing.assert_allclose(estimates, 0.0, atol=1e-9)


def test_without_feedback_the_estimate_is_the_momentum_of_the_delay():
    """z - z^{tau+1}, z the root of z^{tau+1} - z^tau + a = 0: it rises with both."""
    result = []
    for a in RATES:
        for tau in DELAYS:
            z = slowest(1.0, -1.0, *[0.0] * (tau - 1), a) if tau else 1 - a
            momentum, estimate = settled(tau, a, TARGET, gain=0.0)
            assert momentum == 0.0
            assert estimate == pytest.approx(z - z ** (tau + 1), abs=1e-6)
            result.append(estimate)
    table = np.array(result).reshape(len(RATES), len(DELAYS))
    assert (np.diff(table, axis=1) > 0).all()
    assert (np.diff(table[:, 1:], axis=0) > 0).all()


def test_a_delay_with_more_momentum_than_the_target_makes_it_negative():
    momentum, estimate = settled(8, 0.03, 0.0)
    assert momentum < -0.1
    assert estimate == pytest.approx(0.0, abs=0.01)


def test_the_momentum_stays_in_its_interval():
    grad, _, start = noisy_bowl(1, 5)
    rule = dj.closed_loop_momentum(0.05, 0.3, gain=1e3)
    _, (iterates, momenta, _) = trained(rule, grad, start, 3, 3, seen=seen)
    assert np.abs(momenta).max() == pytest.approx(0.9999)
    assert np.isfinite(iterates).all()


def test_random_delays_without_neighbors_leave_the_momentum():
    """Staleness 0, 1, 0, 1: no three versions follow each other."""
    grad, _, start = noisy_bowl(1, 5)
    rule = dj.closed_loop_momentum(0.05, 0.3, gain=0.1)
    delay = dj.delays.from_trace([0, 1])
    _, (_, momenta, estimates) = trained(rule, grad, start, delay, 1, seen=seen)
    assert not momenta.any()
    assert not estimates.any()


def test_coordinates_that_stand_still_are_left_out():
    momentum, estimate = settled(4, 0.02, TARGET, curvature=(0, 0, 1, 0, 0))
    assert (momentum, estimate) == pytest.approx(settled(4, 0.02, TARGET), abs=1e-9)


def test_where_nothing_moves_nothing_is_measured():
    momentum, estimate = settled(1, 0.02, TARGET, curvature=(0, 0))
    assert (momentum, estimate) == (0.0, 0.0)


def test_a_sample_of_coordinates_is_the_run_of_these_coordinates():
    grad, _, start = noisy_bowl(1, 5)
    wide = np.array([0, 9, 1, 9, 2, 9, 3, 9, 4])  # every second one, and others

    def of_wide(x, t):
        return grad(x[::2], t)[np.minimum(wide, 4)]

    many = dj.closed_loop_momentum(0.05, 0.3, gain=0.05, coordinates=5)
    one = dj.closed_loop_momentum(0.05, 0.3, gain=0.05, coordinates=5)
    wider = start[np.minimum(wide, 4)]
    _, (_, *ours) = trained(many, of_wide, wider, 2, 2, seen=seen)
    _, (_, *theirs) = trained(one, grad, start, 2, 2, seen=seen)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_the_state_does_not_grow_with_the_delay_nor_the_sample_with_the_parameters():
    params = jnp.ones((300, 100))
    state = dj.closed_loop_momentum(0.1, 0.5).init(params)
    assert state.velocity.shape == params.shape
    vectors = [x for x in jax.tree.leaves(state.loop) if x.ndim]
    assert [x.size <= 1024 for x in vectors] == [True] * 3
