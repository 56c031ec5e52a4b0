"""Statements about a config's runs: claims of sources, and records of our numbers.

For `configs/NAME.py` there may be a file `configs/statements/NAME.py` with one or both
of the functions

    published(config) -> [claims.Published]     claims of sources, with bounds
    records(config) -> {text: measure}          numbers that later runs must reproduce

The values of the records are in the table `configs/statements/records.csv`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from ml_collections import ConfigDict

from experiments import config_files
from experiments.config_files import ConfigFile, executed
from experiments.host import disk
from experiments.host.failures import in_one_line
from experiments.results import claims
from experiments.results.claims import Compared, Judged, Published, Record
from experiments.results.runs import Run
from experiments.training.experiment import Experiment


class Verdicts(NamedTuple):
    """The verdicts of a run on the statements about it.

    Attributes:
        published: each claim of a source with its verdict.
        records: each record with the number of the run.
    """

    published: Sequence[Judged] = ()
    records: Sequence[Compared] = ()


class Statements(NamedTuple):
    """The statements about a config's runs.

    Attributes:
        published: claims of sources; a run may contradict them.
        records: numbers of earlier runs; `--check` compares a run with them.
    """

    published: Sequence[Published] = ()
    records: Sequence[Record] = ()

    def verdicts(self, run: Run) -> Verdicts:
        """The verdicts of a run on these statements.

        Records hold for the values of the config file: a changed run has none.
        """
        records = () if run.info.get("changed") else self.records
        judged = claims.judge(self.published, run)
        return Verdicts(judged, claims.compare(records, run))


def about(file: ConfigFile, config: ConfigDict) -> Statements:
    """The statements about a config; empty if it has no file of statements.

    Raises:
        ValueError: if a function of the file fails.
    """
    path = file.path.parent / "statements" / file.path.name
    if not path.exists():
        return Statements()
    try:
        module = executed(path)
        published = [*getattr(module, "published", lambda config: [])(config)]
        measures = dict(getattr(module, "records", lambda config: {})(config))
    except Exception as error:
        raise ValueError(
            f"{path}: {in_one_line(error)} `published(config)` returns a list of"
            " `Published`, and `records(config)` a dict {text: measure}."
        ) from error
    known = _table(file)
    return Statements(
        published,
        [Record(text, m, *known.get(text, ())) for text, m in measures.items()],
    )


def config_of(file: str) -> ModuleType:
    """The module of the config file that a file of statements is about.

    A file of statements does not import its config: the package that is called
    `configs` may be the user's.

    Args:
        file: the file of statements, its `__file__`.

    Example:
        >>> config_of(f"{config_files.CONFIGS}/statements/adasync.py").CLOCK
        'elapsed_seconds'
    """
    path = Path(file)
    return executed(path.parents[1] / path.name)


def of_run(record: Mapping[str, Any]) -> tuple[Experiment | None, Statements]:
    """The experiment of a run.json (None without its config), and its statements."""
    source = config_files.of_run(record)
    if source is None:
        return None, Statements()
    file, config = source
    return file.experiment(config), about(file, config)


def record(file: ConfigFile, compared: Sequence[Compared]) -> Path:
    """Writes the numbers of a run as the records of its config; returns the file.

    With one seed the spread is 0.

    Raises:
        ValueError: if a number cannot be measured, is not finite, or is a median
            because some seed never reaches its target.
    """
    for one in compared:
        if (
            one.measured is None
            or one.measured.form == "median"
            or not math.isfinite(one.measured.value)
        ):
            raise ValueError(
                f"--record: {one.record.text!r} is {one.shown}, and no number to keep:"
                " nothing is written."
            )
    path, name = _records(file), file.name
    rows = [
        (name, one.record.text, one.measured.value, np.nan_to_num(one.measured.error))
        for one in compared
    ]
    new = pd.DataFrame(rows, columns=COLUMNS)
    for column in ("value", "spread"):
        new[column] = [f"{number:.4g}" for number in new[column]]
    stored = _read(path)
    kept = stored[stored["config"] != name]
    table = pd.concat([kept, new]).sort_values("config", kind="stable")
    disk.replace(path, table.to_csv(index=False))
    return path


COLUMNS = ["config", "record", "value", "spread"]
"""The columns of the table of records."""


def _records(file: ConfigFile) -> Path:
    return file.path.parent / "statements" / "records.csv"


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    table = pd.read_csv(path, dtype=str)[COLUMNS]
    twice = table[table.duplicated(COLUMNS[:2])]
    if len(twice):
        raise ValueError(f"{path} has {', '.join(twice.iloc[0, :2])} twice.")
    return table


def _table(file: ConfigFile) -> dict[str, tuple[float, float]]:
    """{text of a record: its value and spread} of a config."""
    rows = _read(_records(file)).query("config == @file.name")
    numbers = zip(
        rows["value"].astype(float), rows["spread"].astype(float), strict=True
    )
    return dict(zip(rows["record"], numbers, strict=True))
