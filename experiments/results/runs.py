"""Finished runs, read from their folders."""

import dataclasses
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

import delayjax as dj
from experiments.host.folder import RunFolder
from experiments.results import analysis, tables
from experiments.results.choice import Choice
from experiments.results.metrics import TimeTo
from experiments.results.tables import Found


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Run(Found):
    """The tables of a finished run, or of several together, and its other records.

    The tuned axes are those of the first run.

    Attributes:
        folder: the folder of the run, or of the first of several.
        info: run.json, or that of the first of several.
    """

    folder: Path
    info: Mapping[str, Any]

    @classmethod
    def read(cls, *folders: str | os.PathLike[str]) -> "Run":
        """Reads a run, or several as one.

        The tables of several runs get a column `run`. It is a setting, except for the
        shards of one run, which have the same config and no cell in common.

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
        runs = [
            tables.read(folder, _choice(info), tuning=bool(info.get("tuning_seeds")))
            for folder, info in zip(there, infos, strict=True)
        ]
        left = dict.fromkeys(c for run in runs for c in analysis.settings(run.results))
        names = [path.name for path in paths]
        if len(set(names)) < len(names):
            names = [str(path) for path in paths]

        def joined(parts):
            if len(paths) > 1:
                parts = [
                    part.assign(run=n) for part, n in zip(parts, names, strict=True)
                ]
            return pd.concat(parts, ignore_index=True)

        results = joined([run.results for run in runs])
        curves = joined([run.curves for run in runs])
        if len(paths) > 1:
            what = [[info.get(key) for key in ("question", "config")] for info in infos]
            differ = any(item != what[0] for item in what)
            if differ or results.duplicated([*left, "seed"]).any():
                left = {"run": None, **left}

        def ordered(table):
            return table[[*left, *(name for name in table if name not in left)]]

        choice = _choice(infos[0])
        if any(run.choice.optima is not None for run in runs):
            choice = choice._replace(
                optima=joined(
                    [pd.DataFrame(run.choice.optima) for run in runs]  # None is empty
                )
            )
        if any(run.choice.results is not None for run in runs):
            # if a run has no tuning seeds, its reported seeds choose
            choose = [run if run.choice.results is None else run.choice for run in runs]
            choice = choice._replace(
                results=ordered(joined([table.results for table in choose])),
                curves=ordered(joined([table.curves for table in choose])),
            )
        return cls(
            ordered(results),
            ordered(curves),
            choice,
            infos[0].get("question", paths[0].name),
            folder=paths[0],
            info=infos[0],
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the tasks that are the same in all programs."""
        every = [program["facts"] for program in self.info.get("programs", ())]
        first = every[0] if every else {}
        return {k: v for k, v in first.items() if all(f.get(k) == v for f in every)}

    @cached_property
    def traces(self) -> dict[str, dj.cluster.Trace]:
        """The trace of each arm's cluster under the first seed, by the arm's name."""
        saved = self.info.get("traces", ())
        names = self.trace_labels
        return {
            name: dj.cluster.load_trace(self.folder / record["file"])
            for name, record in zip(names, saved, strict=True)
        }

    @property
    def trace_labels(self) -> dict[str, dict[str, Any]]:
        """The labels of each arm with a trace, by its name."""
        every = pd.DataFrame(
            [record["labels"] for record in self.info.get("traces", ())]
        )
        varied = analysis.distinguishing(every)
        rows = every.to_dict("records")
        return {analysis.label({k: row[k] for k in varied}): row for row in rows}


def _choice(info: Mapping[str, Any]) -> Choice:
    """The tuned axes, from run.json."""
    by = info.get("tuned_by", "train_loss")
    by = by if isinstance(by, str) else TimeTo(by["metric"], by["value"], by["along"])
    return Choice(tuple(info.get("tuned", ())), by)


def load(*folders: str | os.PathLike[str]) -> Run:
    """Several runs as one, whose tables have a column `run` that names the folder.

    Raises:
        ValueError: if a folder holds no finished run.
    """
    run = Run.read(*folders)
    results, curves = (
        table if "run" in table else table.assign(run=run.folder.name)
        for table in (run.results, run.curves)
    )
    return dataclasses.replace(run, results=results, curves=curves)
