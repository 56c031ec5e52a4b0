"""The values that an axis of a grid may have."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def check_axis(axis: str, values: Sequence[Any] | Mapping[str, Any]) -> None:
    """Checks that an axis has values, each once.

    Raises:
        ValueError: if it has none, two that are equal in float32, or one that cannot
            be; see `check_numbers`.
    """
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ValueError(
            f"`grid[{axis!r}]` must be a tuple of values, got {values!r}: (0.1,) is an"
            " axis of one value."
        )
    check_numbers(f"`grid[{axis!r}]`", axis, values)
    if is_number(values[0]) and all(map(is_number, values)):
        seen = np.asarray(values, np.float32)
        if len(np.unique(seen)) < len(seen):
            raise ValueError(
                f"`grid[{axis!r}]` has the same value twice, in float32: {values}."
            )


_STEP_SIZES = ("learning_rate", "rate", "client_rate", "server_rate")
_STEP_SIZES += ("sgd_rate", "adam_rate", "momentum_rate")


def check_numbers(where: str, name: str, values: Iterable[Any]) -> None:
    """Checks numbers against what float32 holds, and what their name says.

    A step size (`learning_rate` and its like) is positive. A `delay` is a whole number
    of updates, 0 or more: a transformation would round it down. What is no number may
    be a schedule, or the name of one, but not None or a bool.

    Args:
        where: they stand, for the error.
        name: of the axis or the config's key.
        values: that it takes.

    Raises:
        ValueError: if one cannot be.

    Example:
        >>> check_numbers("config.delay", "delay", (0, 0.5))
        Traceback (most recent call last):
        ValueError: config.delay must hold whole numbers of updates, 0 or more, got 0.5.
    """
    is_step_size = name in _STEP_SIZES or name.endswith("_learning_rate")
    for value in values:
        if is_step_size and (value is None or isinstance(value, bool)):
            raise ValueError(
                f"{where} must hold step sizes, as 0.1, or schedules, got {value}."
            )
        if not is_number(value):
            continue
        with np.errstate(over="ignore"):
            held = np.float32(value)
        if np.isnan(held) or (np.isinf(held) and not math.isinf(value)):
            raise ValueError(f"{where} must hold numbers of float32, got {value}.")
        if is_step_size and not 0 < held < math.inf:
            raise ValueError(
                f"{where} must hold step sizes, positive and finite in float32, got"
                f" {value}."
            )
        if name == "delay" and (value < 0 or value != np.floor(value)):
            raise ValueError(
                f"{where} must hold whole numbers of updates, 0 or more, got {value}."
            )


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; a bool is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value of an axis may be traced; a bool chooses between programs."""
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
