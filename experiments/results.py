"""The records of a run as they are read, and the names of what they hold."""

import csv
import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

METRICS = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
    "gap": "test loss - training loss",
}
FIGURES = ("over_delay", "gap_over_delay", "best_step", "stability_map", "loss_curves")


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of results.csv: a cell of the grid under one seed."""

    task: str
    optimizer: str
    learning_rate: float
    delay_law: str
    delay: float  # updates; the mean where the law is random
    modulation: str
    placement: str
    compensation: str
    strength: float
    seed: int
    steps: int
    diverged: bool  # a training loss that is not finite counts too
    diverged_step: int  # -1 where it did not
    train_loss: float  # nan where the task has none, as are the next three
    test_loss: float
    train_accuracy: float
    test_accuracy: float
    staleness_mean: float  # updates, as are the next two
    staleness_p99: float
    staleness_max: float
    clipped: float  # share of the updates, as is dropped
    dropped: float

    def value(self, metric: str) -> float:
        """A column, or the gap between test and training loss; nan if diverged."""
        if self.diverged:
            return math.nan
        if metric == "gap":
            return self.test_loss - self.train_loss
        return getattr(self, metric)


def read(path: Path | str) -> list[Row]:
    """Reads a results.csv.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if columns or rows are missing, or a value cannot be read.
    """
    path = Path(path)
    _require(path)
    fields = {field.name: field.type for field in dataclasses.fields(Row)}
    rows = []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in fields if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} lacks the columns {', '.join(missing)}.")
        for record in reader:
            values = {}
            for name, kind in fields.items():
                try:
                    values[name] = _parse(record[name], kind)
                except (TypeError, ValueError) as error:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: `{name}` must be"
                        f" {kind.__name__}, got {record[name]!r}."
                    ) from error
            values["diverged"] |= not math.isfinite(values["train_loss"])
            rows.append(Row(**values))
    if not rows:
        raise ValueError(f"{path} has no rows: the run has not ended.")
    return rows


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut short by a kill is left out."""
    path = Path(path)
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def read_config(workdir: Path | str) -> dict[str, Any]:
    """Reads the config.json of a run.

    Raises:
        FileNotFoundError: if there is none.
    """
    path = Path(workdir) / "config.json"
    _require(path)
    return json.loads(path.read_text())


def recorded(rows: Iterable[Row], metric: str) -> bool:
    """Whether the task records a metric, or nothing survived that could tell."""
    values = [row.value(metric) for row in rows if not row.diverged]
    return not values or any(not math.isnan(value) for value in values)


def loss_unit(task: str) -> str:
    """The unit of a task's loss: cross entropies are in nats, others have none."""
    own = ":" in task and not task.startswith(("tokens:", "tfds:"))
    return "" if own or task == "quadratic" else "nats"


def _parse(text: str, kind: type) -> Any:
    if kind is bool:
        return bool(int(text))
    if kind is float and text == "":
        return math.nan
    return kind(text)


def _require(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: make it with `python -m experiments.main"
            f" --config=configs/default.py --workdir={path.parent}`."
        )
