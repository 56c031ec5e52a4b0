"""Delayed training in wall-clock time: how its modes decay, and what gain they bear."""

import dataclasses
import math

import numpy as np
from scipy import special

from delayjax._src import base
from delayjax._src.cluster.service_time import ServiceTime, as_service_time
from delayjax._src.stability.known import check_number
from delayjax._src.stability.rightmost import (
    meeting_rate,
    residual,
    rightmost_roots,
    zero_between,
)

MOST_WORKERS = 10**6  # whose limit they show to 0.2 %
_MOST_STAGES = 128  # up to here the roots are found as those of a polynomial
_NEAR = 1e-3  # to -1/e, where scipy's W is inexact, or nan
_REAL = 1e-7  # of a root, what rounding leaves of its imaginary part
_FINE = 0.02  # 1/mean between two angular frequencies
_HIGHEST = 1000.0  # 1/median: that an angular frequency may be
_COARSEST = 2e-5  # of a frequency: how far the next one may be
_BLOCK = 100  # frequencies at a time
_POINTS = 2**14  # of an integral over all frequencies


@dataclasses.dataclass(frozen=True)
class DelayEquation:
    """Training in continuous time, where each gradient is late by its service time T.

    Where many workers send gradients, a mode x of curvature lambda follows

        dx/dt = -a E x(t - T),    a = eta lambda nu,

    with nu gradients a second. Its solutions are exp(s t) for the roots of

        s + a phi(s) = 0,    phi(s) = E exp(-s T).

    `gain` is a, in 1/seconds: eta lambda P / E T for P workers.

    Attributes:
        service_time: T, as `cluster.exponential(1.0)` and its siblings make it.

    Raises:
        TypeError: if `service_time` is no `cluster.ServiceTime`.
        ValueError: if its mean is 0 or infinite.

    Example:
        >>> from delayjax import cluster
        >>> equation = DelayEquation(cluster.constant(1.0))
        >>> rates = [equation.decay_rate(gain) for gain in (0.1, np.exp(-1), 1.0, 2.0)]
        >>> [round(rate, 6) for rate in rates]  # 1 is critical; the last one grows
        [0.111833, 1.0, 0.318132, -0.172816]

    References:
        Yu, Chen and Poor, Distributed stochastic gradient descent with staleness,
        arXiv:2406.11159, for roots as rates of convergence.
    """

    service_time: ServiceTime

    def __post_init__(self):
        as_service_time("service_time", self.service_time)
        if not 0 < self.service_time.mean < math.inf:
            raise ValueError(
                "`service_time` must have a positive, finite mean, got"
                f" {self.service_time.mean}: a gradient without delay is plain SGD, and"
                " with an infinite mean delay nu is 0."
            )

    def half_update_earlier(self, workers: int) -> "DelayEquation":
        """The equation that the updates of P workers follow more closely.

        A cluster of P workers moves the parameters nu = P / E T times a second, and
        holds them in between: an update that is tau = P - 1 updates late acts like a
        delay of tau + 1/2 updates, which is not T but

            (1 - 1/(2P)) T

        At the same gain its rates and limits are the cluster's up to terms in 1/P^2 for
        constant times. For random times a term in 1/P remains: of the limit -0.2/P for
        gamma times of shape 16, -0.4/P for shape 4, -0.8/P for uniform times from 0 on.

        Args:
            workers: P, of a server that updates at each gradient.

        Example:
            >>> from delayjax import cluster
            >>> from delayjax.stability import Dynamics
            >>> equation = DelayEquation(cluster.constant(1.0)).half_update_earlier(16)
            >>> round(equation.gain_limit(workers=16) / 16, 4)
            0.1013
            >>> round(Dynamics(15).step_limit(), 4)  # of the updates
            0.1013

        References:
            The half update follows from 2 sin(pi/(2(2 tau + 1))), which is about
            (pi/2) / (tau + 1/2).
        """
        workers = base.check_bound("workers", workers, at_least=1)
        return DelayEquation(self.service_time.scaled(1 - 1 / (2 * workers)))

    def roots(self, gain: float, *, number: int = 4) -> np.ndarray:
        """The s of the modes exp(s t) that die out last.

        For a constant delay they are W_j(-a T) / T, with Lambert's W; for k memoryless
        stages s = (k/mean) (u - 1) with the roots of u^{k+1} - u^k + a mean/k = 0. For
        other times they are counted by how often s + a phi(s) turns about 0, and found
        by Newton's method.

        Args:
            gain: a = eta lambda nu, 1/seconds.
            number: how many are wanted; one more where that would part a pair.

        Returns:
            complex128 [n], in 1/seconds, the largest real part first, a pair side by
            side, the upper one first. Fewer than `number` where there are no more: k +
            1 for k stages, 1 at a gain of 0, and for other times the roots to the right
            of -`tail_rate` and not very far beyond the first ones. A double root is
            exact to about 1e-8 only. Costs 1 ms for closed forms, else some 5 ms, in
            proportion to `gain` times the longest delay and the number of samples.

        Raises:
            TypeError, ValueError: if an argument is no such number; also if the tail of
                T is heavier than exponential, or, without a closed form, `gain` times
                the longest delay is above about 10^6: there are too many roots.

        Example:
            >>> from delayjax import cluster
            >>> memoryless = DelayEquation(cluster.exponential(1.0))
            >>> memoryless.roots(0.16).real.round(6).tolist()
            [-0.2, -0.8]

        References:
            Corless et al., On the Lambert W function, Advances in Computational
            Mathematics 5, 1996, for the constant delay.
        """
        gain = check_gain(gain)
        number = base.check_bound("number", number, at_least=1)
        time = self._with_a_light_tail()
        if gain == 0:
            return np.zeros(1, complex)
        if time.stages == math.inf and abs(math.e * gain * time.mean - 1) > _NEAR:
            # W_-1, W_0, W_1, ...; their conjugates are the other branches
            a, branches = -gain * time.mean, range(-1, number // 2 + 2)
            found = np.array([special.lambertw(a, j) for j in branches]) / time.mean
        elif time.stages is not None and time.stages in range(1, _MOST_STAGES + 1):
            stages = int(time.stages)
            polynomial = np.zeros(stages + 2)
            polynomial[:2], polynomial[-1] = (1, -1), gain * time.mean / stages
            found = stages / time.mean * (np.roots(polynomial) - 1)
        else:
            found = rightmost_roots(gain, time, number=number)
        if found.size and residual(found, gain, time).max() > 1e-6:
            raise RuntimeError(f"`gain` {gain} leaves no exact roots: please report.")
        return _in_order(found, number)

    def decay_rate(self, gain: float) -> float:
        """How fast the error dies out in the long run: as exp(-rate * t).

        It is -max Re s over the `roots`. Up to `critical_gain` it is the smaller r with

            r = a E exp(r T),    which is above a: a small delay speeds up.

        Args:
            gain: a = eta lambda nu, 1/seconds.

        Returns:
            float64, in 1/seconds. Negative where the error grows. At most `tail_rate`,
            and to three digits where it is that. Costs 0.2 ms below the critical gain
            and for gamma times, else what the roots do.

        Raises:
            TypeError, ValueError: as `roots` does.

        Example:
            >>> from delayjax import cluster
            >>> round(DelayEquation(cluster.exponential(1.0)).decay_rate(0.16), 6)
            0.2
        """
        gain, time = check_gain(gain), self._with_a_light_tail()
        has_stages = time.stages is not None and time.stages < math.inf
        if has_stages and gain > self.critical_gain() * (1 + _NEAR):
            return _rate_of_turning_stages(gain, time)
        fastest = meeting_rate(time)

        def ahead(rate):
            return rate / float(time.transform(-rate)) - gain

        if ahead(fastest) >= 0:
            return zero_between(ahead, 0.0, fastest)
        found = self.roots(gain, number=1)
        return float(-found[0].real) if found.size else time.tail_rate

    def gain_limit(self, *, workers: float) -> float:
        """The smallest gain at which single runs of P workers may diverge.

        A root of the delay equation is i w on the imaginary axis where

            E cos(w T) = 0,    a = w / E sin(w T)

        which, times the mean delay, is pi/2 for a constant delay, (pi/2)^2 for uniform
        delays from 0 on, and for k stages

            k tan(pi/2k) / cos^k(pi/2k)

        The equation is the mean over runs, and what infinitely many workers bear. For
        P workers, as if their delays were independent, the variance dies out where also

            (a^2 E T / 2 pi P) int (1 - |phi|^2) / |i w + a phi|^2 dw < 1

        over all w, phi = phi(i w), which for memoryless workers is a E T < sqrt(2 P).
        Single runs of these bear sqrt(pi P) + 1/2, where the equation bears any step.

        Args:
            workers: P, at least 1; `math.inf` for the delay equation itself.

        Returns:
            float64, in 1/seconds. The step limit of P workers is eta lambda = it * mean
            / P and, closer, that with `half_update_earlier`. For P of `inf` it is `inf`
            where no frequency up to 1000 / median (and `resolved`) gives one, as for
            exponential times.
            Costs nothing for gamma and constant times and P of `inf`; else 0.1 ms, and
            2 ms if it is `inf`; for a finite P 16,000 values of phi more.

        Raises:
            TypeError, ValueError: if `workers` is no such number, or above 10^6.

        Example:
            >>> from delayjax import cluster
            >>> equation = DelayEquation(cluster.gamma(1.0, 2.0))
            >>> [round(equation.gain_limit(workers=p), 2) for p in (16, 1000, math.inf)]
            [3.1, 3.98, 4.0]
        """
        limit = _limit_of_the_mean(self.service_time)
        if isinstance(workers, float) and workers == math.inf:
            return limit
        count = base.check_bound("workers", workers, at_least=1)
        if count > MOST_WORKERS:
            raise ValueError(
                f"`workers` must be at most {MOST_WORKERS} or math.inf, got {count}."
            )
        return _limit_of_the_variance(self.service_time, count, limit)

    def critical_gain(self) -> float:
        """The largest gain at which the error decays without oscillating, 1/seconds.

        Two real roots meet there, at the r > 0 of the largest

            a = r / E exp(r T)

        which is 1/e at r = 1, in units of the mean, for a constant delay, and for k
        stages (k/(k+1))^{k+1} at r = k/(k+1). It is the fastest of all gains if the
        delay is constant. Widely spread delays, as gamma times of a shape below 1,
        decay faster yet beyond it, oscillating.

        Raises:
            ValueError: if the tail of T is heavier than exponential.

        Example:
            >>> from delayjax import cluster
            >>> round(DelayEquation(cluster.exponential(1.0)).critical_gain(), 6)
            0.25
        """
        rate = meeting_rate(self._with_a_light_tail())
        return rate / float(self.service_time.transform(-rate))

    def speedup_limit(self) -> float:
        """Below this gain, in 1/seconds, late gradients are faster than fresh ones.

        Without delay the rate is the gain itself. With it, it is larger in

            0 < a < speedup_limit,    decay_rate(speedup_limit) = speedup_limit.

        For a constant delay of 1 that is -log(cos v) with -log(cos v) tan v = v. It is
        between `critical_gain` and `gain_limit`, and costs 20 to 40 `decay_rate`s.

        Raises:
            ValueError: if the tail of T is heavier than exponential.

        Example:
            >>> from delayjax import cluster
            >>> round(DelayEquation(cluster.constant(1.0)).speedup_limit(), 5)
            0.63336
        """

        def ahead(gain):
            return self.decay_rate(gain) - gain

        low = self.critical_gain()
        high = 2 * low
        while ahead(high) > 0:
            low, high = high, 2 * high
        return zero_between(ahead, low, high)

    def _with_a_light_tail(self) -> ServiceTime:
        if self.service_time.tail_rate == 0:
            raise ValueError(
                "`service_time` must have a tail no heavier than exponential, got"
                f" {self.service_time}: in the long run its error decays more slowly"
                " than any exponential. Take cluster.empirical of as many times as the"
                " run has gradients."
            )
        return self.service_time


def check_gain(gain: float) -> float:
    """`gain` as a float.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is negative or not finite.
    """
    try:
        check_number("gain", gain)
    except ValueError as error:
        raise ValueError(
            f"{error} It is eta lambda nu: a direction of negative curvature grows with"
            " or without delay."
        ) from None
    return float(gain)


def _rate_of_turning_stages(gain: float, time: ServiceTime) -> float:
    """The rate of k stages, of any k > 0, beyond the critical gain.

    With s = (k/mean)(u - 1) and u of the angle v/k, u^k (1 - u) = a mean/k is real
    where 1 - u has the angle -v. By the law of sines of 0, 1 and u

        |u| = sin v / sin(v + v/k),    |1 - u| = sin(v/k) / sin(v + v/k),

    one equation in v, from 0 at the critical gain to pi k/(k+1).
    """
    k, sought = float(time.stages or 0), math.log(gain * time.mean)

    def ahead(v):
        each = v / k
        shorter = math.sin(each) / math.tan(v) - 2 * math.sin(each / 2) ** 2
        grown = -k * math.log1p(shorter)
        return grown + math.log(k * math.sin(each) / math.sin(v + each)) - sought

    highest = math.pi * k / (k + 1)
    low, high = 1e-6 * highest, (1 - 1e-14) * highest
    v = zero_between(ahead, low, high) if ahead(high) > 0 else high
    rate = k / time.mean * math.sin(v / k) * math.cos(v) / math.sin(v + v / k)
    return min(rate, time.tail_rate)


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


def _limit_of_the_mean(time: ServiceTime) -> float:
    """Where the delay equation has a root on the imaginary axis."""
    if time.stages is not None:
        return _limit_of_stages(time.stages) / time.mean
    # one delay in a thousand may make the mean; the other delays decide
    typical = float(time.quantile(0.5))
    if typical == 0:  # at least half of the cosines are 1
        return math.inf

    def real(w):
        return time.transform(1j * w).real

    highest = min(_HIGHEST / min(typical, time.mean), time.resolved)
    limit, first = math.inf, 0.0
    # |phi| is at most 1, so a is at least w
    while first < min(limit, highest):
        spacing = max(_FINE / time.mean, _COARSEST * first)
        w = first + spacing * np.arange(_BLOCK + 1)
        signs = real(w) > 0
        for cell in np.flatnonzero(signs[:-1] != signs[1:]):
            if w[cell] >= limit:
                break
            crossing = zero_between(real, w[cell], w[cell + 1])
            late = -float(time.transform(1j * crossing).imag)
            if late > 0:
                limit = min(limit, crossing / late)
        first = float(w[-1])
    return limit


def _limit_of_the_variance(time: ServiceTime, workers: int, most: float) -> float:
    """Where the integral is 1, up to `most`; w = tan(angle) / E T."""
    angles = (np.arange(_POINTS) + 0.5) * (math.pi / 2 / _POINTS)
    w = np.tan(angles) / time.mean
    phi = time.transform(1j * w)
    spread = (1 - np.abs(phi) ** 2) / np.cos(angles) ** 2 / (2.0 * _POINTS * workers)

    def left(gain: float) -> float:
        """What the integral lacks of 1."""
        return float(1 - (spread / np.abs(1j * w / gain + phi) ** 2).sum())

    high = 1 / time.mean
    while high < most and left(high) > 0:
        high *= 2
    high = min(high, most)
    return zero_between(left, 1e-9 / time.mean, high) if left(high) < 0 else high


def _limit_of_stages(k: float) -> float:
    """K tan(pi/2k) / cos^k(pi/2k), for any k > 1."""
    if k <= 1:
        return math.inf
    if k == math.inf:
        return math.pi / 2
    turned = math.pi / (2 * k)
    lost = k / 2 * math.log1p(-(math.sin(turned) ** 2))
    return k * math.tan(turned) * math.exp(-lost) if lost > -700 else math.inf
