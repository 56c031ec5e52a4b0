"""The records of a run, as its figures need them."""

from pathlib import Path
from typing import Any, NamedTuple

from experiments import results, tuning
from experiments.results import Row
from experiments.tuning import Curve


class Run(NamedTuple):
    """The records of a run."""

    config: dict[str, Any]
    facts: dict[str, Any]
    rows: list[Row]
    metrics: list[dict[str, Any]]

    @property
    def unit(self) -> str:
        """Of the loss; empty if it has none."""
        return results.loss_unit(self.config["task"]["name"])

    def curves(self, metric: str) -> list[Curve]:
        """A metric over delay, the step size chosen as the config says."""
        return tuning.curves(self.rows, metric, select_by=self.config["select_by"])


def load(workdir: Path | str) -> Run:
    """Reads the records under a run's folder.

    Raises:
        FileNotFoundError: if one is missing.
        ValueError: if one cannot be read, or the config names an unknown figure.
    """
    workdir = Path(workdir)
    record = results.read_config(workdir)
    unknown = set(record["config"]["figures"]) - set(results.FIGURES)
    if unknown:
        raise ValueError(
            f"config.figures must be among {', '.join(results.FIGURES)}, got"
            f" {', '.join(sorted(unknown))}."
        )
    return Run(
        record["config"],
        record["facts"],
        results.read(workdir / "results.csv"),
        results.read_metrics(workdir / "metrics.jsonl"),
    )
