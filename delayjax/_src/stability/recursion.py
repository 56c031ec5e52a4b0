"""The linear recursion of an optimizer on one curvature."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
from jax.typing import ArrayLike

from delayjax._src.ground import checks, kinds

_LONGEST = 10**4  # updates; work that grows as K^2 takes a minute beyond it
_LONGEST_GRID = 10**6  # updates; a grid of crossings takes gigabytes beyond it
_ROUNDING = 1e-6  # float32 leaves this error in a sum of probabilities


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class UpdateRule:
    """One update of a coordinate x of curvature lambda.

    A gradient of staleness k moves x by the step a = eta lambda:

        u       = x_{t-k} + e (x_{t-k} - x_{t-k-1})       where the gradient is taken
        y_t     = (1 - c) u + c x_t                       the gradient over lambda
        m_t     = beta m_{t-1} + y_t
        x_{t+1} = x_t - a w_k m_t                         heavy ball
        x_{t+1} = x_t - a w_k (y_t + beta m_t)            Nesterov

    Both rules are x_t - a w_k (lead y_t + carried m_{t-1}).
    """

    momentum: kinds.ShareFloat = 0.0  # beta
    nesterov: bool = False
    modulation: Callable[[int], float] | None = None  # from k to w_k
    compensation: kinds.NonNegativeFloat = 0.0  # c
    extrapolation: kinds.NonNegativeFloat = 0.0  # e

    def _set(self, **fields) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def lead(self) -> float:
        """The factor of y_t in an update."""
        return 1 + self.momentum if self.nesterov else 1.0

    @property
    def carried(self) -> float:
        """The factor of m_{t-1} in an update."""
        return self.momentum**2 if self.nesterov else self.momentum

    @property
    def taken(self) -> np.ndarray:
        """The factors in y_t of x_{t-k} and, with extrapolation, of x_{t-k-1}."""
        e = self.extrapolation
        return (1 - self.compensation) * np.array([1 + e, -e] if e else [1.0])

    def weights_of(self, staleness: np.ndarray) -> np.ndarray:
        """w_k of each staleness, float64 [n]."""
        if self.modulation is None:
            return np.ones(len(staleness))
        # a law in JAX is evaluated eagerly, also while `jit` traces the caller
        with jax.ensure_compile_time_eval(), np.errstate(all="ignore"):
            answers = [1.0 * self.modulation(k) for k in staleness]
        weights = checks.as_reals("modulation", answers).reshape(len(staleness))
        sound = (weights >= 0) & (weights < np.inf)
        if not sound.all() or not weights.any():
            worst = np.argmin(sound)
            raise ValueError(
                "`modulation` must give finite, non-negative factors, and not only 0,"
                f" got {weights[worst]} for staleness {staleness[worst]}."
            )
        return weights


@dataclasses.dataclass(frozen=True, eq=False)
class Recursion(UpdateRule):
    """An `UpdateRule` in which each update draws its staleness: k with probability p_k.

    The mean of x is a sum of powers z^t of the roots of

        D(z) = (z - 1)(1 - beta/z) + a N(z),    N(z) = sum_j n_j z^-j.
    """

    delay: int | ArrayLike  # or the probabilities of 0, 1, 2, ... updates
    ages: np.ndarray = dataclasses.field(init=False, repr=False)  # k, int32 [n]
    chances: np.ndarray = dataclasses.field(init=False, repr=False)  # p_k > 0, [n]
    weights: np.ndarray = dataclasses.field(init=False, repr=False)  # w_k, [n]

    def __post_init__(self):
        if isinstance(self.delay, (list, tuple)) or np.ndim(self.delay):
            law = checks.as_reals("delay", self.delay)
            total = law.sum()
            if law.ndim != 1 or (law < 0).any() or not abs(total - 1) < _ROUNDING:
                raise ValueError(
                    "`delay` must be a number of updates, or probabilities of sum 1,"
                    f" got shape {law.shape}, minimum {law.min(initial=0)} and sum"
                    f" {total:.9g}."
                )
            ages = np.flatnonzero(law).astype(np.int32)
            chances = law[ages] / total
        else:
            self._set(delay=checks.check_bound("delay", self.delay))
            ages = np.array([self.delay], np.int32)
            chances = np.ones(1)
        self._set(ages=ages, chances=chances, weights=self.weights_of(ages))

    @property
    def is_plain(self) -> bool:
        """Whether closed forms exist: one delay, and no option but modulation."""
        others = self.momentum or self.compensation or self.extrapolation
        return len(self.ages) == 1 and not others

    @property
    def longest(self) -> int:
        """The largest k."""
        return int(self.ages[-1])

    @property
    def mean_weight(self) -> float:
        """sum_k p_k w_k; exact where all w_k are equal."""
        first = self.weights[0]
        return float(first + self.chances @ (self.weights - first))

    @functools.cached_property
    def response(self) -> np.ndarray:
        """n_0, n_1, ..., float64; the last is not zero."""
        heard = np.convolve(self.dense(self.chances), self.taken)
        heard[0] += self.compensation
        after = [self.lead, self.carried - self.lead * self.momentum]
        response = self.mean_weight * np.convolve(after, heard)
        # the weight of a late gradient changes its own step, not its momentum
        excess = self.dense(self.chances * (self.weights - self.mean_weight))
        excess = self.lead * np.convolve(excess, self.taken)
        response += np.convolve([1, -self.momentum], excess)
        return np.trim_zeros(response, "b")

    def polynomial(self, step: float) -> np.ndarray:
        """D(z)/z in powers of 1/z: 1, ..., float64; the last is not zero."""
        result = np.zeros(max(3, len(self.response) + 1))
        result[:3] = np.convolve([1, -1], [1, -self.momentum])
        result[1 : len(self.response) + 1] += step * self.response
        return np.trim_zeros(result, "b")

    def dense(self, values: np.ndarray) -> np.ndarray:
        """`values`, one for each age, as a row over the staleness 0, 1, 2, ..."""
        self.check_longest(_LONGEST_GRID)
        row = np.zeros(self.longest + 1)
        row[self.ages] = values
        return row

    def check_longest(self, most: int = _LONGEST) -> None:
        """Refuses delays that would take more than a minute, or too much memory."""
        if self.longest > most:
            raise ValueError(
                f"`delay` must be at most {most} updates here, got {self.longest}: cut"
                " off a law's tail, or give a trace to TraceDynamics."
            )
