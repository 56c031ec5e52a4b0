"""The seconds of a gradient, by what the K-th of P workers takes.

Of one law there are three forms: `service_times.exponential` here, whose order
statistics `stability.k_sync_seconds` and its like need; `cluster.exponential`, which
draws times for simulations; and `stability.exponential_delay`, a Laplace transform,
from which rates and limits in continuous time follow.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from jax.typing import ArrayLike
from scipy import special

from delayjax import base
from delayjax.stability.known import check_number


@dataclasses.dataclass(frozen=True)
class ServiceTimes:
    """Independent, equally distributed service times of P workers.

    For `stability.k_sync_seconds` and its like. A simulation takes a law of `cluster`,
    and rates take a `stability.DelayLaw`.

    Attributes:
        mean_seconds: E T; may be infinite.
        kth: (K, P) -> E T_{K:P}, the mean seconds until the first K of P workers have
            finished that started together.
        beyond: seconds [n] -> P(T > seconds), float64 [n].
        memoryless: whether what is left of a task is as long as a new one.
    """

    mean_seconds: float
    kth: Callable[[int, int], float]
    beyond: Callable[[np.ndarray], np.ndarray]
    memoryless: bool = False


def exponential(mean_seconds: float) -> ServiceTimes:
    """Memoryless times.

        E T_{K:P} = mean (1/(P - K + 1) + ... + 1/P)

    Args:
        mean_seconds: E T.

    Raises:
        ValueError: if it is not positive and finite.

    Example:
        >>> round(exponential(6.0).kth(2, 3), 6)  # 6/3 for the first, 6/2 more
        5.0

    References:
        Dutta et al., AISTATS 2018, arXiv:1803.01113.
    """
    check_number("mean_seconds", mean_seconds, positive=True)
    return ServiceTimes(
        float(mean_seconds),
        lambda k, workers: mean_seconds * _harmonic(k, workers),
        lambda seconds: np.exp(-np.maximum(seconds, 0) / mean_seconds),
        memoryless=True,
    )


def shifted_exponential(shift_seconds: float, mean_seconds: float) -> ServiceTimes:
    """A fixed part and a memoryless one.

        E T_{K:P} = shift + mean (1/(P - K + 1) + ... + 1/P)

    Args:
        shift_seconds: the fixed part.
        mean_seconds: of the memoryless part.

    Raises:
        ValueError: if one is not positive and finite.

    Example:
        >>> round(shifted_exponential(1.0, 6.0).kth(2, 3), 6)
        6.0

    References:
        Dutta et al., AISTATS 2018, arXiv:1803.01113.
    """
    check_number("shift_seconds", shift_seconds, positive=True)
    check_number("mean_seconds", mean_seconds, positive=True)
    return ServiceTimes(
        float(shift_seconds + mean_seconds),
        lambda k, workers: shift_seconds + mean_seconds * _harmonic(k, workers),
        lambda t: np.exp(-np.maximum(t - shift_seconds, 0) / mean_seconds),
    )


def pareto(scale_seconds: float, shape: float) -> ServiceTimes:
    """Heavy tails, P(T > t) = (scale / t)^alpha from `scale` on.

        E T_{K:P} = scale Gam(P + 1) Gam(P - K + 1 - 1/alpha)
                    / (Gam(P - K + 1) Gam(P + 1 - 1/alpha))

    Args:
        scale_seconds: the shortest time.
        shape: alpha. The mean is infinite up to 1, E T_{K:P} up to 1 / (P - K + 1).

    Raises:
        ValueError: if one is not positive and finite.

    Example:
        >>> round(pareto(2.0, 3.0).kth(1, 8), 6) == round(2 * 24 / 23, 6)
        True
        >>> pareto(2.0, 1.0).kth(8, 8)
        inf

    References:
        Dutta et al., AISTATS 2018, arXiv:1803.01113.
    """
    check_number("scale_seconds", scale_seconds, positive=True)
    check_number("shape", shape, positive=True)

    def kth(k: int, workers: int) -> float:
        slower, every = workers - k + 1, workers + 1
        if slower <= 1 / shape:
            return math.inf
        return scale_seconds * math.exp(
            math.lgamma(every)
            + math.lgamma(slower - 1 / shape)
            - math.lgamma(slower)
            - math.lgamma(every - 1 / shape)
        )

    return ServiceTimes(
        kth(1, 1),
        kth,
        lambda t: (scale_seconds / np.maximum(t, scale_seconds)) ** shape,
    )


def uniform(low_seconds: float, high_seconds: float) -> ServiceTimes:
    """Times spread evenly between two ends.

        E T_{K:P} = low + (high - low) K / (P + 1)

    Args:
        low_seconds: the shortest time.
        high_seconds: the longest time, above it.

    Raises:
        ValueError: if `low_seconds` is negative, or `high_seconds` not above it and
            finite.

    Example:
        >>> uniform(1.0, 5.0).kth(3, 3)
        4.0
    """
    check_number("low_seconds", low_seconds)
    check_number("high_seconds", high_seconds, positive=True)
    if not high_seconds > low_seconds:
        raise ValueError(
            f"`high_seconds` must be above `low_seconds` = {low_seconds}, got"
            f" {high_seconds}: for a fixed time use empirical([seconds])."
        )
    spread = high_seconds - low_seconds
    return ServiceTimes(
        (low_seconds + high_seconds) / 2,
        lambda k, workers: low_seconds + spread * k / (workers + 1),
        lambda t: np.clip((high_seconds - t) / spread, 0, 1),
    )


def empirical(samples: ArrayLike) -> ServiceTimes:
    """Times that were measured, drawn with replacement.

    Of n samples in order, T_{K:P} is at most the j-th where at least K of P draws are:

        E T_{K:P} = sum_j t_j (I(j/n) - I((j - 1)/n)),    I(u) = P(Bin(P, u) >= K)

    Args:
        samples: seconds [n], from a log; one sample is a constant time.

    Raises:
        ValueError: if there are none, or one is not positive and finite.

    Example:
        >>> empirical([1.0, 3.0]).kth(2, 2)  # 1 in one of four cases, else 3
        2.5
    """
    times = np.sort(base.as_reals("samples", samples), axis=None)
    if np.ndim(samples) != 1 or not times.size or not times[0] > 0:
        raise ValueError(
            "`samples` must be a row of positive seconds, at least one, got"
            f" {samples!r}."
        )
    if not math.isfinite(times[-1]):
        raise ValueError(
            f"`samples` must be finite, got {times[-1]}: leave out tasks without end."
        )
    shares = np.arange(times.size + 1) / times.size

    def kth(k: int, workers: int) -> float:
        done = special.betainc(k, workers - k + 1, shares)
        return float(times @ np.diff(done))

    return ServiceTimes(
        float(times.mean()),
        kth,
        lambda t: 1 - np.searchsorted(times, t, side="right") / times.size,
    )


def _harmonic(k: int, workers: int) -> float:
    """The K-th of P memoryless times of mean one."""
    return math.fsum(1 / i for i in range(workers - k + 1, workers + 1))
