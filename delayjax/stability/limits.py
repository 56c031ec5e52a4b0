"""The largest step that is stable, and the fastest one."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from delayjax.stability.crossings import brent, brent_minimum, crossings
from delayjax.stability.moments import second_moments
from delayjax.stability.recursion import Delay, Recursion

Criterion = Literal["mean", "mean_square"]

_GOLDEN = (math.sqrt(5) - 1) / 2


def step_limit(
    delay: Delay,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    modulation: Callable[[int], float] | None = None,
    compensation: float = 0.0,
    criterion: Criterion = "mean",
) -> float:
    """The smallest a = eta lambda at which training no longer converges.

    Of x_{t+1} = x_t - a x_{t - tau}, a fixed delay without momentum, it is

        2 sin(pi / (2 (2 tau + 1)))

    and in general the smallest positive

        a(w) = -(z - 1)(1 - beta/z) / N(z),    z = e^{iw}, where that is real,

    with N(z) = sum_k p_k w_k z^-k for a law without momentum, and w z^-tau for a fixed
    delay, times 1 + beta - beta/z with Nesterov's. In mean square, for delays that are
    independent, also

        (a^2/2 pi) int (1 - |G|^2) / |e^{iw} - 1 + a G|^2 dw < 1,    over [-pi, pi],

    with G(w) = sum_k p_k e^{-ikw}; momentum, weights and compensation change it.

    Args:
        delay: in updates: an int, or the probabilities of 0, 1, 2, ..., of which each
            update draws anew. As `cluster.staleness_law(...).pmf`.
        momentum: beta in [0, 1), as of `optax.sgd`.
        nesterov: whether the momentum is Nesterov's; else the heavy ball.
        modulation: staleness -> factor w_k of the update, a law of `dj.modulation`
            behind the optimizer; called with np.int32.
        compensation: c = h / lambda of gradients that are corrected by h (x_t -
            x_{t-tau}). DC-ASGD has h = lam_0 times the mean of g^2.
        criterion: "mean": the mean of x dies out. "mean_square": so does its variance,
            which random delays make the stricter demand; the same for a fixed one. Of
            the law that a cluster's workers have, whose delays are not independent,
            "mean" is within 3 % of what single runs of 16 workers bear, and
            "mean_square" below it. Nearly memoryless times are the exception: single
            runs of 16 such workers bear 0.47 where "mean" says 62, see
            `trace_step_limit`.

    Returns:
        float64; eta is stable below it divided by the largest curvature. Costs nothing
        where it has the closed form, else 0.2 ms for delays of up to 64 updates, a few
        ms for 1000; in mean square O(K^2) for delays of up to K, 20 ms for 64.

    Raises:
        TypeError: if `delay` is no integer and no law, a number no number, or
            `modulation` no function.
        ValueError: if a law has negative probabilities or they do not sum to 1, a delay
            is beyond 10^6 that has no closed form, `momentum` is outside of [0, 1),
            `compensation` is negative, a weight is negative or not finite or all are 0,
            or `criterion` is unknown.

    Example:
        >>> round(step_limit(4), 4)
        0.3473
        >>> round(step_limit(1, momentum=0.9), 6)  # 1 - beta; at tau = 0, 2 (1 + beta)
        0.1
        >>> law = [0.5, 0.0, 0.5]  # the mean is more stable than with a delay of 1
        >>> round(step_limit(1), 6), round(step_limit(law), 6)
        (1.0, 2.0)

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for the question, in continuous time; Levin
        and May, A note on difference-delay equations, Theoretical Population Biology
        9, 1976, for the fixed delay.
    """
    if criterion not in ("mean", "mean_square"):
        raise ValueError(
            f'`criterion` must be "mean" or "mean_square", got {criterion!r}.'
        )
    recursion = Recursion.of(
        delay,
        momentum=momentum,
        nesterov=nesterov,
        modulation=modulation,
        compensation=compensation,
    )
    if recursion.fixed_delay is not None:
        return fixed_limit(recursion.fixed_delay) / recursion.mean_weight
    limit = mean_limit(recursion)
    if criterion == "mean" or len(recursion.ages) == 1:
        return limit
    return _mean_square_limit(recursion, limit)


def critical_step(
    delay: Delay,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    modulation: Callable[[int], float] | None = None,
    compensation: float = 0.0,
) -> float:
    """The a = eta lambda of the fastest decay: the smallest spectral radius.

    Of a fixed delay without momentum it is that of critical damping, where two real
    roots meet,

        tau^tau / (tau + 1)^{tau+1},    with the spectral radius tau / (tau + 1).

    In general: the smallest circle within which all roots are at some step.

    Args:
        delay: in updates, an int or a law; see `step_limit`. For a law the decay of
            the mean is meant.
        momentum: as in `step_limit`.
        nesterov: as in `step_limit`.
        modulation: as in `step_limit`.
        compensation: as in `step_limit`.

    Returns:
        float64; of steps with the same radius the smallest, as (1 - sqrt(beta))^2 for
        the heavy ball without delay. Costs 15 ms for delays of up to 64 updates.

    Raises:
        TypeError, ValueError: as `step_limit` does.

    Example:
        >>> round(critical_step(4), 5), round(4**4 / 5**5, 5)
        (0.08192, 0.08192)
    """
    recursion = Recursion.of(
        delay,
        momentum=momentum,
        nesterov=nesterov,
        modulation=modulation,
        compensation=compensation,
    )
    limit = mean_limit(recursion)
    low, high, best = 0.0, 1.0, limit / 2
    while high - low > 1e-12:
        # not the half: at a radius of exactly beta a root would begin on the circle
        radius = low + _GOLDEN * (high - low)
        step = _all_within(recursion, radius, limit)
        if step is None:
            low = radius
        else:
            high, best = radius, step
    return best


def fixed_limit(delay: int) -> float:
    """2 sin(pi / (2 (2 tau + 1)))."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def mean_limit(recursion: Recursion) -> float:
    """The smallest step at which a root of D is on the unit circle."""
    steps, _ = crossings(recursion)
    return float(steps[0]) if steps.size else math.inf


def _all_within(recursion: Recursion, radius: float, below: float) -> float | None:
    """The smallest step at which all roots come into a circle, if there is one."""
    steps, changes = crossings(recursion, radius=radius, below=below)
    # at a step of 0 the roots are 1, beta and 0
    outside = (radius < 1) + (recursion.momentum > radius) + np.cumsum(changes)
    inside = np.flatnonzero(outside == 0)
    return float(steps[inside[0]]) if inside.size else None


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
