"""Functions of settings, such as a theory."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def formula(function: Callable[..., Any], row: Mapping[Any, Any]) -> Any:
    """Calls a function of settings with the settings of a row; None becomes nan.

    Example:
        >>> formula(lambda delay: 2 * delay, {"delay": 3, "seed": 0})
        6
    """
    names = inspect.signature(function).parameters
    value = function(**{key: row[key] for key in names if key in row})
    return np.nan if value is None else value
