"""How fast gradients arrive at a server, and how long a run then takes."""

import math

import numpy as np
from jax.typing import ArrayLike
from scipy import optimize

from delayjax._src import base


def arrival_rate(
    workers: int,
    mean_seconds: ArrayLike,
    *,
    server_seconds: float = 0.0,
    sent: float = 1.0,
) -> float:
    """Gradients that reach an asynchronous server in a second.

    Each of P workers computes for T_i on average, then holds the server for s with a
    share p of its gradients:

        nu = min( p sum_i 1 / (T_i + p s), 1/s )

    Beyond P = T/(p s) + 1 equal workers only queue. Without s it is exact for any
    times, by renewal; with s it is an upper bound, attained by constant times.

    Args:
        workers: P.
        mean_seconds: E T of a gradient: a number, or one for each worker [P].
        server_seconds: s, for which the server (or its link) serves one gradient alone,
            both ways; a worker waits for it.
        sent: p in (0, 1], the share of gradients that is sent (event trigger).

    Returns:
        float64, gradients per second; each is an update of plain asynchronous SGD. It
        counts refused gradients: multiply it by `FilteredStaleness.accepted`.

    Raises:
        TypeError, ValueError: if an argument is no such number.

    Example:
        >>> arrival_rate(8, 2.0)
        4.0
        >>> arrival_rate(2, [1.0, 2.0])
        1.5
        >>> [arrival_rate(p, 9.0, server_seconds=1.0) for p in (5, 10, 20)]
        [0.5, 1.0, 1.0]

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for bandwidth and event triggers; Denning
        and Buzen, The operational analysis of queueing network models, Computing
        Surveys 10, 1978, for the bound.
    """
    workers = base.check_bound("workers", workers, at_least=1)
    means = base.as_reals("mean_seconds", mean_seconds)
    if not ((means > 0) & np.isfinite(means)).all():
        raise ValueError(
            f"`mean_seconds` must be positive and finite, got {mean_seconds!r}: leave"
            " out workers that never deliver, and workers whose times have an infinite"
            " mean, for their rate is 0 in the long run."
        )
    if means.shape not in ((), (workers,)):
        raise ValueError(
            "`mean_seconds` must be a number, or one for each of the"
            f" {workers} workers, got shape {means.shape}."
        )
    base.check_number("server_seconds", server_seconds)
    check_share("sent", sent)
    each = sent / (np.broadcast_to(means, workers) + sent * server_seconds)
    served = 1 / server_seconds if server_seconds else math.inf
    return float(min(each.sum(), served))


def run_time(target: float, rates: ArrayLike, *, start: ArrayLike = 1.0) -> float:
    """Seconds until the distance to the optimum first falls to a target.

    The mean path of each mode i of the Hessian shrinks as e^{-r_i t}; the time is when
    the distance first meets the target,

        |x(t)| = sqrt( sum_i c_i^2 e^{-2 r_i t} ) = target,

    log(c / target) / r for one mode. Oscillations and gradient noise are left out: a
    target below the noise (see `stability.stationary_variance`) is never met.

    Args:
        target: the distance to reach, positive.
        rates: r_i per second, a number or [modes]: `stability.workers_decay_rate`, or
            -log(spectral_radius) times the updates per second.
        start: c_i, how far each mode is off at first; a number is meant for each mode.

    Returns:
        float64 seconds; 0 if the target is met at the start, and `inf` if a mode that
        is off does not decay. A mode of rate `inf`, as of one worker at eta lambda = 1,
        is gone at once.

    Raises:
        TypeError, ValueError: if an argument is no such number, or `start` does not fit
            `rates`.

    Example:
        >>> round(run_time(0.01, 0.5), 3)  # log(100) / 0.5
        9.21
        >>> rate = -np.log(0.5) * arrival_rate(2, 1.0)  # spectral_radius(0.25, 1) = 1/2
        >>> round(run_time(1 / 1024, rate), 6)  # ten halvings, two updates a second
        5.0
        >>> run_time(0.01, [0.5, -0.1])
        inf

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for run time as a first passage.
    """
    base.check_number("target", target, positive=True)
    rates = np.atleast_1d(base.as_reals("rates", rates))
    offset = np.abs(base.as_reals("start", start))
    if rates.ndim != 1 or not rates.size or np.isnan(rates).any():
        raise ValueError(
            "`rates` must be a number or a row of at least one, none of them nan, got"
            f" {rates}."
        )
    if offset.shape not in ((), rates.shape) or not np.isfinite(offset).all():
        raise ValueError(
            f"`start` must be finite, a number or one for each of the {rates.size}"
            f" rates, got {start!r}."
        )
    offset = np.broadcast_to(offset, rates.shape)
    if np.linalg.norm(offset) <= target:
        return 0.0
    left = (offset > 0) & (rates < math.inf)
    rates, offset = rates[left], offset[left]
    logs = np.log(offset) - math.log(target)

    def excess(seconds: float) -> float:
        """log(|x| / target)."""
        return float(np.logaddexp.reduce(2 * (logs - rates * seconds))) / 2

    if np.linalg.norm(offset) <= target:
        return 0.0
    if not (rates > 0).all():
        return math.inf
    # each mode alone is later than none, and all are as fast as the slowest
    low = max(float((logs / rates).max()), 0.0)
    high = excess(0.0) / float(rates.min())
    if not excess(low) > 0:  # one mode counts
        return low
    high *= 1 + 1e-12  # against rounding
    return float(np.asarray(optimize.brentq(excess, low, high, xtol=1e-300)))


def check_share(name: str, value: float) -> None:
    """Checks a share of all gradients.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is not in (0, 1].
    """
    base.check_number(name, value, positive=True)
    if value > 1:
        raise ValueError(f"`{name}` must lie in (0, 1], got {value}.")
