"""How fast gradients arrive at a server, and how long a run takes."""

import math

import numpy as np
import scipy
from jax.typing import ArrayLike

from delayjax._src.ground import checks, kinds


@kinds.checked
def arrival_rate(
    workers: kinds.PositiveInt,
    mean_seconds: ArrayLike,
    *,
    server_seconds: kinds.NonNegativeFloat = 0.0,
    sent: kinds.PositiveProbability = 1.0,
) -> float:
    """Gradients that reach an asynchronous server in a second.

    Each of P workers computes a gradient in T_i on average, and sends a share p of its
    gradients. Each sent gradient occupies the server (or its link) alone, for s:

        nu = min( p sum_i 1 / (T_i + p s), 1/s )

    This is exact for s = 0 or constant times, else an upper bound.

    Args:
        workers: P.
        mean_seconds: E T of a gradient: a number, or one for each worker [P].
        server_seconds: s, for the messages there and back, in which the worker waits.
        sent: p in (0, 1], the share of gradients that is sent (event trigger).

    Example:
        >>> [arrival_rate(p, 9.0, server_seconds=1.0) for p in (5, 10, 20)]
        [0.5, 1.0, 1.0]

    References:
        Yu, Chen and Poor, arXiv:2406.11159; Denning and Buzen, ACM CSUR 10, 1978.
    """
    remedy = "leave out workers of infinite mean, because their long-run rate is 0"
    means = checks.as_finite("mean_seconds", mean_seconds, positive=True, remedy=remedy)
    each = sent / (np.broadcast_to(means, workers) + sent * server_seconds)
    served = 1 / server_seconds if server_seconds else math.inf
    return float(min(each.sum(), served))


@kinds.checked
def run_time(
    target: kinds.PositiveFloat, rates: ArrayLike, *, start: ArrayLike = 1.0
) -> float:
    """Seconds until the distance to the optimum first falls to a target.

    The mean path of mode i of the Hessian shrinks as e^{-r_i t}. The result solves

        |x(t)| = sqrt( sum_i c_i^2 e^{-2 r_i t} ) = target

    as in Yu, Chen and Poor, arXiv:2406.11159. It leaves out oscillations and gradient
    noise (`stability.Dynamics.stationary_variance`).

    Args:
        target: the distance to reach, positive.
        rates: r_i per second, a number or [modes]: `stability.workers_decay_rate`, or
            -log(spectral_radius) times the updates per second. The result is `inf` if a
            mode with c_i > 0 does not decay.
        start: c_i, the distance of each mode at first; one number counts for each mode.

    Example:
        >>> round(run_time(0.01, 0.5), 3)  # log(100) / 0.5
        9.21
    """
    rates = np.atleast_1d(checks.as_reals("rates", rates))
    offset = np.abs(checks.as_reals("start", start))
    if np.isnan(rates).any() or not np.isfinite(offset).all():
        raise ValueError(
            f"`rates` must not be nan and `start` must be finite, got {rates}, {start}."
        )
    offset = np.broadcast_to(offset, rates.shape)
    lasts = (offset > 0) & (rates < math.inf)  # other modes are 0 at once
    rates, offset = rates[lasts], offset[lasts]
    if np.linalg.norm(offset) <= target:
        return 0.0
    if not (rates > 0).all():
        return math.inf
    logs = np.log(offset) - math.log(target)

    def excess(seconds):
        """log(|x| / target)."""
        return float(np.logaddexp.reduce(2 * (logs - rates * seconds))) / 2

    # no earlier than each mode alone, no later than if all had the slowest rate
    low = max(float((logs / rates).max()), 0.0)
    high = excess(0.0) / float(rates.min())
    if not excess(low) > 0:  # one mode counts
        return low
    high *= 1 + 1e-12  # against rounding
    return float(np.asarray(scipy.optimize.brentq(excess, low, high, xtol=1e-300)))
