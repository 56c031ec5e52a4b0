"""The stored tables of the comparison: a row a search, with the losses that it found.

They are of three rounds of trials a search, whose optimum a finer search may beat.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent / "stored"


def parts(study: str) -> Sequence[Path]:
    """The files of a study."""
    return sorted(FOLDER.glob(f"{study}_[0-9]*.csv"))


def table(study: str) -> pd.DataFrame:
    """All rows of a study."""
    every = [
        pd.read_csv(part, comment="#", keep_default_na=False) for part in parts(study)
    ]
    return pd.concat(every, ignore_index=True)


def head(study: str) -> str:
    """The study, the versions and the date, as the first line has them."""
    with parts(study)[0].open() as file:
        return file.readline().removeprefix("# ").strip()


def numbers(text: str) -> dict[str, float]:
    """The numbers of a row, as it has them.

    Example:
        >>> numbers("learning_rate=0.1 decay=1")
        {'learning_rate': 0.1, 'decay': 1.0}
    """
    pairs = (part.split("=") for part in text.split())
    return {name: float(value) for name, value in pairs}
