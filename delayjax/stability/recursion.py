"""The linear recursion that an optimizer is on one curvature."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from delayjax.stability.known import check_known, check_number
from delayjax.stability.pmf import probabilities

_LONG = 10**4
_LONGEST = 10**6  # a grid of crossings then has a gigabyte
_INT32 = 2**31 - 1  # what updates are counted with

Delay = int | ArrayLike
"""How late each gradient is: an int, or the probabilities of 0, 1, 2, ... updates."""


@dataclasses.dataclass(frozen=True, eq=False)
class Recursion:
    """One coordinate x of curvature lambda under delayed gradients, a = eta lambda.

    At update t a staleness k is drawn with probability p_k, and

        y_t     = (1 - c) x_{t-k} + c x_t                 the gradient over lambda
        m_t     = beta m_{t-1} + y_t
        x_{t+1} = x_t - a w_k m_t                         heavy ball
        x_{t+1} = x_t - a w_k (y_t + beta m_t)            Nesterov

    which is x_t - a w_k (lead y_t + carried m_{t-1}) for both. The mean of x consists
    of the powers z^t of the roots of

        D(z) = (z - 1)(1 - beta/z) + a N(z),    N(z) = sum_j n_j z^-j.
    """

    ages: np.ndarray  # k where p_k > 0, int64 [n]
    chances: np.ndarray  # p_k, float64 [n]
    weights: np.ndarray  # w_k, float64 [n]
    momentum: float  # beta
    nesterov: bool
    compensation: float  # c

    @classmethod
    def of(
        cls,
        delay: Delay,
        *,
        momentum: float,
        nesterov: bool,
        modulation: Callable[[int], float] | None,
        compensation: float,
    ) -> "Recursion":
        """Checks and collects; the arguments are those of `step_limit`."""
        check_known(delay=delay, nesterov=nesterov)
        if np.ndim(nesterov) or np.asarray(nesterov).dtype != bool:
            raise TypeError(f"`nesterov` must be a bool, got {nesterov!r}.")
        ages, chances = _law(delay)
        check_number("momentum", momentum, below=1)
        check_number("compensation", compensation)
        return cls(
            ages=ages,
            chances=chances,
            weights=_weights(modulation, ages),
            momentum=float(momentum),
            nesterov=bool(nesterov),
            compensation=float(compensation),
        )

    @property
    def fixed_delay(self) -> int | None:
        """The one delay where neither momentum nor compensation is: a closed form."""
        alone = self.momentum == self.compensation == 0 and len(self.ages) == 1
        return int(self.ages[0]) if alone else None

    @property
    def lead(self) -> float:
        """What an update takes of its own gradient."""
        return 1 + self.momentum if self.nesterov else 1.0

    @property
    def carried(self) -> float:
        """What an update takes of the momentum before it."""
        return self.momentum**2 if self.nesterov else self.momentum

    @property
    def mean_weight(self) -> float:
        """sum_k p_k w_k; exact where all w_k are equal."""
        first = self.weights[0]
        return float(first + self.chances @ (self.weights - first))

    @functools.cached_property
    def response(self) -> np.ndarray:
        """n_0, n_1, ..., float64; the last is not zero."""
        law = self.dense(self.chances)
        heard = (1 - self.compensation) * law
        heard[0] += self.compensation
        after = [self.lead, self.carried - self.lead * self.momentum]
        response = self.mean_weight * np.convolve(after, heard)
        # late gradients that count less than the momentum they leave behind
        excess = self.dense(self.chances * (self.weights - self.mean_weight))
        excess *= self.lead * (1 - self.compensation)
        response += np.convolve([1, -self.momentum], excess)
        return np.trim_zeros(response, "b")

    def check_length(self) -> None:
        """Checks that the cost, which grows with the square, is below a minute.

        Raises:
            ValueError: if a delay is beyond 10^4.
        """
        if self.ages[-1] > _LONG:
            raise ValueError(
                f"`delay` must be at most {_LONG} updates, got {self.ages[-1]}: only"
                " the step_limit of a fixed delay, or of the mean over runs, goes"
                " farther. Cut off a law's tail and divide by the sum, or give a trace"
                " to trace_step_limit."
            )

    def dense(self, values: np.ndarray) -> np.ndarray:
        """`values` of the `ages` as a row over staleness 0, 1, 2, ..."""
        if self.ages[-1] > _LONGEST:
            raise ValueError(
                f"`delay` must be at most {_LONGEST} updates, got {self.ages[-1]}: of"
                " longer ones only the step_limit and stationary_variance of a fixed"
                " delay are known, without momentum and compensation."
            )
        row = np.zeros(self.ages[-1] + 1)
        row[self.ages] = values
        return row

    def polynomial(self, step: float) -> np.ndarray:
        """D(z)/z in powers of 1/z: 1, ..., float64; the last is not zero."""
        still = np.convolve([1, -1], [1, -self.momentum])
        response = self.response
        result = np.zeros(max(len(still), len(response) + 1))
        result[: len(still)] = still
        result[1 : len(response) + 1] += step * response
        return np.trim_zeros(result, "b")


def _law(delay: Delay) -> tuple[np.ndarray, np.ndarray]:
    """Which delays there are, and how probable they are."""
    if not isinstance(delay, (list, tuple)) and np.ndim(delay) == 0:
        tau = _updates(delay)
        return np.array([tau]), np.ones(1)
    chances = probabilities("delay", delay)
    ages = np.flatnonzero(chances)
    return ages, chances[ages]


def _updates(delay: Any) -> int:
    try:
        if isinstance(delay, (bool, np.bool_)):
            raise TypeError
        tau = operator.index(delay)
    except TypeError:
        raise TypeError(
            "`delay` must be an integer number of updates, or a row of the"
            f" probabilities of 0, 1, 2, ..., got {delay!r}."
        ) from None
    if tau < 0:
        raise ValueError(f"`delay` must be non-negative, got {tau}.")
    if tau > _INT32:
        raise ValueError(
            f"`delay` must be at most {_INT32}, got {tau}: updates are counted in"
            " int32."
        )
    return tau


def _weights(modulation: Callable[[int], float] | None, ages: np.ndarray) -> np.ndarray:
    if modulation is None:
        return np.ones(len(ages))
    if not callable(modulation):
        raise TypeError(
            "`modulation` must be a function from staleness to a factor, as"
            f" modulation.inverse is, got {modulation!r}."
        )
    # within jit too; what is not finite is refused below
    with jax.ensure_compile_time_eval(), np.errstate(all="ignore"):
        weights = np.asarray([_weight(modulation, k) for k in ages.astype(np.int32)])
    for age, weight in zip(ages, weights, strict=True):
        if not 0 <= weight < np.inf:
            raise ValueError(
                "`modulation` must give finite, non-negative factors, got"
                f" {weight} for staleness {age}."
            )
    if not weights.any():
        raise ValueError(
            "`modulation` must let some gradients pass, got the factor 0 for every"
            " staleness that occurs."
        )
    return weights


def _weight(modulation: Callable[[int], float], staleness: int) -> float:
    try:
        answer = modulation(staleness)
    except ZeroDivisionError:
        raise ValueError(
            "`modulation` must give finite, non-negative factors, but divides by zero"
            f" for staleness {staleness}."
        ) from None
    try:
        if isinstance(answer, str) or np.ndim(answer) != 0:
            raise TypeError
        return float(answer)
    except TypeError:
        raise TypeError(
            f"`modulation` must give a number, got {answer!r} for staleness"
            f" {staleness}."
        ) from None
