"""How a mode decays, step by step: the roots of its characteristic function."""

import itertools
from collections.abc import Callable

import numpy as np

from delayjax.stability.known import check_number
from delayjax.stability.recursion import Delay, Recursion

_ROUNDS = 200  # a few tens are enough
_BLOCK = 256  # roots at a time: pairs of all would not fit for long delays


def roots(
    step: float,
    delay: Delay,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    modulation: Callable[[int], float] | None = None,
    compensation: float = 0.0,
) -> np.ndarray:
    """The z of all modes z^t of delayed training on one curvature.

    Without momentum the roots of z - 1 + a sum_k p_k w_k z^-k, of a fixed delay those
    of

        z^{tau+1} - z^tau + a = 0

    and with it those of `(z - 1)(1 - beta/z) + a N(z)`, all multiplied by z until no
    negative power is left. For a random delay they are the modes of the mean of x.

    All roots are improved together (Ehrlich and Aberth) from a guess that has their
    moduli right, each until the polynomial vanishes to rounding:

        z_i <- z_i - 1 / (P'(z_i)/P(z_i) - sum_{j != i} 1/(z_i - z_j))

    Args:
        step: a = eta lambda.
        delay: in updates, an int or a law; see `step_limit`.
        momentum: as in `step_limit`.
        nesterov: as in `step_limit`.
        modulation: as in `step_limit`.
        compensation: as in `step_limit`.

    Returns:
        complex128 [n], the largest modulus first. n is the longest delay + 1, and with
        momentum usually one more; roots at 0 are left out. A double root is exact to
        about 1e-8 only. Costs O(n^2): about 0.2 s for a delay of 1000.

    Raises:
        TypeError, ValueError: as `step_limit` does; also if `step` is negative, or a
            delay beyond 10^4.

    Example:
        >>> roots(0.16, 1).real.round(6).tolist()  # z^2 - z + 0.16: it only decays
        [0.8, 0.2]
        >>> z = roots(1.0, 1)[0]  # it neither grows nor decays, and turns
        >>> float(abs(z).round(6)), float(abs(np.angle(z, deg=True)).round(6))
        (1.0, 60.0)

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for roots as rates of convergence; Bini,
        Numerical computation of polynomial zeros by means of Aberth's method,
        Numerical Algorithms 13, 1996, for the method.
    """
    check_number("step", step)
    recursion = Recursion.of(
        delay,
        momentum=momentum,
        nesterov=nesterov,
        modulation=modulation,
        compensation=compensation,
    )
    recursion.check_length()
    found = zeros(recursion.polynomial(float(step)))
    return found[np.argsort(-np.abs(found), kind="stable")]


def spectral_radius(
    step: float,
    delay: Delay,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    modulation: Callable[[int], float] | None = None,
    compensation: float = 0.0,
) -> float:
    """By how much an error shrinks in one update, in the long run: max |z|.

    Below 1 the mean of x dies out, as rho^t; the rate is -log(rho) an update, and an
    error falls to a share eps of itself in log(1/eps) / -log(rho) updates.

    Args:
        step: a = eta lambda.
        delay: in updates, an int or a law; see `step_limit`.
        momentum: as in `step_limit`.
        nesterov: as in `step_limit`.
        modulation: as in `step_limit`.
        compensation: as in `step_limit`.

    Returns:
        The largest modulus of `roots`, float64; 0 where x is 0 after one update. Costs
        what they do.

    Raises:
        TypeError, ValueError: as `roots` does.

    Example:
        >>> [round(spectral_radius(a, 1), 6) for a in (0.25, 0.64, 1.0, 1.44)]
        [0.5, 0.8, 1.0, 1.2]
    """
    found = roots(
        step,
        delay,
        momentum=momentum,
        nesterov=nesterov,
        modulation=modulation,
        compensation=compensation,
    )
    return float(np.abs(found).max(initial=0.0))


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def zeros(coefficients: np.ndarray) -> np.ndarray:
    """All zeros of c_0 z^n + ... + c_n, c_0 and c_n not zero, complex128 [n]."""
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
        # outside of the disc powers would overflow: there in u = 1/z
        u = 1 / z[moving[~small]]
        turned, done[~small] = _newton(backwards, u)
        newton[~small] = 1 / (len(z) * u - u**2 / turned)
        change = newton / (1 - newton * _repulsion(z, moving))
        change[~np.isfinite(change) | done] = 0
        z[moving] -= change
        moving = moving[np.abs(change) > 4 * np.finfo(float).eps * np.abs(z[moving])]
    raise RuntimeError(f"{len(moving)} of {len(z)} roots are not found: please report.")


def _newton(coefficients: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P/P', and whether P is 0 but for rounding."""
    order = len(coefficients) - 1
    slope = coefficients[:-1] * np.arange(order, 0, -1)
    value = np.polyval(coefficients, z)
    sizes = np.polyval(np.abs(coefficients), np.abs(z))
    newton = value / np.polyval(slope, z)
    return newton, np.abs(value) <= 4 * np.finfo(float).eps * sizes


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
    """As many points of each modulus as there are zeros of about that modulus.

    The moduli are the slopes of the upper convex hull of (j, log |c_j|), the Newton
    polygon.
    """
    hull: list[tuple[int, float]] = []
    for power in np.flatnonzero(coefficients):
        corner = int(power), float(np.log(abs(coefficients[power])))
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], corner):
            hull.pop()
        hull.append(corner)
    circles = []
    for left, right in itertools.pairwise(hull):
        size = right[0] - left[0]
        # turned against one another, and with no point on the real axis
        angles = 2 * np.pi * np.arange(size) / size + 0.7 + 0.3 * left[0]
        circles.append(np.exp(_slope(left, right) + 1j * angles))
    return np.concatenate([np.empty(0, complex), *circles])


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
