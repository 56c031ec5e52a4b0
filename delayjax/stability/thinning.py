"""Which gradients count: what a threshold or a trigger leaves of a stream of them."""

from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from scipy import optimize, special

from delayjax import base
from delayjax.stability.known import check_number
from delayjax.stability.pmf import probabilities

_LONGEST = 10**4  # ten seconds


class Thinned(NamedTuple):
    """What is left of a stream of gradients."""

    accepted: float  # share of the gradients that make an update
    mean: float  # staleness of those, in updates
    pmf: np.ndarray  # probability of staleness 0, 1, ... of those, float64


def staleness_threshold(pmf: ArrayLike, bound: int) -> Thinned:
    """What a server keeps that drops gradients older than a bound.

    A dropped gradient does not advance the clock, so what is in flight ages more slowly
    the more is dropped. With share q accepted, of n arrivals Bin(n, q) are updates:

        q = sum_n p_n Pr( Bin(n, q) <= R ),    tau ~ Bin(n, q) given tau <= R

    Cutting the law p itself (q = Pr(n <= R)) would be far too pessimistic: 0.27 for
    0.48 with 16 memoryless workers and R = 4.

    Args:
        pmf: p, probability of staleness 0, 1, ... without a threshold, as
            `cluster.staleness_law(...).pmf` and `Trace.staleness_law().pmf` are.
        bound: R, the largest staleness that counts, in updates; Ringmaster's less one.

    Returns:
        Share, mean and law. Updates come at `accepted` times the arrival rate, and the
        mean staleness of all arrivals is `accepted` times what it was. Drops are taken
        as independent. With R half of the mean staleness or more the share is good to
        0.01 and the mean to 3 % (5 % for a coefficient of variation of the times of
        0.3); of nearly constant times the share may be off by 0.04.

    Raises:
        TypeError: if `bound` is no integer.
        ValueError: if `bound` is negative, or `pmf` is no row of probabilities that sum
            to 1, or one of more than 10^4.

    Example:
        >>> kept = staleness_threshold([0.5, 0.0, 0.5], 0)  # q = 1/2 + (1 - q)^2 / 2
        >>> round(kept.accepted, 6), kept.pmf.tolist()  # 2 - sqrt(2)
        (0.585786, [1.0])

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for the threshold; Gupta, Zhang and Wang
        (Rudra), arXiv:1509.04210, whose released server drops.
    """
    chances = _law(pmf)
    bound = base.check_bound("bound", bound)
    arrivals = np.arange(len(chances))

    def excess(share: float) -> float:
        return float(
            chances @ special.bdtr(np.minimum(bound, arrivals), arrivals, share)
        )

    share = 1.0
    if bound < arrivals[-1]:
        share = optimize.brentq(lambda q: excess(q) - q, 0.0, 1.0, xtol=1e-15)
        share = float(np.asarray(share))
    return _kept(_thin(chances, share)[: bound + 1], share)


def event_triggered(pmf: ArrayLike, probability: float) -> Thinned:
    """What is left where a gradient is sent with some probability only.

    The clock counts what is sent: of n arrivals in plain asynchronous SGD Bin(n, p)
    remain, with

        nu -> p nu,    tau ~ Bin(n, p),    mean tau -> p mean tau

    so that a mode sees a step of p a: less progress in a second, and as much more room
    until it is unstable. (It takes who sends as independent of the gradient.)

    Args:
        pmf: probability of staleness 0, 1, ... if all is sent; see
            `staleness_threshold`.
        probability: p in (0, 1], that a gradient is sent.

    Returns:
        The share p, mean and law.

    Raises:
        TypeError: if `probability` is no number.
        ValueError: if `probability` is outside of (0, 1], or `pmf` is no row of
            probabilities that sum to 1.

    Example:
        >>> event_triggered([0.0, 0.0, 1.0], 0.5).pmf.round(6).tolist()
        [0.25, 0.5, 0.25]

    References:
        Yu, Chen and Poor, arXiv:2406.11159 (event-triggered communication; their rule
        is not public, this is a model of it).
    """
    chances = _law(pmf)
    share = checked_share("probability", probability)
    return _kept(_thin(chances, share), share)


def _law(pmf: ArrayLike) -> np.ndarray:
    chances = probabilities("pmf", pmf)
    if len(chances) > _LONGEST:
        raise ValueError(
            f"`pmf` must be of at most {_LONGEST} probabilities, got {len(chances)}:"
            " the cost grows with the square. Cut off its tail and divide by the sum."
        )
    return chances


def _thin(chances: np.ndarray, share: float) -> np.ndarray:
    """The law of Bin(n, share), n of the law `chances`."""
    n = np.arange(len(chances))
    below = [special.bdtr(np.minimum(k, n), n, share) @ chances for k in n]
    return np.diff(below, prepend=0.0)


def _kept(chances: np.ndarray, share: float) -> Thinned:
    pmf = chances / chances.sum()
    return Thinned(share, float(np.arange(len(pmf)) @ pmf), pmf)


def checked_share(name: str, value: float) -> float:
    """`value` as a share of the gradients, in (0, 1]."""
    check_number(name, value)
    if not 0 < value <= 1:
        raise ValueError(
            f"`{name}` must lie in (0, 1], got {value}: it is a share of all gradients."
        )
    return float(value)
