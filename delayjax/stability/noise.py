"""How far gradient noise and random delays throw a stable run about."""

import math
from collections.abc import Callable

import numpy as np

from delayjax.stability.known import check_number
from delayjax.stability.limits import fixed_limit
from delayjax.stability.moments import second_moments
from delayjax.stability.recursion import Delay, Recursion


def stationary_variance(
    step: float,
    delay: Delay,
    *,
    noise: float = 1.0,
    momentum: float = 0.0,
    nesterov: bool = False,
    modulation: Callable[[int], float] | None = None,
    compensation: float = 0.0,
) -> float:
    """The variance about the optimum that gradient noise keeps up.

    Of x_{t+1} = x_t - a x_{t - tau} + xi_t with white xi of variance s^2,

        fixed delay:  s^2 / (a (2 r - a)),    v = 2 asin(a/2),
                      r = cos(v (2 tau - 1)/4 + pi/4) / cos(v (2 tau + 1)/4 - pi/4)
        any law:      s^2 I / (1 - J),    I = (1/2 pi) int |D|^-2 dw,
                      J = (a^2/2 pi) int (1 - |G|^2) |D|^-2 dw,
                      D = e^{iw} - 1 + a G

    over [-pi, pi], G(w) = sum_k p_k e^{-ikw}. With momentum and modulation the noise is
    that of the gradients: carried on by the one and weighed by the other. Each update
    has noise of its own, as when each gradient is used once; a lookback delay that
    varies uses some twice, with their noise.

    Args:
        step: a = eta lambda.
        delay: in updates, an int or a law; see `step_limit`.
        noise: s = eta sigma, for gradients of standard deviation sigma.
        momentum: as in `step_limit`.
        nesterov: as in `step_limit`.
        modulation: as in `step_limit`.
        compensation: as in `step_limit`.

    Returns:
        float64, in units of x^2; `inf` where the step is not stable in mean square.
        Costs O(K^2) for delays of up to K, 1 ms for 64.

    Raises:
        TypeError, ValueError: as `step_limit` does; also if `step` or `noise` is
            negative, or `noise` so large that float64 cannot hold the variance.

    Example:
        >>> round(stationary_variance(0.5, 0), 6)  # s^2 / (a (2 - a))
        1.333333
        >>> stationary_variance(1.5, 1)
        inf

    References:
        Kuchler and Mensch, Langevin's stochastic differential equation extended by a
        time-delayed term, Stochastics 40, 1992, for the continuous form.
    """
    check_number("step", step)
    check_number("noise", noise)
    recursion = Recursion.of(
        delay,
        momentum=momentum,
        nesterov=nesterov,
        modulation=modulation,
        compensation=compensation,
    )
    step, noise = float(step), float(noise)
    if recursion.fixed_delay is not None:
        weight = recursion.mean_weight
        fixed = _of_a_fixed_delay(weight * step, recursion.fixed_delay)
        return _of_noise(noise, weight, fixed) if math.isfinite(fixed) else math.inf
    moments = second_moments(recursion, step)
    if moments is None:
        return math.inf
    gain, seen = moments
    if not np.abs(np.linalg.eigvals(gain)).max() < 1:
        return math.inf
    # what gradient noise adds to the covariances, in units of the step
    lead, weights, chances = recursion.lead, recursion.weights, recursion.chances
    added = [lead**2 * (chances @ weights**2), lead * recursion.mean_weight, 1.0]
    kept_up = np.linalg.solve(np.eye(3) - gain, added)
    return _of_noise(noise, 1 / step, float(seen @ kept_up))


def _of_noise(noise: float, factor: float, variance: float) -> float:
    """(noise factor)^2 variance, of a stable step."""
    scale = noise * factor
    result = scale * variance * scale  # ** would raise OverflowError
    if not math.isfinite(result):
        raise ValueError(
            "`noise` must be so small that float64 can hold the variance, got"
            f" {noise}: count x in larger units."
        )
    return result


def _of_a_fixed_delay(a: float, tau: int) -> float:
    """Of noise of variance 1, without momentum."""
    if not 0 < a < fixed_limit(tau):
        return math.inf
    v = 2 * math.asin(a / 2)
    r = math.cos(v * (2 * tau - 1) / 4 + math.pi / 4)
    r /= math.cos(v * (2 * tau + 1) / 4 - math.pi / 4)
    return 1 / (a * (2 * r - a))
