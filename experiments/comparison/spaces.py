"""What a search may choose: ranges of numbers, each with a value that is "off"."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import qmc

LOG, LINEAR = "log", "linear"


class Range(NamedTuple):
    """The values that a search may give to a number.

    Attributes:
        low: the smallest.
        high: the largest.
        scale: `LOG` or `LINEAR`: between which values a step is as long.
        off: the end where the number does nothing, or next to nothing; None if the
            number has no such value. An optimum there is an answer, and one at another
            end says that the range is too narrow.
    """

    low: float
    high: float
    scale: str = LOG
    off: float | None = None

    def at(self, shares: Any) -> Any:
        """The values at these shares of the way from `low` to `high`.

        Example:
            >>> Range(0.01, 1.0).at(np.array([0.0, 0.5, 1.0])).tolist()
            [0.01, 0.1, 1.0]
        """
        low, high = self.low, self.high
        if self.scale == LINEAR:
            return low + (high - low) * shares
        return low * (high / low) ** shares

    def share(self, value: float) -> float:
        """The share of the way at which a value lies; `at` undoes it.

        Example:
            >>> Range(0.01, 1.0).share(0.1)
            0.5
        """
        low, high = self.low, self.high
        if self.scale == LINEAR:
            return float((value - low) / (high - low))
        return float(np.log(value / low) / np.log(high / low))

    def decades(self, decades: float) -> float:
        """A length in decades as a share of the way.

        A linear range counts as two decades long.
        """
        whole = np.log10(self.high / self.low) if self.scale == LOG else 2.0
        return float(decades / whole)


Space = Mapping[str, Range]
"""{name of a number: its range}."""


def check(space: Space) -> None:
    """Checks the ranges of a space.

    Raises:
        ValueError: if one is empty, or has an "off" inside of it.

    Example:
        >>> check({"learning_rate": Range(1.0, 0.1)})
        Traceback (most recent call last):
        ValueError: the range of `learning_rate` must ascend, got 1.0 to 0.1.
    """
    for name, own in space.items():
        if not own.low < own.high:
            raise ValueError(
                f"the range of `{name}` must ascend, got {own.low} to {own.high}."
            )
        if own.scale not in (LOG, LINEAR):
            raise ValueError(
                f"the scale of `{name}` must be {LOG!r} or {LINEAR!r}, got"
                f" {own.scale!r}."
            )
        if own.scale == LOG and own.low <= 0:
            raise ValueError(
                f"the range of `{name}` must be positive, got {own.low} to {own.high}:"
                " use a linear one if 0 is a value."
            )
        if own.off not in (None, own.low, own.high):
            raise ValueError(
                f"`off` of `{name}` must be an end of {own.low} to {own.high}, got"
                f" {own.off}."
            )


def sobol(count: int, dimensions: int, *, seed: int) -> np.ndarray:
    """Quasi-random shares [count, dimensions].

    Dimension i is the same sequence whatever the number of dimensions, so that all who
    have a number in common try the same values of it.

    Example:
        >>> bool((sobol(8, 2, seed=1) == sobol(8, 3, seed=1)[:, :2]).all())
        True
    """
    points = qmc.Sobol(_MOST, scramble=True, rng=seed).random(count)
    return points[:, :dimensions]


_MOST = 8  # dimensions of a space


def values(space: Space, shares: np.ndarray) -> dict[str, np.ndarray]:
    """{name: values [n]} of points given as shares [n, dimensions]."""
    return {name: own.at(shares[:, i]) for i, (name, own) in enumerate(space.items())}


def edges(space: Space, point: Sequence[float], *, within: float = 0.02) -> list[str]:
    """The numbers of a point, given as shares, that lie on an end of their range.

    "name low" or "name high", and "name off" where that end is off.

    Example:
        >>> space = {"learning_rate": Range(0.1, 1.0), "decay": Range(0.01, 1, off=1)}
        >>> edges(space, [0.0, 1.0])
        ['learning_rate low', 'decay off']
    """
    found = []
    for share, (name, own) in zip(point, space.items(), strict=True):
        if within < share < 1 - within:
            continue
        end = "low" if share <= within else "high"
        off = getattr(own, end) == own.off
        found.append(f"{name} {'off' if off else end}")
    return found
