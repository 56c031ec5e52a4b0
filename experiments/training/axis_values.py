"""The values that an axis of a grid may have."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.training.ranges import Range


def check_axis(axis: str, values: Sequence[Any] | Mapping[str, Any]) -> None:
    """Checks that an axis has values, each once.

    The meaning of two axes is known: `learning_rate` and `delay`. The user's function
    defines the meaning of all others.

    Raises:
        ValueError: if the axis has no value, two values that are equal in float32, a
            value that float32 cannot hold, a step size that is not positive, or a delay
            that is not a whole number.
    """
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ValueError(
            f"`grid[{axis!r}]` must be a tuple of values, got {values!r}: (0.1,) is an"
            " axis of one value."
        )
    check_numbers(f"`grid[{axis!r}]`", values)
    _check_argument(f"`grid[{axis!r}]`", axis, values)
    if is_number(values[0]) and all(map(is_number, values)):
        seen = np.asarray(values, np.float32)
        if len(np.unique(seen)) < len(seen):
            raise ValueError(
                f"`grid[{axis!r}]` has the same value twice, in float32: {values}."
            )


def check_range(axis: str, searched: Range) -> None:
    """Checks that a search tries only values that the axis may have.

    Raises:
        ValueError: if the axis is a delay, or a step size that is not positive.
    """
    if axis == "delay":
        raise ValueError(
            "`grid['delay']` must be whole numbers of updates, but a `Range` is"
            " searched between them: give a tuple, and name 'delay' in `tuned`."
        )
    ends = (searched.low, searched.high, searched.off)
    values = [value for value in ends if value is not None]
    _check_argument(f"`grid[{axis!r}]`", axis, values)


def _check_argument(where: str, name: str, values: Iterable[Any]) -> None:
    """Checks values of Optax's `learning_rate` and of delayjax's `delay`.

    A step size must be positive; a value that is not a number may be a schedule or the
    name of a schedule, but not None or a bool. A delay must be a whole number of
    updates, 0 or more: a transformation would round a fraction down.
    """
    for value in values:
        if name == "learning_rate":
            if value is None or isinstance(value, bool):
                raise ValueError(
                    f"{where} must hold step sizes, as 0.1, or schedules, got {value}."
                )
            if is_number(value) and not 0 < np.float32(value) < math.inf:
                raise ValueError(
                    f"{where} must hold step sizes, positive and finite in float32, got"
                    f" {value}."
                )
        elif name == "delay" and is_number(value):
            if value >= 0 and value == np.floor(value):
                continue
            raise ValueError(
                f"{where} must hold whole numbers of updates, 0 or more, got {value}."
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
        if np.isnan(held) or (np.isinf(held) and not math.isinf(value)):
            raise ValueError(f"{where} must hold numbers of float32, got {value}.")


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; a bool is not a number."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value of an axis may be traced; a bool selects a program instead."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
