"""The time that a gradient takes: one object for the simulator and for the theory."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from delayjax._src.ground import checks, kinds
from delayjax._src.ground.pickling import Pickled, remembered

_FIRST, _LONGEST = 8, 512  # tasks in a block: few at first, enough for many workers
_BLOCK = 2**18  # exponentials at a time
_LARGE = 1000  # stages: from here on 1 + s mean/k loses three digits
_NODES = 4001  # of an integral over all shares
_OF_A_TAIL = 433  # nodes of an integral over the times of a Pareto tail
_FAR = 9.5  # normal deviations: beyond it a normal density is below 1e-20
_TURN = 3.0  # deviations by which a path leaves the real axis, at most
_LAST = 1e-9  # share of a finite integral at its last node, at most
_RARE = 1e-6  # share of the longest times that `resolved` leaves out
_STEADY = 0.02  # relative change of the hazard of an exponential tail, at most


@kinds.checked
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ServiceTime(Pickled):
    """The seconds T that a gradient takes on a worker; tasks are independent.

    Attributes:
        mean: E T, in seconds; `inf` for some heavy tails.
        sample: (rng, size) -> seconds, float64 [size].
        survival: seconds, any shape -> P(T > seconds).
        quantile: share in [0, 1) -> the seconds below which this share of times lies.
        transform: s in 1/seconds, real or complex -> E exp(-s T).
        slope: s -> E T exp(-s T), in seconds.
        kth: (K, P) -> `kth_mean`.
        tail_rate: `transform` is finite for Re s > -tail_rate, 1/seconds.
        stages: k if T is the sum of k equal memoryless times; `inf` if T is constant.
        resolved: the frequency |Im s| in 1/seconds up to which `transform` is accurate.
    """

    mean: float
    sample: Callable[[np.random.Generator, int], np.ndarray]
    survival: Callable[[Any], Any]
    quantile: Callable[[Any], Any]
    transform: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    kth: Callable[[int, int], float]
    tail_rate: float = math.inf
    stages: float | None = None
    resolved: float = math.inf

    def __repr__(self) -> str:
        return f"ServiceTime(mean={self.mean}, tail_rate={self.tail_rate})"

    def __call__(self, rng: np.random.Generator, worker: int) -> Iterator[np.ndarray]:
        """Blocks of seconds of a worker's tasks, float64 [n]."""
        return blocks(self.sample, rng)

    def kth_mean(self, k: int, workers: kinds.PositiveInt) -> float:
        """E T_{K:P}: mean seconds until K of P workers have finished; may be `inf`.

        Args:
            k: K, 1 .. P.
            workers: P; all begin at 0 and compute one gradient.

        Example:
            >>> exponential(6.0).kth_mean(2, 3)  # 6/3 for the first, 6/2 more
            5.0
        """
        k = checks.check_bound("k", k, at_least=1, at_most=workers)
        return float(self.kth(k, workers))

    @remembered
    def scaled(self, factor: kinds.PositiveFloat) -> "ServiceTime":
        """The service time factor * T."""
        factor = float(factor)
        return ServiceTime(
            mean=factor * self.mean,
            sample=lambda rng, size: factor * self.sample(rng, size),
            survival=lambda seconds: self.survival(np.asarray(seconds) / factor),
            quantile=lambda share: factor * self.quantile(share),
            transform=lambda s: self.transform(factor * np.asarray(s)),
            slope=lambda s: factor * self.slope(factor * np.asarray(s)),
            kth=lambda k, workers: factor * self.kth(k, workers),
            tail_rate=self.tail_rate / factor,
            stages=self.stages,
            resolved=self.resolved / factor,
        )


@remembered
def constant(seconds: kinds.PositiveFloat) -> ServiceTime:
    """Every task takes the same time: T = seconds.

    Args:
        seconds: the time of one gradient.

    Example:
        >>> constant(2.0).transform(0.5).round(6)  # 1/e
        np.float64(0.367879)
    """
    return dataclasses.replace(empirical([seconds]), stages=math.inf)


@remembered
def exponential(mean_seconds: float) -> ServiceTime:
    """Memoryless tasks: P(T > t) = exp(-t / mean).

        E exp(-s T) = 1 / (1 + s mean)
        E T_{K:P}   = mean (1/(P - K + 1) + ... + 1/P)

    Args:
        mean_seconds: the mean time of one gradient.

    Example:
        >>> exponential(2.0).transform(0.5)
        np.float64(0.5)
    """
    return shifted_exponential(0.0, mean_seconds)


@remembered
def shifted_exponential(
    shift_seconds: kinds.NonNegativeFloat, mean_seconds: kinds.PositiveFloat
) -> ServiceTime:
    """A fixed time plus a memoryless time: T = shift + Exp(mean).

    Args:
        shift_seconds: the fixed part; 0 is `exponential`.
        mean_seconds: the mean of the memoryless part.

    Example:
        >>> shifted_exponential(1.0, 2.0).mean
        3.0
    """
    shift, mean = float(shift_seconds), float(mean_seconds)

    def slope(s):
        stage = 1 + np.asarray(s) * mean
        return np.exp(-np.asarray(s) * shift) * (shift + mean / stage) / stage

    def kth(k, workers):
        left = range(workers - k + 1, workers + 1)
        return shift + mean * math.fsum(1 / number for number in left)

    return ServiceTime(
        mean=shift + mean,
        sample=lambda rng, size: shift + rng.exponential(mean, size),
        survival=lambda t: np.exp(-np.maximum(np.asarray(t) - shift, 0) / mean),
        quantile=lambda share: shift - mean * np.log1p(-np.asarray(share)),
        transform=lambda s: np.exp(-np.asarray(s) * shift) / (1 + np.asarray(s) * mean),
        slope=slope,
        kth=kth,
        tail_rate=1 / mean,
        stages=None if shift else 1.0,
    )


@remembered
def gamma(mean_seconds: kinds.PositiveFloat, shape: kinds.PositiveFloat) -> ServiceTime:
    """Tasks of `shape` memoryless stages: E exp(-s T) = (1 + s mean/shape)^-shape.

    Args:
        mean_seconds: the mean time of one gradient.
        shape: 1 / cv^2, any positive number: 1 is exponential, 1000 nearly constant.

    Example:
        >>> gamma(1.0, 4).transform(4.0)  # (1 + 1)^-4
        np.float64(0.0625)
    """
    mean, k = float(mean_seconds), float(shape)
    stage = mean / k

    def power(s, exponent):
        each = np.asarray(s) * stage
        if k < _LARGE:
            return (1 + each) ** -exponent
        # scipy's log1p is exact for complex numbers near 0, which numpy's is not
        return np.exp(-exponent * scipy.special.log1p(each))

    return ServiceTime(
        mean=mean,
        sample=lambda rng, size: rng.gamma(shape, stage, size),
        survival=lambda t: scipy.special.gammaincc(k, np.maximum(t, 0) / stage),
        quantile=lambda share: stage * scipy.special.gammaincinv(k, share),
        transform=lambda s: power(s, k),
        slope=lambda s: mean * power(s, k + 1),
        kth=lambda *which: from_scipy(scipy.stats.gamma(k, scale=stage)).kth(*which),
        tail_rate=1 / stage,
        stages=k,
    )


@remembered
def lognormal(
    mean_seconds: kinds.PositiveFloat, cv: kinds.PositiveFloat
) -> ServiceTime:
    """The jitter of equal machines: log T is normal.

        log T ~ N(log mean - s^2 / 2, s^2),  s^2 = log(1 + cv^2)

    Args:
        mean_seconds: the mean time of one gradient.
        cv: standard deviation over mean; about 0.05 for equal machines.

    Example:
        >>> float(lognormal(2.0, 0.75).quantile(0.5))  # mean / sqrt(1 + cv^2)
        1.6
    """
    spread = math.sqrt(math.log1p(cv**2))
    location = math.log(mean_seconds) - math.log1p(cv**2) / 2
    median = float(mean_seconds) / math.sqrt(1 + cv**2)
    # T = median exp(spread z) along z = y - i turn / spread, a parallel of the axis.
    # The steps are small beside a normal deviation and a factor of e of T
    step = min(0.1, 0.25 / spread)
    y = np.arange(-_FAR, _FAR + spread, step)
    chances = step * scipy.stats.norm.pdf(y)

    def path(angle):
        # a larger turn would lose digits: its weights are large and cancel
        turn = np.clip(angle, -_TURN * spread, _TURN * spread)
        times = median * np.exp(spread * y - 1j * turn)
        z = turn / spread
        return times, chances * np.exp(z**2 / 2 + 1j * y * z)

    return dataclasses.replace(
        from_scipy(scipy.stats.lognorm(spread, scale=median)),
        mean=float(mean_seconds),
        sample=lambda rng, size: rng.lognormal(location, spread, size),
        **_along(path, y.size),
        tail_rate=0.0,
        resolved=math.inf,
    )


@remembered
def pareto(
    scale_seconds: kinds.PositiveFloat, shape: kinds.PositiveFloat
) -> ServiceTime:
    """Heavy tails: P(T > t) = (scale / t)^shape for t >= scale.

        E T_{K:P} = scale Gam(P + 1) Gam(P - K + 1 - 1/shape)
                    / (Gam(P - K + 1) Gam(P + 1 - 1/shape))

    Args:
        scale_seconds: the shortest time.
        shape: the exponent of the tail. E T is infinite if it is at most 1, E T_{K:P}
            if it is at most 1 / (P - K + 1).

    Example:
        >>> pareto(2.0, 1.0).mean
        inf
    """
    scale, inverse = float(scale_seconds), 1 / float(shape)

    def kth(k, workers):
        slower, every = workers - k + 1, workers + 1
        if slower <= inverse:
            return math.inf
        log = math.lgamma(every) - math.lgamma(every - inverse)
        log += math.lgamma(slower - inverse) - math.lgamma(slower)
        return scale * math.exp(log)

    # T = scale (1 + r exp(-i angle)), r = exp(pi/2 sinh x): r decays at both ends
    x, step = np.linspace(-4.3, 6.5, _OF_A_TAIL, retstep=True)
    r = np.exp(np.pi / 2 * np.sinh(x))
    steps = shape * step * np.pi / 2 * np.cosh(x) * r

    def path(angle):
        turned = np.exp(-1j * angle)
        times = 1 + r * turned
        return scale * times, steps * turned * np.exp(-(shape + 1) * np.log(times))

    return dataclasses.replace(
        from_scipy(scipy.stats.pareto(shape, scale=scale)),
        mean=kth(1, 1),
        # NumPy draws from Lomax's law, which begins at 0
        sample=lambda rng, size: scale * (1.0 + rng.pareto(shape, size)),
        **_along(path, x.size),
        kth=kth,
        tail_rate=0.0,
        resolved=math.inf,
    )


@remembered
def uniform(
    low_seconds: kinds.NonNegativeFloat, high_seconds: kinds.PositiveFloat
) -> ServiceTime:
    """All times in [low, high] are equally likely.

        E exp(-s T) = (exp(-s low) - exp(-s high)) / (s (high - low))
        E T_{K:P}   = low + (high - low) K / (P + 1)

    Args:
        low_seconds: the shortest time.
        high_seconds: the longest time.

    Example:
        >>> uniform(1.0, 5.0).kth_mean(3, 3)
        4.0
    """
    low, high = float(low_seconds), float(high_seconds)
    width = high - low
    if width <= 0:
        raise ValueError(f"`high_seconds` must be > `low_seconds`, got {high}, {low}.")

    def integral(s, of_slope):
        s = np.asarray(s)
        # from the end of [low, high] at which nothing overflows
        end = np.where(np.real(s) >= 0, low, high)
        way = np.where(np.real(s) >= 0, width, -width)
        mean = _mean_decay(s * way)
        if of_slope:
            mean = end * mean + way * _mean_age(s * way)
        return (np.exp(-s * end) * mean)[()]

    return ServiceTime(
        mean=(low + high) / 2,
        sample=lambda rng, size: rng.uniform(low, high, size),
        survival=lambda t: np.clip((high - np.asarray(t)) / width, 0, 1),
        quantile=lambda share: low + width * np.asarray(share),
        transform=lambda s: integral(s, of_slope=False),
        slope=lambda s: integral(s, of_slope=True),
        kth=lambda k, workers: low + width * k / (workers + 1),
    )


@remembered
def empirical(samples: ArrayLike) -> ServiceTime:
    """Measured times, drawn with replacement.

        E T_{K:P} = sum_j t_j (I(j/n) - I((j - 1)/n)),    I(u) = P(Bin(P, u) >= K)

    Args:
        samples: seconds t_1, ..., t_n, as `trace.arrived - trace.begun`. A thousand
            samples suffice; a transform costs n exponentials.

    Example:
        >>> empirical([1.0, 3.0]).kth_mean(2, 2)  # 1 in one of four cases, else 3
        2.5
    """
    remedy = "leave out tasks that never end, or use infinite_bernoulli"
    times = checks.as_finite("samples", samples, remedy=remedy)
    if times.ndim != 1 or not times.size:
        raise ValueError(f"`samples` must be a vector of times, got {samples!r}.")
    values, counts = np.unique(times, return_counts=True)
    shares = np.append(0, np.cumsum(counts)) / times.size

    def kth(k, workers):
        return values @ np.diff(scipy.special.betainc(k, workers - k + 1, shares))

    return ServiceTime(
        mean=float(times.mean()),
        sample=lambda rng, size: rng.choice(times, size),
        survival=lambda t: 1 - shares[np.searchsorted(values, t, side="right")],
        quantile=lambda share: np.quantile(times, share, method="inverted_cdf"),
        **_of_points(values, counts / times.size),
        kth=kth,
    )


@remembered
def from_scipy(distribution: Any) -> ServiceTime:
    """Times of a distribution of `scipy.stats`.

    Args:
        distribution: the distribution, such as `scipy.stats.weibull_min(1.5, scale=2)`.
            Integrals are accurate to about 1e-6 for frequencies up to some tens of
            1/mean.

    Example:
        >>> from scipy import stats
        >>> round(from_scipy(stats.expon(scale=6.0)).kth_mean(2, 3), 6)
        5.0
    """
    low, high = distribution.support()
    if low < 0:
        raise ValueError(f"`distribution` must lie above 0, got a minimum of {low}.")
    # the nodes u = 1 / (1 + exp(-pi sinh x)): shares below and above, and weights
    x, step = np.linspace(-6.1, 6.1, _NODES, retstep=True)
    logit = np.pi * np.sinh(x)
    below, above = scipy.special.expit(logit), scipy.special.expit(-logit)
    weights = below * above * np.pi * np.cosh(x) * step
    with np.errstate(over="ignore", divide="ignore"):
        times = np.where(below < 0.5, distribution.ppf(below), distribution.isf(above))
    finite = np.minimum(times, 1e300)

    def kth(k, workers):
        """The share of times below T_{K:P} has a beta distribution."""
        log = scipy.special.xlogy(k - 1, below)
        log += scipy.special.xlogy(workers - k, above)
        chances = weights * np.exp(log - scipy.special.betaln(k, workers - k + 1))
        parts = chances[chances > 0] * times[chances > 0]
        total = parts.sum()
        return total if parts[-1] <= _LAST * total < math.inf else math.inf

    return ServiceTime(
        mean=float(distribution.mean()),
        sample=lambda rng, size: distribution.rvs(size, random_state=rng),
        survival=distribution.sf,
        quantile=distribution.ppf,
        **_of_points(finite, weights),
        kth=kth,
        tail_rate=math.inf if high < math.inf else _tail_rate(distribution.isf),
        resolved=float(2 / np.diff(finite[above > _RARE]).max()),
    )


def block_sizes() -> Iterator[int]:
    """The numbers of tasks that a service draws at a time."""
    size = _FIRST
    while True:
        yield size
        size = min(2 * size, _LONGEST)


def blocks(
    draw: Callable[[np.random.Generator, int], ArrayLike], rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Independent seconds of tasks, float64 [n] at a time."""
    for size in block_sizes():
        yield np.asarray(draw(rng, size), np.float64)


def _of_points(times: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """`transform` and `slope` of times that have these probabilities."""

    def sums(s, power):
        return np.exp(-s * times) @ (weights * times**power)

    return _in_blocks(sums, times.size)


def _along(
    path: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], nodes: int
) -> dict[str, Any]:
    """`transform` and `slope` of heavy tails, whose density has complex times too.

    On the real axis exp(-s T) oscillates. It decays along a path of turned times.

    Args:
        path: the angle of s, radians [n, 1] -> times and weights, complex [n, nodes].
        nodes: the number of times.
    """

    def sums(s, power):
        times, weights = path(np.angle(s))
        parts = weights * times**power * np.exp(-s * times)
        total = parts.sum(axis=1) if np.iscomplexobj(s) else parts.real.sum(axis=1)
        return np.where(np.real(s[:, 0]) < 0, np.inf, total)

    return _in_blocks(sums, nodes)


def _in_blocks(
    sums: Callable[[np.ndarray, int], np.ndarray], nodes: int
) -> dict[str, Any]:
    """`transform` and `slope`, of any shape.

    Args:
        sums: (s [n, 1], power) -> sum over the nodes of weight T^power exp(-s T), [n].
        nodes: their number.
    """
    rows = max(_BLOCK // nodes, 1)

    def of(power):
        def values(s):
            s = np.asarray(s)
            flat = s.reshape(-1, 1)
            blocks = [flat[i : i + rows] for i in range(0, s.size, rows)]
            done = [sums(block, power) for block in blocks]
            return np.concatenate([np.zeros(0), *done]).reshape(s.shape)[()]

        return values

    return {"transform": of(0), "slope": of(1)}


def _tail_rate(isf: Callable[[Any], Any]) -> float:
    """The rate at which P(T > t) falls for large t; 0 if it is no exponential tail."""
    with np.errstate(over="ignore", invalid="ignore"):
        before, last = math.log(1e100) / np.diff(isf([1e-100, 1e-200, 1e-300]))
    if not last >= (1 - _STEADY) * before:
        return 0.0
    return math.inf if last > (1 + _STEADY) * before else float((1 - _STEADY) * last)


def _mean_decay(z: np.ndarray) -> np.ndarray:
    """(1 - e^-z)/z, the mean of e^-zu over u in [0, 1]; 1 at z = 0."""
    safe = np.where(z == 0, 1, z)
    return np.where(z == 0, 1, -np.expm1(-safe) / safe)


def _mean_age(z: np.ndarray) -> np.ndarray:
    """The mean of u e^-zu, (1 - e^-z (1 + z))/z^2; by a series where this cancels."""
    small = np.abs(z) < 0.5
    safe = np.where(small, 1, z)
    series = [1 / (math.factorial(n) * (n + 2)) for n in range(14)]
    near = np.polynomial.polynomial.polyval(np.where(small, -z, 0), series)
    return np.where(small, near, -(np.expm1(-safe) / safe + np.exp(-safe)) / safe)
