"""What the library's transformations do at random delays is what theory says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import delayjax as dj
from delayjax import stability
from tests.stability import growth, updates
from tests.support.cases import shortened
from tests.support.compiled import AS_USUAL

MEMBERS = 4096
UPDATES = 3200
KEPT = 12  # the longest delay of a law without end: what is later counts as that


def cut(chances):
    return np.append(chances[:KEPT], 1 - chances[:KEPT].sum())


def drawn_from(law):
    """Any function of the step is a delay."""

    def delay(key):
        chances = jnp.asarray(law)
        return lambda step: jax.random.choice(
            jax.random.fold_in(key, step), len(law), p=chances
        )

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


@pytest.mark.parametrize("name", shortened(INDEPENDENT, "two delays"))
def test_independent_delays_have_the_limit_of_the_mean_square(name):
    delay, law, options = INDEPENDENT[name]

    def measure(step):
        def transformation(key):
            inner = growth.optimizer(step / growth.CURVATURE, **options)
            return dj.delayed(inner, delay(key), max_delay=len(law) - 1)

        return growth.of_second_moment(transformation, MEMBERS, UPDATES, seed=1)

    limit = stability.Dynamics(law, **options).step_limit()
    steps = limit * np.array([0.99, 1.01])
    measured = jax.jit(jax.vmap(measure), compiler_options=AS_USUAL)(steps)
    assert measured[0] < 0 < measured[1], "the limit is not within 1 %"
    # 4 standard errors, over four seeds
    radii = [updates.moment_radius(step, law, **options) for step in steps]
    np.testing.assert_allclose(measured, np.log(radii), atol=1e-3)
