"""The limit of a pipeline: one delay, companion matrices, and simulation agree."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax.stability import Dynamics, pipeline_step_limit
from tests.support.cases import shortened

STAGES = (2, 2, 1, 1, 0)  # the delay of each coordinate's stage: S = 3
FORMS = ("mixed", "late")


def least_squares(seed):
    """A Hessian X^T X / n over the coordinates of the stages."""
    rows = np.random.default_rng(seed).normal(size=(8, len(STAGES)))
    return rows.T @ rows / 8


def gradient(form, hessian, delays, past):
    """The gradient g at the newest t, with past = [x(t), x(t - 1), ...]."""
    count = len(delays)
    if form == "mixed":  # coordinate r has version t - tau_r
        return hessian @ np.array([past[delays[r]][r] for r in range(count)])
    return np.array([hessian[s] @ past[delays[s]] for s in range(count)])


def companion(form, hessian, delays, step, momentum):
    """The matrix of one update, of the state [x(t), ..., x(t - K), m(t - 1)]."""
    count, depth = len(delays), max(delays) + 1

    def updated(state):
        *past, m = state.reshape(depth + 1, count)
        m = momentum * m + gradient(form, hessian, delays, past)
        return np.concatenate([past[0] - step * m, *past[:-1], m])

    return np.stack([updated(row) for row in np.eye(count * (depth + 1))], axis=1)


def radius(*arguments):
    return np.abs(np.linalg.eigvals(companion(*arguments))).max()


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("tau", [0, 1, 5, 20])
def test_with_one_delay_it_is_the_limit_of_one_curvature(tau, momentum):
    """Vertical sync: all stages late by S - 1, at the largest eigenvalue."""
    hessian = least_squares(0)
    result = pipeline_step_limit(hessian, [tau] * 5, momentum=momentum)
    one = Dynamics(tau, momentum=momentum).step_limit("mean")
    np.testing.assert_allclose(result * np.linalg.eigvalsh(hessian)[-1], one, rtol=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_coupling_it_is_the_smallest_limit_of_a_coordinate(momentum):
    curvatures, delays = np.array([0.2, 0.5, 3.0]), [7, 2, 0]
    result = pipeline_step_limit(np.diag(curvatures), delays, momentum=momentum)
    alone = [Dynamics(tau, momentum=momentum).step_limit("mean") for tau in delays]
    np.testing.assert_allclose(result, (alone / curvatures).min(), rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_at_the_limit_a_root_is_on_the_unit_circle_for_the_first_time(
    seed, momentum, form
):
    hessian = least_squares(seed)
    limit = pipeline_step_limit(hessian, STAGES, momentum=momentum)
    np.testing.assert_allclose(
        radius(form, hessian, STAGES, limit, momentum), 1, atol=1e-9
    )
    below = [
        radius(form, hessian, STAGES, share * limit, momentum)
        for share in np.linspace(0.01, 0.999, 50)
    ]
    assert max(below) < 1 < radius(form, hessian, STAGES, 1.001 * limit, momentum)


@pytest.mark.parametrize("seed", [1, 5, 10, 21])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_many_delays_have_eigenvalues_that_come_close(seed, momentum):
    """LAPACK returns them in another order at each angle."""
    draws = np.random.default_rng(seed)
    rows, delays = draws.normal(size=(8, 6)), draws.integers(0, 9, size=6)
    hessian = rows.T @ rows / 8
    limit = pipeline_step_limit(hessian, delays, momentum=momentum)
    r = [radius("late", hessian, delays, c * limit, momentum) for c in (0.5, 0.99, 1)]
    np.testing.assert_allclose(r[2], 1, atol=1e-9)
    assert max(r[:2]) < 1


def test_a_narrow_range_of_unstable_steps_is_seen():
    """Between two angles of the grid eta is real twice; beyond, steps are stable again.

    The limit is where the range begins, and not five times larger, where the next does.
    """
    slope = 0.97 * math.sqrt(6.0643)
    hessian = np.array([[1.0, slope], [slope, 6.0643]])
    limit = pipeline_step_limit(hessian, [3, 0], momentum=0.9)
    r = [radius("mixed", hessian, (3, 0), c * limit, 0.9) for c in (0.999, 1, 1.5)]
    np.testing.assert_allclose(r[1], 1, atol=1e-9)
    assert max(r[0], r[2]) < 1
    assert radius("mixed", hessian, (3, 0), 1.0001 * limit, 0.9) > 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_simulated_training_is_bounded_below_the_limit_and_grows_above(momentum, form):
    hessian = least_squares(1)
    limit = pipeline_step_limit(hessian, STAGES, momentum=momentum)
    ends = []
    for step in (0.99 * limit, 1.01 * limit):
        past, m = [np.ones(len(STAGES))] * 3, 0.0
        for _ in range(20_000):
            m = momentum * m + gradient(form, hessian, STAGES, past)
            past = [past[0] - step * m, *past[:-1]]
        ends.append(np.abs(past[0]).max())
    assert ends[0] < 1e-3 and ends[1] > 1e3


@pytest.mark.parametrize(
    ("form", "momentum"),
    shortened(
        [(f, b) for f in FORMS for b in (0.0, 0.9)], ("late", 0.0), ("mixed", 0.9)
    ),
)
def test_late_and_mixed_gradients_of_the_library_have_this_limit(form, momentum):
    """`delayed` with a tree of delays, and `ring.read` with an age for each stage."""
    hessian, delays = jnp.asarray(least_squares(2), jnp.float32), list(STAGES)
    limit = pipeline_step_limit(least_squares(2), STAGES, momentum=momentum)

    def end(rate):
        inner = optax.sgd(rate, momentum)
        tx = dj.delayed(inner, delays) if form == "late" else inner

        def step(carry, _):
            x, state, history = carry
            history = dj.ring.push(history, x)
            point = x if form == "late" else dj.ring.read(history, delays, x)
            moves, state = tx.update(list(hessian @ jnp.stack(point)), state, x)
            return (optax.apply_updates(x, moves), state, history), None

        x = [jnp.ones(())] * len(delays)
        history = dj.ring.init(x, 3)
        for _ in range(3):
            history = dj.ring.push(history, x)
        carry, _ = jax.lax.scan(step, (x, tx.init(x), history), None, 5000)
        return max(abs(float(leaf)) for leaf in carry[0])

    assert end(0.97 * limit) < 0.1 and end(1.03 * limit) > 10


def test_directions_without_curvature_bound_no_step():
    """A Hessian of rank one: all updates are along one line."""
    line = np.array([0.6, 0.8])
    hessian = np.outer(line, line)
    limit = pipeline_step_limit(hessian, [3, 3])
    np.testing.assert_allclose(limit, Dynamics(3).step_limit(), rtol=1e-9)


@pytest.mark.parametrize("delays", [(3, 0), (5, 0), (6, 1), (7, 2)])
def test_an_eigenvalue_that_is_0_on_the_way_bounds_no_step(delays):
    """mu = (z^-tau_0 + z^-tau_1)/2 is 0 where the two turns are opposite."""
    hessian = np.full((2, 2), 0.5)
    limit = pipeline_step_limit(hessian, delays, momentum=0.5)
    r = [radius("mixed", hessian, delays, c * limit, 0.5) for c in (0.99, 1, 1.01)]
    np.testing.assert_allclose(r[:2], 1, atol=1e-9)  # along (1, -1) nothing moves
    assert r[2] > 1 + 1e-5


@pytest.mark.parametrize(
    ("hessian", "delays", "word"),
    [
        ([1.0, 2.0], [1, 0], r"`hessian` must be .* \[d, d\], got shape \[2\]"),
        (np.full((2, 2), np.nan), [1, 0], "`hessian` must be a finite matrix"),
        (
            [[1.0, 0.5], [0.0, 1.0]],
            [1, 0],
            "`hessian` must be symmetric, got entries that differ by 0.5",
        ),
        ([[1.0, 2.0], [2.0, 1.0]], [1, 0], r"no negative one, got -1 \.\. 3"),
        (np.zeros((2, 2)), [1, 0], r"must have a positive eigenvalue .* got 0 \.\. 0"),
        (np.eye(2), [1], "`delays` must be 2 numbers, got 1"),
        (np.eye(2), [1, -1], r"`delays` must be a list of integers in 0 \.\."),
        (np.eye(2), [1, 0.5], r"`delays` must be a list of integers in 0 \.\."),
    ],
)
def test_bad_arguments_are_refused(hessian, delays, word):
    with pytest.raises(ValueError, match=word):
        pipeline_step_limit(hessian, delays)


def test_a_momentum_of_one_is_refused():
    with pytest.raises(ValueError, match=r"`momentum` must be in \[0, 1"):
        pipeline_step_limit(np.eye(2), [1, 0], momentum=1.0)
