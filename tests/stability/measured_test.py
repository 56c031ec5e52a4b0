"""What the library's transformations do at a fixed delay is what theory says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import stability
from tests.stability import growth

UPDATES = 20_000
# growth is the logarithm of a modulus; 20,000 updates leave what one turn of a mode
# adds, of the order of 1 / 20,000
SLACK = 1e-4

FIXED = {
    "plain, no delay": (0, {}),
    "plain": (4, {}),
    "plain, a long delay": (31, {}),
    "heavy ball, no delay": (0, {"momentum": 0.9}),
    "heavy ball": (1, {"momentum": 0.9}),
    "heavy ball, a long delay": (16, {"momentum": 0.5}),
    "nesterov, no delay": (0, {"momentum": 0.9, "nesterov": True}),
    "nesterov": (1, {"momentum": 0.9, "nesterov": True}),
    "nesterov, a long delay": (16, {"momentum": 0.5, "nesterov": True}),
    "inverse": (8, {"modulation": dj.modulation.inverse}),
    "polynomial": (8, {"modulation": dj.modulation.polynomial(0.5)}),
    "inverse, heavy ball": (
        4,
        {"modulation": dj.modulation.inverse, "momentum": 0.9},
    ),
    "compensated": (8, {"compensation": 0.3}),
    "compensated by half": (5, {"compensation": 0.5}),
    "compensated too much": (5, {"compensation": 1.5}),
    "compensated, nesterov": (
        3,
        {"compensation": 0.4, "momentum": 0.5, "nesterov": True},
    ),
}


def compensated(delay, strength, learning_rate, **options):
    """DC-ASGD on a loss with a slope s, lambda x^2/2 + s x, that something cancels.

    Its g * g is s^2 at the optimum, so that h = lam_0 s^2 there.
    """
    slope = 2.0
    sloped = optax.stateless(lambda g, _: jax.tree.map(lambda g: g + slope, g))
    level = optax.stateless(lambda g, _: jax.tree.map(lambda g: g - slope, g))
    h = strength * growth.CURVATURE
    inner = optax.chain(
        dj.compensate_delay(h / slope**2),
        level,
        growth.optimizer(learning_rate, **options),
    )
    tx = dj.delayed(inner, delay, keep_params=True)
    return optax.chain(sloped, tx)


def fixed_growth(delay, options, step):
    learning_rate = step / growth.CURVATURE
    if strength := options.get("compensation"):
        options = {k: v for k, v in options.items() if k != "compensation"}
        tx = compensated(delay, strength, learning_rate, **options)
    else:
        tx = dj.delayed(growth.optimizer(learning_rate, **options), delay)
    params = jnp.zeros(())
    carry = params, tx.init(params)
    return growth.of_trajectory(growth.quadratic_step(tx), carry, UPDATES)


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_delay_decays_and_grows_as_its_largest_root(name):
    delay, options = FIXED[name]
    limit = stability.Dynamics(delay, **options).step_limit()
    steps = limit * np.array([0.6, 0.99, 1.01])
    measured = jax.jit(jax.vmap(functools.partial(fixed_growth, delay, options)))(steps)
    assert measured[1] < 0 < measured[2], "the limit is not within 1 %"
    radii = [
        stability.Dynamics(delay, **options).spectral_radius(step) for step in steps
    ]
    np.testing.assert_allclose(measured, np.log(radii), rtol=0.01, atol=SLACK)


# workers that are late by 0, 2, 2 and 5: the law of their mean gradient
WORKERS = [0, 2, 2, 5]
LAW = np.bincount(WORKERS) / len(WORKERS)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.8}, {"momentum": 0.8, "nesterov": True}]
)
def test_the_mean_of_workers_with_different_delays_has_the_limit_of_their_law(options):
    delay = dj.delays.per_worker(WORKERS)

    def measure(step):
        average = dj.exchange.mean(optax.sgd(step / growth.CURVATURE, **options))
        tx = dj.delayed(average, delay, max_delay=max(WORKERS))
        begin = jax.vmap(lambda x, _: (x, tx.init(x)), axis_name="workers")
        many = len(WORKERS)
        carry = begin(jnp.zeros(many), jnp.arange(many))
        train_step = jax.vmap(growth.quadratic_step(tx), axis_name="workers")
        return growth.of_trajectory(train_step, carry, UPDATES)

    limit = stability.Dynamics(LAW, **options).step_limit("mean")
    steps = limit * np.array([0.6, 0.99, 1.01])
    measured = jax.jit(jax.vmap(measure))(steps)
    assert measured[1] < 0 < measured[2], "the limit is not within 1 %"
    radii = [stability.Dynamics(LAW, **options).spectral_radius(step) for step in steps]
    np.testing.assert_allclose(measured, np.log(radii), rtol=0.01, atol=SLACK)
