"""What a delay, a law and a modulation may be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from delayjax.stability import Dynamics


def test_within_a_program_what_is_known_is_computed():
    def limit(x):
        return x * Dynamics(3, modulation=dj.modulation.inverse).step_limit()

    np.testing.assert_allclose(jax.jit(limit)(1.0), limit(1.0), rtol=1e-6)


@pytest.mark.parametrize(
    "delay", [np.int32(3), jnp.int32(3), [0, 0, 0, 1], [0, 0, 0, 1.0, 0, 0]]
)
def test_a_delay_and_its_certain_law_are_one(delay):
    three, training = Dynamics(3), Dynamics(delay)
    assert training.step_limit() == three.step_limit()
    assert training.critical_step() == three.critical_step()
    assert training.stationary_variance(0.1) == three.stationary_variance(0.1)
    np.testing.assert_array_equal(training.roots(0.1), three.roots(0.1))


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_laws_may_be_of_float32(array):
    single = np.full(7, 1 / 7, np.float32)
    assert single.sum(dtype=np.float64) != 1
    expected = Dynamics(np.full(7, 1 / 7)).step_limit()
    limit = Dynamics(array(single)).step_limit()
    np.testing.assert_allclose(limit, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("law", "formula"),
    [
        (dj.modulation.inverse, lambda k: 1 / max(1, k)),
        (dj.modulation.hinge(2.0, 1), lambda k: 1 / (2 * max(0, k - 1) + 1)),
        # strongly typed
        (lambda k: 1 / (1 + k.astype(jnp.float32)), lambda k: 1 / (1 + k)),
    ],
)
def test_modulation_may_be_any_law_of_the_library_or_a_function(law, formula):
    for delay in (4, [0.25, 0.25, 0.25, 0.25]):
        limits = [
            Dynamics(delay, modulation=modulation, momentum=0.5).step_limit()
            for modulation in (law, formula)
        ]
        np.testing.assert_allclose(*limits, rtol=1e-6)


@pytest.mark.parametrize("weight", [1e-300, 1e-160, 1e-3, 7.0, 1e200])
def test_weights_of_any_size_only_rescale_the_step(weight):
    plain, weighed = Dynamics(3), Dynamics(3, modulation=lambda k: weight)
    for ask in (Dynamics.step_limit, Dynamics.critical_step):
        np.testing.assert_allclose(ask(weighed) * weight, ask(plain), rtol=1e-9)


@pytest.mark.parametrize("x64", [False, True])
def test_answers_are_float64_whatever_jax_holds(x64):
    with jax.enable_x64(x64):
        limit = Dynamics(jnp.asarray(2), momentum=jnp.float32(0.5)).step_limit()
        assert type(limit) is float
        assert limit == Dynamics(2, momentum=0.5).step_limit()
        assert Dynamics(3).roots(0.1).dtype == np.complex128
