"""The values that an axis of a grid may have."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

MOST_UPDATES = 2**31 - 1  # of int32


def check_axis(axis: str, values: Sequence[Any] | Mapping[str, Any]) -> None:
    """Checks that an axis has values, each once.

    The user's functions define the meaning of all axes but two: `delay` is in whole
    updates, and a transformation would round a fraction down; a `learning_rate` that is
    no schedule is positive.

    Raises:
        ValueError: if the axis has no value, two values that are equal in float32, a
            value that float32 cannot hold, or another delay or step size.
    """
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ValueError(
            f"`grid[{axis!r}]` must be a tuple of values, got {values!r}: (0.1,) is an"
            " axis of one value."
        )
    check_numbers(f"`grid[{axis!r}]`", values)
    for value in values:
        number = is_number(value)
        no_step = value <= 0 if number else value is None or isinstance(value, bool)
        if axis == "learning_rate" and no_step:
            raise ValueError(
                "`grid['learning_rate']` must hold step sizes, positive numbers or"
                f" schedules, got {value}."
            )
        if axis == "delay" and number and (value < 0 or value != np.floor(value)):
            raise ValueError(
                "`grid['delay']` must hold whole numbers of updates, 0 or more, got"
                f" {value}."
            )
    if is_number(values[0]) and all(map(is_number, values)):
        seen = np.asarray(values, np.float32)
        if len(np.unique(seen)) < len(seen):
            raise ValueError(
                f"`grid[{axis!r}]` has the same value twice, in float32: {values}."
            )


def check_numbers(where: str, values: Iterable[Any]) -> None:
    """Checks that float32 can hold the numbers among these values.

    Args:
        where: names the place of the values, for the error.
        values: the values of an axis or of a config's key.

    Raises:
        ValueError: if float32 cannot hold one of them.

    Example:
        >>> check_numbers("config.noise", (0.0, 1e40))
        Traceback (most recent call last):
        ValueError: config.noise must hold numbers of float32, got 1e+40.
    """
    for value in filter(is_number, values):
        with np.errstate(over="ignore"):
            held = np.float32(value)
        lost = (not held and value) or (np.isinf(held) and not math.isinf(value))
        if np.isnan(held) or lost:
            raise ValueError(f"{where} must hold numbers of float32, got {value}.")


def check_whole(name: str, value: Any, least: int, most: int) -> None:
    """Checks that an argument is a whole number from `least` to `most`."""
    if not (is_whole(value) and least <= value <= most):
        raise ValueError(
            f"`{name}` must be a whole number from {least} to {most:,}, got {value!r}."
        )


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; a bool is not a number."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value of an axis may be traced; a bool selects a program instead."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
