"""Zeros of polynomials and of functions, and minima."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

_ROUNDS = 200  # tens are enough
_BLOCK = 256  # zeros at a time: all pairs of 10^4 zeros need gigabytes
_EXACT = 4 * np.finfo(float).eps


def zero_between(function: Callable[[float], Any], low: float, high: float) -> float:
    """A zero between `low` and `high`, to rounding."""
    zero = scipy.optimize.brentq(function, low, high, xtol=1e-300, rtol=_EXACT)
    return float(np.asarray(zero))


def sign_change(function: Callable[[float], float], low: float, high: float) -> float:
    """The place where a function changes its sign, perhaps an end, to rounding."""
    ends = {low: function(low), high: function(high)}
    if ends[low] * ends[high] >= 0:
        return min(ends, key=lambda x: abs(ends[x]))
    return zero_between(function, low, high)


def minimum_between(function: Callable[[float], Any], low: float, high: float) -> float:
    """The place of the minimum between `low` and `high`, to 1e-9 of the interval."""
    least = scipy.optimize.fminbound(function, low, high, xtol=1e-9 * (high - low))
    return float(np.asarray(least))


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def zeros(coefficients: np.ndarray) -> np.ndarray:
    """All zeros of c_0 z^n + ... + c_n, c_0 and c_n not zero, complex128 [n].

    Aberth's method with Bini's first guess (Numerical Algorithms 13, 1996) improves all
    zeros together until P is 0 to rounding, in O(n^2); `numpy.roots` takes O(n^3).

        z_i <- z_i - 1 / (P'(z_i)/P(z_i) - sum_{j != i} 1/(z_i - z_j))
    """
    z = _guess(coefficients)
    backwards = coefficients[::-1]
    moving = np.arange(len(z))
    for _ in range(_ROUNDS):
        if not moving.size:
            return z
        small = np.abs(z[moving]) <= 1
        newton = np.empty(len(moving), complex)
        done = np.empty(len(moving), bool)
        newton[small], done[small] = _newton(coefficients, z[moving[small]])
        # powers overflow outside of the disc: take u = 1/z there
        u = 1 / z[moving[~small]]
        turned, done[~small] = _newton(backwards, u)
        newton[~small] = 1 / (len(z) * u - u**2 / turned)
        change = newton / (1 - newton * _repulsion(z, moving))
        change[~np.isfinite(change) | done] = 0
        z[moving] -= change
        moving = moving[np.abs(change) > _EXACT * np.abs(z[moving])]
    raise RuntimeError(f"{len(moving)} of {len(z)} roots are not found: please report.")


def _newton(coefficients: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P/P', and whether P is 0 to rounding."""
    value = np.polyval(coefficients, z)
    sizes = np.polyval(np.abs(coefficients), np.abs(z))
    newton = value / np.polyval(np.polyder(coefficients), z)
    return newton, np.abs(value) <= _EXACT * sizes


def _repulsion(z: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """sum_{j != i} 1 / (z_i - z_j) for each i that still moves."""
    result = np.empty(len(moving), complex)
    for start in range(0, len(moving), _BLOCK):
        rows = moving[start : start + _BLOCK]
        between = z[rows, None] - z
        between[np.arange(len(rows)), rows] = np.inf
        result[start : start + _BLOCK] = (1 / between).sum(axis=1)
    return result


def _guess(coefficients: np.ndarray) -> np.ndarray:
    """Points with about the zeros' moduli: slopes of the hull of (j, log |c_j|)."""

    def slope(left, right):
        return (right[1] - left[1]) / (right[0] - left[0])

    hull: list[tuple[int, float]] = []
    for power in np.flatnonzero(coefficients):
        corner = int(power), float(np.log(abs(coefficients[power])))
        while len(hull) > 1 and slope(hull[-2], hull[-1]) <= slope(hull[-1], corner):
            hull.pop()
        hull.append(corner)
    circles = [np.empty(0, complex)]
    for left, right in itertools.pairwise(hull):
        size = right[0] - left[0]
        # each circle is turned differently, and has no point on the real axis
        angles = 2 * np.pi * np.arange(size) / size + 0.7 + 0.3 * left[0]
        circles.append(np.exp(slope(left, right) + 1j * angles))
    return np.concatenate(circles)
