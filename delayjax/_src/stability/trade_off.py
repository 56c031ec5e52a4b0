"""Error against run time: rare updates with little noise, or many with more."""

import math

import numpy as np
from jax.typing import ArrayLike

from delayjax._src import base
from delayjax._src.stability.known import check_number, floats


def error_bound(
    seconds: ArrayLike,
    update_seconds: float,
    *,
    k: int,
    learning_rate: float,
    smallest: float,
    largest: float,
    noise: float,
    start: float,
    agreement: float = 1.0,
) -> float | np.ndarray:
    """The error E F(x) - F* that is left after so many seconds: runtime against error.

    An update of K gradients of variance sigma^2, on a loss with curvatures in [l, L],

        floor + (1 - eta g l)^N (start - floor),    N = seconds / update_seconds,
        floor = eta L sigma^2 / (2 l g K).

    The floor falls as 1/K while updates become rarer, by `update_seconds` of
    `cluster.protocols.KScheme`: small K is ahead at first, large K in the end.

    Args:
        seconds: any array.
        update_seconds: between two updates.
        k: gradients of an update.
        learning_rate: eta, up to 1/(2L).
        smallest: l, of strong convexity.
        largest: L, of smoothness.
        noise: sigma, standard deviation of one gradient (the norm's, of a vector).
        start: F(x_0) - F*.
        agreement: g in (0, 1]. 1 for gradients that are not stale (K-sync,
            K-batch-sync); for K-async 1 - gam + p0/2, with p0 the least probability of
            staleness 0, and E|grad F(x_t) - grad F(x_{t-tau})|^2 <= gam E|grad
            F(x_t)|^2.

    Returns:
        float64, shaped as `seconds`, in units of F: an upper bound.

    Raises:
        TypeError, ValueError: if an argument is no such number, or the learning rate
            too large for the bound.

    Example:
        >>> problem = dict(learning_rate=0.1, smallest=1.0, largest=1.0, noise=2.0)
        >>> error_bound(0.0, 1.0, k=4, start=3.0, **problem)
        3.0
        >>> [round(error_bound(1e4, 1.0, k=k, start=3.0, **problem), 6) for k in (1, 4)]
        [0.2, 0.05]

    References:
        Dutta et al., AISTATS 2018, arXiv:1803.01113, the bounds of K-sync and K-async
        SGD for strongly convex losses (with M_G = 0).
    """
    check_number("update_seconds", update_seconds, positive=True)
    k = base.check_bound("k", k, at_least=1)
    for name, value in {
        "learning_rate": learning_rate,
        "smallest": smallest,
        "largest": largest,
        "agreement": agreement,
    }.items():
        check_number(name, value, positive=True)
    check_number("noise", noise)
    check_number("start", start)
    if largest < smallest:
        raise ValueError(
            f"`largest` must be at least `smallest` = {smallest}, got {largest}."
        )
    if agreement > 1:
        raise ValueError(f"`agreement` must lie in (0, 1], got {agreement}.")
    if learning_rate > 1 / (2 * largest):
        raise ValueError(
            f"`learning_rate` must be at most 1 / (2 `largest`) = {0.5 / largest}, got"
            f" {learning_rate}: beyond it the bound is not proven."
        )
    times = floats("seconds", seconds)
    if not (times >= 0).all():
        raise ValueError(f"`seconds` must be non-negative, got {seconds!r}.")
    floor = learning_rate * largest * noise**2 / (2 * smallest * agreement * k)
    left = np.exp(
        times / update_seconds * math.log1p(-learning_rate * agreement * smallest)
    )
    error = floor + left * (start - floor)
    return error if error.ndim else float(error)
