"""The law of staleness: its probabilities, its moments, and filters of gradients."""

from typing import NamedTuple

import numpy as np
import scipy
from jax.typing import ArrayLike

from delayjax._src.ground import checks, kinds

_ROUNDING = 1e-6  # of a sum of probabilities in float32


@kinds.checked
class StalenessLaw:
    """The probability of each staleness; `stability.Dynamics` takes `pmf` as `delay`.

    Attributes:
        pmf: probability of staleness 0, 1, ... updates, float64 [largest + 1].

    Example:
        >>> law = StalenessLaw([0.5, 0.0, 0.5])
        >>> law.mean, law.variance
        (1.0, 1.0)
    """

    def __init__(self, pmf: ArrayLike):
        chances = checks.as_reals("pmf", pmf)
        is_law = chances.ndim == 1 and (chances >= 0).all()
        if not is_law or not abs(chances.sum() - 1) <= _ROUNDING:
            raise ValueError(
                "`pmf` must be the probabilities of staleness 0, 1, ..., got"
                f" {pmf!r}: divide counts by their sum."
            )
        self.pmf = np.trim_zeros(chances, "b") / chances.sum()

    def __repr__(self) -> str:
        return f"StalenessLaw(mean={self.mean:g}, variance={self.variance:g})"

    @property
    def mean(self) -> float:
        """The mean staleness, in updates."""
        return float(np.arange(len(self.pmf)) @ self.pmf)

    @property
    def variance(self) -> float:
        """The variance of the staleness, in squared updates."""
        return float((np.arange(len(self.pmf)) - self.mean) ** 2 @ self.pmf)

    def filtered_by_bound(self, bound: kinds.NonNegativeInt) -> "FilteredStaleness":
        """The law of the accepted gradients if the server drops ages above `bound`.

        With p the law without a bound and q the accepted share, Bin(n, q) of n arrivals
        are updates:

            q = sum_n p_n Pr( Bin(n, q) <= R ),    tau ~ Bin(n, q) given tau <= R

        Args:
            bound: R, in updates. Ringmaster's threshold is R + 1.

        Returns:
            The accepted share and the law of accepted gradients. Updates come at
            `accepted` times the rate of arrivals. Drops are treated as independent: for
            R above half of `mean` the share is accurate to 0.01 and the mean to 3 %
            (0.04 and 5 % for nearly constant times). It takes R sums over `pmf`.

        Example:
            >>> kept = StalenessLaw([0.5, 0.0, 0.5]).filtered_by_bound(0)
            >>> round(kept.accepted, 6)  # q = 1/2 + (1 - q)^2 / 2 = 2 - sqrt(2)
            0.585786

        References:
            Yu, Chen and Poor, arXiv:2406.11159; Gupta et al. (Rudra), arXiv:1509.04210.
        """
        if bound >= len(self.pmf) - 1:
            return FilteredStaleness(1.0, self)
        root = scipy.optimize.brentq(
            lambda share: self._at_most(bound, share) - share, 0.0, 1.0, xtol=1e-15
        )
        share = float(np.asarray(root))
        return FilteredStaleness(share, self._thinned(share, bound))

    def filtered_at_random(
        self, probability: kinds.PositiveProbability
    ) -> "FilteredStaleness":
        """The law of the sent gradients if each is sent with some probability.

        In plain asynchronous SGD, if sending is independent of the gradient (a model of
        Yu, Chen and Poor's event trigger, arXiv:2406.11159), with n drawn from this law
        and nu the rate of updates:

            nu -> p nu,    tau ~ Bin(n, p),    mean tau -> p mean tau

        Args:
            probability: p in (0, 1], the probability that a gradient is sent.

        Example:
            >>> StalenessLaw([0.0, 0.0, 1.0]).filtered_at_random(0.5).law.pmf.round(6)
            array([0.25, 0.5 , 0.25])
        """
        share = float(probability)
        return FilteredStaleness(share, self._thinned(share, len(self.pmf) - 1))

    def _at_most(self, bound: int, share: float) -> float:
        """Pr( Bin(n, share) <= bound ), with n from this law."""
        n = np.arange(len(self.pmf))
        return float(scipy.special.bdtr(np.minimum(bound, n), n, share) @ self.pmf)

    def _thinned(self, share: float, bound: int) -> "StalenessLaw":
        """The law of Bin(n, share) given that it is at most `bound`."""
        below = np.array([self._at_most(k, share) for k in range(bound + 1)])
        chances = np.maximum(np.diff(below, prepend=0.0), 0.0)  # against rounding
        return StalenessLaw(chances / chances.sum())


class FilteredStaleness(NamedTuple):
    """The gradients that a filter accepts."""

    accepted: float  # their share of all gradients
    law: StalenessLaw  # of their staleness
