"""Functions that config files share: limits of values, and objects by name."""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict


class Limit(NamedTuple):
    """A condition that each number of a config's key must meet."""

    said: str  # the words after "must be" in an error
    holds: Callable[[float], bool]  # number -> whether it meets the condition


def at_least(least: float, *keys: str) -> dict[str, Limit]:
    """The limit of keys whose numbers have a least value: a part of a file's `LIMITS`.

    Example:
        >>> limits = at_least(1, "workers", "period") | at_least(0, "latency_seconds")
        >>> limits["period"].holds(0), limits["latency_seconds"].holds(0)
        (False, True)
    """
    return dict.fromkeys(keys, Limit(f"at least {least}", lambda x: x >= least))


def above(bound: float, *keys: str) -> dict[str, Limit]:
    """The limit of keys whose numbers are finite, and above a bound.

    Example:
        >>> above(1, "tail")["tail"].holds(1.0)
        False
    """
    said = f"above {bound} and finite"
    return dict.fromkeys(keys, Limit(said, lambda x: bound < x < math.inf))


def positive(*keys: str) -> dict[str, Limit]:
    """The limit of keys whose numbers are positive and finite, such as step sizes.

    Example:
        >>> positive("learning_rate")["learning_rate"].holds(0.0)
        False
    """
    return dict.fromkeys(keys, Limit("positive and finite", lambda x: 0 < x < math.inf))


def below_one(*keys: str) -> dict[str, Limit]:
    """The limit of keys whose numbers lie in [0, 1), such as a momentum.

    Example:
        >>> below_one("momentum")["momentum"].holds(1.5)
        False
    """
    return dict.fromkeys(keys, Limit("in [0, 1)", lambda x: 0 <= x < 1))


def named(key: str, name: str, offered: Mapping[str, Any]) -> Any:
    """An object by its name, or by its import path "package.module:name".

    Args:
        key: the key of the config, for errors.
        name: the value of this key in the config.
        offered: {name: object}.

    Raises:
        ValueError: if the name is not offered, or cannot be imported.

    Example:
        >>> named("optimizer", "math:sqrt", {})(4.0)
        2.0
    """
    if name in offered:
        return offered[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"config.{key} must be one of {', '.join(offered)}, or an import path"
            f" like my_module:make, got {name!r}."
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module may raise any error
        raise ValueError(
            f"config.{key}: {name!r} cannot be imported ({error}). Run from the folder"
            " that holds the module, or install what it needs."
        ) from error


def compared(
    key: str, values: Sequence[float], least: float, most: float, *, against: float
) -> dict[str, tuple[float, ...]]:
    """The rows that an effect compares: `where` of the values from `least` to `most`.

    If a flag has left no other value there, all values are compared.

    Args:
        key: the setting.
        values: all values of it.
        least: the least value that is compared.
        most: the largest one.
        against: the value with which the others are compared.

    Example:
        >>> compared("workers", (1, 4, 8, 64), 4, 32, against=8)
        {'workers': (4, 8)}
        >>> compared("workers", (1, 8), 4, 32, against=8)
        {}
    """
    others = {value for value in values if least <= value <= most} - {against}
    rows = tuple(value for value in values if value in others | {against})
    return {key: rows} if others else {}


def check_delays(key: str, delays: Sequence[float], updates: int) -> int:
    """The depth of a history that holds these delays.

    Raises:
        ValueError: if a delay is negative, or as long as the run.
    """
    if updates < 1:
        raise ValueError(f"config.updates must be at least 1, got {updates}.")
    if not delays or min(delays) < 0 or max(delays) >= updates:
        raise ValueError(
            f"config.{key} must hold delays from 0 to config.updates - 1 ="
            f" {updates - 1}, got {tuple(delays)}."
        )
    return int(max(delays))


def cut_after(key: str, means: Sequence[int], updates: int) -> int:
    """The largest delay that a history holds of geometric delays with these means.

    It is m = 6 max(means). Delays cut to m have the mean (1 - q^m) mean, with q =
    mean / (1 + mean): 1.6 % less at a mean of 1, and 0.3 % less at a mean of 16.

    Raises:
        ValueError: if a mean is negative, or as long as the run.

    Example:
        >>> cut_after("mean_delay", (4, 16), updates=1000)
        96
    """
    return 6 * check_delays(key, means, updates)


def check_rounds(updates: int, *periods: int) -> None:
    """Checks that the steps of a run are whole rounds of an outer optimizer.

    Steps after the last exchange would count as trained, but would not move the center.

    Args:
        updates: the number of steps of each worker.
        *periods: the number of steps in a round, for each arm.

    Raises:
        ValueError: if a period does not divide the steps.

    Example:
        >>> check_rounds(105, 5, 10)
        Traceback (most recent call last):
        ValueError: config.updates must be a multiple of config.period = 10, so that \
the last round ends with an exchange, got 105.
    """
    for period in periods:
        if updates % period:
            raise ValueError(
                f"config.updates must be a multiple of config.period = {period}, so"
                f" that the last round ends with an exchange, got {updates}."
            )


def check_warmup(config: ConfigDict) -> None:
    """Checks that a schedule's warmup ends before the run does.

    Raises:
        ValueError: if the warmup is as long as the run, or longer.
    """
    if config.warmup_updates >= config.updates:
        raise ValueError(
            "config.warmup_updates must be below config.updates ="
            f" {config.updates}, got {config.warmup_updates}."
        )
