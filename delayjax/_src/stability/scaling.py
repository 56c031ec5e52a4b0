"""The speed of asynchronous training with P workers, and the best P."""

import bisect
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike

from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.ground import checks, kinds
from delayjax._src.stability.delay_equation import DelayEquation
from delayjax._src.stability.root_finding import zero_between

_LEAST_STEP = 1e-15  # a smaller step needs more workers than float64 can count
_MOST_WORKERS = 10**6  # their limit is within 0.2 % of the limit of the mean


class OptimalWorkers(NamedTuple):
    """The fastest number of workers, and the number from which runs may diverge."""

    workers: int  # P*
    rate: float  # of the slowest mode, 1/seconds
    limit: float  # single runs may diverge from this number of workers on


@kinds.checked
def workers_decay_rate(
    step: ArrayLike, workers: kinds.PositiveInt, service_time: ServiceTime
) -> float | np.ndarray:
    """The decay rate of a mode per second when P workers train asynchronously.

        constant times:  -Re W0(-A) / (T (1 - 1/(2P))),    A = eta lambda (P - 1/2)
        any times:       half_update_earlier(P).decay_rate(eta lambda P / E T)
        one worker:      -log|1 - eta lambda| / E T, as its gradients are never late

    For constant times it is largest at A = 1/e and 0 at A = pi/2. It is the rate of the
    mean over runs, off by up to 15 % of the fastest rate for 2 workers, 4 % for 8:
    single runs of memoryless workers are slower above the critical gain.

    Args:
        step: eta lambda, non-negative, a number or any array of modes.
        workers: P.
        service_time: T, the time of a gradient. Its tail is at most exponential.

    Returns:
        float64, 1/seconds, shaped as `step`; below 0 where the mode grows.

    Example:
        >>> from delayjax import cluster
        >>> second = cluster.constant(1.0)
        >>> rates = [workers_decay_rate(0.01, p, second) for p in (1, 38, 200)]
        >>> [round(rate, 2) for rate in rates]  # 200 diverge
        [0.01, 1.0, -0.17]

    References:
        Yu, Chen and Poor, arXiv:2406.11159.
    """
    equation = DelayEquation(service_time)
    steps = checks.as_finite("step", step)
    if workers == 1:
        with np.errstate(divide="ignore"):
            rates = -np.log(np.abs(1 - steps.ravel())) / service_time.mean
    else:
        earlier = equation.half_update_earlier(workers)
        gains = steps.ravel() * float(workers) / service_time.mean
        rates = np.array([earlier.decay_rate(gain) for gain in gains.tolist()])
    return rates.reshape(steps.shape) if steps.ndim else float(rates[0])


@kinds.checked
def optimal_workers(
    step: kinds.NonNegativeFloat,
    service_time: ServiceTime,
    *,
    condition: kinds.NonNegativeFloat = 1.0,
) -> OptimalWorkers:
    """The number of asynchronous workers that trains fastest at a learning rate.

    One mode decays fastest at the critical gain; for constant times with

        P* = 1 / (e eta L) + 1/2,    and it grows from P = pi / (2 eta L) + 1/2 on.

    With curvatures from L/kappa to L more workers help the slowest mode until the
    stiffest mode, which oscillates, is as slow:

        r(A) = r(A / kappa),    A > 1/e,    P* = A / (eta L) + 1/2

    Single runs must be stable too: eta L (P - 1/2) < `gain_limit(workers=P)` E T.

    Args:
        step: eta L, with L the largest curvature, at least 1e-15.
        service_time: T, the time of a gradient.
        condition: kappa, the largest curvature over the smallest, at least 1; must be 1
            where the mean has no `gain_limit`.

    Returns:
        The fastest number, its rate (of the mean of x), and the limit; above 10^6 this
        is the limit of the mean. If the rate has several peaks, it is the peak next to
        the P* above.

    Example:
        >>> from delayjax import cluster
        >>> best = optimal_workers(0.01, cluster.constant(1.0))
        >>> best.workers, round(best.rate, 2), round(best.limit, 1)
        (38, 1.0, 157.6)
        >>> optimal_workers(0.01, cluster.constant(1.0), condition=100.0).workers
        154

    References:
        Yu, Chen and Poor, arXiv:2406.11159.
    """
    least_of = {"step": (step, _LEAST_STEP), "condition": (condition, 1.0)}
    for name, (value, least) in least_of.items():
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}, got {value}.")
    equation = DelayEquation(service_time)
    mean = service_time.mean
    most = equation.gain_limit(workers=math.inf) * mean
    if condition > 1 and most == math.inf:
        raise ValueError(
            "`service_time` must have a `gain_limit` for a `condition` above 1, got"
            f" {condition}: simulate a trace, and use TraceDynamics."
        )
    modes = np.array([step, step / condition])

    def slowest(workers: int) -> float:
        return float(np.min(workers_decay_rate(modes, workers, service_time)))

    alone = slowest(1)
    if step >= 2:
        return OptimalWorkers(1, alone, min(most / step + 0.5, 1.0))

    def lead(a: float) -> float:
        """The rate of the stiffest mode minus the rate of the slowest."""
        rate = equation.decay_rate(a / (condition * mean))
        return equation.decay_rate(a / mean) - rate

    fastest = equation.critical_gain() * mean
    if condition > 1:
        fastest = zero_between(lead, fastest, most)
    start = max(math.floor(fastest / step + 0.5), 2)
    # an integer next to it, unless the rate peaks elsewhere
    last = start + 1 if most == math.inf else math.inf
    workers, rate = _climb(slowest, start, last)
    limit = _limit(step, equation, most / step + 0.5)
    if workers >= limit:
        workers = max(math.ceil(limit) - 1, 1)
        rate = slowest(workers)
    if alone >= rate:
        workers, rate = 1, alone
    return OptimalWorkers(workers, rate, limit)


@kinds.checked
def explicit_momentum(total: float, *, workers: kinds.PositiveInt) -> float:
    """The explicit momentum at which memoryless workers have a given total momentum.

        beta = total - q,    q = 1 - 1/P

    With exponential times each of P workers is equally likely to deliver next. This
    adds a momentum q to the mean path. With a heavy ball of momentum beta it follows

        E[d_{t+1}] = (beta + q) E[d_t] - beta q E[d_{t-1}] - (eta/P) E grad F(x_t),

    d_t = x_t - x_{t-1}. The total is beta + q, the momentum of the last move; the term
    of the move before it is of second order. It vanishes at beta = 0 and at P = 1. For
    regular times no momentum describes the mean path.

    Args:
        total: the momentum that is best without asynchrony, in (-1, 1).
        workers: P.

    Returns:
        beta. It falls with P, and is negative where the workers' own momentum exceeds
        the total.

    Raises:
        ValueError: if beta would be -1 or less, where no step size is stable.

    Example:
        >>> [explicit_momentum(0.75, workers=p) for p in (1, 4, 16)]
        [0.75, 0.0, -0.1875]

    References:
        Mitliagkas, Zhang, Hadjis and Re, Asynchrony begets momentum, 2016,
        arXiv:1605.09774.
    """
    total = checks.check_number("total", total, "(-1, 1)")
    if total <= -1 / workers:
        raise ValueError(f"`total` must be above {-1 / workers:.4g}, got {total}.")
    return total - (1 - 1 / workers)


def _limit(step: float, equation: DelayEquation, of_mean: float) -> float:
    """The number of workers from which single runs may diverge, at most `of_mean`."""

    def diverge(workers: int) -> bool:
        most = equation.gain_limit(workers=workers) * equation.service_time.mean
        return step * (workers - 0.5) >= most

    most = max(math.ceil(min(of_mean, _MOST_WORKERS)) - 1, 1)
    if not diverge(most):
        return of_mean
    return float(min(most, 2) + bisect.bisect(range(2, most), False, key=diverge))


def _climb(value: Callable[[int], float], start: int, last: float) -> tuple[int, float]:
    """An integer from 2 to `last` that is better than its neighbors, and its value.

    Strides double while the value grows, then halve.
    """
    at, best = start, value(start)
    before = None
    while at != before:
        before = at
        for way in (-1, 1):
            stride, gaining = 1, True
            while stride:
                there = at + way * stride
                gain = value(there) if 2 <= there <= last else -math.inf
                if gain > best:
                    at, best = there, gain
                else:
                    gaining = False
                stride = 2 * stride if gaining else stride // 2
    return at, best
