"""What is said of a config's runs: sources' statements, and records of our numbers.

Beside `configs/NAME.py` there may be a file `configs/statements/NAME.py` with one or
both of the functions

    published(config) -> [claims.Published]     what the sources say, with bounds
    records(config) -> {text: measure}          numbers that guard our results

and the values of the records are in the table `configs/statements/records.csv`.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from ml_collections import ConfigDict

from experiments import configs
from experiments.host import disk
from experiments.results import claims
from experiments.results.claims import Compared, Judged, Published, Record
from experiments.results.runs import Run


class Verdicts(NamedTuple):
    """What a run shows of the statements about it.

    Attributes:
        published: each statement of a source with its verdict.
        records: each record with the number of the run.
    """

    published: Sequence[Judged] = ()
    records: Sequence[Compared] = ()


class Statements(NamedTuple):
    """What is said of a config's runs.

    Attributes:
        published: what the sources say; may fail.
        records: numbers of earlier runs; `--check` compares them.
    """

    published: Sequence[Published] = ()
    records: Sequence[Record] = ()

    def verdicts(self, run: Run) -> Verdicts:
        """What a run shows of them.

        Records are of the config file's values: a run with others has none.
        """
        records = () if run.info.get("changed") else self.records
        judged = claims.judge(self.published, run)
        return Verdicts(judged, claims.compare(records, run))


def about(source: str, config: ConfigDict) -> Statements:
    """The statements about a config; none where it has no file of them.

    Args:
        source: the config file, as "FILE" or "FILE:question".
        config: its values.

    Raises:
        ValueError: if a function of the file fails.
    """
    path = _file(source)
    if not path.exists():
        return Statements()
    try:
        module = configs.module_of(str(path), needed=())
        published = [*getattr(module, "published", lambda config: [])(config)]
        measures = dict(getattr(module, "records", lambda config: {})(config))
    except Exception as error:
        why = configs.error_line(error, str(path)).removeprefix("--config=")
        raise ValueError(
            f"{why} `published(config)` returns a list of `Published`, and"
            " `records(config)` a dict {text: measure}."
        ) from error
    known = _table(source)
    return Statements(
        published,
        [Record(text, m, *known.get(text, ())) for text, m in measures.items()],
    )


def of_run(record: Mapping[str, Any]) -> Statements:
    """The statements about the run of a run.json."""
    config = configs.of_run(record)
    return Statements() if config is None else about(record["source"], config)


def record(source: str, compared: Sequence[Compared]) -> Path:
    """Keeps the numbers of a run as the records of its config, and returns the file.

    The spread of one seed is 0.

    Raises:
        ValueError: if a number cannot be measured, or is not finite.
    """
    for one in compared:
        if one.measured is None or not math.isfinite(one.measured.value):
            raise ValueError(
                f"--record: {one.record.text!r} is {one.shown}, and no number to keep:"
                " nothing is written."
            )
    path, name = _records(source), _name(source)
    rows = [
        (name, one.record.text, one.measured.value, np.nan_to_num(one.measured.error))
        for one in compared
    ]
    new = pd.DataFrame(rows, columns=COLUMNS)
    for column in ("value", "spread"):
        new[column] = [f"{number:.4g}" for number in new[column]]
    there = _read(path)
    kept = there[there["config"] != name]
    table = pd.concat([kept, new]).sort_values("config", kind="stable")
    disk.replace(path, table.to_csv(index=False))
    return path


COLUMNS = ["config", "record", "value", "spread"]
"""Of the table of records."""


def _name(source: str) -> str:
    """The name of a config in the table, with its question: "workers:spectrum".

    The question that a file asks without one is left out.
    """
    file, _, question = source.partition(".py:")
    get_config = configs.module_of(source, needed=("get_config()",)).get_config
    usual = [
        parameter.default
        for parameter in inspect.signature(get_config).parameters.values()
    ]
    return Path(file).stem + f":{question}" * bool(question and question not in usual)


def _file(source: str) -> Path:
    file, _, _ = source.partition(".py:")
    path = Path(file)
    return path.parent / "statements" / f"{path.stem}.py"


def _records(source: str) -> Path:
    return _file(source).parent / "records.csv"


def _read(path: Path) -> pd.DataFrame:
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    try:
        table = pd.read_csv(path, dtype=str)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error
    if [*table] != COLUMNS:
        raise ValueError(f"{path} must have the columns {COLUMNS}, got {[*table]}.")
    return table


def _table(source: str) -> dict[str, tuple[float, float]]:
    """{record: its value and spread} of a config."""
    path, name = _records(source), _name(source)
    known: dict[str, tuple[float, float]] = {}
    for row in _read(path).to_dict("records"):
        if row["config"] != name:
            continue
        try:
            numbers = float(row["value"]), float(row["spread"])
        except ValueError as error:
            raise ValueError(
                f"{path}, {name}, {row['record']!r}: {error}: give numbers, or remove"
                " the row."
            ) from error
        if row["record"] in known:
            raise ValueError(f"{path} has {name}, {row['record']!r} twice.")
        known[row["record"]] = numbers
    return known
