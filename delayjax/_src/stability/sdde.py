"""Noisy delayed training in wall-clock time: its paths, and how far they spread.

    dX = -a E X(t - T) dt + noise dB

With gradients of standard deviation sigma that arrive nu times a second, a = eta lambda
nu and noise = eta sigma sqrt(nu).
"""

import math

import numpy as np
from scipy import integrate

from delayjax._src import base
from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.stability.delay_equation import DelayEquation, check_gain
from delayjax._src.stability.known import check_known, check_number
from delayjax._src.stability.rightmost import number_right_of

_GOLDEN = (math.sqrt(5) - 1) / 2
_MOST_TURNS = 2000.0  # of the delay, 1/mean: that a gain may be
_CELLS = 4096  # at a time
_EXACT = 1e-6  # of the variance, what integration may leave
_LONGER = 0.05  # of the mean delay, what steps may add to it


def sdde_variance(
    gain: float, service_time: ServiceTime, *, noise: float = 1.0
) -> float:
    """The variance about the optimum that gradient noise keeps up.

    For a constant delay it is

        (noise^2 / 2a) (1 + sin a T) / cos a T,

    for any times the integral of the spectral density

        (noise^2 / 2 pi) int dw / |i w + a phi(i w)|^2    over all w.

    It is the variance of the `DelayEquation`, a mean over delays: random delays add to
    the variance of finitely many workers, see `stationary_variance`.

    Args:
        gain: a = eta lambda nu, 1/seconds.
        service_time: T, by which each gradient is late.
        noise: eta sigma sqrt(nu), in units of x / sqrt(seconds).

    Returns:
        float64, in units of x^2; `inf` where the gain is 0 or the equation unstable.
        Exact for constant and exponential times, else an integral of 1600 (a mean + 10)
        values of phi: some ms at a of 1/mean, a second or more for 1000 samples.

    Raises:
        TypeError, ValueError: if an argument is no such number or time; for times that
            are integrated, if `gain` is above 2000 / mean, or they are spread too
            widely for six digits.

    Example:
        >>> from delayjax import cluster
        >>> round(sdde_variance(1.0, cluster.constant(np.pi / 6)), 6)  # sqrt(3) / 2
        0.866025
        >>> round(sdde_variance(1.0, cluster.exponential(1.0)), 6)  # (1/2a) (1 + a T)
        1.0

    References:
        Kuchler and Mensch, Langevin's stochastic differential equation extended by a
        time-delayed term, Stochastics 40, 1992, for the constant delay.
    """
    equation, gain = DelayEquation(service_time), check_gain(gain)
    check_number("noise", noise)
    power = float(noise) ** 2
    if gain == 0 or gain >= equation.gain_limit(workers=math.inf):
        return math.inf
    stages, turns = service_time.stages, gain * service_time.mean
    if stages == math.inf:
        return power / (2 * gain) * (1 + math.sin(turns)) / math.cos(turns)
    if stages == 1:
        return power / (2 * gain) * (1 + turns)
    if turns > _MOST_TURNS:
        raise ValueError(
            f"`gain` must be at most {_MOST_TURNS:g} / mean for times that are"
            f" integrated, got {turns:.4g} / mean: constant and exponential times"
            " bear any."
        )
    # of gamma times the limit is exact
    unit = 1 / service_time.mean
    if stages is None and number_right_of(0.0, gain, service_time, unit=unit):
        return math.inf
    return power * (1 / (2 * gain) + _excess(gain, service_time) / math.pi)


def sdde_paths(
    gain: float,
    service_time: ServiceTime,
    *,
    paths: int,
    steps: int,
    step_seconds: float,
    seed: int,
    noise: float = 1.0,
    start: float = 0.0,
    every: int = 1,
) -> np.ndarray:
    """Simulated paths of the delay equation, by Euler and Maruyama's scheme.

        X_{n+1} = X_n - a h X(t_n + h/2 - T) + noise sqrt(h) xi_n,    X = start before 0

    Each step has one delay T: the quantile of the share n (sqrt(5) - 1)/2 mod 1, so
    that any few steps in a row cover all delays evenly. It counts from the middle of
    the step, between two points of the path by interpolation.

    Args:
        gain: a = eta lambda nu, 1/seconds.
        service_time: T, by which each gradient is late.
        paths: how many.
        steps: how many.
        step_seconds: h; a hundredth of the mean delay leaves an error of the variance
            below 1 %. It falls as h^2 if the delay is constant, else as h.
        seed: of the noise.
        noise: eta sigma sqrt(nu), in units of x / sqrt(seconds).
        start: x until t = 0.
        every: keep each so many-th step.

    Returns:
        float64 [1 + steps // every, paths], from t = 0. The last values of each path,
        for the longest delay, are held in a ring; a step costs O(paths), 50 us for 1000
        paths. A path that diverges ends at `inf` or nan.

    Raises:
        TypeError, ValueError: if an argument is no such number or time, or
            `step_seconds` is so long that delays below half of it, which count as half
            of it, add 5 % to the mean.

    Example:
        >>> from delayjax import cluster
        >>> late = cluster.constant(1.0)  # x' = -1 while x(t - 1) is still 1
        >>> options = {"paths": 1, "steps": 50, "step_seconds": 0.01, "seed": 0}
        >>> x = sdde_paths(1.0, late, noise=0.0, start=1.0, every=25, **options)
        >>> x[:, 0].round(6).tolist()
        [1.0, 0.75, 0.5]

    References:
        Kuchler and Platen, Strong discrete time approximation of stochastic
        differential equations with time delay, Mathematics and Computers in Simulation
        54, 2000.
    """
    DelayEquation(service_time)  # checks it
    gain = check_gain(gain)
    check_number("noise", noise)
    check_number("step_seconds", step_seconds, positive=True)
    start = _signed("start", start)
    paths = base.check_bound("paths", paths, at_least=1)
    steps = base.check_bound("steps", steps, at_least=1)
    every = base.check_bound("every", every, at_least=1)
    rng = np.random.default_rng(base.check_bound("seed", seed))
    shares = (0.5 + _GOLDEN * np.arange(steps)) % 1
    exact = service_time.quantile(shares) / step_seconds - 0.5
    late = np.maximum(exact, 0)
    longer = float(np.mean(late - exact)) * step_seconds / service_time.mean
    if longer > _LONGER:
        raise ValueError(
            f"`step_seconds` must be short beside the delay, got {step_seconds}: no"
            f" delay is below half a step, which makes a mean of"
            f" {service_time.mean:.4g} seconds {longer:.0%} longer; take at most"
            f" {service_time.mean / 10:.2g}."
        )
    back = np.floor(late).astype(np.int64)
    drift, kick = gain * step_seconds, noise * math.sqrt(step_seconds)

    x = np.full(paths, start)
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
    # slow ones are as wide as a, however small that is
    ends = middle * 4.0 ** np.arange(-math.ceil(math.log(middle / gain, 4)) - 1, 1)
    total, doubt = 0.0, 0.0
    for low, high in zip([0.0, *ends[:-1]], ends, strict=True):
        part, error, *_ = integrate.quad(
            lambda w: float(density(w)),
            *(low, high),
            limit=2000,
            epsabs=1e-11 / gain,
            epsrel=1e-10,
            full_output=1,  # which does not warn
        )
        total, doubt = total + part, doubt + error
    if doubt > _EXACT * (math.pi / (2 * gain) + total):
        raise ValueError(
            "`service_time` has times too widely spread to integrate the variance to"
            " six digits: leave out the longest ones, or measure with sdde_paths."
        )
    edges = np.linspace(middle, far, math.ceil((far - middle) * time.mean) + 1)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    for first in range(0, len(edges) - 1, _CELLS):
        some = edges[first : first + _CELLS + 1]
        half = (some[1:] - some[:-1]) / 2
        w = (some[1:] + some[:-1])[:, None] / 2 + np.outer(half, nodes)
        total += float(half @ density(w) @ weights)
    return total


def _signed(name: str, value: float) -> float:
    """A finite number of either sign."""
    check_known(**{name: value})
    try:
        if isinstance(value, (str, bytes)) or np.ndim(value):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a number, got {value!r}.") from None
    if not math.isfinite(number):
        raise ValueError(f"`{name}` must be finite, got {number}.")
    return number
