"""Delayed training in wall-clock time: modes, largest gains and noise."""

import dataclasses
import math

import numpy as np
import scipy

from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.ground import checks, kinds
from delayjax._src.stability import spectrum
from delayjax._src.stability.rightmost import RightmostZeros, meeting_rate
from delayjax._src.stability.root_finding import zero_between

_MOST_STAGES = 128  # up to here the roots come from a polynomial
_NEAR = 1e-3  # relative distance to -1/e at which scipy's W is inexact, or nan
_REAL = 1e-7  # relative size that rounding leaves of an imaginary part
_GOLDEN = (math.sqrt(5) - 1) / 2
_LONGER = 0.05  # the share of the mean delay that the steps of a path may add


@kinds.checked
@dataclasses.dataclass(frozen=True)
class DelayEquation:
    """Training in continuous time; each gradient is late by its service time T.

    With nu gradients a second from many workers, a mode x of curvature lambda follows

        dx/dt = -a E x(t - T),    a = eta lambda nu,

    which exp(s t) solves where s + a phi(s) = 0, with phi(s) = E exp(-s T). The
    argument `gain` of all methods is a, finite and non-negative, in 1/seconds: eta
    lambda P / E T for P workers.

    Attributes:
        service_time: T, as `cluster.exponential(1.0)` and the other laws make it. Its
            mean is positive and finite.

    Example:
        >>> from delayjax import cluster
        >>> equation = DelayEquation(cluster.constant(1.0))
        >>> rates = [equation.decay_rate(gain) for gain in (0.1, np.exp(-1), 1.0, 2.0)]
        >>> [round(rate, 6) for rate in rates]  # 1/e is critical; at 2 the error grows
        [0.111833, 1.0, 0.318132, -0.172816]
        >>> round(equation.speedup_limit(), 5)
        0.63336
        >>> memoryless = DelayEquation(cluster.exponential(1.0))
        >>> round(memoryless.critical_gain(), 6), memoryless.roots(0.16).real.round(6)
        (0.25, array([-0.2, -0.8]))

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for roots as rates of convergence.
    """

    service_time: ServiceTime

    def __post_init__(self):
        if not 0 < self.service_time.mean < math.inf:
            raise ValueError(
                "`service_time` must have a positive, finite mean, got"
                f" {self.service_time.mean}."
            )

    def half_update_earlier(self, workers: kinds.PositiveInt) -> "DelayEquation":
        """The equation with T (1 - 1/(2P)), which P workers follow more closely.

        P workers of a server that updates at each gradient hold the parameters between
        two updates. For constant times rates and limits then equal the cluster's, up to
        terms in 1/P^2; for random times the limit is up to 0.8/P too low.
        """
        return DelayEquation(self.service_time.scaled(1 - 1 / (2 * workers)))

    def roots(
        self, gain: kinds.NonNegativeFloat, *, number: kinds.PositiveInt = 4
    ) -> np.ndarray:
        """The s of the modes exp(s t) that decay most slowly.

        A constant delay has W_j(-a T) / T, with Lambert's W; k memoryless stages have
        s = (k/mean) (u - 1) with the roots of u^{k+1} - u^k + a mean/k = 0.

        Args:
            gain: a.
            number: the number of roots; one more is returned rather than half of a
                pair.

        Returns:
            complex128 [n], in 1/seconds, the largest real part first. n is below
            `number` if other roots are beyond -`tail_rate`, very far away, or do not
            exist. A double root is exact to 1e-8. Without a closed form the time grows
            with `gain` times the longest delay, at most about 10^6.

        Raises:
            ValueError: if the tail of T is heavier than exponential.

        References:
            Corless et al., On the Lambert W function, 1996, for the constant delay.
        """
        time = self._with_a_light_tail()
        if gain == 0:
            return np.zeros(1, complex)
        turns = gain * time.mean
        if time.stages == math.inf and abs(math.e * turns - 1) > _NEAR:
            # W_-1, W_0, W_1, ...; the other branches are their conjugates
            branches = range(-1, number // 2 + 2)
            roots = np.array([scipy.special.lambertw(-turns, j) for j in branches])
            roots /= time.mean
        elif time.stages is not None and time.stages in range(1, _MOST_STAGES + 1):
            stages = int(time.stages)
            polynomial = np.zeros(stages + 2)
            polynomial[:2], polynomial[-1] = (1, -1), turns / stages
            roots = stages / time.mean * (np.roots(polynomial) - 1)
        else:
            roots = RightmostZeros(gain, time, meeting_rate(time)).find(number)
        return _in_order(roots, number)

    def decay_rate(self, gain: kinds.NonNegativeFloat) -> float:
        """The long-run decay rate of the error, 1/seconds: -max Re s of the `roots`.

        It is negative where the error grows, and at most `tail_rate`. Up to the
        `critical_gain` it is the smaller r with

            r = a E exp(r T),    which is above a: a small delay makes the decay faster.
        """
        time = self._with_a_light_tail()
        has_stages = time.stages is not None and time.stages < math.inf
        if has_stages and gain > self.critical_gain() * (1 + _NEAR):
            return _rate_of_turning_stages(gain, time)
        fastest = meeting_rate(time)

        def ahead(rate):
            return rate / float(time.transform(-rate)) - gain

        if ahead(fastest) >= 0:
            return zero_between(ahead, 0.0, fastest)
        roots = self.roots(gain, number=1)
        return float(-roots[0].real) if roots.size else time.tail_rate

    def gain_limit(self, *, workers: float) -> float:
        """The smallest gain at which single runs of P workers may diverge.

        The delay equation, the mean over runs, has a root i w on the imaginary axis at

            E cos(w T) = 0,    a = w / E sin(w T)

        The smallest a E T is pi/2 for a constant delay and k tan(pi/2k) / cos^k(pi/2k)
        for k stages. For P workers with independent delays the variance decays where
        also, over all w and with phi = phi(i w),

            (a^2 E T / 2 pi P) int (1 - |phi|^2) / |i w + a phi|^2 dw < 1

        For memoryless workers this is a E T < sqrt(2 P); their single runs are stable
        up to sqrt(pi P) + 1/2.

        Args:
            workers: P, or `math.inf` for the delay equation itself.

        Returns:
            float64, in 1/seconds; `inf` for infinite P where no frequency up to 1000 /
            median gives a limit, as for exponential times. As a step eta lambda it is
            limit * mean / P; `half_update_earlier` makes this more exact.

        Raises:
            ValueError: if `service_time.transform` is not known at the frequency of the
                limit, as for some widely spread times of `cluster.from_scipy`; or if
                heavy tails have no limit up to a frequency of 1000 / median.

        Example:
            >>> from delayjax import cluster
            >>> equation = DelayEquation(cluster.gamma(1.0, 2.0))
            >>> [round(equation.gain_limit(workers=p), 2) for p in (16, 1000, math.inf)]
            [3.1, 3.98, 4.0]
        """
        if isinstance(workers, float) and workers == math.inf:
            return spectrum.limit_of_the_mean(self.service_time)
        count = checks.check_bound("workers", workers, at_least=1)
        return spectrum.limit_of_the_variance(self.service_time, count)

    def critical_gain(self) -> float:
        """The largest gain at which the error decays without oscillating, 1/seconds.

        Two real roots meet there, at the r > 0 of the largest a = r / E exp(r T). In
        units of the mean it is 1/e for a constant delay, which decays fastest there,
        and (k/(k+1))^{k+1} for k stages.
        """
        rate = meeting_rate(self._with_a_light_tail())
        return rate / float(self.service_time.transform(-rate))

    def speedup_limit(self) -> float:
        """The gain, in 1/seconds, below which late gradients decay the error faster.

        Without delay the rate is the gain itself. Here decay_rate(gain) = gain; for a
        constant delay of 1 at -log(cos v) with -log(cos v) tan v = v.
        """

        def ahead(gain):
            return self.decay_rate(gain) - gain

        low = self.critical_gain()
        high = 2 * low
        while ahead(high) > 0:
            low, high = high, 2 * high
        return zero_between(ahead, low, high)

    def variance(
        self, gain: kinds.NonNegativeFloat, *, noise: kinds.NonNegativeFloat = 1.0
    ) -> float:
        """The variance about the optimum that gradient noise maintains.

        For dX = -a E X(t - T) dt + noise dB with a constant delay, or any times, it is

            (noise^2 / 2a) (1 + sin a T) / cos a T
            (noise^2 / 2 pi) int dw / |i w + a phi(i w)|^2    over all w

        Random delays of finitely many workers add to it: see `Dynamics`.

        Args:
            gain: a.
            noise: eta sigma sqrt(nu), in units of x / sqrt(seconds).

        Returns:
            float64, in units of x^2; `inf` where the gain is 0 or the equation is
            unstable. Exact to six digits, or a ValueError for times too widely spread.

        Example:
            >>> from delayjax import cluster
            >>> constant = DelayEquation(cluster.constant(np.pi / 6))
            >>> round(constant.variance(1.0), 6)  # sqrt(3) / 2
            0.866025

        References:
            Kuchler and Mensch, Stochastics 40, 1992, for the constant delay.
        """
        if gain == 0 or gain >= self.gain_limit(workers=math.inf):
            return math.inf
        return float(noise) ** 2 * spectrum.variance(gain, self.service_time)

    def paths(
        self,
        gain: kinds.NonNegativeFloat,
        *,
        paths: kinds.PositiveInt,
        steps: kinds.PositiveInt,
        step_seconds: kinds.PositiveFloat,
        seed: kinds.NonNegativeInt,
        noise: kinds.NonNegativeFloat = 1.0,
        start: float = 0.0,
        every: kinds.PositiveInt = 1,
    ) -> np.ndarray:
        """Simulated paths of the noisy equation, by Euler and Maruyama's scheme.

            X_{n+1} = X_n - a h X(t_n + h/2 - T) + noise sqrt(h) xi_n

        with X = start before 0, interpolated between two points. Step n has one delay
        T, the quantile of the share n (sqrt(5) - 1)/2 mod 1.

        Args:
            gain: a.
            paths: the number of paths.
            steps: the number of steps.
            step_seconds: h. A hundredth of the mean delay gives the variance to 1 %.
                Delays below half a step count as half a step.
            seed: the seed of the noise.
            noise: as in `variance`.
            start: x until t = 0.
            every: n, to keep every n-th step.

        Returns:
            float64 [1 + steps // every, paths], from t = 0. A path that diverges ends
            at `inf` or nan. Memory holds the values of the longest delay too.

        Example:
            >>> from delayjax import cluster
            >>> late = DelayEquation(cluster.constant(1.0))
            >>> options = {"paths": 1, "steps": 50, "step_seconds": 0.01, "seed": 0}
            >>> x = late.paths(1.0, noise=0.0, start=1.0, every=25, **options)
            >>> x[:, 0].round(6).tolist()  # x' = -1 while x(t - 1) is still 1
            [1.0, 0.75, 0.5]

        References:
            Kuchler and Platen, Mathematics and Computers in Simulation 54, 2000.
        """
        drift, kick = gain * step_seconds, noise * math.sqrt(step_seconds)
        rng = np.random.default_rng(seed)
        shares = (0.5 + _GOLDEN * np.arange(steps)) % 1
        exact = self.service_time.quantile(shares) / step_seconds - 0.5
        late = np.maximum(exact, 0)
        mean = self.service_time.mean
        longer = float(np.mean(late - exact)) * step_seconds / mean
        if longer > _LONGER:
            raise ValueError(
                f"`step_seconds` must be at most {mean / 10:.2g}, got {step_seconds}:"
                f" the mean delay is {longer:.0%} longer."
            )
        back = np.floor(late).astype(np.int64)
        x = np.full(paths, float(start))
        ring = np.tile(x, (int(back.max()) + 2, 1))
        kept = [x]
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is a result
            for n in range(steps):
                newer, older = ring[(n - back[n] - np.arange(2)) % len(ring)]
                seen = newer + (late[n] - back[n]) * (older - newer)
                x = x - drift * seen + kick * rng.standard_normal(paths)
                ring[(n + 1) % len(ring)] = x
                if (n + 1) % every == 0:
                    kept.append(x)
        return np.array(kept)

    def _with_a_light_tail(self) -> ServiceTime:
        if self.service_time.tail_rate == 0:
            raise ValueError(
                "`service_time` must have a tail no heavier than exponential, got"
                f" {self.service_time}: take cluster.empirical of a run's times."
            )
        return self.service_time


def _rate_of_turning_stages(gain: float, time: ServiceTime) -> float:
    """The rate of k stages, for any k > 0, above the critical gain.

    With s = (k/mean)(u - 1) and v/k the angle of u, u^k (1 - u) = a mean/k is real
    where 1 - u has the angle -v. The law of sines in the triangle 0, 1, u then gives

        |u| = sin v / sin(v + v/k),    |1 - u| = sin(v/k) / sin(v + v/k).
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


def _in_order(roots: np.ndarray, number: int) -> np.ndarray:
    """The largest real parts first, each upper root before its conjugate."""
    real = np.abs(np.imag(roots)) <= _REAL * np.abs(roots)
    roots = np.where(real, np.real(roots) + 0j, roots)
    upper = roots[np.imag(roots) >= 0]
    ordered: list[complex] = []
    for root in upper[np.argsort(-np.real(upper), kind="stable")]:
        if len(ordered) >= number:
            break
        ordered += [root, root.conjugate()] if root.imag else [root]
    return np.array(ordered, complex)
