"""The smallest effect that matters, and effects as text."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Size(NamedTuple):
    """The smallest effect that matters to a reader.

    Attributes:
        value: the size of the effect; for a ratio, its distance from 1.
        text: the size in words.
        ratio: whether effects are ratios; otherwise they are differences.
        unit: of effects, in text.
        scale: of effects, in this unit.
    """

    value: float
    text: str
    ratio: bool = False
    unit: str = ""
    scale: float = 1.0

    @property
    def edge(self) -> float:
        """The size on the scale of the effects: of a ratio, its logarithm."""
        return math.log1p(self.value) if self.ratio else self.value

    def shown(self, *effects: float) -> str:
        """One effect, or both ends of an interval, as text with the unit.

        Example:
            >>> points(1).shown(0.015), percent(10).shown(0.9, 1.3)
            ('+1.5 points', '0.9 to 1.3 times')
        """
        form = ".3g" if self.ratio else "+.3g"
        text = " to ".join(f"{self.scale * effect:{form}}" for effect in effects)
        return f"{text} {self.unit}".rstrip()

    def interval(self, row: Mapping[Any, Any]) -> str:
        """The interval of a row of `Effect.table` as text.

        Example:
            >>> row = {"here": np.inf, "there": 2.0, "effect": 1.0, "low": 0.5}
            >>> amount(1, "s").interval(row)
            'not in time; at least +0.5 s'
        """
        if np.isinf(row["here"]) and np.isinf(row["there"]):
            return "neither in time"
        if np.isnan(row["effect"]):
            return "no value"
        is_known = not np.isnan(row["low"])
        if np.isinf(row["here"]):
            least = f"; at least {self.shown(row['low'])}" if is_known else ""
            return f"not in time{least}"
        if np.isinf(row["there"]):
            most = f"; at most {self.shown(row['high'])}" if is_known else ""
            return f"only this one in time{most}"
        if not is_known:
            return f"{self.shown(row['effect'])}, no interval"
        return self.shown(row["low"], row["high"])


def percent(number: float) -> Size:
    """A ratio: 10 is a factor of 1.1, up or down.

    Example:
        >>> percent(10)
        Size(value=0.1, text='10 %', ratio=True, unit='times', scale=1.0)
    """
    return Size(number / 100, f"{number:g} %", ratio=True, unit="times")


def points(number: float) -> Size:
    """A difference of accuracies or errors: 1 is 0.01.

    Example:
        >>> points(1).text, points(0.5).value
        ('1 point', 0.005)
    """
    text = f"{number:g} point{'s' * (number != 1)}"
    return Size(number / 100, text, unit="points", scale=100.0)


def amount(number: float, unit: str = "") -> Size:
    """A difference in the metric's unit.

    Example:
        >>> amount(0.02, "nats").text
        '0.02 nats'
    """
    return Size(number, f"{number:g} {unit}".rstrip(), unit=unit)
