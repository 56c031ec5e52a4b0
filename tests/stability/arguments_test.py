"""Odd arguments are named, with their value or the remedy, before any work."""

import math
import time

import jax.numpy as jnp
import numpy as np
import pytest

from delayjax import cluster, stability
from delayjax.stability import DelayEquation, Dynamics, TraceDynamics

NAN, INF = math.nan, math.inf
CONSTANT, MEMORYLESS = cluster.constant(1.0), cluster.exponential(1.0)
HEAVY = DelayEquation(cluster.pareto(1.0, 3.0))
PATH = {"paths": 1, "steps": 1, "step_seconds": 0.1, "seed": 0}
AT = jnp.ones(30)


def bound(**changes):
    problem = {"learning_rate": 0.1, "smallest": 0.5, "largest": 2.0, "noise": 3.0}
    given = {"seconds": 1.0, "update_seconds": 1.0, "k": 2, "start": 1.0} | problem
    return stability.error_bound(**given | changes)


def modulated(law, delay=3):
    return Dynamics(delay, modulation=law)


def sharpness(loss, at, **options):
    return stability.sharpness(lambda x, _: loss(x), at, None, **options)


def divided(divisor):
    return sharpness(squares, AT[:3], preconditioner=divisor)


def squares(x):
    return jnp.sum(x**2)


def roots(x):
    return jnp.sum(jnp.sqrt(x))


def of_times(*seconds):
    return DelayEquation(cluster.empirical(seconds))


# (call, message)
WRONG_KINDS = [
    (lambda: Dynamics(1.5), "`delay` must be a static integer.*got 1.5"),
    (lambda: Dynamics(["a"]), r"`delay` must hold real numbers, got \['a'\]"),
    (lambda: modulated(lambda k: 1j), r"`modulation` must hold real numbers, .*1j"),
    (lambda: sharpness(jnp.sqrt, AT), "scalar-output functions"),
    (
        lambda: sharpness(squares, AT.astype(int)),
        "`params` must be real numbers, got i",
    ),
    (lambda: divided(jnp.ones(2)), r"incompatible shapes.*\(2,\), \(3,\)"),
    (
        lambda: stability.adam_preconditioner(jnp.ones(2, int)),
        "`second_moment` must be",
    ),
    (
        lambda: DelayEquation(cluster.independent(np.ones)),
        "`service_time` must be a ServiceTime, got independent",
    ),
]
WRONG_VALUES = [
    # laws and options
    (
        lambda: Dynamics([[0.5, 0.5]]),
        r"`delay` must .*probabilities .*got shape \(1, 2\)",
    ),
    (lambda: Dynamics([0.5, 0.4]), "sum 1, .* sum 0.9"),
    (lambda: Dynamics([0.5, 0.6]), "sum 1, .* sum 1.1"),
    (lambda: Dynamics([]), "`delay` must be .* of sum 1, .* sum 0"),
    (lambda: Dynamics([1.5, -0.5]), "`delay` must .*probabilities .*minimum -0.5"),
    (lambda: Dynamics([1.0, NAN]), "`delay` must be .*sum nan"),
    (lambda: Dynamics(1, momentum=1.0), r"`momentum` must be in \[0, 1\), got 1.0"),
    (lambda: modulated(lambda k: -k), "`modulation` must .*got -3.0 for staleness 3"),
    (lambda: modulated(lambda k: 1 / k, 0), "got inf for staleness 0"),
    (lambda: modulated(lambda k: k < 3), "not only 0, got 0.0 for staleness 3"),
    (lambda: Dynamics(1).step_limit("max"), '`criterion` .* "mean" or "mean_square"'),
    # traces
    (
        lambda: TraceDynamics([0.5] * 20),
        r"`staleness` must be integers in -1 \.\. .*0.5",
    ),
    (
        lambda: TraceDynamics([0, -2] * 200),
        r"`staleness` must be integers in -1 \.\. .*, -2\]",
    ),
    (lambda: TraceDynamics([0, -1] * 200), "got one with -1 alone: leave out updates"),
    (lambda: TraceDynamics([19] * 199), "must have at least 200 updates, got 199"),
    (
        lambda: TraceDynamics([0] * 159),
        "`staleness` must have at least 160 updates, got 159",
    ),
    (lambda: TraceDynamics([0] * 999, momentum=0.99), "at least 1000 updates, got 999"),
    (lambda: TraceDynamics([0] * 200).growth([0.1, -0.1]), "`step` must be finite and"),
    # curvatures
    (
        lambda: sharpness(roots, 0 * AT),
        "`loss` must have a finite Hessian, got nan or inf",
    ),
    (lambda: sharpness(roots, jnp.zeros(2)), "finite Hessian, got nan or inf"),
    (lambda: sharpness(squares, {}), "`count` must be at most 0, got 1"),
    *(
        (
            lambda bad=bad: divided(jnp.array([1.0, bad, 2.0])),
            "`preconditioner` must be",
        )
        for bad in (0.0, -1.0, NAN, INF)
    ),
    (
        lambda: stability.predict_step_limit(
            lambda x, _: -x @ x, AT, None, Dynamics(3)
        ),
        "`sharpness` must be finite and positive, got -2.0",
    ),
    # times, gains and paths
    (
        lambda: of_times(0.0),
        "`service_time` must have a positive, finite mean, got 0.0",
    ),
    (lambda: DelayEquation(cluster.pareto(1.0, 0.5)), "finite mean, got inf"),
    (
        HEAVY.critical_gain,
        "`service_time` must have a tail no heavier than exponential",
    ),
    (
        HEAVY.speedup_limit,
        "`service_time` must have a tail no heavier than exponential",
    ),
    (lambda: HEAVY.decay_rate(0.5), "must have a tail no heavier than exponential"),
    (lambda: HEAVY.roots(0.5), "must have a tail no heavier than exponential"),
    (
        lambda: of_times(*[1.0] * 9, 1e4).variance(1.0),
        "must have times less widely spr",
    ),
    (
        lambda: of_times(*[1e-9] * 9, 1e6).roots(0.5),
        "`gain` 0.5 is too large .*: leave",
    ),
    (
        lambda: DelayEquation(CONSTANT).paths(1.0, **PATH | {"step_seconds": 3.0}),
        "`step_seconds` must be at most 0.1, got 3.0",
    ),
    # workers
    (
        lambda: stability.workers_decay_rate([0.1, NAN], 2, CONSTANT),
        "`step` must be finite and non-negative, got",
    ),
    (lambda: stability.optimal_workers(0.0, CONSTANT), "`step` must be at least 1e-15"),
    (
        lambda: stability.optimal_workers(0.1, CONSTANT, condition=0.5),
        "`condition` must be at least 1.0, got 0.5",
    ),
    (
        lambda: stability.optimal_workers(0.1, MEMORYLESS, condition=2.0),
        "`service_time` must have a `gain_limit` .* got 2.0",
    ),
    (
        lambda: stability.explicit_momentum(-0.25, workers=4),
        "`total` must be above -0.25, got -0.25",
    ),
    # bounds of the error that are not proven
    (lambda: TraceDynamics([[1], [1, 2]]), "has an inhomogeneous shape"),
    (lambda: bound(seconds=NAN), "`seconds` must be finite and non-negative, got nan"),
    (lambda: bound(largest=0.4), "`smallest` must be at most `largest`, 0.4, got 0.5"),
    (lambda: bound(agreement=1.5), r"`agreement` must be in \(0, 1\], got 1.5"),
    (
        lambda: bound(learning_rate=0.3),
        r"`learning_rate` must be at most 1 / \(2 `largest`\), 0.25, got 0.3",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG_KINDS)
def test_an_argument_of_another_kind_is_named(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(("call", "message"), WRONG_VALUES)
def test_a_value_that_an_argument_cannot_have_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


LONG, VERY_LONG = np.full(10**5, 1e-5), 10**9


@pytest.mark.parametrize(
    "ask",
    [
        Dynamics(LONG).step_limit,
        lambda: Dynamics(LONG).stationary_variance(0.1),
        Dynamics(VERY_LONG, momentum=0.5).step_limit,
        Dynamics(VERY_LONG, compensation=0.1).step_limit,
        Dynamics(VERY_LONG).critical_step,
        lambda: Dynamics(VERY_LONG, momentum=0.5).stationary_variance(0.1),
        lambda: Dynamics(VERY_LONG).roots(0.1),
    ],
)
def test_what_needs_arrays_as_long_as_the_delay_refuses_a_long_one_at_once(ask):
    begin = time.process_time()
    message = f"at most 10+ updates here, got (99999|{VERY_LONG}): .*TraceDynamics"
    with pytest.raises(ValueError, match=message):
        ask()
    assert time.process_time() - begin < 1


def test_steps_of_a_tenth_of_the_mean_delay_are_not_refused():
    for times in (CONSTANT, MEMORYLESS):
        DelayEquation(times).paths(1.0, **PATH)
        DelayEquation(times.scaled(0.3)).paths(1.0, **PATH | {"step_seconds": 0.03})
