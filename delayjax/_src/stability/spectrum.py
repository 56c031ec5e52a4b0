"""The stability limits of the delay equation and its variance, by frequencies."""

import functools
import math

import numpy as np
import scipy

from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.stability.rightmost import RightmostZeros
from delayjax._src.stability.root_finding import zero_between

_FINE = 0.02  # 1/mean between two angular frequencies
_HIGHEST = 1000.0  # 1/median: the highest angular frequency
_COARSEST = 2e-5  # relative distance of two frequencies, at most
_BLOCK = 100  # frequencies at a time
_POINTS = 2**14  # of an integral over all frequencies
_SPARSE = 16  # points for one value of a transform that has no formula
_CELLS = 4096  # at a time
_EXACT = 1e-6  # the relative error that integration may have
_TOO_WIDE = (
    "`service_time` must have times less widely spread, to {}: leave out the longest,"
    " or measure with `paths`."
)


def limit_of_the_mean(time: ServiceTime) -> float:
    """The gain at which the delay equation has a root on the imaginary axis.

    Raises:
        ValueError: if no frequency at which the transform is known gives a limit.
    """
    limit, is_known = _limit_of_the_mean(time)
    if not is_known:
        raise ValueError(_TOO_WIDE.format("find the limit"))
    return limit


@functools.lru_cache(maxsize=8)  # a search for the best P calls it many times
def _limit_of_the_mean(time: ServiceTime) -> tuple[float, bool]:
    """The limit and True; or, if it is not known, a gain below it and False.

    A root i w has a gain of at least w, since |phi| is at most 1. So the limit is above
    every frequency below which no root is.
    """
    if (k := time.stages) is not None:  # k tan(pi/2k) / cos^k(pi/2k)
        if k <= 1:
            return math.inf, True
        if k == math.inf:
            return math.pi / 2 / time.mean, True
        turned = math.pi / (2 * k)
        lost = k / 2 * math.log1p(-(math.sin(turned) ** 2))
        limit = k * math.tan(turned) * math.exp(-lost) if lost > -700 else math.inf
        return limit / time.mean, True
    # the median, because one delay in a thousand may determine the mean
    typical = float(time.quantile(0.5))
    if typical == 0:  # at least half of the cosines are 1
        return math.inf, True

    def real(w):
        return time.transform(1j * w).real

    last = _HIGHEST / min(typical, time.mean)
    highest = min(last, time.resolved)
    limit, first = math.inf, 0.0
    while first < min(limit, highest):
        spacing = max(_FINE / time.mean, _COARSEST * first)
        w = first + spacing * np.arange(_BLOCK + 1)
        signs = real(w) > 0
        for cell in np.flatnonzero(signs[:-1] != signs[1:]):
            crossing = zero_between(real, w[cell], w[cell + 1])
            late = -float(time.transform(1j * crossing).imag)
            if late > 0:
                limit = min(limit, crossing / late)
        first = float(w[-1])
    # a heavy tail may have its first root beyond `last`
    if limit == math.inf and (highest < last or time.tail_rate == 0):
        return highest, False
    return limit, True


def limit_of_the_variance(time: ServiceTime, workers: int) -> float:
    """The gain at which the integral is 1, at most the limit of the mean.

    Raises:
        ValueError: if that limit is not known, and may be the smaller one.
    """
    most, is_known = _limit_of_the_mean(time)
    w, phi, spread = _spectrum(time)
    spread = spread / (2.0 * _POINTS * workers)

    def left(gain: float) -> float:
        """1 - the integral."""
        return float(1 - (spread / np.abs(1j * w / gain + phi) ** 2).sum())

    high = 1 / time.mean
    while high < most and left(high) > 0:
        high *= 2
    high = min(high, most)
    if left(high) < 0:
        return zero_between(left, 1e-9 / time.mean, high)
    if not is_known:
        raise ValueError(_TOO_WIDE.format("find the limit"))
    return high


def variance(gain: float, time: ServiceTime) -> float:
    """The variance for a noise of 1 and a gain in (0, limit of the mean)."""
    turns = gain * time.mean
    if time.stages == math.inf:
        return 1 / (2 * gain) * (1 + math.sin(turns)) / math.cos(turns)
    if time.stages == 1:
        return 1 / (2 * gain) * (1 + turns)
    # the limit is exact for gamma times, which have stages
    zeros = RightmostZeros(gain, time, 1 / time.mean)
    if time.stages is None and zeros.number_right_of(0.0):
        return math.inf

    def density(w):  # 1/(2a) is the rest
        late = 1j * w + gain * time.transform(1j * w)
        return 1 / np.abs(late) ** 2 - 1 / (w**2 + gain**2)

    # resonances are at frequencies below a, the rest falls as 1/w^3
    middle, far = 2 * gain + 4 / time.mean, 100 * gain + 1000 / time.mean
    # a slow resonance is as wide as a, even for a tiny a
    ends = middle * 4.0 ** np.arange(-math.ceil(math.log(middle / gain, 4)) - 1, 1)
    precision = {"limit": 2000, "epsabs": 1e-11 / gain, "epsrel": 1e-10}
    total, doubt = 0.0, 0.0
    for low, high in zip([0.0, *ends[:-1]], ends, strict=True):
        part, error, *_ = scipy.integrate.quad(
            lambda w: float(density(w)), low, high, full_output=True, **precision
        )  # a full output has no warnings
        total, doubt = total + part, doubt + error
    if doubt > _EXACT * (math.pi / (2 * gain) + total):
        raise ValueError(_TOO_WIDE.format("integrate the variance to six digits"))
    edges = np.linspace(middle, far, math.ceil((far - middle) * time.mean) + 1)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    for first in range(0, len(edges) - 1, _CELLS):
        some = edges[first : first + _CELLS + 1]
        half = (some[1:] - some[:-1]) / 2
        w = (some[1:] + some[:-1])[:, None] / 2 + np.outer(half, nodes)
        total += float(half @ density(w) @ weights)
    return 1 / (2 * gain) + total / math.pi


@functools.lru_cache(maxsize=8)
def _spectrum(time: ServiceTime) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frequencies w = tan(angle) / E T, phi(i w), and (1 - |phi|^2) dw/d(angle) E T."""
    angles = (np.arange(_POINTS) + 0.5) * (math.pi / 2 / _POINTS)
    w = np.tan(angles) / time.mean
    if time.resolved == math.inf:
        phi = time.transform(1j * w)
    else:  # one value is an integral and takes 0.6 ms: interpolate
        few = np.append(w[::_SPARSE], w[-1])
        # without its mean phase phi hardly turns
        still = time.transform(1j * few) * np.exp(1j * few * time.mean)
        smooth = scipy.interpolate.CubicSpline(np.arctan(few * time.mean), still)
        phi = smooth(np.arctan(w * time.mean)) * np.exp(-1j * w * time.mean)
    return w, phi, (1 - np.abs(phi) ** 2) / np.cos(angles) ** 2
