"""A bound of the error after some time: few exact updates, or many noisy updates."""

import math

import numpy as np
from jax.typing import ArrayLike

from delayjax._src.ground import checks, kinds


@kinds.checked
def error_bound(
    seconds: ArrayLike,
    update_seconds: kinds.PositiveFloat,
    *,
    k: kinds.PositiveInt,
    learning_rate: kinds.PositiveFloat,
    smallest: kinds.PositiveFloat,
    largest: kinds.PositiveFloat,
    noise: kinds.NonNegativeFloat,
    start: kinds.NonNegativeFloat,
    agreement: kinds.PositiveProbability = 1.0,
) -> float | np.ndarray:
    """An upper bound of the error E F(x) - F* after a number of seconds.

    An update of K gradients of variance sigma^2, on a loss with curvatures in [l, L],

        floor + (1 - eta g l)^N (start - floor),    N = seconds / update_seconds,
        floor = eta L sigma^2 / (2 l g K).

    Args:
        seconds: any array.
        update_seconds: the time between updates, as in `cluster.protocols.KScheme`.
        k: gradients of an update.
        learning_rate: eta, at most 1/(2L): the bound is not proven beyond.
        smallest: l, the constant of strong convexity.
        largest: L, the constant of smoothness.
        noise: sigma, the standard deviation of one gradient (of its norm, if a vector).
        start: F(x_0) - F*. The bound has its unit.
        agreement: g in (0, 1]. 1 for gradients that are not stale; for K-async 1 - gam
            + p0/2, with p0 the least probability of staleness 0, and E|grad F(x_t) -
            grad F(x_{t-tau})|^2 <= gam E|grad F(x_t)|^2.

    Example:
        >>> problem = dict(learning_rate=0.1, smallest=1.0, largest=1.0, noise=2.0)
        >>> [round(error_bound(1e4, 1.0, k=k, start=3.0, **problem), 6) for k in (1, 4)]
        [0.2, 0.05]

    References:
        Dutta et al., AISTATS 2018, arXiv:1803.01113, the bounds of K-sync and K-async
        SGD for strongly convex losses (with M_G = 0).
    """
    if smallest > largest:
        raise ValueError(
            f"`smallest` must be at most `largest`, {largest}, got {smallest}."
        )
    if learning_rate > (most := 1 / (2 * largest)):
        raise ValueError(
            "`learning_rate` must be at most 1 / (2 `largest`),"
            f" {most}, got {learning_rate}."
        )
    times = checks.as_finite("seconds", seconds)
    floor = learning_rate * largest * noise**2 / (2 * smallest * agreement * k)
    rate = math.log1p(-learning_rate * agreement * smallest)
    error = floor + np.exp(times / update_seconds * rate) * (start - floor)
    return error if error.ndim else float(error)
