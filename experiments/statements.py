"""What is said of a config's runs: sources' statements, and records of our numbers.

Beside `configs/NAME.py` there may be a file `configs/statements/NAME.py` with one or
both of the functions

    published(config) -> [claims.Published]     what the sources say, with bounds
    records(config) -> {text: measure}          numbers that guard our results

and the values of the records are in the table `configs/statements/records.csv`.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from ml_collections import ConfigDict

from experiments import configs
from experiments.results.claims import Compared, Published, Record


class Statements(NamedTuple):
    """What is said of a config's runs.

    Attributes:
        published: what the sources say; may fail.
        records: numbers of earlier runs; `--check` compares them.
    """

    published: Sequence[Published] = ()
    records: Sequence[Record] = ()


def of(source: str, config: ConfigDict) -> Statements:
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
        published = getattr(module, "published", lambda config: [])(config)
        measures = getattr(module, "records", lambda config: {})(config)
    except Exception as error:
        raise ValueError(configs.in_one_line(error, str(path))) from error
    known = _table(source).set_index("record")
    records = []
    for text, measure in measures.items():
        there = [float(x) for x in known.loc[text]] if text in known.index else []
        records.append(Record(text, measure, *there))
    return Statements(published, records)


def of_run(record: Mapping[str, Any]) -> Statements:
    """The statements about the run of a run.json."""
    config = configs.of_run(record)
    return Statements() if config is None else of(record["source"], config)


def record(source: str, compared: Sequence[Compared]) -> None:
    """Keeps the numbers of a run as the records of its config.

    Raises:
        ValueError: if a number cannot be measured.
    """
    for one in compared:
        if one.measured is None:
            raise ValueError(f"--record: {one.record.text!r} is {one.shown}.")
    path, name = _records(source), _name(source)
    rows = [
        (name, one.record.text, one.measured.value, max(one.measured.error, 0.0))
        for one in compared
    ]
    new = pd.DataFrame(rows, columns=COLUMNS)
    for column in ("value", "spread"):
        new[column] = [f"{number:.4g}" for number in new[column]]
    there = _read(path)
    kept = there[there["config"] != name]
    table = pd.concat([kept, new]).sort_values("config", kind="stable")
    table.to_csv(path, index=False)


COLUMNS = ["config", "record", "value", "spread"]
"""Of the table of records."""


def _name(source: str) -> str:
    """The name of a config in the table, with its question: "workers:spectrum".

    The question that a file asks without one is left out.
    """
    file, _, question = source.partition(".py:")
    get_config = configs.module_of(source, needed=("get_config()",)).get_config
    usual = [own.default for own in inspect.signature(get_config).parameters.values()]
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
    return pd.read_csv(path, dtype=str)


def _table(source: str) -> pd.DataFrame:
    """The records of a config."""
    table = _read(_records(source))
    return table[table["config"] == _name(source)].drop(columns="config")
