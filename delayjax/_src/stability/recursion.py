"""The linear recursion that an optimizer is on one curvature."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
from jax.typing import ArrayLike

from delayjax._src import base
from delayjax._src.stability.known import check_known, check_number
from delayjax._src.stability.pmf import probabilities

LONGEST = 10**4  # updates; beyond, what costs K^2 takes a minute
_LONGEST_GRID = 10**6  # beyond, a grid of crossings takes gigabytes
_INT32 = 2**31 - 1  # the largest update that int32 counts

Delay = int | ArrayLike
"""How late each gradient is: an int, or the probabilities of 0, 1, 2, ... updates."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class UpdateRule:
    """One coordinate x of curvature lambda, and what one update does to it.

    A gradient of staleness k moves it by the step a = eta lambda:

        u       = x_{t-k} + e (x_{t-k} - x_{t-k-1})       where the gradient is taken
        y_t     = (1 - c) u + c x_t                       the gradient over lambda
        m_t     = beta m_{t-1} + y_t
        x_{t+1} = x_t - a w_k m_t                         heavy ball
        x_{t+1} = x_t - a w_k (y_t + beta m_t)            Nesterov

    which is x_t - a w_k (lead y_t + carried m_{t-1}) for both.
    """

    momentum: float = 0.0  # beta
    nesterov: bool = False
    modulation: Callable[[int], float] | None = None  # from k to w_k
    compensation: float = 0.0  # c
    extrapolation: float = 0.0  # e

    def __post_init__(self):
        check_number("momentum", self.momentum, below=1)
        check_number("compensation", self.compensation)
        check_number("extrapolation", self.extrapolation)
        if not isinstance(self.nesterov, (bool, np.bool_)):
            raise TypeError(f"`nesterov` must be a bool, got {self.nesterov!r}.")
        if not (self.modulation is None or callable(self.modulation)):
            raise TypeError(
                "`modulation` must be a function from staleness to a factor, got"
                f" {self.modulation!r}."
            )
        for name in ("momentum", "compensation", "extrapolation"):
            self._set(**{name: float(getattr(self, name))})

    def _set(self, **fields) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def lead(self) -> float:
        """What an update takes of its own gradient."""
        return 1 + self.momentum if self.nesterov else 1.0

    @property
    def carried(self) -> float:
        """What an update takes of the momentum before it."""
        return self.momentum**2 if self.nesterov else self.momentum

    @property
    def taken(self) -> np.ndarray:
        """What y_t takes of x_{t-k} and, if of that at all, of x_{t-k-1}."""
        e = self.extrapolation
        return (1 - self.compensation) * np.array([1 + e, -e] if e else [1.0])

    def weights_of(self, staleness: np.ndarray) -> np.ndarray:
        """w_k of each staleness, float64 [n].

        Raises:
            TypeError, ValueError: as `Dynamics` does.
        """
        if self.modulation is None:
            return np.ones(len(staleness))
        # within jit too; weights that are not finite are refused below
        with jax.ensure_compile_time_eval(), np.errstate(all="ignore"):
            answers = [self.modulation(k) for k in staleness]
        weights = np.asarray(base.as_array("modulation", answers))
        if weights.dtype.kind not in "bfiu" or weights.ndim != 1:
            raise TypeError(f"`modulation` must give numbers, got {answers[0]!r}.")
        weights = weights.astype(np.float64)
        sound = (weights >= 0) & (weights < np.inf)
        if not sound.all() or not weights.any():
            worst = np.argmin(sound)
            raise ValueError(
                "`modulation` must give finite, non-negative factors, and not 0 alone,"
                f" got {weights[worst]} for staleness {staleness[worst]}."
            )
        return weights


@dataclasses.dataclass(frozen=True, eq=False)
class Recursion(UpdateRule):
    """An `UpdateRule` whose staleness k is fixed, or drawn anew with probability p_k.

    The mean of x consists of the powers z^t of the roots of

        D(z) = (z - 1)(1 - beta/z) + a N(z),    N(z) = sum_j n_j z^-j.
    """

    delay: Delay
    ages: np.ndarray = dataclasses.field(init=False, repr=False)  # k, int64 [n]
    chances: np.ndarray = dataclasses.field(init=False, repr=False)  # p_k > 0, [n]
    weights: np.ndarray = dataclasses.field(init=False, repr=False)  # w_k, [n]

    def __post_init__(self):
        super().__post_init__()
        check_known(delay=self.delay)
        if isinstance(self.delay, (list, tuple)) or np.ndim(self.delay):
            law = probabilities("delay", self.delay)
            ages = np.flatnonzero(law)
            chances = law[ages]
        else:
            tau = base.check_bound("delay", self.delay)
            if tau > _INT32:
                raise ValueError(f"`delay` must be at most {_INT32}, got {tau}.")
            ages, chances = np.array([tau]), np.ones(1)
        weights = self.weights_of(ages.astype(np.int32))
        self._set(ages=ages, chances=chances, weights=weights)

    @property
    def is_fixed(self) -> bool:
        """Whether there is one delay."""
        return len(self.ages) == 1

    @property
    def is_plain(self) -> bool:
        """Whether there is one delay, and only modulation beside it: closed forms."""
        others = self.momentum or self.compensation or self.extrapolation
        return self.is_fixed and not others

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
        # late gradients that count less than the momentum they leave behind
        excess = self.dense(self.chances * (self.weights - self.mean_weight))
        excess = self.lead * np.convolve(excess, self.taken)
        response += np.convolve([1, -self.momentum], excess)
        return np.trim_zeros(response, "b")

    def polynomial(self, step: float) -> np.ndarray:
        """D(z)/z in powers of 1/z: 1, ..., float64; the last is not zero."""
        still = np.convolve([1, -1], [1, -self.momentum])
        result = np.zeros(max(len(still), len(self.response) + 1))
        result[: len(still)] = still
        result[1 : len(self.response) + 1] += step * self.response
        return np.trim_zeros(result, "b")

    def dense(self, values: np.ndarray) -> np.ndarray:
        """`values` of the k that occur as a row over 0, 1, 2, ..."""
        self.check_longest(_LONGEST_GRID)
        row = np.zeros(self.longest + 1)
        row[self.ages] = values
        return row

    def check_longest(self, most: int = LONGEST) -> None:
        """Refuses delays beyond `most`, whose answer would take more than a minute.

        Raises:
            ValueError: naming `delay`.
        """
        if self.longest > most:
            raise ValueError(
                f"`delay` must be at most {most} updates here, got {self.longest}: cut"
                " off a law's tail and divide by the sum, or give a trace to"
                " TraceDynamics."
            )
