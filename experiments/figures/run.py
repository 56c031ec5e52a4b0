"""The records of a run, as its figures need them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import delayjax as dj
from experiments import arms, results, tuning
from experiments.results import Evaluation, Row
from experiments.tuning import Curve, Limit, Series


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """The records of a run.

    Attributes:
        workdir: its folder.
        config: as it was run.
        facts: of its task.
        limits: the step sizes from which on it diverges, by series and delay; none
            without config.advise.
        rows: of results.csv.
        metrics: the rows of metrics.jsonl.
    """

    workdir: Path
    config: dict[str, Any]
    facts: dict[str, Any]
    limits: dict[Series, dict[float, Limit]]
    rows: list[Row]
    metrics: list[dict[str, Any]]

    @property
    def unit(self) -> str:
        """Of the loss; empty if it has none."""
        return results.loss_unit(self.config["task"]["name"])

    @cached_property
    def arms(self) -> list[str]:
        """In the order of the config; none if the run has delays instead."""
        return list(dict.fromkeys(row.arm for row in self.rows if row.arm))

    @property
    def has_evaluations(self) -> bool:
        """Whether there is a curves.csv."""
        return (self.workdir / "curves.csv").is_file()

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """The rows of curves.csv.

        Raises:
            FileNotFoundError: if there is none; only runs with arms have one.
            ValueError: if it cannot be read.
        """
        return results.read_curves(self.workdir / "curves.csv")

    @property
    def missing_trace(self) -> Path | None:
        """The first trace that is not there."""
        paths = map(self._trace_path, self.arms)
        return next((path for path in paths if not path.is_file()), None)

    @cached_property
    def traces(self) -> dict[str, dj.cluster.Trace]:
        """What the cluster of each arm did under the first seed.

        Raises:
            FileNotFoundError: if one is missing.
            ValueError: if one cannot be read.
        """
        return {arm: dj.cluster.load_trace(self._trace_path(arm)) for arm in self.arms}

    def theory(
        self, formula: Callable[[str, dict[str, Any]], float | None]
    ) -> dict[str, float | None]:
        """What a function of `experiments.theory` says of each arm."""
        return {arm: formula(arm, self.config["cluster"]) for arm in self.arms}

    def curves(self, metric: str) -> list[Curve]:
        """A metric over delay, the step size chosen as the config says."""
        return tuning.curves(self.rows, metric, select_by=self.config["select_by"])

    def _trace_path(self, arm: str) -> Path:
        return self.workdir / arms.trace_file(arm, self.config["seeds"][0])


def load(workdir: Path | str) -> Run:
    """Reads the records under a run's folder.

    Raises:
        FileNotFoundError: if one is missing.
        ValueError: if one cannot be read, or the config names an unknown figure.
    """
    workdir = Path(workdir)
    record = results.read_config(workdir)
    known = (*results.FIGURES, *results.ARM_FIGURES)
    unknown = set(record["config"]["figures"]) - set(known)
    if unknown:
        raise ValueError(
            f"config.figures must be among {', '.join(known)}, got"
            f" {', '.join(sorted(unknown))}."
        )
    return Run(
        workdir,
        record["config"],
        record["facts"],
        limits_of(record.get("limits", ())),  # older runs have none
        results.read(workdir / "results.csv"),
        results.read_metrics(workdir / "metrics.jsonl"),
    )


def limits_of(records: Sequence[Mapping[str, Any]]) -> dict[Series, dict[float, Limit]]:
    """The limits of a config.json, by series and delay."""
    found: dict[Series, dict[float, Limit]] = {}
    for record in records:
        limit = Limit(**{**record, "series": Series(**record["series"])})
        found.setdefault(limit.series, {})[limit.delay] = limit
    return found
