"""The staleness that is left where a server refuses gradients, or some are not sent."""

from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from scipy import optimize, special

from delayjax._src import base
from delayjax._src.cluster.rates import check_share

_LONGEST = 10**4  # ten seconds
_ROUNDING = 1e-6  # of a sum of probabilities, as float32 leaves it


class FilteredStaleness(NamedTuple):
    """What is left of a stream of gradients."""

    accepted: float  # share of the gradients that make an update
    mean: float  # staleness of those, in updates
    pmf: np.ndarray  # probability of staleness 0, 1, ... of those, float64


def filtered_by_bound(pmf: ArrayLike, bound: int) -> FilteredStaleness:
    """The staleness where a server refuses gradients that are older than a bound.

    A refused gradient makes no update, so the gradients in flight age more slowly. With
    a share q accepted, of n arrivals Bin(n, q) are updates:

        q = sum_n p_n Pr( Bin(n, q) <= R ),    tau ~ Bin(n, q) given tau <= R

    To cut p itself (q = Pr(n <= R)) would be far too pessimistic: 0.27 for 0.48 with 16
    memoryless workers and R = 4.

    Args:
        pmf: p, probability of staleness 0, 1, ... without a threshold, as
            `cluster.staleness_law(...).pmf` and `Trace.staleness_law().pmf` are.
        bound: R, the largest staleness that counts, in updates; Ringmaster's less one.

    Returns:
        Share, mean and probabilities. Updates come at `accepted` times the arrival
        rate, and the mean staleness of all arrivals is `accepted` times what it was.
        Refusals are taken as independent. With R half of the mean staleness or more the
        share is good to 0.01 and the mean to 3 % (5 % for a coefficient of variation of
        the times of 0.3); of nearly constant times the share may be off by 0.04.

    Raises:
        TypeError, ValueError: if `bound` is no integer from 0 on, or `pmf` no row of up
            to 10^4 probabilities that sum to 1.

    Example:
        >>> kept = filtered_by_bound([0.5, 0.0, 0.5], 0)  # q = 1/2 + (1 - q)^2 / 2
        >>> round(kept.accepted, 6), kept.pmf.tolist()  # 2 - sqrt(2)
        (0.585786, [1.0])

    References:
        Yu, Chen and Poor, arXiv:2406.11159, for the threshold; Gupta, Zhang and Wang
        (Rudra), arXiv:1509.04210, whose released server drops.
    """
    chances = _probabilities(pmf)
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


def filtered_at_random(pmf: ArrayLike, probability: float) -> FilteredStaleness:
    """The staleness where a gradient is sent with some probability only.

    Bin(n, p) of n arrivals in plain asynchronous SGD are sent, with

        nu -> p nu,    tau ~ Bin(n, p),    mean tau -> p mean tau

    so that a mode decays as with the gain p a: more slowly, and stable for steps larger
    by 1/p. (Whether a gradient is sent is taken as independent of its value.)

    Args:
        pmf: probability of staleness 0, 1, ... if all is sent; see
            `filtered_by_bound`.
        probability: p in (0, 1], that a gradient is sent.

    Returns:
        The share p, mean and probabilities.

    Raises:
        TypeError, ValueError: if `probability` is not in (0, 1], or `pmf` as above.

    Example:
        >>> filtered_at_random([0.0, 0.0, 1.0], 0.5).pmf.round(6).tolist()
        [0.25, 0.5, 0.25]

    References:
        Yu, Chen and Poor, arXiv:2406.11159 (event-triggered communication; their rule
        is not public, this is a model of it).
    """
    chances = _probabilities(pmf)
    check_share("probability", probability)
    return _kept(_thin(chances, float(probability)), float(probability))


def _probabilities(pmf: ArrayLike) -> np.ndarray:
    chances = base.as_reals("pmf", pmf)
    sound = chances.ndim == 1 and chances.size > 0 and (chances >= 0).all()
    if not sound or not abs(chances.sum() - 1) <= _ROUNDING:
        raise ValueError(
            "`pmf` must be the probabilities of staleness 0, 1, ..., of sum 1, got"
            f" {pmf!r}."
        )
    if len(chances) > _LONGEST:
        raise ValueError(
            f"`pmf` must be of at most {_LONGEST} probabilities, got {len(chances)}:"
            " the cost grows with the square. Cut off its tail and divide by the sum."
        )
    return np.trim_zeros(chances, "b") / chances.sum()


def _thin(chances: np.ndarray, share: float) -> np.ndarray:
    """The probabilities of Bin(n, share), where n has the probabilities `chances`."""
    n = np.arange(len(chances))
    below = [special.bdtr(np.minimum(k, n), n, share) @ chances for k in n]
    return np.diff(below, prepend=0.0)


def _kept(chances: np.ndarray, share: float) -> FilteredStaleness:
    pmf = chances / chances.sum()
    return FilteredStaleness(share, float(np.arange(len(pmf)) @ pmf), pmf)
