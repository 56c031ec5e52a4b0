"""Delayed training in wall-clock time: how its modes decay.

Where many workers send gradients, a mode x of curvature lambda follows the delay
equation

    dx/dt = -a E x(t - T),    a = eta lambda nu,

with nu gradients a second, each of the age T. Its solutions are exp(s t) for the roots
of the characteristic equation

    s + a phi(s) = 0,    phi(s) = E exp(-s T).

`damping` is a, in 1/seconds: for P workers eta lambda P / mean(T). By a delay of mean 1
it is the number A = eta lambda P of the formulas.
"""

import math

import numpy as np
from scipy import special

from delayjax import base
from delayjax.stability.crossings import brent
from delayjax.stability.dampings import check_damping, critical_damping
from delayjax.stability.delay_laws import DelayLaw
from delayjax.stability.dynamics import Dynamics
from delayjax.stability.rightmost import meeting_rate, residual, rightmost_roots

_MOST_STAGES = 128  # whose roots are those of a polynomial that is solved as such
_NEAR = 1e-3  # to -1/e, where scipy's W is inexact, or nan
_REAL = 1e-7  # of a root, what rounding leaves of its imaginary part


def characteristic_roots(
    damping: float, law: DelayLaw, *, number: int = 4
) -> np.ndarray:
    """The s of the modes exp(s t) that die out last.

        s + a phi(s) = 0

    For a constant delay they are W_j(-a T) / T, with Lambert's W; for k memoryless
    stages s = (k/mean) (u - 1) with the roots of u^{k+1} - u^k + a mean/k = 0, which
    are those of a delay of k updates. For other laws they are counted by how often the
    left side turns about 0, and found by Newton's method.

    Args:
        damping: a = eta lambda nu, 1/seconds.
        law: of the delay.
        number: how many are wanted; one more where that would part a pair.

    Returns:
        complex128 [n], in 1/seconds, the largest real part first, a pair side by side,
        the upper one first. Fewer than `number` where there are no more: k + 1 for k
        stages, 1 at a damping of 0, and for other laws those to the right of
        -`law.tail_rate` and not very far beyond the first ones. A double
        root is exact to about 1e-8 only. Costs 1 ms for closed forms, else some 5 ms;
        0.5 to 2 s for 1000 samples. Without a closed form it grows in proportion to
        `damping` times the longest delay, to 8 s at 5 * 10^5.

    Raises:
        TypeError: if `law` is no `DelayLaw`, `damping` no number or `number` no
            integer.
        ValueError: if `damping` is negative or not finite, `number` is below 1, or
            there are too many roots to count: `damping` times the longest delay is
            above about 10^6 and the law has no closed form.

    Example:
        >>> from delayjax.stability.delay_laws import constant_delay, exponential_delay
        >>> characteristic_roots(0.16, exponential_delay(1.0)).real.round(6).tolist()
        [-0.2, -0.8]
        >>> s = characteristic_roots(np.pi / 2, constant_delay(1.0))[0]
        >>> bool(abs(s - 0.5j * np.pi) < 1e-12)  # neither grows nor decays
        True

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for roots as rates of convergence; Corless
        et al., On the Lambert W function, Advances in Computational Mathematics 5,
        1996, for the constant delay.
    """
    damping = check_damping(damping, law)
    number = base.check_bound("number", number, at_least=1)
    if damping == 0:
        return np.zeros(1, complex)
    turned = damping * law.mean
    if law.stages == math.inf and abs(math.e * turned - 1) > _NEAR:
        found = _of_a_constant_delay(damping, law.mean, number)
    elif law.stages is not None and law.stages in range(1, _MOST_STAGES + 1):
        found = _of_stages(damping, law.mean, int(law.stages))
    else:
        found = rightmost_roots(damping, law, number=number)
    if found.size and residual(found, damping, law).max() > 1e-6:
        raise RuntimeError(f"`damping` {damping} leaves no exact roots: please report.")
    return _in_order(found, number)


def decay_rate(damping: float, law: DelayLaw) -> float:
    """How fast the error dies out in the long run: as exp(-rate * t).

    It is -max Re s over the `characteristic_roots`. Without oscillation (up to
    `critical_damping`) it is the smaller r with

        r = a E exp(r T),    which is above a: a small delay speeds up.

    Args:
        damping: a = eta lambda nu, 1/seconds.
        law: of the delay.

    Returns:
        float64, in 1/seconds: an error falls to a share eps of itself in
        log(1/eps) / rate seconds. Negative where the error grows. At most
        `law.tail_rate` for laws that have one, and to three digits where it is that.
        Costs 0.2 ms below critical damping and for gamma laws, else what the roots do.

    Raises:
        TypeError, ValueError: as `characteristic_roots` does.

    Example:
        >>> from delayjax.stability.delay_laws import constant_delay
        >>> law = constant_delay(1.0)
        >>> rates = [decay_rate(a, law) for a in (0.1, np.exp(-1), 1.0, 2.0)]
        >>> [round(rate, 6) for rate in rates]  # 1 is critical; the last one grows
        [0.111833, 1.0, 0.318132, -0.172816]

    References:
        Yu, Chen and Poor, arXiv:2406.11159.
    """
    damping = check_damping(damping, law)
    if law.stages is not None and law.stages < math.inf:
        critical = critical_damping(law)
        if damping > critical * (1 + _NEAR):
            return _of_turning_stages(damping, law)
    fastest = meeting_rate(law)
    if damping <= fastest / float(law.transform(-fastest)):
        return _of_a_real_root(damping, law, fastest)
    found = characteristic_roots(damping, law, number=1)
    return float(-found[0].real) if found.size else law.tail_rate


def speedup_limit(law: DelayLaw) -> float:
    """Below this damping, late gradients are faster than fresh ones.

    Without delay the rate is the damping itself. With it, it is larger in

        0 < a < speedup_limit,    decay_rate(speedup_limit, law) = speedup_limit.

    For a constant delay of 1 that is -log(cos v) = 0.63336 with -log(cos v) tan v = v.

    Args:
        law: of the delay.

    Returns:
        float64, in 1/seconds, between `critical_damping` and `damping_limit`. Costs
        some 20 to 40 `decay_rate`s.

    Raises:
        TypeError: if `law` is no `DelayLaw`.

    Example:
        >>> from delayjax.stability.delay_laws import constant_delay, exponential_delay
        >>> round(speedup_limit(constant_delay(1.0)), 5)
        0.63336
        >>> round(speedup_limit(exponential_delay(1.0)), 5)
        0.5

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for a small staleness that does not slow.
    """

    def ahead(damping):
        return decay_rate(damping, law) - damping

    low = critical_damping(law)
    high = 2 * low
    while ahead(high) > 0:
        low, high = high, 2 * high
    return brent(ahead, low, high)


def _of_a_constant_delay(damping: float, seconds: float, number: int) -> np.ndarray:
    """W_-1, W_0, W_1, ... of -a T, over T; their conjugates are the other branches."""
    a, branches = -damping * seconds, range(-1, number // 2 + 2)
    found = [complex(special.lambertw(a, branch)) for branch in branches]
    return np.array(found) / seconds


def _of_stages(damping: float, mean: float, stages: int) -> np.ndarray:
    return stages / mean * (Dynamics(stages).roots(damping * mean / stages) - 1)


def _of_turning_stages(damping: float, law: DelayLaw) -> float:
    """The rate of k stages, of any k > 0, beyond critical damping.

    With s = (k/mean)(u - 1) and u of the angle v/k, u^k (1 - u) = a mean/k is real
    where 1 - u has the angle -v. By the law of sines of 0, 1 and u

        |u| = sin v / sin(v + v/k),    |1 - u| = sin(v/k) / sin(v + v/k),

    one equation in v, from 0 at critical damping to pi k/(k+1).
    """
    k, sought = float(law.stages or 0), math.log(damping * law.mean)

    def ahead(v):
        each = v / k
        shorter = math.sin(each) / math.tan(v) - 2 * math.sin(each / 2) ** 2
        grown = -k * math.log1p(shorter)
        return grown + math.log(k * math.sin(each) / math.sin(v + each)) - sought

    highest = math.pi * k / (k + 1)
    low, high = 1e-6 * highest, (1 - 1e-14) * highest
    v = brent(ahead, low, high) if ahead(high) > 0 else high
    rate = k / law.mean * math.sin(v / k) * math.cos(v) / math.sin(v + v / k)
    return min(rate, law.tail_rate)


def _in_order(found: np.ndarray, number: int) -> np.ndarray:
    """The largest real parts first, of each pair the upper one, with its conjugate."""
    real = np.abs(np.imag(found)) <= _REAL * np.abs(found)
    found = np.where(real, np.real(found) + 0j, found)
    upper = found[np.imag(found) >= 0]
    ordered: list[complex] = []
    for root in upper[np.argsort(-np.real(upper), kind="stable")]:
        if len(ordered) >= number:
            break
        ordered += [root, root.conjugate()] if root.imag else [root]
    return np.array(ordered, complex)


def _of_a_real_root(damping: float, law: DelayLaw, fastest: float) -> float:
    """The smaller r with r / phi(-r) = a."""

    def ahead(rate):
        return rate / float(law.transform(-rate)) - damping

    return fastest if ahead(fastest) <= 0 else brent(ahead, 0.0, fastest)
