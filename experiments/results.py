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
    "gradient_norm": "gradient norm",
    "seconds_to_target": "time to the target",
}
EVALUATED = (
    *("train_loss", "test_loss", "train_accuracy", "test_accuracy", "gradient_norm"),
)
"""What curves.csv may hold."""
FIGURES = (
    *("over_delay", "gap_over_delay", "best_step", "stability_map", "loss_curves"),
    "noise_floor",
)
ARM_FIGURES = (
    *("over_seconds", "over_updates", "over_examples", "arms"),
    *("staleness", "update_times", "gantt", "over_option", "decay_rate"),
)
"""Figures of what clusters did."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What was trained: a cell of the grid under one seed."""

    task: str
    arm: str = ""  # the protocol and its overrides; "" is a delay, not a cluster
    optimizer: str
    learning_rate: float
    delay_law: str  # "trace" under an arm
    delay: float  # updates; the mean where the law is random; 0 under an arm
    modulation: str
    placement: str
    compensation: str
    strength: float
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Setting):
    """One row of results.csv: how a cell ended.

    Fields with a default are columns that a record may lack: delayjax 0.1.0 wrote none.
    """

    steps: int  # updates
    updates: float = math.nan  # done until the end, or until it diverged
    seconds: float = math.nan  # simulated, until the last update; nan without an arm
    seconds_to_target: float = math.nan  # inf if never; nan without an arm or a target
    diverged: bool  # a training loss that is not finite counts too
    diverged_step: int  # -1 where it did not
    train_loss: float  # nan where the task has none, as are the next three
    test_loss: float
    train_accuracy: float
    test_accuracy: float
    gradient_norm: float = math.nan  # of the training loss; nan without an arm
    staleness_mean: float  # updates, as are the next two
    staleness_p99: float
    staleness_max: float
    clipped: float  # share of the gradients, as is dropped
    dropped: float

    def value(self, metric: str) -> float:
        """A column, or the gap between test and training loss; nan if diverged."""
        if metric == "seconds_to_target":  # inf if diverged
            return self.seconds_to_target
        if self.diverged:
            return math.nan
        if metric == "gap":
            return self.test_loss - self.train_loss
        return getattr(self, metric)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(Setting):
    """One row of curves.csv: a cell on its way, under an arm."""

    step: int  # updates done
    seconds: float  # simulated
    examples: int  # in the gradients applied
    train_loss: float  # nan where the task has none, as are the next three
    test_loss: float
    train_accuracy: float
    test_accuracy: float
    gradient_norm: float  # of the training loss


def read(path: Path | str) -> list[Row]:
    """Reads a results.csv.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if columns or rows are missing, or a value cannot be read.
    """
    return [
        dataclasses.replace(
            row, diverged=row.diverged or not math.isfinite(row.train_loss)
        )
        for row in _read(path, Row)
    ]


def read_curves(path: Path | str) -> list[Evaluation]:
    """Reads a curves.csv: each arm, cell and seed by step, from step 0 on.

    Raises:
        FileNotFoundError: if there is none; only runs with arms have one.
        ValueError: if columns or rows are missing, or a value cannot be read.
    """
    return _read(path, Evaluation)


def read_metrics(path: Path | str, program: str = "") -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut short by a kill is left out.

    Args:
        path: the file.
        program: whose rows are read, which is quicker than all; "" is all.
    """
    path = Path(path)
    own = json.dumps({"program": program})[1:-1] if program else ""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        if own not in line:
            continue
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


def _read(path: Path | str, kind: type) -> list[Any]:
    path = Path(path)
    _require(path)
    fields = dataclasses.fields(kind)
    rows = []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        there = reader.fieldnames or ()
        missing = [
            field.name
            for field in fields
            if field.name not in there and field.default is dataclasses.MISSING
        ]
        if missing:
            raise ValueError(f"{path} lacks the columns {', '.join(missing)}.")
        for record in reader:
            values = {}
            for field in fields:
                if field.name not in there:
                    continue
                try:
                    values[field.name] = _parse(record[field.name], field.type)
                except (TypeError, ValueError) as error:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: `{field.name}` must be"
                        f" {field.type.__name__}, got {record[field.name]!r}."
                    ) from error
            rows.append(kind(**values))
    if not rows:
        raise ValueError(f"{path} has no rows: the run has not ended.")
    return rows


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
