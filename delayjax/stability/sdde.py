"""Noisy delayed training in wall-clock time: its paths, and how far they spread.

    dX = -a E X(t - T) dt + noise dB

With gradients of standard deviation sigma that arrive nu times a second, a = eta lambda
nu and noise = eta sigma sqrt(nu).
"""

import math

import numpy as np
from scipy import integrate

from delayjax import base
from delayjax.stability.continuous import check_damping, damping_limit
from delayjax.stability.delay_laws import DelayLaw

_GOLDEN = (math.sqrt(5) - 1) / 2


def sdde_variance(damping: float, law: DelayLaw, *, noise: float = 1.0) -> float:
    """The variance about the optimum that gradient noise keeps up.

    For a constant delay it is

        (noise^2 / 2a) (1 + sin a T) / cos a T,

    for any law the integral of the spectral density

        (noise^2 / 2 pi) int dw / |i w + a phi(i w)|^2    over all w.

    It is that of the delay law's mean equation: what is random about the delays adds to
    the variance of finitely many workers, see `stationary_variance`.

    Args:
        damping: a = eta lambda nu, 1/seconds.
        law: of the delay.
        noise: eta sigma sqrt(nu), in units of x / sqrt(seconds).

    Returns:
        float64, in units of x^2; `inf` where the damping is 0 or not below
        `damping_limit`. Costs some ms, a second or more for 1000 samples; nothing for a
        constant delay.

    Raises:
        TypeError: if `law` is no `DelayLaw` or a number is none.
        ValueError: if `damping` or `noise` is negative or not finite.

    Example:
        >>> from delayjax.stability.delay_laws import constant_delay, exponential_delay
        >>> round(sdde_variance(1.0, constant_delay(np.pi / 6)), 6)  # sqrt(3) / 2
        0.866025
        >>> round(sdde_variance(1.0, exponential_delay(1.0)), 6)  # (1/2a) (1 + a T)
        1.0

    References:
        Kuchler and Mensch, Langevin's stochastic differential equation extended by a
        time-delayed term, Stochastics 40, 1992, for the constant delay.
    """
    damping = check_damping(damping, law)
    base.check_number("noise", noise)
    power = float(noise) ** 2
    if damping == 0 or damping >= damping_limit(law):
        return math.inf
    if law.stages == math.inf:
        turned = damping * law.mean
        return power / (2 * damping) * (1 + math.sin(turned)) / math.cos(turned)
    return power / (2 * damping) + power / math.pi * _excess(damping, law)


def sdde_paths(
    damping: float,
    law: DelayLaw,
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

    Each step has one delay T: that of the share n (sqrt(5) - 1)/2 mod 1 of the law, so
    that any few steps in a row cover it evenly, and their mean effect is that of all
    delays. It counts from the middle of the step, between two points of the path by
    interpolation: from its beginning, all delays would be h/2 too long.

    Args:
        damping: a = eta lambda nu, 1/seconds.
        law: of the delay.
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
        as many as the longest delay takes, are held in a ring; a step costs O(paths)
        however long that is: 50 us for 1000 paths.

    Raises:
        TypeError: if `law` is no `DelayLaw`, or a number is none or no integer.
        ValueError: if `damping` or `noise` is negative or not finite, `step_seconds`
            not positive, `start` not finite, `seed` negative, or `paths`, `steps` or
            `every` below 1.

    Example:
        >>> from delayjax.stability.delay_laws import constant_delay
        >>> late = constant_delay(1.0)  # x' = -1 while x(t - 1) is still 1
        >>> options = {"paths": 1, "steps": 50, "step_seconds": 0.01, "seed": 0}
        >>> x = sdde_paths(1.0, late, noise=0.0, start=1.0, every=25, **options)
        >>> x[:, 0].round(6).tolist()
        [1.0, 0.75, 0.5]

    References:
        Kuchler and Platen, Strong discrete time approximation of stochastic
        differential equations with time delay, Mathematics and Computers in Simulation
        54, 2000.
    """
    damping = check_damping(damping, law)
    base.check_number("noise", noise)
    base.check_number("step_seconds", step_seconds, positive=True)
    if not math.isfinite(start):
        raise ValueError(f"`start` must be finite, got {start}.")
    paths = base.check_bound("paths", paths, at_least=1)
    steps = base.check_bound("steps", steps, at_least=1)
    every = base.check_bound("every", every, at_least=1)
    rng = np.random.default_rng(base.check_bound("seed", seed))
    shares = (0.5 + _GOLDEN * np.arange(steps)) % 1
    late = np.maximum(law.quantile(shares) / step_seconds - 0.5, 0)
    back = np.floor(late).astype(np.int64)
    drift, kick = damping * step_seconds, noise * math.sqrt(step_seconds)

    x = np.full(paths, float(start))
    ring = np.tile(x, (int(back.max()) + 2, 1))
    kept = np.empty((1 + steps // every, paths))
    kept[0] = x
    for n in range(steps):
        newer, older = ring[(n - back[n] - np.arange(2)) % len(ring)]
        seen = newer + (late[n] - back[n]) * (older - newer)
        x = x - drift * seen + kick * rng.standard_normal(paths)
        ring[(n + 1) % len(ring)] = x
        if (n + 1) % every == 0:
            kept[(n + 1) // every] = x
    return kept


def _excess(damping: float, law: DelayLaw) -> float:
    """The integral of 1/|i w + a phi|^2 - 1/(w^2 + a^2) over w > 0."""

    def density(w):
        late = 1j * w + damping * law.transform(1j * w)
        return 1 / np.abs(late) ** 2 - 1 / (w**2 + damping**2)

    # resonances are at frequencies below a, the rest falls as 1/w^3
    middle, far = 2 * damping + 4 / law.mean, 100 * damping + 1000 / law.mean
    near = integrate.quad(
        lambda w: float(density(w)), 0, middle, limit=2000, epsabs=0, epsrel=1e-10
    )[0]
    edges = np.linspace(middle, far, math.ceil((far - middle) * law.mean) + 1)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = (edges[1:] - edges[:-1]) / 2
    w = (edges[1:] + edges[:-1])[:, None] / 2 + np.outer(half, nodes)
    return float(near + half @ density(w) @ weights)
