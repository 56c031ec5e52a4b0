"""Odd arguments are named, with their value or the remedy, before any work."""

import functools
import math
import time

import jax.numpy as jnp
import numpy as np
import pytest

from delayjax import cluster, stability
from delayjax.stability import DelayEquation, Dynamics, TraceDynamics

NAN, INF = math.nan, math.inf
CONSTANT, MEMORYLESS = cluster.constant(1.0), cluster.exponential(1.0)
GAMMA = DelayEquation(cluster.gamma(1.0, 2))
HEAVY = DelayEquation(cluster.pareto(1.0, 3.0))
PATH = {"paths": 1, "steps": 1, "step_seconds": 0.1, "seed": 0}


def bound(**changes):
    problem = {"learning_rate": 0.1, "smallest": 0.5, "largest": 2.0, "noise": 3.0}
    given = {"seconds": 1.0, "update_seconds": 1.0, "k": 2, "start": 1.0} | problem
    return stability.error_bound(**given | changes)


def modulated(law, delay=3):
    return Dynamics(delay, modulation=law)


def trace(staleness, **options):
    return TraceDynamics(staleness, **options)


def sharpness(loss, at, **options):
    return stability.sharpness(lambda x, _: loss(x), at, None, **options)


def squares(x):
    return jnp.sum(x**2)


ONES, LIMIT = jnp.ones(30), stability.learning_rate_limit
NO_HESSIAN = r"`loss` must have a finite Hessian at `params`, got nan or inf"


def root(x):
    return jnp.sum(jnp.sqrt(x))


NO_TRACE = r"`staleness` must hold integers, \[T\] or \[T, K\], got "
# (call, error, message)
REFUSED = [
    # laws and options
    (lambda: Dynamics(-1), ValueError, "`delay` must be non-negative, got -1"),
    (lambda: Dynamics(1.5), TypeError, "`delay` must be a static integer.*got 1.5"),
    (lambda: Dynamics([[0.5, 0.5]]), ValueError, r"a row of .*got shape \(1, 2\)"),
    (lambda: Dynamics([0.5, 0.4]), ValueError, "to 1, .* sum 0.9: lengthen a law"),
    (lambda: Dynamics([0.5, 0.6]), ValueError, "to 1, .* sum 1.1: .* by its sum"),
    (lambda: Dynamics([]), ValueError, "`delay` must be .* that sum to 1, .* sum 0"),
    (lambda: Dynamics([1.5, -0.5]), ValueError, "non-negative .*minimum -0.5"),
    (lambda: Dynamics([1.0, NAN]), ValueError, "`delay` must be .*sum nan"),
    (lambda: Dynamics(["a"]), TypeError, r"`delay` must hold real .*got \['a'\]"),
    (lambda: Dynamics([[1], [1, 2]]), TypeError, "`delay` must have rows of one leng"),
    (lambda: Dynamics(1, momentum=1.0), ValueError, r"`momentum` .*\[0, 1\), got 1.0"),
    (lambda: Dynamics(1, momentum=""), TypeError, "`momentum` must be a number"),
    (lambda: modulated(lambda k: -k), ValueError, "got -3.0 for staleness 3"),
    (lambda: modulated(lambda k: 1 / k, 0), ValueError, "got inf for staleness 0"),
    (lambda: modulated(lambda k: 1j), TypeError, r"`modulation` must hold .* \[1j\]"),
    (lambda: modulated(lambda k: k < 3), ValueError, "not only 0, got 0.0 for stal"),
    (lambda: Dynamics(1).step_limit("median"), ValueError, '"mean_square", got \'med'),
    # traces
    (lambda: trace([0.5] * 20), TypeError, f"{NO_TRACE}float64"),
    (lambda: trace([[[0]]] * 200), TypeError, NO_TRACE + r".* shape \(200, 1, 1\)"),
    (lambda: trace(3), TypeError, NO_TRACE + r".* shape \(\)"),
    (lambda: trace([[1], [1, 2]]), TypeError, "^`staleness` must have rows of one"),
    (lambda: trace([0, -2] * 200), ValueError, "`staleness` must be non-nega.*got -2"),
    (lambda: trace([0, -1] * 200), ValueError, "-1 beside another .*: leave out upda"),
    (lambda: trace([19] * 199), ValueError, "at least 200 updates, got 199"),
    (lambda: trace([0] * 159), ValueError, "at least 160 updates, got 159"),
    (lambda: trace([0] * 999, momentum=0.99), ValueError, "least 1000 .*: simulate lo"),
    *(
        (
            lambda step=step: trace([0] * 200).growth(step),
            error,
            "`step` must be finite and non-negative|`step` must hold real numbers",
        )
        for step, error in {INF: ValueError, "a": TypeError}.items()
    ),
    (lambda: trace([0] * 200).growth([0.1, -0.1]), ValueError, "`step` must be fin"),
    # curvatures
    (lambda: sharpness(jnp.sqrt, ONES), TypeError, "scalar-output functions"),
    (
        lambda: sharpness(root, 0 * ONES),
        ValueError,
        NO_HESSIAN,
    ),
    (
        lambda: sharpness(root, jnp.zeros(2)),
        ValueError,
        NO_HESSIAN,
    ),
    (lambda: sharpness(squares, {}), ValueError, "`count` must be at most 0, got 1"),
    (lambda: sharpness(squares, ONES.astype(int)), TypeError, "`params` must be real"),
    *(
        (
            lambda bad=bad: sharpness(squares, ONES[:3], preconditioner=bad * ONES[:3]),
            ValueError,
            "`preconditioner` must be positive and finite",
        )
        for bad in (0.0, -1.0, NAN, INF)
    ),
    (
        lambda: sharpness(squares, ONES[:3], preconditioner=jnp.ones(3, int)),
        TypeError,
        "`preconditioner` must be real numbers, got int",
    ),
    (
        lambda: stability.adam_preconditioner(jnp.ones(2, int)),
        TypeError,
        "`second_moment` must be real numbers, got int",
    ),
    (
        lambda: stability.predict_step_limit(
            lambda x, _: -squares(x), ONES, None, Dynamics(3)
        ),
        ValueError,
        "`sharpness` must be finite and positive, got -2.0",
    ),
    *(
        (
            lambda bad=bad: LIMIT(bad, Dynamics(3)),
            ValueError,
            f"positive, got {bad}",
        )
        for bad in (0.0, INF)
    ),
    # times, gains and paths
    (lambda: DelayEquation("constant"), TypeError, "`service_time` must be a cluster"),
    (
        lambda: DelayEquation(cluster.independent(np.ones)),
        TypeError,
        r"`service_time` must be a cluster.ServiceTime, .* without formulas",
    ),
    *(
        (
            lambda times=times: DelayEquation(times),
            ValueError,
            f"`service_time` must have a positive, finite mean, got {times.mean}",
        )
        for times in (cluster.pareto(1.0, 0.5), cluster.empirical([0.0]))
    ),
    *(
        (ask, ValueError, "`service_time` must have a tail no heavier than exponential")
        for ask in (
            HEAVY.critical_gain,
            HEAVY.speedup_limit,
            functools.partial(HEAVY.decay_rate, 0.5),
            functools.partial(HEAVY.roots, 0.5),
        )
    ),
    (
        lambda: DelayEquation(cluster.empirical([1.0] * 9 + [1e4])).variance(1.0),
        ValueError,
        "`service_time` must have times less widely spread",
    ),
    (
        lambda: DelayEquation(cluster.empirical([1e-9] * 9 + [1e6])).decay_rate(0.5),
        ValueError,
        "`gain` 0.5 is too large .* of `service_time`: leave out",
    ),
    (lambda: GAMMA.gain_limit(workers=0), ValueError, "`workers` must be at least 1"),
    (
        lambda: GAMMA.paths(1.0, **PATH | {"step_seconds": 3.0}),
        ValueError,
        "`step_seconds` must be .* got 3.0: .* at most 0.1",
    ),
    # workers
    (
        lambda: stability.workers_decay_rate([0.1, NAN], 2, CONSTANT),
        ValueError,
        "`step` must be finite and non-negative, got",
    ),
    *(
        (
            lambda step=step: stability.optimal_workers(step, CONSTANT),
            ValueError,
            f"`step` must be at least 1e-15, got {step}",
        )
        for step in (0.0, 1e-300)
    ),
    (
        lambda: stability.optimal_workers(0.1, CONSTANT, condition=0.5),
        ValueError,
        "`condition` must be at least 1.0, got 0.5",
    ),
    (
        lambda: stability.optimal_workers(0.1, MEMORYLESS, condition=2.0),
        ValueError,
        "`service_time` must have a `gain_limit` .* got 2.0",
    ),
    *(
        (
            lambda total=total: stability.explicit_momentum(total, workers=4),
            ValueError,
            f"`total` must be above -0.25 with 4 workers, got {total}",
        )
        for total in (-0.75, -0.25)
    ),
    # bounds of the error that are not proven
    (lambda: bound(seconds=NAN), ValueError, "`seconds` must be non-negative, got nan"),
    (lambda: bound(seconds="a"), TypeError, "`seconds` must hold real numbers"),
    (
        lambda: bound(largest=0.4),
        ValueError,
        "`smallest` .* most `largest` = 0.4",
    ),
    (
        lambda: bound(agreement=1.5),
        ValueError,
        "`agreement` .* most 1.0, got 1.5",
    ),
    (
        lambda: bound(learning_rate=0.3),
        ValueError,
        r"most 1 / \(2 .* = 0.25, got 0.3",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_no_sound_argument_is_named_with_its_value(call, error, message):
    with pytest.raises(error, match=message):
        call()


LONG, VERY_LONG = np.full(10**5, 1e-5), 10**9
MOST = "`delay` must be at most 10+ updates here, got "


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
        lambda: Dynamics(VERY_LONG).spectral_radius(0.1),
    ],
)
def test_what_needs_arrays_as_long_as_the_delay_refuses_a_long_one_at_once(ask):
    begin = time.process_time()
    with pytest.raises(ValueError, match=f"{MOST}(99999|{VERY_LONG}): .*TraceDynamics"):
        ask()
    assert time.process_time() - begin < 1


def test_steps_of_a_tenth_of_the_mean_delay_are_not_refused():
    for times in (CONSTANT, MEMORYLESS):
        DelayEquation(times).paths(1.0, **PATH)
        DelayEquation(times.scaled(0.3)).paths(1.0, **PATH | {"step_seconds": 0.03})
