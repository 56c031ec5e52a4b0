"""Delayed training on one curvature: limits, modes and the noise floor."""

import dataclasses
import math
from typing import Literal

import numpy as np

from delayjax._src.ground import kinds
from delayjax._src.stability.crossings import crossings
from delayjax._src.stability.moments import second_moments
from delayjax._src.stability.recursion import Recursion
from delayjax._src.stability.root_finding import minimum_between, zero_between, zeros

Criterion = Literal["mean", "mean_square"]

_GOLDEN = (math.sqrt(5) - 1) / 2


@kinds.checked
@dataclasses.dataclass(frozen=True, eq=False)
class Dynamics(Recursion):
    """SGD under delay on one curvature lambda.

        x_{t+1} = x_t - a x_{t - tau},    a = eta lambda

    All methods use the step a; the learning rate is eta = a / lambda. Training is
    stable if it is stable at the largest lambda. This is NumPy code, not for `jit`.

    Args:
        delay: in updates: an int, or the probabilities of 0, 1, 2, ..., from which each
            update draws its delay, as `cluster.staleness_law(...).pmf`.
        momentum: beta in [0, 1), as in `optax.sgd`.
        nesterov: whether the momentum is Nesterov's; else it is the heavy ball.
        modulation: staleness -> factor w_k of the update, a law of `dj.modulation`
            after the optimizer. It receives np.int32.
        compensation: c = h / lambda, for gradients corrected by h (x_t - x_{t-tau}).
            DC-ASGD has h = lam_0 times the mean of g^2.
        extrapolation: e, for gradients at x_t + e (x_t - x_{t-1}). SpecTrain takes e =
            delay, AsyncPP e = momentum.

    Example:
        >>> training = Dynamics(4, momentum=0.9)
        >>> limit = training.step_limit()
        >>> round(limit, 4), round(training.spectral_radius(limit), 4)
        (0.0265, 1.0)
        >>> Dynamics(1).roots(0.16).real.round(6).tolist()  # z^2 - z + 0.16
        [0.8, 0.2]
        >>> round(Dynamics(1).critical_step(), 6)
        0.25

    References:
        Chen, Yang and Cheng, SpecTrain, arXiv:1809.02839; Ajanthan et al., AsyncPP,
        arXiv:2505.01099.
    """

    def step_limit(self, criterion: Criterion = "mean_square") -> float:
        """The smallest step at which single runs may diverge.

        The mean of x over runs decays below the smallest positive

            a(w) = -(z - 1)(1 - beta/z) / N(z),    z = e^{iw}, where that is real,

        with N(z) = sum_k p_k w_k z^-k, times 1 + beta - beta/z for Nesterov's momentum.
        For a fixed delay without other options it is 2 sin(pi / (2 (2 tau + 1))). The
        variance of x, and with it almost every run, decays where also

            (a^2/2 pi) int (1 - |G|^2) / |e^{iw} - 1 + a G|^2 dw < 1,   over [-pi, pi],

        with G(w) = sum_k p_k e^{-ikw}; the options change this integral. The limit may
        be lower for delays in a fixed order, by half for 0, 1, ..., 7 in turn: see
        `TraceDynamics`.

        Args:
            criterion: "mean_square": the variance decays, and so do single runs.
                "mean": only the mean over runs decays, as in theory papers. This is
                right if each update averages gradients of all delays in these shares.

        Returns:
            float64. O(K^2) for delays of up to K <= 10^4: 0.7 s for 1000.

        Example:
            >>> round(Dynamics(4).step_limit(), 4)
            0.3473
            >>> law = Dynamics([0.5, 0.0, 0.5])  # the mean has twice the limit
            >>> round(law.step_limit(), 6), round(law.step_limit("mean"), 6)
            (1.0, 2.0)

        References:
            Levin and May, Theoretical Population Biology 9, 1976, for the fixed delay.
        """
        if self.is_plain:
            return _plain_limit(self.longest) / self.mean_weight
        if criterion == "mean" or len(self.ages) == 1:
            return self._mean_limit()
        self.check_longest()
        return self._mean_square_limit(self._mean_limit())

    def critical_step(self) -> float:
        """The step of the fastest decay: the smallest spectral radius.

        For a fixed delay without other options it is

            tau^tau / (tau + 1)^{tau+1},    with the spectral radius tau / (tau + 1).

        If several steps have this radius, it is the smallest of these steps. The
        geometric law p_k = (1 - q) q^k has the radius sqrt(q) at all steps from
        (1 - sqrt(q))^2 / (1 - q) on; where errors of the probabilities separate these
        steps, the result may be any of them. It is at most `step_limit()`. Delays are
        at most 10^4.
        """
        self.check_longest()
        limit = self.step_limit()
        low, high, best = 0.0, 1.0, limit / 2
        while high - low > 1e-12:
            # not the half: at a radius of beta a root would start on the circle
            radius = low + _GOLDEN * (high - low)
            steps, changes = crossings(self, radius=radius, below=limit)
            # at a step of 0 the roots are 1, beta and 0
            outside = (radius < 1) + (self.momentum > radius) + np.cumsum(changes)
            inside = np.flatnonzero(outside == 0)
            if inside.size:
                high, best = radius, float(steps[inside[0]])
            else:
                low = radius
        return best

    def roots(self, step: kinds.NonNegativeFloat) -> np.ndarray:
        """The z of all modes z^t of x, or of its mean for random delays.

            (z - 1)(1 - beta/z) + a N(z) = 0,   fixed delay: z^{tau+1} - z^tau + a = 0

        Returns:
            complex128 [n], the largest modulus first, without roots at 0. A double root
            is exact to about 1e-8. O(n^2) for delays of up to n, at most 10^4.
        """
        self.check_longest()
        modes = zeros(self.polynomial(float(step)))
        return modes[np.argsort(-np.abs(modes), kind="stable")]

    def spectral_radius(self, step: float) -> float:
        """The long-run factor of an error in one update: max |z| of the `roots`."""
        return float(np.abs(self.roots(step)).max(initial=0.0))

    def stationary_variance(
        self, step: kinds.NonNegativeFloat, *, noise: kinds.NonNegativeFloat = 1.0
    ) -> float:
        """The variance about the optimum that gradient noise maintains.

        For x_{t+1} = x_t - a x_{t - tau} + xi_t with white xi of variance s^2,

            fixed delay:  s^2 / (a (2 r - a)),    v = 2 asin(a/2),
                          r = cos(v (2 tau - 1)/4 + pi/4) / cos(v (2 tau + 1)/4 - pi/4)
            any law:      s^2 I / (1 - J),    I = (1/2 pi) int |D|^-2 dw,
                          J = (a^2/2 pi) int (1 - |G|^2) |D|^-2 dw,
                          D = e^{iw} - 1 + a G,    G(w) = sum_k p_k e^{-ikw}

        over [-pi, pi]. The noise is independent in each update: no gradient is reused.

        Args:
            step: a.
            noise: s = eta sigma, for gradients of standard deviation sigma.

        Returns:
            float64, in units of x^2; `inf` where the step is not stable in mean square.

        Example:
            >>> round(Dynamics(0).stationary_variance(0.5), 6)  # s^2 / (a (2 - a))
            1.333333
        """
        step, weight = float(step), self.mean_weight
        if self.is_plain:
            a, tau = weight * step, self.longest
            if not 0 < a < _plain_limit(tau):
                return math.inf
            v = 2 * math.asin(a / 2)
            r = math.cos(v * (2 * tau - 1) / 4 + math.pi / 4)
            r /= math.cos(v * (2 * tau + 1) / 4 - math.pi / 4)
            scale, variance = float(noise) * weight, 1 / (a * (2 * r - a))
        else:
            gain, seen, radius = second_moments(self, step)
            if not radius < 1:
                return math.inf
            # covariances that gradient noise adds
            square = self.chances @ self.weights**2
            added = [self.lead**2 * square, self.lead * weight, 1.0]
            variance = float(seen @ np.linalg.solve(np.eye(3) - gain, added))
            scale = float(noise) * (1 / step)
        return scale * variance * scale  # ** would raise OverflowError

    def _mean_limit(self) -> float:
        """The smallest step at which a root of D is on the unit circle."""
        steps, _ = crossings(self)
        return float(steps[0]) if steps.size else math.inf

    def _mean_square_limit(self, limit: float) -> float:
        """The smallest step at which the variance does not decay, at most `limit`."""

        def excess(step: float) -> float:
            """Below 0 where the variance decays; between -1 and 1."""
            if step == 0:
                return -1.0
            *_, radius = second_moments(self, step)
            return (radius - 1) / (radius + 1) if math.isfinite(radius) else 1.0

        # the gain may be unbounded very close to the limit of the mean
        steps = limit * np.append(np.arange(20) / 20, 1 - 0.5 ** np.arange(5, 40))
        values = []
        while len(values) < len(steps) and (not values or values[-1] < 0):
            values.append(excess(steps[len(values)]))
        # with momentum and compensation it may rise and fall before that
        for i in range(1, len(values) - 1):
            if values[i - 1] < values[i] > values[i + 1]:
                low, high = steps[i - 1], steps[i + 1]
                top = minimum_between(lambda step: -excess(step), low, high)
                if excess(top) > 0:
                    return zero_between(excess, low, top)
        if values[-1] < 0:
            return limit
        return zero_between(excess, steps[len(values) - 2], steps[len(values) - 1])


def _plain_limit(tau: int) -> float:
    """The limit of a fixed delay without other options."""
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1)))
