"""What theory says of settings: a function of them, or a table."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.results.analysis import AbsentError
from experiments.training.jobs import arguments


def formula(theory: Any, row: Mapping[Any, Any], key: str = "") -> Any:
    """What theory says of a row; nan where it says nothing, or is None.

    Args:
        theory: a function whose arguments are named as settings are, or a table by the
            values of `key`.
        row: settings.
        key: the setting whose values a table has.

    Raises:
        AbsentError: if an argument without a default is no setting.

    Example:
        >>> formula(lambda delay: 2 * delay, {"delay": 3, "seed": 0})
        6
        >>> formula({3: 0.5}, {"delay": 3}, "delay"), formula(None, {})
        (0.5, nan)
        >>> formula(lambda delay: None, {"delay": 3})
        nan
    """
    if callable(theory):
        names = arguments(theory)
        absent = [name for name, needed in names.items() if needed and name not in row]
        if absent:
            raise AbsentError(
                f"a formula has the argument {absent[0]!r}, which is no setting: choose"
                f" of {', '.join(map(str, row))}."
            )
        said = theory(**{name: row[name] for name in names if name in row})
    else:
        said = theory and theory.get(row[key])
    return np.nan if said is None else said


def formulas(theory: Any, table: pd.DataFrame, key: str = "") -> list[Any]:
    """What theory says of each row of a table."""
    return [formula(theory, row, key) for row in table.to_dict("records")]
