"""Steps within a budget against loops written from the paper's equations."""

import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from tests.rules.drawn import SEEDS, STEPS, drawn, updates_of


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


def share_of_budget(staleness, budget, *, share=0.8, window=np.inf):
    """The step sizes of Adaptive 1; none for a gradient older than the window."""
    steps = []
    for t, tau in enumerate(staleness):
        used = sum(steps[max(t - tau, 0) : t])
        step = share * max(budget - used, 0.0)
        steps.append(step if tau <= window else 0.0)
    return steps


def inverse_within_budget(staleness, budget, *, window=np.inf):
    """The step sizes of Adaptive 2; none for a gradient older than the window."""
    steps = []
    for t, tau in enumerate(staleness):
        used, step = sum(steps[max(t - tau, 0) : t]), budget / (tau + 1)
        # a budget that is used up exactly may be missed by a rounding
        fits = used + step <= budget * (1 + 1e-6)
        steps.append(step if fits and tau <= window else 0.0)
    return steps


BUDGETED = {
    "share_of_budget": (
        lambda budget, depth: dj.step_sizes.share_of_budget(budget, depth, share=0.8),
        share_of_budget,
    ),
    "inverse_within_budget": (
        dj.step_sizes.inverse_within_budget,
        inverse_within_budget,
    ),
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
