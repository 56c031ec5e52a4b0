"""Delayed training on one curvature: limits, modes and the noise floor."""

import dataclasses
import math
from typing import Literal

import numpy as np

from delayjax._src.stability.crossings import brent, brent_minimum, crossings
from delayjax._src.stability.known import check_number
from delayjax._src.stability.moments import second_moments
from delayjax._src.stability.recursion import Recursion
from delayjax._src.stability.root_finding import zeros

Criterion = Literal["mean", "mean_square"]

_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True, eq=False)
class Dynamics(Recursion):
    """SGD under delay on one curvature lambda.

        x_{t+1} = x_t - a x_{t - tau},    a = eta lambda

    and the same with random delays, momentum and the other options. Methods take and
    give the step a; the learning rate eta is a / lambda. Training is stable if it is
    stable at the largest lambda.

    Args:
        delay: in updates: an int, or the probabilities of 0, 1, 2, ..., from which each
            update draws anew, as `cluster.staleness_law(...).pmf`.
        momentum: beta in [0, 1), as in `optax.sgd`.
        nesterov: whether the momentum is Nesterov's; else the heavy ball.
        modulation: staleness -> factor w_k of the update, a law of `dj.modulation`
            behind the optimizer; called with np.int32.
        compensation: c = h / lambda, for gradients corrected by h (x_t - x_{t-tau}).
            DC-ASGD has h = lam_0 times the mean of g^2.
        extrapolation: e, for gradients that are taken ahead of the parameters by e of
            their last moves, at x_t + e (x_t - x_{t-1}): SpecTrain, e the delay, and
            AsyncPP, e = momentum, with the modes of Nesterov's momentum. The whole
            delay lowers the limit of plain SGD; a quarter of it raises the limit a
            little, from a delay of 4 on.

    Raises:
        TypeError: if `delay` is neither an integer nor a row of probabilities,
            `modulation` no function, or another argument no number.
        ValueError: if an argument or a weight is negative, infinite or nan, `momentum`
            not below 1, all weights are 0, or the probabilities do not sum to 1.

    Example:
        >>> training = Dynamics(4, momentum=0.9)
        >>> limit = training.step_limit()
        >>> round(limit, 4), round(training.spectral_radius(limit), 4)
        (0.0265, 1.0)

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for the questions, in continuous time;
        Chen, Yang and Cheng, SpecTrain, arXiv:1809.02839; Ajanthan et al., AsyncPP,
        arXiv:2505.01099.
    """

    def step_limit(self, criterion: Criterion = "mean_square") -> float:
        """The smallest step at which single runs may diverge.

        For a fixed delay without other options it is 2 sin(pi / (2 (2 tau + 1))), for
        any fixed delay the smallest positive

            a(w) = -(z - 1)(1 - beta/z) / N(z),    z = e^{iw}, where that is real,

        with N(z) = w_tau z^-tau, times 1 + beta - beta/z with Nesterov's momentum. For
        random delays N(z) = sum_k p_k w_k z^-k without momentum, and below the smallest
        a(w) the mean of x over runs dies out. Its variance dies out where also

            (a^2/2 pi) int (1 - |G|^2) / |e^{iw} - 1 + a G|^2 dw < 1,   over [-pi, pi],

        with G(w) = sum_k p_k e^{-ikw}; the options change it. Almost all runs die out
        below that limit, and may do so at up to 1.3 times it.

        The delays of a cluster are not independent: `TraceDynamics` follows them. In
        simulations, 2 to 40 equal workers bore this limit or more where the server
        updates at each gradient, with constant, gamma (shape 0.3 to 16), lognormal and
        Pareto times. Delays in a fixed order may bear less: staleness 0, 1, ..., 7 in
        turn is a batch of 8 gradients, and bears half of it.

        Args:
            criterion: "mean_square": the variance dies out, and with it single runs.
                "mean": only the mean over runs dies out, as in theory papers; right
                where each update averages gradients of all delays in these shares. Of
                16 memoryless workers single runs bear 0.47, their mean bears 62.

        Returns:
            float64. Costs 0.2 ms for fixed delays of up to 64 updates and for the mean,
            a few ms for 1000; in mean square O(K^2) for delays of up to K: 20 ms for
            64, 0.7 s for 1000.

        Raises:
            ValueError: if `criterion` is unknown, or a delay is beyond 10^6 that has no
                closed form, or beyond 10^4 in mean square.

        Example:
            >>> round(Dynamics(4).step_limit(), 4)
            0.3473
            >>> law = Dynamics([0.5, 0.0, 0.5])  # its mean bears twice as much
            >>> round(law.step_limit(), 6), round(law.step_limit("mean"), 6)
            (1.0, 2.0)

        References:
            Levin and May, A note on difference-delay equations, Theoretical Population
            Biology 9, 1976, for the fixed delay.
        """
        if criterion not in ("mean", "mean_square"):
            raise ValueError(
                f'`criterion` must be "mean" or "mean_square", got {criterion!r}.'
            )
        if self.is_plain:
            return _plain_limit(self.longest) / self.mean_weight
        if criterion == "mean" or self.is_fixed:
            return self._mean_limit()
        self.check_longest()
        return _mean_square_limit(self, self._mean_limit())

    def critical_step(self) -> float:
        """The step of the fastest decay: the smallest spectral radius.

        For a fixed delay without other options two real roots meet there:

            tau^tau / (tau + 1)^{tau+1},    with the spectral radius tau / (tau + 1).

        In general it is found from the smallest circle that can hold all roots.

        Returns:
            float64; the smallest of equally fast steps. For random delays the mean of x
            decays so, and compensation by more than 1 may put it beyond `step_limit`.
            Costs 15 ms for delays of up to 64 updates.

        Raises:
            ValueError: if a delay is beyond 10^4.

        Example:
            >>> round(Dynamics(4).critical_step(), 5), round(4**4 / 5**5, 5)
            (0.08192, 0.08192)
        """
        self.check_longest()
        limit = self._mean_limit()
        low, high, best = 0.0, 1.0, limit / 2
        while high - low > 1e-12:
            # not the half: at a radius of exactly beta a root would begin on the circle
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

    def roots(self, step: float) -> np.ndarray:
        """The z of all modes z^t of x, or of its mean for random delays.

            (z - 1)(1 - beta/z) + a N(z) = 0,   fixed delay: z^{tau+1} - z^tau + a = 0

        Args:
            step: a = eta lambda.

        Returns:
            complex128 [n], the largest modulus first. n is the longest delay + 1, and
            with momentum usually one more; roots at 0 are left out. A double root is
            exact to about 1e-8 only. Costs O(n^2): 0.2 s for a delay of 1000.

        Raises:
            TypeError: if `step` is no number.
            ValueError: if it is negative, or a delay is beyond 10^4.

        Example:
            >>> Dynamics(1).roots(0.16).real.round(6).tolist()  # z^2 - z + 0.16
            [0.8, 0.2]
        """
        check_number("step", step)
        self.check_longest()
        found = zeros(self.polynomial(float(step)))
        return found[np.argsort(-np.abs(found), kind="stable")]

    def spectral_radius(self, step: float) -> float:
        """The factor by which an error shrinks in one update, in the long run: max |z|.

        The decay rate of an update is -log of it.

        Args:
            step: a = eta lambda.

        Returns:
            float64; 0 where x is 0 after one update. Costs what `roots` does.

        Raises:
            TypeError, ValueError: as `roots` does.

        Example:
            >>> training = Dynamics(1)
            >>> [round(training.spectral_radius(a), 6) for a in (0.25, 0.64, 1.44)]
            [0.5, 0.8, 1.2]
        """
        return float(np.abs(self.roots(step)).max(initial=0.0))

    def stationary_variance(self, step: float, *, noise: float = 1.0) -> float:
        """The variance about the optimum that gradient noise keeps up.

        For x_{t+1} = x_t - a x_{t - tau} + xi_t with white xi of variance s^2,

            fixed delay:  s^2 / (a (2 r - a)),    v = 2 asin(a/2),
                          r = cos(v (2 tau - 1)/4 + pi/4) / cos(v (2 tau + 1)/4 - pi/4)
            any law:      s^2 I / (1 - J),    I = (1/2 pi) int |D|^-2 dw,
                          J = (a^2/2 pi) int (1 - |G|^2) |D|^-2 dw,
                          D = e^{iw} - 1 + a G,    G(w) = sum_k p_k e^{-ikw}

        over [-pi, pi]. Momentum carries the noise on, modulation weighs it. Each update
        has noise of its own; a lookback delay that varies uses some gradients twice.

        Args:
            step: a = eta lambda.
            noise: s = eta sigma, for gradients of standard deviation sigma.

        Returns:
            float64, in units of x^2; `inf` where the step is not stable in mean square.
            Costs O(K^2) for delays of up to K, 1 ms for 64.

        Raises:
            TypeError: if `step` or `noise` is no number.
            ValueError: if one is negative, float64 cannot hold the variance, or a delay
                is beyond 10^4 that has no closed form.

        Example:
            >>> round(Dynamics(0).stationary_variance(0.5), 6)  # s^2 / (a (2 - a))
            1.333333

        References:
            Kuchler and Mensch, Langevin's stochastic differential equation extended by
            a time-delayed term, Stochastics 40, 1992, for the continuous form.
        """
        check_number("step", step)
        check_number("noise", noise)
        step, weight = float(step), self.mean_weight
        if self.is_plain:
            variance, factor = _plain_variance(weight * step, self.longest), weight
        else:
            variance, factor = self._variance(step), 1 / step if step else 1.0
        if variance == math.inf:
            return math.inf
        scale = float(noise) * factor
        result = scale * variance * scale  # ** would raise OverflowError
        if not math.isfinite(result):
            raise ValueError(
                "`noise` must be so small that float64 can hold the variance, got"
                f" {noise}: count x in larger units."
            )
        return result

    def _mean_limit(self) -> float:
        """The smallest step at which a root of D is on the unit circle."""
        steps, _ = crossings(self)
        return float(steps[0]) if steps.size else math.inf

    def _variance(self, step: float) -> float:
        """The variance of x where the noise of a gradient is 1 / step."""
        moments = second_moments(self, step)
        if moments is None:
            return math.inf
        gain, seen = moments
        if not np.abs(np.linalg.eigvals(gain)).max() < 1:
            return math.inf
        # what gradient noise adds to the covariances
        square = self.chances @ self.weights**2
        added = [self.lead**2 * square, self.lead * self.mean_weight, 1.0]
        return float(seen @ np.linalg.solve(np.eye(3) - gain, added))


def _plain_limit(tau: int) -> float:
    """The limit of a fixed delay without other options."""
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1)))


def _plain_variance(a: float, tau: int) -> float:
    """The variance for a fixed delay without other options, at noise of 1."""
    if not 0 < a < _plain_limit(tau):
        return math.inf
    v = 2 * math.asin(a / 2)
    r = math.cos(v * (2 * tau - 1) / 4 + math.pi / 4)
    r /= math.cos(v * (2 * tau + 1) / 4 - math.pi / 4)
    return 1 / (a * (2 * r - a))


def _mean_square_limit(recursion: Recursion, limit: float) -> float:
    """The smallest step at which the variance no longer dies out, up to `limit`."""

    def excess(step: float) -> float:
        """Below 0 where it dies out; it runs from -1 to 1."""
        if step == 0:
            return -1.0
        moments = second_moments(recursion, step)
        if moments is None:
            return 1.0
        gain = np.abs(np.linalg.eigvals(moments[0])).max()
        return (gain - 1) / (gain + 1) if math.isfinite(gain) else 1.0

    # near the limit of the mean the gain grows beyond bounds, perhaps very near
    shares = np.append(np.arange(20) / 20, 1 - 0.5 ** np.arange(5, 40))
    steps = limit * shares
    values = []
    while len(values) < len(steps) and (not values or values[-1] < 0):
        values.append(excess(steps[len(values)]))
    # with momentum and compensation it may also rise and fall, before
    for i in range(1, len(values) - 1):
        if values[i - 1] < values[i] > values[i + 1]:
            low, high = steps[i - 1], steps[i + 1]
            top = brent_minimum(lambda step: -excess(step), low, high)
            if excess(top) > 0:
                return brent(excess, low, top)
    if values[-1] < 0:
        return limit
    return brent(excess, steps[len(values) - 2], steps[len(values) - 1])
