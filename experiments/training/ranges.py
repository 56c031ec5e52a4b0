"""A number to search, and the effort of the search: `Range` and `Search`."""

import dataclasses
import math
from typing import Any

import numpy as np

from experiments.training.axis_values import check_whole

LOG, LINEAR = "log", "linear"

NEAR = math.log10(1.25)
"""The distance from an optimum to the nearest points compared with it, in decades."""

_LINEAR_DECADES = 2.0  # the length of a linear range
_EXPONENT, _SMALLEST, _LARGEST = 30, 1e-30, 1e30  # values that float32 has
_DIGITS = 4  # of a value that is tried: few to read, and far finer than `NEAR`
_MOST_REPEATS, _MOST_TRAININGS = 40, 200_000  # so that all seeds are below 2^31


@dataclasses.dataclass(frozen=True)
class Range:
    """A number to search: an axis of a grid for which no values are given.

    Distances between values are in decades: log10(b / a) on a logarithmic scale; a
    linear range counts as 2 decades.

    Attributes:
        low: the smallest value with which a search begins.
        high: the largest value with which a search begins.
        off: the value at which the number has no effect, if there is one. It is outside
            of the range or at its end, and the search tries exactly this value.
        scale: "log", or "linear" where 0 or negative numbers are values.
        hard: whether values outside of `low` .. `high` are impossible. By default a
            linear range is hard; a search follows an optimum out of a logarithmic one,
            but never to the other side of `off`.

    Example:
        >>> Range(1e-3, 1.0, off=0.0).coordinate(0.01)
        -2.0
        >>> Range(1.0, 0.1)
        Traceback (most recent call last):
        ValueError: `low` must be less than `high`, got Range(1.0, 0.1).
    """

    low: float
    high: float
    off: float | None = None
    scale: str = LOG
    hard: bool | None = None

    def __post_init__(self):
        for name in ("low", "high", "off"):
            value = getattr(self, name)
            if value is not None:  # an integer would be compiled as one
                object.__setattr__(self, name, float(value))
        if self.scale not in (LOG, LINEAR):
            raise ValueError(f'`scale` must be "log" or "linear", got {self.scale!r}.')
        shown = f"got Range({self.low}, {self.high})"
        if not self.low < self.high:
            raise ValueError(f"`low` must be less than `high`, {shown}.")
        least = _SMALLEST if self.scale == LOG else -_LARGEST
        if self.low < least or self.high > _LARGEST:
            raise ValueError(
                f"`low` and `high` must be within {least} and {_LARGEST}, {shown}: use"
                ' scale="linear" for 0 or negative numbers, or `off=0.0` beside'
                " positive ones."
            )
        outside = self.off is None or self.off <= self.low or self.off >= self.high
        if not outside:  # or nan
            raise ValueError(
                f"`off` must not lie between `low` and `high`, got {self.off}, and"
                f" Range({self.low}, {self.high})."
            )

    def coordinate(self, value: float) -> float:
        """The place of a value, in decades."""
        if self.scale == LOG:
            return math.log10(value)
        return _LINEAR_DECADES * (value - self.low) / (self.high - self.low)

    def value(self, coordinate: float) -> float:
        """The value at a place, rounded to four digits and clipped to the limits.

        On a linear scale these are digits of the length of the range.
        """
        least, most = self.limits
        if self.scale == LOG:
            exponent = min(max(coordinate, -_EXPONENT), _EXPONENT)
            number = float(f"{10.0**exponent:.{_DIGITS}g}")
        else:
            length = self.high - self.low
            number = self.low + coordinate / _LINEAR_DECADES * length
            number = round(number, _DIGITS - math.ceil(math.log10(length)))
        return min(max(number, least), most)

    @property
    def ends(self) -> tuple[float, float]:
        """The coordinates of `low` and `high`."""
        return self.coordinate(self.low), self.coordinate(self.high)

    @property
    def is_hard(self) -> bool:
        """Whether values outside of `low` .. `high` are impossible."""
        return self.scale == LINEAR if self.hard is None else self.hard

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest value that a search may try."""
        if self.is_hard:
            return self.low, self.high
        least, most = _SMALLEST if self.scale == LOG else -_LARGEST, _LARGEST
        if self.off is not None and least < self.off < most:
            return (self.off, most) if self.off <= self.low else (least, self.off)
        return least, most


AT_LIMIT = "at the limit of "
"""Prefix of `why` if a number is at a limit of a hard range."""

Space = dict[str, Range]
"""{name of a searched number: its range}."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """The effort of an experiment's search for the optimum of its ranges.

    A series (one combination of all values that are not searched) is *found* when

    - for each number that is on, values at a factor of 1.25 below and above were
      tried, and none is better by more than `tolerance`. At a limit of a hard range
      there are values on one side only, and the column `why` says so. Values at a
      factor of 2, the minimum of a fit, and the best points with an optional number
      "off" or "on" are tried too;
    - `repeats` searches, which begin at other points and have other seeds, end at
      points that agree: compared under seeds that none of them used, none is worse
      than the best by more than `tolerance`. Points agree too if their difference is
      surely below twice the tolerance;
    - no optimum of a series with the same ranges is better by more than `tolerance`,
      if it lies where this search has tried nothing.

    Two points are compared by the mean difference of their scores under the same seeds.
    Seeds are added until the interval of 95 % decides, or until half of its length is
    at most `tolerance`: then the mean decides. A series that is not found within `most`
    trainings is shown as not found, and has no verdict.

    Attributes:
        seeds: the first number of seeds under which a point and its neighbors are
            compared.
        repeats: the number of independent searches of each series.
        tolerance: the largest difference to ignore, in the unit of the metric.
        relative: whether to compare the logarithm of the metric; then a tolerance of
            0.01 is one percent.
        most: the largest number of trainings of a series. With a larger number in the
            folder of the same run, the search goes on after the earlier trainings.
    """

    seeds: int = 6
    repeats: int = 3
    tolerance: float = 0.01
    relative: bool = False
    most: int = 20_000

    def __post_init__(self):
        check_whole("seeds", self.seeds, 3, _MOST_TRAININGS)
        check_whole("repeats", self.repeats, 1, _MOST_REPEATS)
        check_whole("most", self.most, 1, _MOST_TRAININGS)
        if not 0 < self.tolerance < math.inf:
            raise ValueError(
                f"`tolerance` must be positive and finite, got {self.tolerance}."
            )

    def score(self, losses: Any) -> Any:
        """The compared scores: values of the metric, or their logarithms.

        Raises:
            ValueError: if a value is negative, and logarithms are compared.
        """
        losses = np.asarray(losses, float)
        if not self.relative:
            return losses
        if (losses < 0).any():
            raise ValueError(
                "`relative=True` compares logarithms, and the metric of this search is"
                f" {losses[losses < 0][0]:.4g}: use `relative=False`."
            )
        with np.errstate(invalid="ignore"):
            # a loss of 0 is good and not diverged: it has a finite logarithm
            return np.log(np.where(losses == 0, np.finfo(float).tiny, losses))
