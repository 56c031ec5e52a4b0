"""Laws of a delay in seconds, by the names of `cluster`'s laws of service times."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from delayjax import base
from delayjax.stability.known import check_number, floats

_BLOCK = 2**18  # exponentials at a time
_LARGE = 1000  # stages, of which 1 + s mean/k loses three digits


@dataclasses.dataclass(frozen=True)
class DelayLaw:
    """How old a gradient is when the server applies it: a random time T, in seconds.

    On a cluster of plain asynchronous SGD it is the time that the gradient took. A mode
    depends on it through its Laplace transform, phi(s) = E exp(-s T).

    Attributes:
        transform: s in 1/seconds, float64 or complex128 of any shape -> phi(s).
        slope: s -> -phi'(s) = E T exp(-s T), seconds.
        quantile: shares in [0, 1) -> the seconds that a share of the delays is below.
        tail_rate: phi(s) is finite for Re s > -tail_rate, 1/seconds; may be `inf`.
        stages: k if T is the sum of k equal memoryless times, `inf` if it is constant;
            None for other laws.

    Raises:
        ValueError: if the mean is not positive and finite, or `tail_rate` is not
            positive.
    """

    transform: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    quantile: Callable[[Any], Any]
    tail_rate: float = math.inf
    stages: float | None = None

    def __post_init__(self):
        if not 0 < self.mean < math.inf:
            raise ValueError(
                f"`slope` must have a positive, finite mean at 0, got {self.mean}: a"
                " gradient without delay is plain SGD, and one whose mean delay is"
                " infinite follows no law of this kind."
            )
        if not self.tail_rate > 0:
            raise ValueError(f"`tail_rate` must be positive, got {self.tail_rate}.")

    @property
    def mean(self) -> float:
        """E T, in seconds."""
        return float(self.slope(0.0))

    def scaled(self, factor: float) -> "DelayLaw":
        """The law of factor * T."""
        check_number("factor", factor, positive=True)
        return DelayLaw(
            transform=lambda s: self.transform(factor * np.asarray(s)),
            slope=lambda s: factor * self.slope(factor * np.asarray(s)),
            quantile=lambda share: factor * self.quantile(share),
            tail_rate=self.tail_rate / factor,
            stages=self.stages,
        )


def constant_delay(seconds: float) -> DelayLaw:
    """Every gradient is equally late: phi(s) = exp(-s seconds).

    Args:
        seconds: the delay.

    Raises:
        ValueError: if it is not positive and finite.

    Example:
        >>> constant_delay(2.0).transform(0.5).round(6)  # 1/e
        np.float64(0.367879)
    """
    check_number("seconds", seconds, positive=True)
    seconds = float(seconds)
    return DelayLaw(
        transform=lambda s: np.exp(-np.asarray(s) * seconds),
        slope=lambda s: seconds * np.exp(-np.asarray(s) * seconds),
        quantile=lambda share: np.full(np.shape(share), seconds),
        stages=math.inf,
    )


def gamma_delay(mean_seconds: float, shape: float) -> DelayLaw:
    """`shape` memoryless stages: phi(s) = (1 + s mean/k)^-k.

    Exact for any shape: one of 1e12 is the constant delay to twelve digits.

    Args:
        mean_seconds: of the whole delay.
        shape: k, the inverse of the squared coefficient of variation; 1 is exponential,
            large is nearly constant. It need not be an integer.

    Raises:
        ValueError: if one is not positive and finite.

    Example:
        >>> gamma_delay(1.0, 4).transform(4.0)  # (1 + 1)^-4
        np.float64(0.0625)
    """
    check_number("mean_seconds", mean_seconds, positive=True)
    check_number("shape", shape, positive=True)
    mean, k = float(mean_seconds), float(shape)

    def power(s, exponent):
        """(1 + s mean/k)^-exponent."""
        each = np.asarray(s) * mean / k
        if k < _LARGE:
            return (1 + each) ** -exponent
        # scipy's log1p is exact for complex numbers near 0, which numpy's is not
        return np.exp(-exponent * special.log1p(each))

    return DelayLaw(
        transform=lambda s: power(s, k),
        slope=lambda s: mean * power(s, k + 1),
        quantile=lambda share: special.gammaincinv(k, share) * mean / k,
        tail_rate=k / mean,
        stages=k,
    )


def exponential_delay(mean_seconds: float) -> DelayLaw:
    """Memoryless delays: phi(s) = 1 / (1 + s mean).

    Args:
        mean_seconds: of the delay.

    Raises:
        ValueError: if it is not positive and finite.

    Example:
        >>> exponential_delay(2.0).transform(0.5)
        np.float64(0.5)
    """
    return gamma_delay(mean_seconds, 1.0)


def shifted_exponential_delay(shift_seconds: float, mean_seconds: float) -> DelayLaw:
    """A fixed part and a memoryless one: phi(s) = exp(-s shift) / (1 + s mean).

    Args:
        shift_seconds: the fixed part.
        mean_seconds: of the memoryless part; the whole has mean shift + mean.

    Raises:
        ValueError: if one is not positive and finite.

    Example:
        >>> shifted_exponential_delay(1.0, 2.0).mean
        3.0

    References:
        Dutta, Joshi, Ghosh, Dube and Nagpurkar, Slow and stale gradients can win the
        race, AISTATS 2018, arXiv:1803.01113.
    """
    check_number("shift_seconds", shift_seconds, positive=True)
    check_number("mean_seconds", mean_seconds, positive=True)
    shift, mean = float(shift_seconds), float(mean_seconds)

    def slope(s):
        stage = 1 + np.asarray(s) * mean
        return np.exp(-np.asarray(s) * shift) * (shift + mean / stage) / stage

    return DelayLaw(
        transform=lambda s: np.exp(-np.asarray(s) * shift) / (1 + np.asarray(s) * mean),
        slope=slope,
        quantile=lambda share: shift - mean * np.log1p(-np.asarray(share)),
        tail_rate=1 / mean,
    )


def uniform_delay(low_seconds: float, high_seconds: float) -> DelayLaw:
    """All delays in [low, high] are equally likely.

        phi(s) = (exp(-s low) - exp(-s high)) / (s (high - low))

    Args:
        low_seconds: the shortest.
        high_seconds: the longest.

    Raises:
        ValueError: if one is negative or not finite, or `high_seconds` is not above
            `low_seconds`.

    Example:
        >>> law = uniform_delay(0.0, 2.0)
        >>> law.mean, float(law.transform(1.0).round(6))  # (1 - exp(-2)) / 2
        (1.0, 0.432332)
    """
    check_number("low_seconds", low_seconds)
    check_number("high_seconds", high_seconds)
    if not high_seconds > low_seconds:
        raise ValueError(
            f"`high_seconds` must be above `low_seconds`, got {high_seconds} and"
            f" {low_seconds}: a fixed delay is constant_delay(seconds)."
        )
    low, high = float(low_seconds), float(high_seconds)
    width = high - low

    def parts(s):
        """exp(-s end), s width and +-width, from the end that leaves no overflow."""
        s = np.asarray(s)
        right = np.real(s) >= 0
        late = np.exp(-s * np.where(right, low, high))
        return late, np.where(right, 1, -1) * s * width, right

    def transform(s):
        late, z, _ = parts(s)
        return (late * _share_left(z))[()]

    def slope(s):
        late, z, right = parts(s)
        mean = np.where(right, low, high) * _share_left(z)
        return (late * (mean + np.where(right, width, -width) * _age_left(z)))[()]

    return DelayLaw(
        transform=transform,
        slope=slope,
        quantile=lambda share: low + width * np.asarray(share),
    )


def empirical_delay(samples: ArrayLike) -> DelayLaw:
    """Delays that were measured: phi(s) = mean of exp(-s samples).

    What is computed with it costs in proportion to the number of different samples;
    a thousand show what a million do.

    Args:
        samples: seconds [n]. Of a trace: `trace.arrived - trace.begun`.

    Raises:
        TypeError: if they are no real numbers.
        ValueError: if there are none, all are 0, or one is negative or not finite.

    Example:
        >>> empirical_delay([1.0, 3.0]).mean
        2.0
    """
    times = floats("samples", samples)
    if times.ndim != 1 or not times.size:
        raise ValueError(
            "`samples` must be a vector of at least one delay in seconds, got shape"
            f" {times.shape}."
        )
    if not (np.isfinite(times) & (times >= 0)).all():
        worst = times[~(np.isfinite(times) & (times >= 0))][0]
        raise ValueError(
            f"`samples` must hold finite, non-negative seconds, got {worst}: leave out"
            " gradients that never arrive, for they have no mean delay."
        )
    if not times.any():
        raise ValueError(
            "`samples` must hold a delay above 0, got zeros alone: without delay the"
            " rate is the damping itself."
        )
    values, counts = np.unique(times, return_counts=True)
    weights = counts / times.size
    return DelayLaw(
        transform=lambda s: _sum_of_exponentials(s, values, weights),
        slope=lambda s: _sum_of_exponentials(s, values, weights * values),
        quantile=lambda share: np.quantile(times, share, method="inverted_cdf"),
    )


def half_update_earlier(law: DelayLaw, workers: int) -> DelayLaw:
    """The law that P workers' updates obey, for theory in continuous time.

    A cluster of P workers moves the parameters nu = P / (mean T) times a second, and
    holds them in between: an update that is tau = P - 1 updates late acts like a delay
    of tau + 1/2 updates, which is not T but

        (1 - 1/(2P)) T

    At the same damping eta lambda nu its rates and limits are those of the cluster but
    for terms in 1/P^2 if times are constant; of random ones a term in 1/P remains, of
    the limit -0.2/P for gamma times of shape 16, -0.4/P of shape 4, -0.8/P for uniform
    times from 0 on. Those of T itself are off by several per cent at P of 10 to 20.

    Args:
        law: of the time T of a gradient.
        workers: P, of a server that updates at each gradient.

    Raises:
        TypeError: if `law` is no `DelayLaw`, or `workers` no integer.
        ValueError: if `workers` is below 1.

    Example:
        >>> from delayjax.stability.dampings import damping_limit
        >>> from delayjax.stability.dynamics import Dynamics
        >>> law = half_update_earlier(constant_delay(1.0), workers=16)
        >>> limits = damping_limit(law, workers=16) / 16, Dynamics(15).step_limit()
        >>> [round(limit, 4) for limit in limits]
        [0.1013, 0.1013]

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for the continuous picture. The half update
        follows from 2 sin(pi/(2(2 tau + 1))), about (pi/2) / (tau + 1/2).
    """
    check_law(law)
    workers = base.check_bound("workers", workers, at_least=1)
    return law.scaled(1 - 1 / (2 * workers))


def check_law(law: DelayLaw) -> None:
    """Checks that a law is one of seconds.

    Raises:
        TypeError: if `law` is no `DelayLaw`.
    """
    if not isinstance(law, DelayLaw):
        raise TypeError(
            "`law` must be a law of a delay in seconds such as constant_delay(1.0), got"
            f" {law!r}: for a delay in updates, -log(Dynamics(delay).spectral_radius("
            "step)) is the rate of an update."
        )


def _sum_of_exponentials(
    s: ArrayLike, times: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """sum_i weights[i] exp(-s times[i]), of the shape of `s`."""
    s = np.asarray(s)
    flat = s.ravel()
    rows = max(_BLOCK // times.size, 1)
    parts = [
        np.exp(-np.multiply.outer(flat[start : start + rows], times)) @ weights
        for start in range(0, flat.size, rows)
    ]
    result = np.concatenate(parts) if parts else np.zeros(0)
    return result.reshape(s.shape)[()]


def _share_left(z: np.ndarray) -> np.ndarray:
    """(1 - e^-z)/z, the mean of e^-zu over u in [0, 1]; 1 at z = 0."""
    safe = np.where(z == 0, 1, z)
    return np.where(z == 0, 1, -np.expm1(-safe) / safe)


def _age_left(z: np.ndarray) -> np.ndarray:
    """The mean of u e^-zu, (1 - e^-z (1 + z))/z^2; its series where that cancels."""
    small = np.abs(z) < 0.5
    safe = np.where(small, 1, z)
    near, series = np.where(small, z, 0), np.zeros_like(z)
    for n in reversed(range(14)):  # sum_n (-z)^n / (n! (n + 2))
        series = 1 / (math.factorial(n) * (n + 2)) - near * series
    # -expm1(-z) - z e^-z, over z^2
    far = -(np.expm1(-safe) / safe + np.exp(-safe)) / safe
    return np.where(small, series, far)
