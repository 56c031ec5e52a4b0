"""What may be asked: laws, numbers and functions, and how the others are refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from delayjax import cluster, stability
from delayjax._src.stability.trace_dynamics import TraceDynamics

AT_A_STEP = {
    "roots": lambda training, step: training.roots(step),
    "spectral_radius": lambda training, step: training.spectral_radius(step),
    "stationary_variance": lambda training, step: training.stationary_variance(step),
}
# (delay, options): what is said of it
REFUSED = {
    "a negative delay": (-1, {}, ValueError, "`delay` must be non-negative, got -1"),
    "a delay and a half": (
        1.5,
        {},
        TypeError,
        "`delay` must be a static integer.*got 1.5",
    ),
    "a bool": (True, {}, TypeError, "`delay` must be a static integer.*got True"),
    "no law": ("late", {}, TypeError, "`delay` must be a static integer.*got 'late'"),
    "a table": ([[0.5, 0.5]], {}, ValueError, r"a row of .*got shape \(1, 2\)"),
    "too little": ([0.5, 0.4], {}, ValueError, "sum to 1, .* sum 0.9: lengthen a law"),
    "too much": ([0.5, 0.6], {}, ValueError, "sum to 1, .* sum 1.1: .* by its sum"),
    "nothing": ([], {}, ValueError, "`delay` must be .* that sum to 1, .* sum 0"),
    "zeros": ([0.0, 0.0], {}, ValueError, "sum to 1, .* sum 0"),
    "words": (["a"], {}, TypeError, r"`delay` must hold real .*got \['a'\]"),
    "complex": ([1 + 0j], {}, TypeError, "`delay` must hold real .*1"),
    "bools": ([False, True], {}, TypeError, r"`delay` must hold .*\[False, True"),
    "ragged": ([[1], [1, 2]], {}, TypeError, "`delay` must have rows of one length"),
    "without float": ([10**400], {}, TypeError, "`delay` must hold real"),
    "a negative chance": ([1.5, -0.5], {}, ValueError, "non-negative .*minimum -0.5"),
    "no number": ([1.0, math.nan], {}, ValueError, "`delay` must be .*sum nan"),
    "without end": ([0.5, math.inf], {}, ValueError, "`delay` must be .*sum inf"),
    "all is kept": (
        1,
        {"momentum": 1.0},
        ValueError,
        r"`momentum` .*\[0, 1\), got 1.0",
    ),
    "less than nothing": (1, {"momentum": -0.1}, ValueError, "`momentum` .*got -0.1"),
    "momentum None": (1, {"momentum": None}, TypeError, "`momentum` must be a number"),
    "against it": (1, {"compensation": -1.0}, ValueError, "`compensation` .*got -1.0"),
    "ahead of nothing": (
        1,
        {"extrapolation": -1.0},
        ValueError,
        "`extrapolation` .*got -1.0",
    ),
    "beyond all": (
        1,
        {"compensation": math.inf},
        ValueError,
        "`compensation` .*got inf",
    ),
    "uphill": (1, {"modulation": lambda k: -k}, ValueError, "got -1.0 for staleness 1"),
    "1/0": (
        [0.5, 0.5],
        {"modulation": lambda k: 1 / k},
        ValueError,
        "got inf for .* 0",
    ),
    "complex weights": (
        3,
        {"modulation": lambda k: 1j},
        TypeError,
        r"`modulation` must hold real numbers, got \[1j\]",
    ),
    "all dropped": (
        3,
        {"modulation": lambda k: k < 3},
        ValueError,
        "not only 0, got 0.0 for staleness 3",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_is_no_law_no_momentum_and_no_weight_is_refused(case):
    delay, options, error, message = case
    with pytest.raises(error, match=message):
        stability.Dynamics(delay, **options)


@pytest.mark.parametrize("ask", AT_A_STEP.values(), ids=AT_A_STEP)
def test_steps_are_finite_and_not_negative(ask):
    for step in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="`step` must be finite and non-negative"):
            ask(stability.Dynamics(1), step)
    with pytest.raises(TypeError, match="`step` must be a number"):
        ask(stability.Dynamics(1), "small")


def test_a_criterion_is_one_of_two_and_noise_is_not_negative():
    with pytest.raises(ValueError, match='"mean" or "mean_square", got \'median\''):
        stability.Dynamics(1).step_limit("median")
    with pytest.raises(ValueError, match=r"`noise` must be .*non-negative, got -1"):
        stability.Dynamics(1).stationary_variance(0.1, noise=-1)


TRACED = {
    "delay": lambda x: stability.Dynamics([x, 1 - x]),
    "momentum": lambda x: stability.Dynamics(3, momentum=x),
    "compensation": lambda x: stability.Dynamics(3, compensation=x),
    "extrapolation": lambda x: stability.Dynamics(3, extrapolation=x),
    "roots": lambda x: stability.Dynamics(3).roots(x),
    "spectral radius": lambda x: stability.Dynamics(3).spectral_radius(x),
    "variance": lambda x: stability.Dynamics(3).stationary_variance(x),
    "noise": lambda x: stability.Dynamics(3).stationary_variance(0.1, noise=x),
    "growth": lambda x: TraceDynamics([0] * 200).growth(x),
    "staleness": lambda x: TraceDynamics(jnp.full(200, x)),
    "gain": lambda x: stability.DelayEquation(cluster.gamma(1.0, 2)).decay_rate(x),
    "sharpness": lambda x: stability.learning_rate_limit(x, stability.Dynamics(1)),
}


@pytest.mark.parametrize("ask", TRACED.values(), ids=TRACED)
def test_what_is_traced_is_refused_by_jax(ask):
    with pytest.raises(TypeError, match="trace"):
        jax.jit(ask)(0.5)


def test_within_a_program_what_is_known_is_computed():
    def limit(x):
        return x * stability.Dynamics(3, modulation=dj.modulation.inverse).step_limit()

    expected = stability.Dynamics(3, modulation=dj.modulation.inverse).step_limit()
    np.testing.assert_allclose(jax.jit(limit)(1.0), expected, rtol=1e-6)


def test_a_delay_and_its_certain_law_are_one():
    three = stability.Dynamics(3)
    for delay in (3, np.int32(3), jnp.int32(3), [0, 0, 0, 1], [0, 0, 0, 1.0, 0, 0]):
        training = stability.Dynamics(delay)
        assert training.step_limit() == three.step_limit()
        assert training.critical_step() == three.critical_step()
        for ask in AT_A_STEP.values():
            np.testing.assert_array_equal(ask(training, 0.1), ask(three, 0.1))


def test_laws_may_be_of_float32_and_come_from_a_cluster():
    single = np.full(7, 1 / 7, np.float32)
    assert single.sum(dtype=np.float64) != 1
    for law in (single, jnp.asarray(single)):
        expected = stability.Dynamics(np.full(7, 1 / 7)).step_limit()
        np.testing.assert_allclose(
            stability.Dynamics(law).step_limit(), expected, rtol=1e-12
        )
    # constant times would give a fixed delay of P - 1; times that spread bear more
    pmf = cluster.staleness_law(cluster.Cluster(8, cluster.exponential(1.0))).pmf
    limit = stability.Dynamics(pmf).step_limit()
    assert limit > 1.5 * stability.Dynamics(7).step_limit()


def test_modulation_may_be_any_law_of_the_library_or_a_function():
    laws = {
        "inverse": (dj.modulation.inverse, lambda k: 1 / max(1, k)),
        "hinge": (dj.modulation.hinge(2.0, 1), lambda k: 1 / (2 * max(0, k - 1) + 1)),
        "capped": (dj.modulation.capped(2), lambda k: min(1, 2 / max(k, 1))),
        "strongly typed": (
            lambda k: 1 / (1 + k.astype(jnp.float32)),
            lambda k: 1 / (1 + k),
        ),
    }
    for law, formula in laws.values():
        for delay in (4, [0.25, 0.25, 0.25, 0.25]):
            limits = [
                stability.Dynamics(
                    delay, modulation=modulation, momentum=0.5
                ).step_limit()
                for modulation in (law, formula)
            ]
            np.testing.assert_allclose(*limits, rtol=1e-6)


def test_weights_of_any_size_only_rescale_the_step():
    plain = stability.Dynamics(3).step_limit(), stability.Dynamics(3).critical_step()
    for weight in (1e-300, 1e-160, 1e-3, 7.0, 1e200):
        options = {"modulation": lambda k, weight=weight: weight}
        scaled = (
            stability.Dynamics(3, **options).step_limit() * weight,
            stability.Dynamics(3, **options).critical_step() * weight,
        )
        np.testing.assert_allclose(scaled, plain, rtol=1e-9)


def test_answers_are_float64_whatever_jax_holds():
    for x64 in (False, True):
        with jax.enable_x64(x64):
            limit = stability.Dynamics(
                jnp.asarray(2), momentum=jnp.float32(0.5)
            ).step_limit()
            assert type(limit) is float
            np.testing.assert_allclose(
                limit, stability.Dynamics(2, momentum=0.5).step_limit(), rtol=1e-15
            )
            assert stability.Dynamics(3).roots(0.1).dtype == np.complex128
