"""How fast asynchronous training is with so many workers, and how many are best."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from scipy import optimize

from delayjax._src import base
from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.stability.delay_equation import MOST_WORKERS, DelayEquation

_LEAST_STEP = 1e-15  # of which so many workers are best that one more is none


class OptimalWorkers(NamedTuple):
    """How many workers are fastest, and how many are too many."""

    workers: int  # P*
    rate: float  # at which the slowest mode decays, 1/seconds
    limit: float  # of workers: single runs may diverge from there on


def workers_decay_rate(
    step: ArrayLike, workers: int, service_time: ServiceTime
) -> float | np.ndarray:
    """How fast a mode decays in a second when P workers train asynchronously.

    Each gradient is an update, so the gain is eta lambda P / E T and the delay T less
    half an update. The rate is

        constant times:  -Re W0(-A) / (T (1 - 1/(2P))),    A = eta lambda (P - 1/2)
        any times:       half_update_earlier(P).decay_rate(eta lambda P / E T)
        one worker:      -log|1 - eta lambda| / E T, for it is never late

    For constant times it is largest at A = 1/e and 0 at A = pi/2. The delay equation
    needs an eta lambda well below 1. For constant times and an eta lambda up to 1.5 its
    rate is off by up to 5 %, 2.1 %, 1.2 % and 0.3 % of the fastest for P = 2, 3, 4 and
    8; within a tenth of the critical gain by up to 15 %, 10 %, 7.5 % and 4 %. Its
    limits are too high by 4.7 %, 1.7 %, 0.8 % and 0.2 %.

    Args:
        step: eta lambda, a number or any array of modes.
        workers: P.
        service_time: T, of a gradient.

    Returns:
        float64, 1/seconds, shaped as `step`; below 0 where the mode grows, `inf` for
        one worker at eta lambda = 1. Costs a `decay_rate` for each mode. Simulations of
        16 workers agree to 2 % up to 0.6 of the limit for gamma times of shape 16, 0.5
        for shape 4, 0.4 for shape 2, 0.3 for uniform times from 0 on; beyond to 2 % of
        the fastest rate (2.5 % for uniform times). It is the rate of the mean over
        runs: with memoryless times a single run is slower beyond the critical gain, by
        (1 - a/limit) with a = eta lambda and the limit of `TraceDynamics`.

    Raises:
        TypeError, ValueError: if an argument is no such number or time.

    Example:
        >>> from delayjax import cluster
        >>> second = cluster.constant(1.0)
        >>> rates = [workers_decay_rate(0.01, p, second) for p in (1, 10, 38, 100, 200)]
        >>> [round(rate, 2) for rate in rates]  # more is slower, then divergent
        [0.01, 0.11, 1.0, 0.32, -0.17]

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for the delay equation of P workers.
    """
    workers = base.check_bound("workers", workers, at_least=1)
    equation = DelayEquation(service_time)
    steps = base.as_reals("step", step)
    if not ((steps >= 0) & np.isfinite(steps)).all():
        raise ValueError(
            f"`step` must be finite and non-negative, got {step!r}: it is eta lambda,"
            " and directions of negative curvature grow with any number of workers."
        )
    if workers == 1:
        with np.errstate(divide="ignore"):
            rates = -np.log(np.abs(1 - steps.ravel())) / service_time.mean
    else:
        earlier = equation.half_update_earlier(workers)
        gains = steps.ravel() * float(workers) / service_time.mean
        rates = np.array([earlier.decay_rate(gain) for gain in gains.tolist()])
    return rates.reshape(steps.shape) if steps.ndim else float(rates[0])


def optimal_workers(
    step: float, service_time: ServiceTime, *, condition: float = 1.0
) -> OptimalWorkers:
    """How many asynchronous workers train fastest at a given learning rate.

    One mode decays fastest at the critical gain; for constant times with

        P* = 1 / (e eta L) + 1/2,    and not at all from P = pi / (2 eta L) + 1/2 on.

    With curvatures from L/kappa to L more workers help the slowest mode until the
    stiffest one, which oscillates, is as slow:

        r(A) = r(A / kappa),    A > 1/e,    P* = A / (eta L) + 1/2

    Single runs of random times bear fewer workers than their mean does: no more are
    recommended than they bear, eta L (P - 1/2) < `gain_limit(workers=P)` E T. One
    worker is best where its -log|1 - eta lambda| is the largest rate, and for an eta L
    of 2 and more, where it diverges and no number of workers is recommended.

    Args:
        step: eta L, of the largest curvature.
        service_time: T, of a gradient.
        condition: kappa, the largest curvature over the smallest.

    Returns:
        The number that is fastest, its rate (of the mean of x), and the limit. For
        times of a coefficient of variation above 1 the rate may have several peaks:
        this is the peak next to the critical gain, and the critical gain itself where
        the mean has no limit. A limit above 10^6 is the limit of the mean. Costs some
        50 `decay_rate`s and 20 `gain_limit`s, 0.1 s.

    Raises:
        TypeError, ValueError: if an argument is no such number or time; also if `step`
            is below 1e-15, or `condition` above 1 though the mean has no `gain_limit`.

    Example:
        >>> from delayjax import cluster
        >>> best = optimal_workers(0.01, cluster.constant(1.0))
        >>> best.workers, round(best.rate, 2), round(best.limit, 1)
        (38, 1.0, 157.6)
        >>> optimal_workers(0.01, cluster.constant(1.0), condition=100.0).workers
        154

    References:
        Yu, Chen and Poor, arXiv:2406.11159, that more workers are not always faster.
    """
    base.check_number("step", step, positive=True)
    if step < _LEAST_STEP:
        raise ValueError(
            f"`step` must be at least {_LEAST_STEP}, got {step}: so many workers are"
            " best that one more makes no difference in float64."
        )
    base.check_number("condition", condition)
    if condition < 1:
        raise ValueError(
            f"`condition` must be at least 1, got {condition}: it is the largest"
            " curvature over the smallest."
        )
    equation = DelayEquation(service_time)
    bearable = equation.gain_limit(workers=math.inf) * service_time.mean
    if condition > 1 and bearable == math.inf:
        raise ValueError(
            "`service_time` must have a `gain_limit` for a `condition` above 1, got"
            f" {condition}: of nearly memoryless times the mean bears any number of"
            " workers, and single runs what TraceDynamics says of a simulated trace."
        )
    modes = np.array([step, step / condition])

    def slowest(workers: int) -> float:
        return float(np.min(workers_decay_rate(modes, workers, service_time)))

    alone = slowest(1)
    if step >= 2:
        return OptimalWorkers(1, alone, min(bearable / step + 0.5, 1.0))
    start = max(math.floor(_fastest(equation, condition, bearable) / step + 0.5), 2)
    # an integer next to it, unless the rate peaks elsewhere
    last = start + 1 if bearable == math.inf else math.inf
    workers, rate = _climb(slowest, start, last)
    limit = _limit(step, equation, bearable / step + 0.5)
    if workers >= limit:
        workers = max(math.ceil(limit) - 1, 1)
        rate = slowest(workers)
    if alone >= rate:
        workers, rate = 1, alone
    return OptimalWorkers(workers, rate, limit)


def implicit_momentum(workers: int) -> float:
    """The momentum that memoryless asynchronous workers add to the mean path.

    With exponential times each of P workers may be the next to deliver, so the
    staleness is geometric, and

        E[x_{t+1} - x_t] = (1 - 1/P) E[x_t - x_{t-1}] - (eta/P) E grad F(x_t),

    a heavy ball of momentum 1 - 1/P and step eta/P. For regular times (gamma of shape 4
    and more, constant) no momentum gives the mean path: take the delay itself, as
    `workers_decay_rate` does.

    Args:
        workers: P.

    Returns:
        1 - 1/P. Explicit momentum comes on top: tune it down as workers are added.

    Example:
        >>> implicit_momentum(1), implicit_momentum(16)
        (0.0, 0.9375)

    References:
        Mitliagkas, Zhang, Hadjis and Re, Asynchrony begets momentum, 2016,
        arXiv:1605.09774.
    """
    return 1 - 1 / base.check_bound("workers", workers, at_least=1)


def _limit(step: float, equation: DelayEquation, of_mean: float) -> float:
    """The number of workers from which on single runs may diverge.

    Where all fewer workers are borne, as for constant times, the mean limits them.
    """

    def is_borne(workers: int) -> bool:
        bearable = equation.gain_limit(workers=workers) * equation.service_time.mean
        return step * (workers - 0.5) < bearable

    borne, beyond = 1, max(math.ceil(min(of_mean, MOST_WORKERS)) - 1, 1)
    if is_borne(beyond):
        return of_mean
    while beyond - borne > 1:
        middle = (borne + beyond) // 2
        borne, beyond = (middle, beyond) if is_borne(middle) else (borne, middle)
    return float(beyond)


def _fastest(equation: DelayEquation, condition: float, limit: float) -> float:
    """A of the largest curvature where both ends of the spectrum decay equally fast."""
    mean = equation.service_time.mean
    critical = equation.critical_gain() * mean
    if condition == 1:
        return critical

    def lead(a: float) -> float:
        """By how much the stiffest mode is faster."""
        slowest = equation.decay_rate(a / (condition * mean))
        return equation.decay_rate(a / mean) - slowest

    return float(np.asarray(optimize.brentq(lead, critical, limit)))


def _climb(value: Callable[[int], float], start: int, last: float) -> tuple[int, float]:
    """From 2 to `last`, an integer better than its neighbors, and its value.

    Strides double while they gain, then halve.
    """
    at, best = start, value(start)
    before = None
    while at != before:
        before = at
        for way in (-1, 1):
            stride, gaining = 1, True
            while stride:
                there = at + way * stride
                found = value(there) if 2 <= there <= last else -math.inf
                if found > best:
                    at, best = there, found
                else:
                    gaining = False
                stride = 2 * stride if gaining else stride // 2
    return at, best
