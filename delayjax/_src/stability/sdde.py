"""The delay equation with noise: its stationary variance and its paths.

dX = -a E X(t - T) dt + noise dB
"""

import math

import numpy as np
import scipy

from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.stability.rightmost import RightmostZeros

_GOLDEN = (math.sqrt(5) - 1) / 2
_CELLS = 4096  # at a time
_EXACT = 1e-6  # the relative error that integration may have
_LONGER = 0.05  # the share of the mean delay that steps may add to it


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


def paths(
    gain: float,
    time: ServiceTime,
    *,
    paths: int,
    steps: int,
    step_seconds: float,
    rng: np.random.Generator,
    noise: float,
    start: float,
    every: int,
) -> np.ndarray:
    """As `DelayEquation.paths`."""
    shares = (0.5 + _GOLDEN * np.arange(steps)) % 1
    exact = time.quantile(shares) / step_seconds - 0.5
    late = np.maximum(exact, 0)
    longer = float(np.mean(late - exact)) * step_seconds / time.mean
    if longer > _LONGER:
        raise ValueError(
            f"`step_seconds` must be short compared to the delay, got {step_seconds}:"
            f" it makes the mean delay {longer:.0%} longer; take at most"
            f" {time.mean / 10:.2g}."
        )
    back = np.floor(late).astype(np.int64)
    drift, kick = gain * step_seconds, noise * math.sqrt(step_seconds)

    x = np.full(paths, float(start))
    ring = np.tile(x, (int(back.max()) + 2, 1))
    kept = np.empty((1 + steps // every, paths))
    kept[0] = x
    with np.errstate(over="ignore", invalid="ignore"):  # divergence is a result
        for n in range(steps):
            newer, older = ring[(n - back[n] - np.arange(2)) % len(ring)]
            seen = newer + (late[n] - back[n]) * (older - newer)
            x = x - drift * seen + kick * rng.standard_normal(paths)
            ring[(n + 1) % len(ring)] = x
            if (n + 1) % every == 0:
                kept[(n + 1) // every] = x
    return kept


def _excess(gain: float, time: ServiceTime) -> float:
    """The integral of 1/|i w + a phi|^2 - 1/(w^2 + a^2) over w > 0."""

    def density(w):
        late = 1j * w + gain * time.transform(1j * w)
        return 1 / np.abs(late) ** 2 - 1 / (w**2 + gain**2)

    # resonances are at frequencies below a, the rest falls as 1/w^3
    middle, far = 2 * gain + 4 / time.mean, 100 * gain + 1000 / time.mean
    # a slow resonance is as wide as a, even for a tiny a
    ends = middle * 4.0 ** np.arange(-math.ceil(math.log(middle / gain, 4)) - 1, 1)
    total, doubt = 0.0, 0.0
    for low, high in zip([0.0, *ends[:-1]], ends, strict=True):
        part, error, *_ = scipy.integrate.quad(
            lambda w: float(density(w)),
            *(low, high),
            limit=2000,
            epsabs=1e-11 / gain,
            epsrel=1e-10,
            full_output=1,  # no warnings
        )
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
