"""How fast asynchronous training is with so many workers, and how many are best."""

import math
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from scipy import optimize

from delayjax import base
from delayjax.stability.continuous import critical_damping, damping_limit, decay_rate
from delayjax.stability.delay_laws import DelayLaw, half_update_earlier


class OptimalWorkers(NamedTuple):
    """How many workers are fastest, and how many are too many."""

    workers: int  # P*
    rate: float  # at which the slowest mode decays, 1/seconds
    limit: float  # of workers: training diverges from there on


def workers_decay_rate(
    step: ArrayLike, workers: int, law: DelayLaw
) -> float | np.ndarray:
    """How fast a mode decays in a second when P workers train asynchronously.

    Each worker takes T seconds for a gradient, and each gradient is an update: the
    damping is eta lambda P / E T, and the delay T less half an update. The rate is

        constant times:  -Re W0(-A) / (T (1 - 1/(2P))),    A = eta lambda (P - 1/2)
        any law:         decay_rate(eta lambda P / E T, half_update_earlier(law, P))

    It is largest at A = 1/e and 0 at A = pi/2 for constant times, `critical_damping`
    and `damping_limit` for others.

    Args:
        step: eta lambda, a number or any array of modes.
        workers: P.
        law: of the time T that a gradient takes.

    Returns:
        float64, 1/seconds, shaped as `step`; below 0 where the mode grows. Costs a
        `decay_rate` for each mode. Simulated events of 16 workers agree to 2 % up to
        0.6 of the limit for gamma times of shape 16, half of it for shape 4, 0.4 for
        shape 2, 0.3 for uniform times from 0 on; from there to the limit to 2 % of the
        fastest rate (2.5 % for uniform ones). Closer is `spectral_radius` of the law of
        their staleness, and exact `trace_growth`. It is the rate of the mean over runs:
        with memoryless times a single run is slower beyond critical damping, by (1 -
        a/limit) with a = eta lambda and the limit of `trace_step_limit`.

    Raises:
        TypeError: if `workers` is no integer or `law` no `DelayLaw`.
        ValueError: if `workers` is below 1, or `step` negative or not finite.

    Example:
        >>> from delayjax.stability.delay_laws import constant_delay
        >>> law = constant_delay(1.0)
        >>> rates = [workers_decay_rate(0.01, p, law) for p in (1, 10, 38, 100, 200)]
        >>> [round(rate, 2) for rate in rates]  # more is slower, then divergent
        [0.01, 0.11, 1.0, 0.32, -0.17]

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for the delay equation of P workers.
    """
    workers = base.check_bound("workers", workers, at_least=1)
    _check_law(law)
    steps = np.asarray(step, np.float64)
    if not ((steps >= 0) & np.isfinite(steps)).all():
        raise ValueError(
            f"`step` must be finite and non-negative, got {step!r}: it is eta lambda,"
            " and directions of negative curvature grow with any number of workers."
        )
    earlier = half_update_earlier(law, workers)
    dampings = steps.ravel() * workers / law.mean
    rates = np.array([decay_rate(a, earlier) for a in dampings.tolist()])
    return rates.reshape(steps.shape) if steps.ndim else float(rates[0])


def optimal_workers(
    step: float, law: DelayLaw, *, condition: float = 1.0
) -> OptimalWorkers:
    """How many asynchronous workers train fastest at a given learning rate.

    One mode decays fastest at critical damping; of constant times with

        P* = 1 / (e eta L) + 1/2,    and not at all from P = pi / (2 eta L) + 1/2 on.

    With curvatures from L/kappa to L more workers help the slowest mode until the
    stiffest one, which oscillates, is as slow:

        r(A) = r(A / kappa),    A > 1/e,    P* = A / (eta L) + 1/2

    A grows from 1/e to pi/2 with kappa: of an ill-conditioned problem the optimum is
    just below the limit.

    Args:
        step: eta L, of the largest curvature.
        law: of the seconds that a gradient takes.
        condition: kappa, the largest curvature over the smallest.

    Returns:
        The integer that is fastest, its rate (of the mean of x; below 0 if one worker
        alone diverges), and the limit. For times of a coefficient of variation above 1
        the rate may have several peaks: this is the one next to critical damping, and
        critical damping itself where there is no limit, for single runs are not faster
        beyond. Costs some 20 `decay_rate`s, 1 ms for constant times.

    Raises:
        TypeError: if `law` is no `DelayLaw`, or another no number.
        ValueError: if `step` is not positive and finite, `condition` is below 1 or not
            finite, or is above 1 though the law has no `damping_limit`.

    Example:
        >>> from delayjax.stability.delay_laws import constant_delay
        >>> best = optimal_workers(0.01, constant_delay(1.0))
        >>> best.workers, round(best.rate, 2), round(best.limit, 1)
        (38, 1.0, 157.6)
        >>> optimal_workers(0.01, constant_delay(1.0), condition=100.0).workers
        154

    References:
        Yu, Chen and Poor, arXiv:2406.11159, that more workers are not always faster.
    """
    base.check_number("step", step, positive=True)
    base.check_number("condition", condition)
    if condition < 1:
        raise ValueError(
            f"`condition` must be at least 1, got {condition}: it is the largest"
            " curvature over the smallest."
        )
    _check_law(law)
    limit = damping_limit(law) * law.mean
    if condition > 1 and limit == math.inf:
        raise ValueError(
            f"`law` must have a `damping_limit` for a `condition` above 1, got"
            f" {condition}: of nearly memoryless times the mean bears any number of"
            " workers, and single runs what trace_step_limit says of a simulated trace."
        )
    modes = np.array([step, step / condition])

    def slowest(workers: int) -> float:
        return float(np.min(workers_decay_rate(modes, workers, law)))

    a = _fastest(law, condition, limit)
    workers = max(math.floor(a / step + 0.5), 1)
    # an integer next to it, unless the law's rate peaks elsewhere
    last = workers + 1 if limit == math.inf else math.inf
    while workers > 1 and slowest(workers - 1) >= slowest(workers):
        workers -= 1
    while workers < last and slowest(workers + 1) > slowest(workers):
        workers += 1
    return OptimalWorkers(workers, slowest(workers), limit / step + 0.5)


def implicit_momentum(workers: int) -> float:
    """The momentum that memoryless asynchronous workers add to the mean path.

    Of P workers with exponential times the next to deliver may be any, whatever came
    before: the staleness is geometric, and

        E[x_{t+1} - x_t] = (1 - 1/P) E[x_t - x_{t-1}] - (eta/P) E grad F(x_t),

    a heavy ball of momentum 1 - 1/P and step eta/P. It rests on the memorylessness. For
    regular times (gamma of shape 4 and more, constant) no momentum gives the mean path,
    and a fitted one is not 1 - 1/P; take the delay itself there, as `step_limit(pmf)`
    and `workers_decay_rate` do.

    Args:
        workers: P.

    Returns:
        1 - 1/P. Explicit momentum comes on top: tune it down as workers are added.

    Raises:
        TypeError: if `workers` is no integer.
        ValueError: if `workers` is below 1.

    Example:
        >>> implicit_momentum(1), implicit_momentum(16)
        (0.0, 0.9375)

    References:
        Mitliagkas, Zhang, Hadjis and Re, Asynchrony begets momentum, 2016,
        arXiv:1605.09774.
    """
    return 1 - 1 / base.check_bound("workers", workers, at_least=1)


def _fastest(law: DelayLaw, condition: float, limit: float) -> float:
    """A of the largest curvature where both ends of the spectrum decay equally fast."""
    critical = critical_damping(law) * law.mean
    if condition == 1:
        return critical

    def lead(a: float) -> float:
        """By how much the stiffest mode is faster."""
        stiffest, slowest = a / law.mean, a / (condition * law.mean)
        return decay_rate(stiffest, law) - decay_rate(slowest, law)

    return float(np.asarray(optimize.brentq(lead, critical, limit)))


def _check_law(law: DelayLaw) -> None:
    if not isinstance(law, DelayLaw):
        raise TypeError(
            "`law` must be a law of the seconds that a gradient takes, such as"
            f" constant_delay(1.0), got {law!r}."
        )
