"""Limits and rates of theory against simulated workers: Lyapunov exponents, no bounds.

Of 16 workers, where nothing else is said. Limits are those of single runs.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import pytest

from delayjax import cluster, stability
from delayjax.stability import DelayEquation, Dynamics, TraceDynamics
from tests.support.cases import shortened

P = 16
SEEDS = [1, 2]
UPDATES = 40_000  # of a seed: limits are then known to 1 %, or better
SHARES = np.arange(1, 10) / 10
NEAR = np.array([0.97, 1.03])


class Case(NamedTuple):
    """The seconds that a gradient takes."""

    times: cluster.ServiceTime
    # shares of the limit, up to which rates are exact to 2 % by
    by_delays: float = 0.0  # workers_decay_rate
    by_staleness: float = 0.0  # spectral_radius of the probabilities of staleness


CASES = {
    "constant": Case(cluster.constant(1.0), 0.9, 0.9),
    "gamma 16": Case(cluster.gamma(1.0, 16), 0.6, 0.8),
    "gamma 4": Case(cluster.gamma(1.0, 4), 0.5, 0.6),
    "shifted": Case(cluster.shifted_exponential(0.5, 0.5), 0.5, 0.5),
    "uniform": Case(cluster.uniform(0.0, 2.0), 0.3, 0.5),
    "gamma 2": Case(cluster.gamma(1.0, 2), 0.4, 0.4),
}
REGULAR = [name for name in CASES if name != "uniform"]
# one regular, and one that is not; the others are long where runs are
names = pytest.mark.parametrize("name", shortened(CASES, "gamma 2", "uniform"))
regular = pytest.mark.parametrize("name", shortened(REGULAR, "gamma 2"))
MEMORYLESS = cluster.exponential(1.0)


@functools.cache
def traces(service, workers=P):
    machine = cluster.Cluster(workers, service)
    return [
        cluster.simulate(machine, cluster.protocols.k_async(1), UPDATES, seed=seed)
        for seed in SEEDS
    ]


def growth(service, steps, workers=P):
    """Of single runs, an update's."""
    result = [
        TraceDynamics(one.staleness).growth(steps) for one in traces(service, workers)
    ]
    return np.mean(result, axis=0)


@functools.cache
def law_of(times):
    """Of the staleness, as theory predicts it."""
    return Dynamics(cluster.staleness_law(cluster.Cluster(P, times)).pmf)


def delay_limit(times, workers=P):
    """eta lambda at which the delay equation diverges, half an update earlier."""
    earlier = DelayEquation(times).half_update_earlier(workers)
    return earlier.gain_limit(workers=math.inf) * times.mean / workers


def workers_limit(times):
    """eta lambda that single runs of so many workers bear by the delay equation."""
    return DelayEquation(times).gain_limit(workers=P) * times.mean / P


@functools.cache
def exponents(name):
    """Growth of single runs in an update, of all steps in one pass along the traces."""
    times = CASES[name].times
    law = law_of(times)
    steps = {
        "shares": law.step_limit("mean") * SHARES,
        # just below what theory says of P workers, and just above
        "staleness": law.step_limit("mean") * NEAR,
        "delays": delay_limit(times) * NEAR,
        # just below what surely decays
        "mean square": law.step_limit() * NEAR[:1],
        "workers": workers_limit(times) * NEAR[:1],
    }
    result = growth(times, np.concatenate(list(steps.values())))
    ends = np.cumsum([len(part) for part in steps.values()])[:-1]
    return dict(zip(steps, np.split(result, ends), strict=True))


# limits


@names
def test_single_runs_bear_the_limit_of_their_law_of_staleness_to_three_per_cent(name):
    below, above = exponents(name)["staleness"]
    assert below < 0 < above


@regular
def test_single_runs_bear_the_limit_of_the_delay_equation_to_three_per_cent(name):
    below, above = exponents(name)["delays"]
    assert below < 0 < above


def test_of_uniform_times_the_delay_equation_is_careful_unless_workers_are_many():
    # by 0.8/P: at its limit, and 3 % beyond, runs of 16 workers die out
    assert (exponents("uniform")["delays"] < 0).all()
    times = CASES["uniform"].times
    assert growth(times, 1.08 * delay_limit(times)) > 0
    below, above = growth(times, delay_limit(times, 64) * NEAR, 64)
    assert below < 0 < above


@names
def test_single_runs_bear_what_the_mean_square_and_so_many_workers_do(name):
    assert exponents(name)["mean square"] < 0
    assert exponents(name)["workers"] < 0


@pytest.mark.parametrize("shape", [0.3, 1.2])
def test_single_runs_bear_both_limits_though_the_mean_bears_far_more(shape):
    times = cluster.gamma(1.0, shape)
    machine = cluster.Cluster(P, times)
    trace = cluster.simulate(machine, cluster.protocols.k_async(1), 20_000, seed=1)
    law = Dynamics(trace.staleness_law(burn_in=1000).pmf)
    steps = [law.step_limit(), workers_limit(times), 0.5 * law.step_limit("mean")]
    assert (np.sign(TraceDynamics(trace.staleness).growth(steps)) == [-1, -1, 1]).all()


def memoryless_limit(workers):
    """Of single runs; the second term is what events show.

    Among many memoryless workers a mode turns fast. Its square R, and the mean V of
    the squares that workers hold, follow, in units of a worker's time,

        dR = (c^2 V - R) dt + c sqrt(2 V R) dB,    dV = (R/2 - V) dt,    c = a sqrt(P)

    so that R/V has the density of |normal| with the variance 2 c^2, and V grows as
    E[R/V]/2 - 1 = c/sqrt(pi) - 1. (In the mean V grows if c^2 > 2.)
    """
    return math.sqrt(math.pi / workers) + 1 / (2 * workers)


@pytest.mark.parametrize("workers", shortened([8, 16, 32], 16))
def test_single_runs_of_memoryless_workers_have_a_limit_though_their_mean_has_none(
    workers,
):
    limit = memoryless_limit(workers)
    below, above = growth(MEMORYLESS, limit * np.array([0.98, 1.02]), workers)
    assert below < 0 < above
    assert DelayEquation(MEMORYLESS).gain_limit(workers=math.inf) == math.inf
    # where single runs double and double, the mean is as fast as at the critical gain
    rate = stability.workers_decay_rate(2 * limit, workers, MEMORYLESS)
    assert rate == pytest.approx(0.5 / (1 - 1 / (2 * workers)))
    # in updates the mean is the heavy ball of the implicit momentum
    momentum = 1 - 1 / workers
    ball = workers * Dynamics(0, momentum=momentum).step_limit()
    assert ball == pytest.approx(2 * (2 * workers - 1))
    assert ball > 20 * limit


def test_memoryless_delays_that_are_independent_bear_in_mean_square_the_root_of_two():
    limit = law_of(MEMORYLESS).step_limit()
    assert limit == pytest.approx(math.sqrt(2 / P), rel=0.03)
    assert 1.1 * limit < memoryless_limit(P)


# rates, in 1/seconds: P updates are one


def steps_of(name):
    return SHARES * law_of(CASES[name].times).step_limit("mean")


def delay_rates(name):
    return stability.workers_decay_rate(steps_of(name), P, CASES[name].times)


@functools.cache
def staleness_rates(name):
    law = law_of(CASES[name].times)
    return -P * np.log([law.spectral_radius(step) for step in steps_of(name)])


def fastest(name):
    """The rate at the critical gain."""
    earlier = DelayEquation(CASES[name].times).half_update_earlier(P)
    return earlier.decay_rate(earlier.critical_gain())


@names
def test_single_runs_decay_at_the_rate_of_their_law_of_staleness_to_two_per_cent(name):
    measured, expected = -P * exponents(name)["shares"], staleness_rates(name)
    upto = CASES[name].by_staleness >= SHARES
    np.testing.assert_allclose(measured[upto], expected[upto], rtol=0.02)
    # up to the limit, of the fastest rate
    np.testing.assert_allclose(measured, expected, rtol=0, atol=0.02 * fastest(name))


@names
def test_single_runs_decay_at_the_rate_of_the_delay_equation_to_two_per_cent(name):
    measured, expected = -P * exponents(name)["shares"], delay_rates(name)
    upto = CASES[name].by_delays >= SHARES
    np.testing.assert_allclose(measured[upto], expected[upto], rtol=0.02)
    if name in REGULAR:  # up to the limit, of the fastest rate
        near = 0.02 * fastest(name)
        np.testing.assert_allclose(measured, expected, rtol=0, atol=near)


def mean_rates(service, steps):
    """Of the mean of x, over many moments of long runs until which x is 1.

    The queue is stationary there. float64 [steps].
    """
    length = 8 * P
    total, moments = np.zeros((length + 1, len(steps))), 0
    for trace in traces(service):
        ages = trace.staleness[:, 0].astype(int)
        begin = np.arange(1000, UPDATES - length, 16)
        runs = np.arange(len(begin))
        x = np.ones((length + 1, len(begin), len(steps)))
        for t in range(length):
            seen = np.maximum(t - ages[begin + t], 0)
            x[t + 1] = x[t] - steps * x[seen, runs]
        total += x.sum(axis=1)
        moments += len(begin)
    return [P * rate_of(mode) for mode in total[3 * P :].T / moments]


def rate_of(path, *, every=4):
    """Decay an update of what is a sum of two modes, y_n = c y_{n-1} + d y_{n-2}."""
    y = path[::every]
    before = np.stack([y[1:-1], y[:-2]], axis=1)
    weight = 1 / np.sqrt(np.abs(before).max(axis=1))
    c, d = np.linalg.lstsq(before * weight[:, None], y[2:] * weight, rcond=None)[0]
    return -np.log(np.abs(np.roots([1, -c, -d])).max()) / every


@names
def test_the_mean_decays_at_the_rate_of_the_delay_equation_to_two_per_cent(name):
    some = np.flatnonzero(CASES[name].by_delays >= SHARES)[::2]
    measured = mean_rates(CASES[name].times, steps_of(name)[some])
    np.testing.assert_allclose(measured, delay_rates(name)[some], rtol=0.02)


def test_the_mean_of_memoryless_workers_decays_equally_fast_at_all_large_steps():
    # at larger ones yet, the mean of so many runs is that of few
    steps = memoryless_limit(P) * np.array([0.1, 0.2, 0.3])
    rates = stability.workers_decay_rate(steps, P, MEMORYLESS)
    np.testing.assert_allclose(rates, 0.5 / (1 - 1 / (2 * P)), rtol=1e-9)
    np.testing.assert_allclose(mean_rates(MEMORYLESS, steps), rates, rtol=0.02)
    # half an update earlier, which it needs
    plain = DelayEquation(MEMORYLESS).decay_rate(steps[-1] * P)
    assert plain < 0.98 * rates[-1]


def test_single_runs_of_memoryless_workers_slow_down_evenly_towards_their_limit():
    shares = np.array([0.1, 0.3, 0.5, 0.7])
    measured = -P * growth(MEMORYLESS, shares * memoryless_limit(P))
    mean = 0.5 / (1 - 1 / (2 * P))
    np.testing.assert_allclose(measured, (1 - shares) * mean, rtol=0.06)
