"""Finished runs, read from their folders."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

import delayjax as dj
from experiments.host.folder import RunFolder
from experiments.results import analysis, tables
from experiments.results.choice import Choice, TimeTo
from experiments.results.tables import Found


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """What there is of a finished run, or of several together.

    Attributes:
        folder: the run's; of several the first one's.
        info: run.json; of several the first one's.
        results: a row a cell and seed, with errors and the generalization gap.
        curves: a row a cell, seed and evaluation.
        metrics: the rows of metrics.jsonl.
        choice: what is tuned; of several as the first one says.
    """

    folder: Path
    info: Mapping[str, Any]
    results: pd.DataFrame
    curves: pd.DataFrame
    metrics: Sequence[Mapping[str, Any]] = ()
    choice: Choice = dataclasses.field(default_factory=Choice)

    @classmethod
    def read(cls, *folders: str | os.PathLike[str]) -> "Run":
        """Reads a run, or several as one.

        The tables of several get a column `run`. It is a setting, but of the shards of
        one run, which have the same config and no cell in common.

        Raises:
            ValueError: if a folder holds no finished run.
        """
        paths = [Path(folder).expanduser() for folder in folders]
        if len({path.resolve() for path in paths}) != max(1, len(paths)):
            raise ValueError(
                f"`folders` must name one folder or several, each once, got {folders}:"
                " a run read twice would count its seeds twice."
            )
        there = list(map(RunFolder, paths))
        infos = [folder.info for folder in there]
        rows = [row for folder in there for row in folder.rows()]
        found = [
            tables.read(folder, _choice(info), tuning=bool(info.get("tuning_seeds")))
            for folder, info in zip(there, infos, strict=True)
        ]
        left = dict.fromkeys(c for own in found for c in analysis.settings(own.results))
        names = [path.name for path in paths]
        if len(set(names)) < len(names):
            names = [str(path) for path in paths]

        def joined(parts):
            if len(paths) > 1:
                parts = [own.assign(run=n) for own, n in zip(parts, names, strict=True)]
            return pd.concat(parts, ignore_index=True)

        results = joined([own.results for own in found])
        curves = joined([own.curves for own in found])
        if len(paths) > 1:
            what = [[info.get(key) for key in ("question", "config")] for info in infos]
            differ = any(own != what[0] for own in what)
            if differ or results.duplicated([*left, "seed"]).any():
                left = {"run": None, **left}

        def ordered(table):
            return table[[*left, *(name for name in table if name not in left)]]

        choice = _choice(infos[0])
        if any(own.choice.optima is not None for own in found):
            choice = choice._replace(
                optima=joined(
                    [pd.DataFrame(own.choice.optima) for own in found]  # None is empty
                )
            )
        if any(own.choice.results is not None for own in found):
            # where a run has no tuning seeds, its own seeds choose
            choose = [
                own if own.choice.results is None else own.choice for own in found
            ]
            choice = choice._replace(
                results=ordered(joined([own.results for own in choose])),
                curves=ordered(joined([own.curves for own in choose])),
            )
        results, curves = ordered(results), ordered(curves)
        return cls(paths[0], infos[0], results, curves, rows, choice)

    @property
    def found(self) -> Found:
        """The tables alone."""
        return Found(self.results, self.curves, self.choice)

    @property
    def best(self) -> pd.DataFrame:
        """The results of each series at its best value of the tuned axes."""
        return self.found.best

    @property
    def settings(self) -> list[str]:
        """The columns that say what was trained."""
        return analysis.settings(self.results)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the tasks that are the same in all programs."""
        every = [program["facts"] for program in self.info.get("programs", ())]
        first = every[0] if every else {}
        return {k: v for k, v in first.items() if all(f.get(k) == v for f in every)}

    @cached_property
    def traces(self) -> dict[str, dj.cluster.Trace]:
        """What the cluster of each arm did under the first seed, by the arm's name."""
        saved = self.info.get("traces", ())
        names = self.trace_labels
        return {
            name: dj.cluster.load_trace(self.folder / own["file"])
            for name, own in zip(names, saved, strict=True)
        }

    @property
    def trace_labels(self) -> dict[str, dict[str, Any]]:
        """The labels of each arm with a trace, by its name."""
        every = pd.DataFrame([own["labels"] for own in self.info.get("traces", ())])
        told = analysis.told_by(every)
        rows = every.to_dict("records")
        return {analysis.label({k: row[k] for k in told}): row for row in rows}


def _choice(info: Mapping[str, Any]) -> Choice:
    """What is tuned, as run.json says it."""
    by = info.get("tuned_by", "train_loss")
    by = by if isinstance(by, str) else TimeTo(**by)
    return Choice(tuple(info.get("tuned", ())), by)


def load(*folders: str | os.PathLike[str]) -> Found:
    """The tables of several runs as one, with a column `run` that names the folder.

    Raises:
        ValueError: if a folder holds no finished run.
    """
    run = Run.read(*folders)
    named = [
        table if "run" in table else table.assign(run=run.folder.name)
        for table in (run.results, run.curves)
    ]
    return Found(*named, run.choice)
