"""DASGD against a loop written from the paper's equation, in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from tests.support.cases import shortened

STEPS = 100


def box(x):
    return jnp.clip(x, -0.3, 0.5)


def ball(x):
    return optax.projections.projection_l2_ball(x, 0.7)


SETS = {
    "box": (box, lambda y: np.clip(y, -0.3, 0.5)),
    "ball": (ball, lambda y: y * min(1.0, 0.7 / np.linalg.norm(y))),
    "none": (None, lambda y: y),
}


def dasgd(start, gradient, staleness, rates, project):
    """Zhou et al.: y_{t+1} = y_t - al_t g(x_{t-tau}), x = Proj(y)."""
    y, xs = start, [start]
    for t, tau in enumerate(staleness):
        y = y - rates[t] * gradient(xs[t - tau], t)
        xs.append(project(y))
    return np.array(xs[1:])


def projected_sgd(start, gradient, staleness, rates, project):
    """The greedy twin, which forgets what the projection cuts off."""
    xs = [start]
    for t, tau in enumerate(staleness):
        xs.append(project(xs[t] - rates[t] * gradient(xs[t - tau], t)))
    return np.array(xs[1:])


@pytest.mark.parametrize(("name", "seed"), [("box", 1), ("ball", 2), ("none", 3)])
def test_dasgd_is_the_papers_loop(name, seed):
    project, formula = SETS[name]
    rng = np.random.default_rng(seed)
    staleness = [int(min(t, rng.integers(8))) for t in range(STEPS)]
    noise = rng.normal(size=(STEPS, 3)).astype(np.float32)
    start, rates = np.array([0.1, -0.2, 0.3], np.float32), 2.0 / np.arange(1, STEPS + 1)

    def gradient(x, t):
        return x - 1.0 + noise[t]

    tx = dj.step_sizes.dasgd(dj.step_sizes.harmonic(2.0), project=project)

    def step(carry, row):
        history, state = carry
        t, tau = row
        g = history[tau] - 1.0 + jnp.asarray(noise)[t]
        u, state = tx.update(g, state, history[0])
        x = optax.apply_updates(history[0], u)
        return (jnp.concatenate([x[None], history[:-1]]), state), x

    history = jnp.broadcast_to(start, (8, 3))
    rows = jnp.arange(STEPS), jnp.asarray(staleness)
    _, ours = jax.lax.scan(step, (history, tx.init(jnp.asarray(start))), rows)
    theirs = dasgd(start, gradient, staleness, rates, formula)
    # a hundred steps' rounding of float32
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    greedy = projected_sgd(start, gradient, staleness, rates, formula)
    assert (np.abs(greedy - theirs).max() > 0.01) == (project is not None)


def test_without_a_set_it_is_sgd_and_keeps_no_tree():
    tx, sgd = dj.step_sizes.dasgd(0.1), optax.sgd(0.1)
    params = {"w": jnp.array([0.3, -1.7]), "b": jnp.ones((), jnp.bfloat16)}
    ours, state = tx.update(params, tx.init(params))
    theirs, _ = sgd.update(params, sgd.init(params))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert len(jax.tree.leaves(state)) == 1


def test_a_step_smaller_than_bfloat16_can_see_is_not_lost():
    """y is kept in float32: 64 steps of 2^-10 move x by 1/16."""
    tx = dj.step_sizes.dasgd(1.0, project=lambda x: x)
    x = jnp.ones((), jnp.bfloat16)
    state = tx.init(x)
    for _ in range(64):
        update, state = tx.update(jnp.asarray(-(2.0**-10), jnp.bfloat16), state, x)
        x = optax.apply_updates(x, update)
    assert x == 1 + 1 / 16


@pytest.mark.parametrize("logarithms", [0, 1, 2])
def test_harmonic_is_its_formula(logarithms):
    schedule = dj.step_sizes.harmonic(0.5, logarithms=logarithms)
    for t in (0, 1, 7, 1000):
        log_t = 1 + np.log(t + 1)
        factors = [t + 1, log_t, 1 + np.log(log_t)][: logarithms + 1]
        np.testing.assert_allclose(schedule(t), 0.5 / np.prod(factors), rtol=1e-6)


def half_as_old_as_the_run(schedule, curvature, steps):
    """|x| of SGD on curvature x^2 / 2, with gradients of age t / 2."""

    def step(xs, t):
        x = xs[t] - schedule(t) * curvature * xs[t - t // 2]
        return xs.at[t + 1].set(x), None

    xs = jnp.zeros(steps + 1).at[0].set(1.0)
    return jnp.abs(jax.lax.scan(step, xs, jnp.arange(steps))[0])


def late_by_half(tx, steps):
    """The same along a history of gradients, by `delayed`."""
    tx = dj.delayed(tx, lambda t: t // 2, max_delay=steps // 2)

    def step(carry, _):
        x, state = carry
        u, state = tx.update(x, state, x)
        x = optax.apply_updates(x, u)
        return (x, state), x

    x = jnp.ones(())
    xs = jax.jit(lambda: jax.lax.scan(step, (x, tx.init(x)), length=steps)[1])()
    return jnp.abs(jnp.concatenate([x[None], xs]))


def root(scale):
    return lambda t: scale / jnp.sqrt(t + 1.0)


@pytest.mark.parametrize("scale", shortened([0.5, 2.0, 4.0], 4.0))
def test_at_delays_of_half_the_run_1_over_t_log_t_converges_and_1_over_sqrt_t_does_not(
    scale,
):
    steps = 4000
    tx = dj.step_sizes.dasgd(dj.step_sizes.harmonic(scale, logarithms=1))
    sizes = late_by_half(tx, steps)
    assert sizes[steps // 2 :].max() < 0.2
    assert sizes[steps // 2 :].max() < sizes[steps // 8 : steps // 4].max()
    sizes = late_by_half(dj.step_sizes.dasgd(root(scale)), steps)
    assert sizes[steps // 2 :].max() > 10.0


def test_at_delays_of_half_the_run_1_over_t_is_stable_up_to_pi_over_2_log_2():
    """In s = log t, x_{t+1} = x_t - (c / t) x_{t/2} is x' = -c x(s - log 2)."""
    edge, steps = np.pi / (2 * np.log(2)), 100_000

    def growth(scale):
        """How much the largest |x| changes over the last decade of steps."""
        schedule = dj.step_sizes.harmonic(scale)
        sizes = half_as_old_as_the_run(schedule, 1.0, steps)
        return sizes[steps // 10 :].max() / sizes[steps // 100 : steps // 10].max()

    assert growth(0.9 * edge) < 0.9
    assert growth(1.1 * edge) > 1.1
