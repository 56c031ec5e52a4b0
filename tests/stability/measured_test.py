"""What the library's transformations do under delay is what theory says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import delayjax as dj
from delayjax.stability import Dynamics
from tests.stability import growth, updates
from tests.support.cases import shortened
from tests.support.compiled import AS_USUAL

# fixed delays

UPDATES = 20_000
# growth is the logarithm of a modulus; 20,000 updates leave what one turn of a mode
# adds, of the order of 1 / 20,000
SLACK = 1e-4

FIXED = {
    "plain": (4, {}),
    "plain, a long delay": (31, {}),
    "heavy ball": (1, {"momentum": 0.9}),
    "heavy ball, a long delay": (16, {"momentum": 0.5}),
    "nesterov": (1, {"momentum": 0.9, "nesterov": True}),
    "polynomial": (8, {"modulation": dj.modulation.polynomial(0.5)}),
    "inverse, heavy ball": (4, {"modulation": dj.modulation.inverse, "momentum": 0.9}),
    "compensated": (8, {"compensation": 0.3}),
    "compensated too much": (5, {"compensation": 1.5}),
    "compensated, nesterov": (
        3,
        {"compensation": 0.4, "momentum": 0.5, "nesterov": True},
    ),
}


def check_growth(dynamics, limit, measure):
    """Growth at three steps is that of the largest root."""
    steps = limit * np.array([0.6, 0.99, 1.01])
    measured = jax.jit(jax.vmap(measure))(steps)
    assert measured[1] < 0 < measured[2], "the limit is not within 1 %"
    radii = [dynamics.spectral_radius(step) for step in steps]
    np.testing.assert_allclose(measured, np.log(radii), rtol=0.01, atol=SLACK)


def compensated(delay, strength, learning_rate, **options):
    """DC-ASGD on a loss with a slope s, lambda x^2/2 + s x, that something cancels.

    Its g * g is s^2 at the optimum, so that h = lam_0 s^2 there.
    """
    slope = 2.0
    sloped = optax.stateless(lambda g, _: jax.tree.map(lambda g: g + slope, g))
    level = optax.stateless(lambda g, _: jax.tree.map(lambda g: g - slope, g))
    inner = optax.chain(
        dj.compensate_delay(strength * growth.CURVATURE / slope**2),
        level,
        growth.optimizer(learning_rate, **options),
    )
    return optax.chain(sloped, dj.delayed(inner, delay, keep_params=True))


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_delay_decays_and_grows_as_its_largest_root(name):
    delay, options = FIXED[name]
    others = {key: v for key, v in options.items() if key != "compensation"}

    def measure(step):
        learning_rate = step / growth.CURVATURE
        if strength := options.get("compensation"):
            tx = compensated(delay, strength, learning_rate, **others)
        else:
            tx = dj.delayed(growth.optimizer(learning_rate, **options), delay)
        carry = jnp.zeros(()), tx.init(jnp.zeros(()))
        return growth.of_trajectory(growth.quadratic_step(tx), carry, UPDATES)

    dynamics = Dynamics(delay, **options)
    check_growth(dynamics, dynamics.step_limit(), measure)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.8, "nesterov": True}])
def test_the_mean_of_workers_with_different_delays_has_the_limit_of_their_law(options):
    workers = [0, 2, 2, 5]
    delay = dj.delays.per_worker(workers)

    def measure(step):
        average = dj.exchange.mean(optax.sgd(step / growth.CURVATURE, **options))
        tx = dj.delayed(average, delay, max_delay=max(workers))
        begin = jax.vmap(lambda x, _: (x, tx.init(x)), axis_name="workers")
        carry = begin(jnp.zeros(4), jnp.arange(4))
        train_step = jax.vmap(growth.quadratic_step(tx), axis_name="workers")
        return growth.of_trajectory(train_step, carry, UPDATES)

    dynamics = Dynamics(np.bincount(workers) / len(workers), **options)
    check_growth(dynamics, dynamics.step_limit("mean"), measure)


# random delays

KEPT = 12  # the longest delay of a law without end: what is later counts as that


def cut(chances):
    return np.append(chances[:KEPT], 1 - chances[:KEPT].sum())


def drawn_from(law):
    """Any function of the step is a delay."""

    edges = np.cumsum(law, dtype=np.float32)[:-1]

    def delay(key):
        def drawn(step):
            share = jax.random.uniform(jax.random.fold_in(key, step))
            return jnp.sum(share >= edges)

        return drawn

    return delay


POISSON = cut(stats.poisson(2).pmf(np.arange(60)))
TWO = [0.5, 0, 0, 0, 0, 0, 0.5]
# name: (key -> delay, its probabilities, options)
INDEPENDENT = {
    "geometric": (
        functools.partial(dj.delays.geometric, mean=1.0),
        cut(0.5 ** np.arange(1, 60)),
        {},
    ),
    "poisson, heavy ball": (drawn_from(POISSON), POISSON, {"momentum": 0.5}),
    "uniform, inverse, nesterov": (
        functools.partial(dj.delays.uniform, low=0, high=5),
        np.full(6, 1 / 6),
        {"momentum": 0.5, "nesterov": True, "modulation": dj.modulation.inverse},
    ),
    "two delays": (drawn_from(TWO), TWO, {}),
}


def late(name, step, **noise):
    """key -> the optimizer, its delays drawn anew at each update."""
    delay, law, options = INDEPENDENT[name]

    def transformation(key):
        inner = growth.optimizer(step / growth.CURVATURE, **options)
        if noise:  # each update has its own
            inner = optax.chain(optax.add_noise(key=key, **noise), inner)
        return dj.delayed(inner, delay(key), max_delay=len(law) - 1)

    return transformation


@pytest.mark.parametrize("name", shortened(INDEPENDENT, "two delays"))
def test_independent_delays_have_the_limit_of_the_mean_square(name):
    _, law, options = INDEPENDENT[name]

    def measure(step):
        return growth.of_second_moment(late(name, step), 4096, 3200, seed=1)

    steps = Dynamics(law, **options).step_limit() * np.array([0.99, 1.01])
    measured = jax.jit(jax.vmap(measure), compiler_options=AS_USUAL)(steps)
    assert measured[0] < 0 < measured[1], "the limit is not within 1 %"
    # 4 standard errors, over four seeds
    radii = [updates.moment_radius(step, law, **options) for step in steps]
    np.testing.assert_allclose(measured, np.log(radii), atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", INDEPENDENT)
def test_paths_of_independent_delays_have_the_stationary_variance(name):
    _, law, options = INDEPENDENT[name]
    dynamics = Dynamics(law, **options)
    step = 0.7 * dynamics.step_limit()
    noisy = late(name, step, eta=1.0, gamma=0.0)

    def squares(key):
        train_step = growth.quadratic_step(noisy(key))

        def update(carry, _):
            carry = train_step(carry)
            return carry, carry[0] ** 2

        carry = jnp.zeros(()), noisy(key).init(jnp.zeros(()))
        return jax.lax.scan(update, carry, length=6000)[1][500:].mean()

    keys = jax.random.split(jax.random.key(1), 2048)
    measured = jax.jit(jax.vmap(squares), compiler_options=AS_USUAL)(keys).mean()
    expected = dynamics.stationary_variance(step, noise=step)
    np.testing.assert_allclose(measured, expected, rtol=0.01)
