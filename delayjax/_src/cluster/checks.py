"""The ranges of a cluster's numbers: counts, shares, seconds."""

from typing import Any

import numpy as np

from delayjax._src.ground import base


def check_integer(name: str, value: Any, least: int, most: int) -> int:
    """`value` as an integer in least .. most."""
    number = base.check_bound(name, value, at_least=least)
    if number > most:
        raise ValueError(f"`{name}` must lie in {least} .. {most}, got {number}.")
    return number


def check_share(name: str, value: Any, *, positive: bool = False) -> Any:
    """`value` as a number in [0, 1]; if positive, in (0, 1]."""
    value = base.check_number(name, value, positive=positive)
    if value > 1:
        raise ValueError(f"`{name}` must be at most 1, got {value}.")
    return value


def as_seconds(
    name: str, values: Any, *, remedy: str, positive: bool = False
) -> np.ndarray:
    """Finite, non-negative seconds as float64, of any shape."""
    seconds = base.as_reals(name, values)
    sound = np.isfinite(seconds) & ((seconds > 0) if positive else (seconds >= 0))
    if not sound.all():
        sign = "positive" if positive else "non-negative"
        bad = seconds[~sound][0]
        raise ValueError(f"`{name}` must be finite and {sign}, got {bad}: {remedy}.")
    return seconds
