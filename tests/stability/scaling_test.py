"""The speed of P workers, and the best number of them, agree with simulated events."""

import functools
import math

import numpy as np
import pytest
from scipy import special

from delayjax import cluster
from delayjax.cluster import protocols
from delayjax.stability import (
    DelayEquation,
    Dynamics,
    TraceDynamics,
    explicit_momentum,
    optimal_workers,
    workers_decay_rate,
)
from tests.support.cases import shortened

CONSTANT, MEMORYLESS = cluster.constant(1.0), cluster.exponential(1.0)
TWO_PEAKS = cluster.empirical([0.5] * 9 + [5.5])


@functools.cache
def trace_of(workers, service, updates, seed=1):
    machine = cluster.Cluster(workers, service)
    return cluster.simulate(machine, protocols.k_async(1), updates, seed=seed)


# rates


@pytest.mark.parametrize("workers", [2, 7, 100])
def test_the_rate_of_constant_times_is_lambert_s(workers):
    a = np.array([[0.05, 0.36], [0.7, 1.5]])
    result = workers_decay_rate(a / (workers - 0.5), workers, cluster.constant(3.0))
    expected = -special.lambertw(-a).real / (3.0 * (1 - 1 / (2 * workers)))
    np.testing.assert_allclose(result, expected, rtol=1e-9)
    one = workers_decay_rate(0.7 / (workers - 0.5), workers, cluster.constant(3.0))
    assert isinstance(one, float)
    assert one == result[1, 0]


@pytest.mark.parametrize(
    "times", [CONSTANT, cluster.gamma(2.0, 4), cluster.exponential(0.5)]
)
def test_one_worker_is_not_late(times):
    steps = np.array([0.0, 0.01, 0.5, 1.5, 1.99, 2.01, 3.0])
    radii = [Dynamics(0).spectral_radius(step) for step in steps]
    result = workers_decay_rate(steps, 1, times)
    np.testing.assert_allclose(
        result, -np.log(radii) / times.mean, rtol=1e-12, atol=1e-15
    )
    assert workers_decay_rate(1.0, 1, times) == math.inf


@pytest.mark.parametrize(
    ("workers", "near", "at_peak", "late"),
    [
        (2, 0.05, 0.15, 0.048),
        (3, 0.021, 0.1, 0.017),
        (4, 0.012, 0.075, 0.009),
        (8, 0.003, 0.04, 0.002),
    ],
)
def test_few_workers_are_as_near_their_updates_as_is_said(workers, near, at_peak, late):
    critical, tau = math.exp(-1) / (workers - 0.5), workers - 1
    steps = np.append(
        np.linspace(0.01, 1.5, 150), [critical, tau**tau / workers**workers]
    )
    result = workers_decay_rate(steps, workers, CONSTANT)
    updates = Dynamics(tau)
    exact = -workers * np.log([updates.spectral_radius(a) for a in steps])
    errors = np.abs(result - exact) / max(exact)
    assert 0.8 * at_peak < errors.max() < at_peak
    mask = np.abs(steps / critical - 1) > 0.1
    assert 0.8 * near < errors[mask].max() < near
    limit = updates.step_limit()
    ahead = math.pi / 2 / (workers - 0.5) / limit - 1
    assert 0.8 * late < ahead < late
    assert workers_decay_rate(limit * (1 + 1.01 * ahead), workers, CONSTANT) < 0


# how many


@pytest.mark.parametrize("step", [0.05, 0.01, 0.003])
def test_one_mode_is_fastest_at_the_critical_gain(step):
    best = optimal_workers(step, CONSTANT)
    assert abs(best.workers - (1 / (math.e * step) + 0.5)) < 1
    assert best.limit == pytest.approx(math.pi / (2 * step) + 0.5, rel=1e-12)


@pytest.mark.parametrize("shape", [1, 2, 4, 16])
def test_gamma_times_peak_a_little_earlier_and_break_later(shape):
    times, step = cluster.gamma(2.0, shape), 0.01
    best = optimal_workers(step, times)
    critical = (shape / (shape + 1)) ** (shape + 1)
    assert abs(best.workers - (critical / step + 0.5)) < 1
    constant = optimal_workers(step, cluster.constant(2.0))
    assert best.workers < constant.workers
    assert best.rate < constant.rate
    assert best.limit > constant.limit
    if shape > 1:  # single runs allow less than their mean
        angle = math.pi / (2 * shape)
        limit = shape * math.tan(angle) / math.cos(angle) ** shape
        assert best.limit <= limit / step + 0.5 + 1e-9

    def share(workers):
        return step * (workers - 0.5) / DelayEquation(times).gain_limit(workers=workers)

    first = math.ceil(best.limit)
    assert share(first - 1) < times.mean <= share(first)


@pytest.mark.parametrize(
    ("shape", "condition"),
    shortened(
        [(1.2, 1.0), (1.2, 100.0), (4, 100.0), (16, 1e4)], (1.2, 1.0), (4, 100.0)
    ),
)
def test_single_runs_of_so_many_workers_converge(shape, condition):
    step, service = 0.2, cluster.gamma(1.0, shape)
    best = optimal_workers(step, service, condition=condition)
    trace = trace_of(best.workers, service, 20_000)
    assert TraceDynamics(trace.staleness).growth(step) < 0
    # the limit is no more careful than it must be: 2.5 times as many diverge
    run = trace_of(int(2.5 * best.limit), service, 20_000)
    assert TraceDynamics(run.staleness).growth(step) > 0


@pytest.mark.parametrize(
    ("step", "times", "condition"),
    [
        (0.03, CONSTANT, 1.0),
        (0.03, CONSTANT, 100.0),
        (0.21, TWO_PEAKS, 1.5),
        (0.6, TWO_PEAKS, 1.5),
        (0.03, cluster.gamma(2.0, 4), 10.0),
        (0.03, cluster.shifted_exponential(0.5, 0.5), 10.0),
        *shortened([(0.03, TWO_PEAKS, c) for c in (1.0, 5.0)], (0.03, TWO_PEAKS, 5.0)),
    ],
)
def test_no_other_number_of_workers_is_faster(step, times, condition):
    best = optimal_workers(step, times, condition=condition)
    modes = np.array([step, step / condition])
    numbers = range(1, min(int(best.limit), 100) + 1)
    rates = [workers_decay_rate(modes, p, times).min() for p in numbers]
    assert best.workers == numbers[int(np.argmax(rates))]
    assert best.rate == pytest.approx(max(rates), rel=1e-12)


@pytest.mark.parametrize("shape", [0.7, 1.0])
def test_without_a_limit_the_critical_gain_is_best(shape):
    times = cluster.gamma(2.0, shape)
    critical = DelayEquation(times).critical_gain() * times.mean
    best = optimal_workers(0.003, times)
    assert abs(best.workers - (critical / 0.003 + 0.5)) <= 1
    if shape == 1:  # with P memoryless workers, single runs allow sqrt(2/P) or more
        assert best.limit == pytest.approx(2 / 0.003**2, rel=1e-3)


def test_between_the_ends_of_the_spectrum_no_mode_is_slower():
    best = optimal_workers(0.01, CONSTANT, condition=20.0)
    steps = np.geomspace(0.01 / 20, 0.01, 50)
    rates = workers_decay_rate(steps, best.workers, CONSTANT)
    assert rates.min() == pytest.approx(best.rate)
    assert min(rates[0], rates[-1]) == rates.min()


@pytest.mark.parametrize("condition", [2.0, 100.0])
def test_at_the_optimum_both_ends_of_the_spectrum_have_the_same_root(condition):
    step = 1e-6
    best = optimal_workers(step, CONSTANT, condition=condition)
    a = step * (best.workers - 0.5)
    stiffest, slowest = special.lambertw([-a, -a / condition]).real
    assert stiffest == pytest.approx(slowest, rel=1e-4)


def test_the_optimum_moves_towards_the_limit_with_the_condition():
    conditions = (1.0, 2.0, 10.0, 100.0, 1e4)
    best = [optimal_workers(1e-3, CONSTANT, condition=kappa) for kappa in conditions]
    shares = [b.workers / b.limit for b in best]
    assert sorted(shares) == shares
    assert shares[0] == pytest.approx(2 / (math.e * math.pi), rel=0.01)
    assert shares[-1] > 0.995


def test_so_many_workers_are_the_fastest_of_simulated_clusters():
    # 8 % more or fewer and the rate differs by far more than the noise of its measure
    step, service = 0.02, cluster.gamma(1.0, 16)
    best = optimal_workers(step, service)
    numbers = np.unique(np.rint(best.workers * np.array([0.4, 0.7, 1, 1.5, 2.5])))
    rates = []
    for workers in numbers.astype(int).tolist():
        trace = trace_of(workers, service, 20_000)
        growth = TraceDynamics(trace.staleness).growth(step)
        rates.append(-growth * 20_000 / trace.seconds[-1])
    assert numbers[np.argmax(rates)] == best.workers
    assert max(rates) == pytest.approx(best.rate, rel=0.03)


@pytest.mark.parametrize(
    "times", [CONSTANT, cluster.gamma(1.0, 4), cluster.exponential(1.0)]
)
def test_one_worker_that_is_faster_than_any_more_is_best(times):
    for step in (0.8, 1.0, 1.9):
        best = optimal_workers(step, times)
        alone = math.inf if step == 1 else -math.log(abs(1 - step))
        assert best.workers == 1
        assert best.rate == pytest.approx(alone)
        assert best.limit > 1
        # two would diverge, or be slower, as their updates are
        assert -2 * math.log(Dynamics(1).spectral_radius(step)) < alone
    for step in (2.0, 3.0, 1e9):  # one worker does not allow these steps either
        best = optimal_workers(step, times)
        assert best.workers == 1
        assert best.rate == pytest.approx(-math.log(step - 1))
        assert best.limit <= 1


@pytest.mark.parametrize("step", [1e-14, 1e-9])
def test_small_steps_have_many_workers(step):
    best = optimal_workers(step, CONSTANT)
    assert best.workers == pytest.approx(1 / (math.e * step), rel=1e-6)
    assert best.rate == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("times", "condition"),
    [
        (CONSTANT, 1.0),
        (TWO_PEAKS, 5.0),  # it peaks far from where the two ends are equally slow
        (cluster.gamma(1.0, 1.001), 10.0),  # bears 40 million workers
    ],
)
def test_the_best_number_is_found_in_few_rates(monkeypatch, times, condition):
    calls, decay_rate = [], DelayEquation.decay_rate

    def counted(equation, gain):
        calls.append(gain)
        return decay_rate(equation, gain)

    monkeypatch.setattr(DelayEquation, "decay_rate", counted)
    step = 1e-5
    best = optimal_workers(step, times, condition=condition)
    assert len(calls) < 250
    modes = np.array([step, step / condition])
    for other in (best.workers - 1, best.workers + 1):
        assert workers_decay_rate(modes, other, times).min() <= best.rate


# momentum


def mean_response(service, workers, step, seed, momentum=0.0):
    """The mean moves and the mean x, of the heavy ball after a fresh start.

    From many moments of one long run, x is 1 until then: the queue is stationary.
    """
    length, updates = 3 * workers, 30_000
    reads = trace_of(workers, service, updates, seed).read_version.astype(int)
    begin = np.arange(50 * workers, updates - length, 5)
    x = np.ones((length + 1, len(begin)))
    runs = np.arange(len(begin))
    for t in range(length):
        seen = np.maximum(reads[begin + t] - begin, 0)
        x[t + 1] = x[t] + momentum * (x[t] - x[max(t - 1, 0)]) - step * x[seen, runs]
    mean = x.mean(axis=1)
    return np.diff(mean), mean


def fitted_momentum(service, workers, step, seed):
    """x_{t+1} - x_t by x_t - x_{t-1} and x_t."""
    change, x = mean_response(service, workers, step, seed)
    terms = np.stack([change[:-1], x[1:-1]], axis=1)
    return np.linalg.lstsq(terms, change[1:], rcond=None)[0]


@pytest.mark.parametrize("workers", shortened([4, 8], 4))
def test_memoryless_workers_add_their_momentum_and_regular_ones_do_not(workers):
    step, expected = 0.5, 1 - 1 / workers
    result = [fitted_momentum(MEMORYLESS, workers, step, seed) for seed in (1, 2, 3)]
    momentum, pull = np.mean(result, axis=0)
    assert momentum == pytest.approx(expected, abs=0.01)
    assert -pull == pytest.approx(step / workers, rel=0.03)
    momentum, _ = fitted_momentum(cluster.gamma(1.0, 16), workers, step, 1)
    assert abs(momentum - expected) > 0.05


@pytest.mark.parametrize(("workers", "total"), [(4, 0.5), (4, 0.9)])
def test_explicit_momentum_and_the_workers_own_add_up_to_the_total(workers, total):
    """E d' = total E d - beta q E d_before - (eta/P) E x: the total of the best fit.

    All three factors together are badly determined: the moves are smooth.
    """
    step, result = 0.3, []
    explicit = explicit_momentum(total, workers=workers)
    implicit = 1 - 1 / workers
    for seed in (1, 2, 3):
        move, x = mean_response(MEMORYLESS, workers, step, seed, explicit)
        rest = -explicit * implicit * move[:-2] - step / workers * x[2:-1]
        fit = np.linalg.lstsq(move[1:-1, None], move[2:] - rest, rcond=None)
        result.append(fit[0][0])
    assert np.mean(result) == pytest.approx(total, abs=0.01)


@pytest.mark.parametrize("workers", [2, 16])
def test_explicit_momentum_falls_below_zero_with_many_workers(workers):
    assert explicit_momentum(0.5, workers=workers) == 1 / workers - 0.5
