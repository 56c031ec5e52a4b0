"""Which damping a delay bears, and with which it decays fastest.

See `continuous` for the equation.
"""

import math

import numpy as np

from delayjax import base
from delayjax.stability.crossings import brent
from delayjax.stability.delay_laws import DelayLaw, check_law
from delayjax.stability.known import check_number
from delayjax.stability.rightmost import meeting_rate

_FINE = 0.02  # 1/mean between two angular frequencies
_HIGHEST = 1000.0  # 1/median: that an angular frequency may be
_COARSEST = 2e-5  # of a frequency: how far the next one may be
_BLOCK = 100  # frequencies at a time
_POINTS = 2**14  # of an integral over all frequencies
MOST_WORKERS = 10**6  # whose limit they show to 0.2 %


def damping_limit(law: DelayLaw, *, workers: float) -> float:
    """The smallest damping at which single runs of P workers may diverge.

    A root of the delay equation is i w on the imaginary axis where

        E cos(w T) = 0,    a = w / E sin(w T)

    which, times the mean delay, is pi/2 for a constant delay, for k stages

        k tan(pi/2k) / cos^k(pi/2k)

    and (pi/2)^2 for delays that are uniform between 0 and twice the mean. The equation
    is the mean over runs, and what infinitely many workers bear. Fewer move at random
    about it. As if their delays were independent, the variance dies out where also

        (a^2 E T / 2 pi P) int (1 - |phi|^2) / |i w + a phi|^2 dw < 1,    phi = phi(i w)

    over all w, which for memoryless workers is a E T < sqrt(2 P). Single runs of these
    bear sqrt(pi P) + 1/2, where the equation bears any step.

    Args:
        law: of the delay.
        workers: P, at least 1; `math.inf` for the delay equation itself.

    Returns:
        float64, in 1/seconds. The step limit of P workers is eta lambda = it * mean / P
        and, closer, that with `half_update_earlier`. For P of `inf` it is `inf` where
        no frequency up to 1000 / median gives one, as for exponential delays. Of laws
        with a few delays a thousand times the others it is exact to about the share of
        these. Costs nothing for gamma and constant delays and P of `inf`; else it costs
        0.1 ms, and if `inf` 50,000 values of phi, 2 ms, and as many more for each
        factor of e by which the mean is above the median; for a finite P 16,000 more.

    Raises:
        TypeError: if `law` is no `DelayLaw`, or `workers` no number.
        ValueError: if `workers` is below 1, or above 10^6 and finite.

    Example:
        >>> from delayjax.stability.delay_laws import constant_delay, gamma_delay
        >>> round(damping_limit(constant_delay(2.0), workers=16), 6)  # pi/2 / 2
        0.785398
        >>> law = gamma_delay(1.0, 2.0)
        >>> [round(damping_limit(law, workers=p), 2) for p in (16, 1000, math.inf)]
        [3.1, 3.98, 4.0]

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for the limit as a question of roots.
    """
    check_law(law)
    limit = _limit_of_the_mean(law)
    if isinstance(workers, float) and workers == math.inf:
        return limit
    count = base.check_bound("workers", workers, at_least=1)
    if count > MOST_WORKERS:
        raise ValueError(
            f"`workers` must be at most {MOST_WORKERS} or math.inf, got {count}."
        )
    return _limit_of_the_variance(law, count, limit)


def critical_damping(law: DelayLaw) -> float:
    """The largest damping at which the error decays without oscillating.

    Two real roots meet there, at the r > 0 of the largest

        a = r / E exp(r T)

    which is 1/e at r = 1, in units of the mean, for a constant delay, and for k stages

        (k/(k+1))^{k+1}    at    r = k/(k+1).

    It is the fastest of all dampings if the delay is constant. Widely spread delays, as
    gamma delays of a shape below 1, decay faster yet beyond it, oscillating.

    Args:
        law: of the delay.

    Returns:
        float64, in 1/seconds. For a mode of eta lambda the best number of workers is it
        * mean / (eta lambda). Costs 0.1 ms.

    Raises:
        TypeError: if `law` is no `DelayLaw`.

    Example:
        >>> from delayjax.stability.delay_laws import constant_delay, exponential_delay
        >>> round(critical_damping(constant_delay(1.0)), 6)  # 1/e
        0.367879
        >>> round(critical_damping(exponential_delay(1.0)), 6)
        0.25

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for more workers that do not help.
    """
    check_law(law)
    rate = meeting_rate(law)
    return rate / float(law.transform(-rate))


def check_damping(damping: float, law: DelayLaw) -> float:
    """`damping` as a float, together with the law that delays it.

    Raises:
        TypeError: if `law` is no `DelayLaw`, or `damping` no number.
        ValueError: if `damping` is negative or not finite.
    """
    check_law(law)
    try:
        check_number("damping", damping)
    except ValueError as error:
        raise ValueError(
            f"{error} It is eta lambda nu: a direction of negative curvature grows with"
            " or without delay."
        ) from None
    return float(damping)


def _limit_of_the_mean(law: DelayLaw) -> float:
    """Where the delay equation has a root on the imaginary axis."""
    if law.stages is not None:
        return _limit_of_stages(law)
    # a mean may be that of one delay in a thousand: the others decide
    typical = float(law.quantile(0.5))
    if typical == 0:  # at least half of the cosines are 1
        return math.inf
    highest = _HIGHEST / min(typical, law.mean)
    limit, first = math.inf, 0.0
    # |phi| is at most 1, so a is at least w
    while first < min(limit, highest):
        spacing = max(_FINE / law.mean, _COARSEST * first)
        w = first + spacing * np.arange(_BLOCK + 1)
        real = law.transform(1j * w).real
        for cell in np.flatnonzero((real[:-1] > 0) != (real[1:] > 0)):
            if w[cell] >= limit:
                break
            crossing = brent(
                lambda w: float(law.transform(1j * w).real), w[cell], w[cell + 1]
            )
            late = -float(law.transform(1j * crossing).imag)
            if late > 0:
                limit = min(limit, crossing / late)
        first = float(w[-1])
    return limit


def _limit_of_the_variance(law: DelayLaw, workers: int, most: float) -> float:
    """Where the integral is 1, up to `most`; w = tan(angle) / E T."""
    angles = (np.arange(_POINTS) + 0.5) * (math.pi / 2 / _POINTS)
    w = np.tan(angles) / law.mean
    phi = law.transform(1j * w)
    spread = (1 - np.abs(phi) ** 2) / np.cos(angles) ** 2 / (2.0 * _POINTS * workers)

    def left(damping: float) -> float:
        """What the integral lacks of 1."""
        return float(1 - (spread / np.abs(1j * w / damping + phi) ** 2).sum())

    high = 1 / law.mean
    while high < most and left(high) > 0:
        high *= 2
    high = min(high, most)
    return brent(left, 1e-9 / law.mean, high) if left(high) < 0 else high


def _limit_of_stages(law: DelayLaw) -> float:
    """Over the mean, k tan(pi/2k) / cos^k(pi/2k), for any k > 1."""
    k = float(law.stages or 0)
    if k <= 1:
        return math.inf
    if k == math.inf:
        return math.pi / 2 / law.mean
    turned = math.pi / (2 * k)
    lost = k / 2 * math.log1p(-(math.sin(turned) ** 2))
    return (
        k * math.tan(turned) * math.exp(-lost) / law.mean if lost > -700 else math.inf
    )
