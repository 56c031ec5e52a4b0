"""Which cases of a table the default tests run; the job `long` runs the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def shortened(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """All cases for `parametrize`, under their usual ids; all but `kept` are long.

    A tuple holds one value for each of several arguments.
    """
    cases = list(cases)
    unknown = [case for case in kept if case not in cases]
    if unknown or not kept:
        raise ValueError(f"`kept` must be some of the cases {cases}, got {kept}.")
    return [case if case in kept else _long(case) for case in cases]


def _long(case):
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
