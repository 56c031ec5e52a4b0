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
    criterion: Criterion = "mean_square",
) -> float:
    """The smallest a = eta lambda at which single runs may diverge.

    For x_{t+1} = x_t - a x_{t - tau}, a fixed delay without momentum, it is

        2 sin(pi / (2 (2 tau + 1)))

    and for any fixed delay the smallest positive

        a(w) = -(z - 1)(1 - beta/z) / N(z),    z = e^{iw}, where that is real,

    with N(z) = w_tau z^-tau, times 1 + beta - beta/z with Nesterov's momentum. Where
    each update draws its delay anew, N(z) = sum_k p_k w_k z^-k without momentum, and
    below the smallest a(w) the mean of x over runs dies out. A single run needs more.
    Its variance dies out where also

        (a^2/2 pi) int (1 - |G|^2) / |e^{iw} - 1 + a G|^2 dw < 1,    over [-pi, pi],

    with G(w) = sum_k p_k e^{-ikw}; momentum, weights and compensation change it. Then
    almost all runs die out; they may still do so at up to 1.3 times the limit.

    The delays of a cluster are not independent. Its law of staleness alone then cannot
    tell what single runs bear; `trace_step_limit` measures it. Equal workers on a
    server that updates at each gradient were measured to bear this limit or more: 2 to
    40 of them, with constant, gamma (shape 0.3 to 16), lognormal and Pareto times, with
    and without momentum and modulation. Memoryless ones bear sqrt(pi/P) + 1/(2P), where
    it is about sqrt(2/P). Delays in a fixed order may bear less: staleness 0, 1, ..., 7
    in turn is a batch of 8 gradients, and bears half of it.

    Args:
        delay: in updates: an int, or the probabilities of 0, 1, 2, ..., of which each
            update draws anew. As `cluster.staleness_law(...).pmf`.
        momentum: beta in [0, 1), as in `optax.sgd`.
        nesterov: whether the momentum is Nesterov's; else the heavy ball.
        modulation: staleness -> factor w_k of the update, a law of `dj.modulation`
            behind the optimizer; called with np.int32.
        compensation: c = h / lambda of gradients that are corrected by h (x_t -
            x_{t-tau}). DC-ASGD has h = lam_0 times the mean of g^2.
        criterion: "mean_square": the variance dies out, and with it single runs of
            independent delays. "mean": only the mean over runs dies out, as in theory
            papers. It is exact where each update averages gradients of all delays in
            these shares, and for a fixed delay, where both are one. For random delays
            single runs diverge below it: 16 memoryless workers bear 0.47, their mean
            bears 62.

    Returns:
        float64; eta is stable below it divided by the largest curvature. Costs nothing
        where it has the closed form, 0.2 ms for other fixed delays of up to 64 updates
        and for their mean, a few ms for 1000. In mean square O(K^2) for delays of up to
        K: 20 ms for 64, 0.7 s for 1000.

    Raises:
        TypeError: if `delay` is no integer and no law, a number no number, or
            `modulation` no function.
        ValueError: if a law has negative probabilities or they do not sum to 1, a delay
            is beyond 10^6 that has no closed form, or beyond 10^4 in mean square,
            `momentum` is outside of [0, 1), `compensation` is negative, a weight is
            negative or not finite or all are 0, or `criterion` is unknown.

    Example:
        >>> round(step_limit(4), 4)
        0.3473
        >>> round(step_limit(1, momentum=0.9), 6)  # 1 - beta; at tau = 0, 2 (1 + beta)
        0.1
        >>> law = [0.5, 0.0, 0.5]  # its mean bears twice as much as single runs do
        >>> round(step_limit(law), 6), round(step_limit(law, criterion="mean"), 6)
        (1.0, 2.0)

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for the question, in continuous time; Levin
        and May, A note on difference-delay equations, Theoretical Population Biology
        9, 1976, for the fixed delay.
    """
    if not isinstance(criterion, str) or criterion not in ("mean", "mean_square"):
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
    if criterion == "mean" or len(recursion.ages) == 1:
        return mean_limit(recursion)
    recursion.check_length()
    return _mean_square_limit(recursion, mean_limit(recursion))


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
        the heavy ball without delay. It may lie beyond `step_limit` where random delays
        are compensated by more than 1. Costs 15 ms for delays of up to 64 updates.

    Raises:
        TypeError, ValueError: as `step_limit` does; also if a delay is beyond 10^4.

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
    recursion.check_length()
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
