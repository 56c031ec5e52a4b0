"""The stationary variance of the delay equation with noise."""

import math

import numpy as np
import scipy

from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.stability.rightmost import RightmostZeros

_CELLS = 4096  # at a time
_EXACT = 1e-6  # the relative error that integration may have


def variance(gain: float, time: ServiceTime) -> float:
    """The variance of X for a noise of 1 and a gain in (0, limit of the mean)."""
    turns = gain * time.mean
    if time.stages == math.inf:
        return 1 / (2 * gain) * (1 + math.sin(turns)) / math.cos(turns)
    if time.stages == 1:
        return 1 / (2 * gain) * (1 + turns)
    # the limit is exact for gamma times, which have stages
    zeros = RightmostZeros(gain, time, 1 / time.mean)
    if time.stages is None and zeros.number_right_of(0.0):
        return math.inf
    return 1 / (2 * gain) + _excess(gain, time) / math.pi


def _excess(gain: float, time: ServiceTime) -> float:
    """The integral of 1/|i w + a phi|^2 - 1/(w^2 + a^2) over w > 0."""

    def density(w):
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
        raise ValueError(
            "`service_time` must have times less widely spread, to integrate the"
            " variance to six digits: leave out the longest, or measure with `paths`."
        )
    edges = np.linspace(middle, far, math.ceil((far - middle) * time.mean) + 1)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    for first in range(0, len(edges) - 1, _CELLS):
        some = edges[first : first + _CELLS + 1]
        half = (some[1:] - some[:-1]) / 2
        w = (some[1:] + some[:-1])[:, None] / 2 + np.outer(half, nodes)
        total += float(half @ density(w) @ weights)
    return total
