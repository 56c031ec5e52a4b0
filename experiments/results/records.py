"""What a run leaves in its folder: run.json, metrics, tables and traces."""

import contextlib
import dataclasses
import datetime
import fcntl
import importlib.metadata
import io
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

import delayjax as dj
from experiments.results import analysis
from experiments.results.writers import Writer, scalars
from experiments.running import throughput
from experiments.running.host.progress import log
from experiments.running.loop import Chunk, Counters
from experiments.running.programs import Program, label
from experiments.training.experiment import Experiment
from experiments.training.rules import Rule


class Found(NamedTuple):
    """What a run found, as tables.

    A row of `results` is a cell and a seed after the last update; a row of `curves` is
    one at an evaluation. Both have a column for each label, each axis and the seed.
    `choice` says what is tuned, and has the tables of the tuning seeds.
    """

    results: pd.DataFrame
    curves: pd.DataFrame
    choice: analysis.Choice = analysis.Choice()

    @property
    def best(self) -> pd.DataFrame:
        """The results of each series at its best value of the tuned axes."""
        return self.choice.best(self.results, self.curves)


class Folder:
    """A run's folder, held by one run at a time."""

    def __init__(self, path: Path):
        """Creates the folder and locks it.

        Raises:
            ValueError: if it cannot be written, or another run works in it.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("w")
        except OSError as error:
            raise ValueError(
                f"--workdir={path} cannot be written ({error.strerror}): choose a"
                " folder of your own."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ValueError(
                f"--workdir={path} is in use by another run: wait for it, or choose"
                " another folder."
            ) from None

    def close(self) -> None:
        """Lets other runs in."""
        self._lock.close()

    def begin(
        self,
        experiment: Experiment,
        programs: Sequence[Program],
        config: Mapping[str, Any],
        changed: Mapping[str, Any],
        source: str,
        digests: Mapping[str, Callable[[int], dict[str, str]]],
    ) -> None:
        """Checks that what is there belongs to this run; writes run.json and traces.

        Args:
            experiment: that is run.
            programs: its cells.
            config: the values that the experiment was made of.
            changed: those that are not the config file's own, {key: [own, value]}.
            source: the config file.
            digests: {program: its `digest.Digest`}.

        Raises:
            ValueError: if the folder holds another run, naming what differs, or files
                of no run that would be overwritten.
        """
        before = self.read()
        record = {
            "question": experiment.question,
            "notes": experiment.notes,
            "source": source,
            "config": dict(config),
            "changed": dict(changed),
            "settings": settings(programs),
            "seeds": list(experiment.seed_numbers),
            "tuning_seeds": list(experiment.tuning_seed_numbers),
            "tuned": list(experiment.tuned_axes),
            "tuned_by": _metric_record(experiment.tuned_by),
            "programs": [
                {
                    "name": program.name,
                    "cells": program.settings(),
                    "updates": program.rule.updates,
                    "digest": digests[program.name](program.rule.updates),
                    "facts": dict(program.task.facts),
                    "batch": program.task.examples,
                }
                for program in programs
            ],
        }
        record = json.loads(json.dumps(record, default=str))
        if before:
            _check_same(self.path, before, record, digests)
        else:
            _check_empty(self.path)
        self._write(
            record
            | {
                "traces": self._save_traces(programs),
                "argv": sys.argv,
                "versions": versions(),
                "git": git_hash(),
                "devices": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
                "started": before.get("started")
                or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "wall_seconds": before.get("wall_seconds", 0.0),
                "finished": before.get("finished", {}),
            }
        )

    def _save_traces(self, programs: Sequence[Program]) -> list[dict[str, Any]]:
        """The trace of each arm's cluster under the first seed, and whose it is."""
        saved: list[dict[str, Any]] = []
        for program in programs:
            labels = {k: label(v) for k, v in program.columns.items()}
            labels = {k: v for k, v in labels.items() if k not in program.static}
            if program.rule.traces and labels not in [own["labels"] for own in saved]:
                file = f"traces/{program.name}.npz"
                saved.append({"file": file, "labels": labels})
                self._save_trace(self.path / file, program.rule.traces[0])
        return saved

    def _save_trace(self, path: Path, trace: dj.cluster.Trace) -> None:
        """Writes a trace; a shorter one of the same run is replaced."""
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            there = dj.cluster.load_trace(path).seconds
            both = min(len(there), trace.num_updates)
            if not np.array_equal(there[:both], trace.seconds[:both]):
                raise ValueError(
                    f"{path} is the trace of another run: choose another --workdir."
                )
            if len(there) >= trace.num_updates:
                return
        trace.save(path)

    def read(self) -> dict[str, Any]:
        """run.json; empty where there is none."""
        return self.info(self.path)

    @staticmethod
    def info(folder: Path) -> dict[str, Any]:
        """run.json of a folder; empty where there is none.

        Raises:
            ValueError: if it cannot be read.
        """
        path = folder / "run.json"
        if not path.exists():
            return {}
        try:
            return json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path} cannot be read ({error}): choose another --workdir."
            ) from error

    def finish(self, programs: Mapping[str, Any]) -> None:
        """Notes that the tables are whole.

        Args:
            programs: {name: {"updates": ..., "metrics": [...]}}.
        """
        self._write(self.read() | {"finished": dict(programs)})

    def is_finished(self, programs: Mapping[str, Any]) -> bool:
        """Whether the tables have these updates and metrics of these programs."""
        there = self.read().get("finished", {})
        return all(
            (self.path / f"{t}.csv").exists() for t in Found._fields[:2]
        ) and all(
            name in there
            and there[name]["updates"] == own["updates"]
            and {*own["metrics"]} <= {*there[name]["metrics"]}
            for name, own in programs.items()
        )

    def spent(self, seconds: float) -> None:
        """Adds to the time that the run took."""
        record = self.read()
        with contextlib.suppress(OSError):  # a full disk, which is said elsewhere
            self._write(record | {"wall_seconds": record["wall_seconds"] + seconds})

    def _write(self, record: Mapping[str, Any]) -> None:
        replace(self.path / "run.json", json.dumps(record, indent=2) + "\n")


def _check_same(
    path: Path,
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    digests: Mapping[str, Callable[[int], dict[str, str]]],
) -> None:
    """More updates, another target, other figures and claims are the same run."""
    differing = [
        f"  config.{key}: {there['config'].get(key, 'absent')} there,"
        f" {here['config'].get(key, 'absent')} now"
        for key in sorted({*there["config"], *here["config"]})
        if there["config"].get(key) != here["config"].get(key)
        and key not in ("updates", "seconds", "examples", "target")
    ]
    differing += [
        f"  {what.replace('_', ' ')}: {there.get(what)} there, {here[what]} now"
        for what in ("seeds", "tuning_seeds")
        if there.get(what, []) != here[what]
    ]
    for what in ("cells", "facts", "batch"):
        old, new = (
            {program["name"]: program.get(what) for program in run["programs"]}
            for run in (there, here)
        )
        differing += [
            f"  the {what} of {name}"
            for name in sorted({*old, *new})
            if old.get(name) != new.get(name)
        ]
    done = {program["name"]: program for program in there["programs"]}
    for program in here["programs"]:
        name, before = program["name"], done.get(program["name"])
        if before is None:
            continue
        if program["updates"] < before["updates"]:
            differing.append(
                f"  the updates of {name}: {before['updates']} there,"
                f" {program['updates']} now"
            )
            continue
        now = digests[name](before["updates"])
        differing += [
            f"  the {part} of {name}: other code, constants or data"
            for part, digest in before.get("digest", {}).items()
            if now.get(part, digest) != digest  # a metric may come and go
        ]
    if differing and there["versions"]["jax"] != versions()["jax"]:
        differing.append(f"  jax: {there['versions']['jax']} there")
    if differing:
        raise ValueError(
            f"--workdir={path} holds another run:\n"
            + "\n".join(differing)
            + "\nChoose another --workdir, give the same config and code to go on with"
            " it, or begin anew, --anew, which removes its records."
        )


def _check_empty(path: Path) -> None:
    """Refuses a folder whose files a run would replace, though it is no run's."""
    theirs = [name for name in _WRITTEN if (path / name).exists()]
    if theirs:
        raise ValueError(
            f"--workdir={path} has {theirs[0]}, but no run.json: it is no run's, and"
            " would be overwritten. Choose another --workdir."
        )


_WRITTEN = ("results.csv", "curves.csv", "metrics.jsonl", "report.html")


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    packages = ("jax", "jaxlib", "optax", "flax", "numpy")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "delayjax": dj.__version__,
    }


def git_hash() -> str:
    """The commit of the checkout, with "+" where files differ from it."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


class Metrics:
    """One row a chunk in metrics.jsonl; other writers take the same numbers."""

    def __init__(
        self, folder: Path, program: Program, kept: int, writers: Sequence[Writer] = ()
    ):
        """Opens the file.

        Args:
            folder: the run's.
            program: whose rows these are.
            kept: the update that the run resumes from, 0 where it begins; later rows
                are forgotten, so that the file ends as if it had never been
                interrupted.
            writers: of the same numbers.
        """
        self._path, self._program = folder / "metrics.jsonl", program
        self._writers = writers
        self._work, self._last = throughput.of(program), kept
        rows = [
            row
            for row in read_metrics(self._path)
            if row["program"] != program.name or (kept and row["step"] <= kept)
        ]
        replace(self._path, "".join(json.dumps(row) + "\n" for row in rows))

    def write(
        self,
        step: int,
        chunk: Chunk | None,
        counters: Counters,
        seconds: float,
        evaluation: Mapping[str, np.ndarray] | None,
    ) -> dict[str, Any]:
        """Appends the numbers of a chunk and returns them; update 0 has no chunk."""
        rule = self._program.rule
        live = counters.diverged_step < 0
        row: dict[str, Any] = {"program": self._program.name, "step": step}
        if chunk is not None:
            there = np.isfinite(chunk.loss)
            with np.errstate(over="ignore"), _quiet():
                losses = np.nanmean(np.where(there, chunk.loss, np.nan), axis=0)
            row |= {
                "train_loss": number(np.median(losses[live])) if live.any() else None,
                "not_finite": int((~live).sum()),
                **staleness_summary(counters.staleness_counts.sum((0, 1))),
                "dropped": float(dropped_share(rule, counters, step).mean()),
                "dropped_in_row": int(counters.dropped_in_row.max()),
                "updates_per_second": len(chunk.loss) / seconds,
                **self._work.rates(float(self._examples(step)) / seconds),
                "losses": numbers(losses),
            }
        self._last = step
        if rule.seconds is not None:
            row["seconds"] = rule.seconds(step).tolist()
        row["examples"] = rule.examples(step).tolist()
        if evaluation is not None:
            row["evaluation"] = {k: numbers(v) for k, v in evaluation.items()}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = scalars(self._program.settings(), row)
        for writer in self._writers:
            writer.write(self._program.name, step, shown)
        return row

    def _examples(self, step: int) -> int:
        """The examples of all cells in the updates since the last chunk."""
        rule = self._program.rule
        return (rule.examples(step) - rule.examples(self._last)).sum() * (
            self._program.size
        )

    def rows(self) -> list[dict[str, Any]]:
        """The program's rows so far."""
        rows = read_metrics(self._path)
        return [row for row in rows if row["program"] == self._program.name]


def _quiet() -> Any:
    import warnings

    return warnings.catch_warnings(action="ignore", category=RuntimeWarning)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl; a line that cannot be read is left out."""
    rows, broken = [], 0
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
            rows.append(row | {"program": row["program"], "step": row["step"]})
        except (json.JSONDecodeError, KeyError, TypeError):
            broken += 1
    if broken:
        log.warning("%s: %d lines cannot be read and are left out.", path, broken)
    return rows


def staleness_summary(counts: np.ndarray) -> dict[str, float]:
    """Mean, 99th percentile and maximum of staleness from counts [depth + 1]."""
    total = counts.sum()
    if total == 0:
        return {"staleness_mean": 0.0, "staleness_p99": 0, "staleness_max": 0}
    ages = np.arange(len(counts))
    return {
        "staleness_mean": float(ages @ counts / total),
        "staleness_p99": int(np.searchsorted(np.cumsum(counts), 0.99 * total)),
        "staleness_max": int(ages[counts > 0].max()),
    }


def dropped_share(rule: Rule, counters: Counters, step: int) -> np.ndarray:
    """Gradients refused until an update, a share of all that arrived [seeds, cells].

    What a cluster's server refuses never gets to the rules of the optimizer.
    """
    by_server = 0.0 if rule.dropped is None else rule.dropped(step)[:, None]
    by_rules = counters.dropped / np.maximum(counters.arrived, 1)
    return by_server + (1.0 - by_server) * by_rules


def results(
    program: Program,
    counters: Counters,
    initial: Mapping[str, np.ndarray],
    final: Mapping[str, np.ndarray],
) -> list[dict[str, Any]]:
    """The rows of a program for results.csv, one a seed and cell.

    A cell has diverged if its loss was not finite at some update, or if its training
    loss ends above where it began.
    """
    rule, rows = program.rule, []
    dropped = dropped_share(rule, counters, rule.updates)
    for s, seed in enumerate(program.seeds):
        for c, setting in enumerate(program.settings()):
            stopped = int(counters.diverged_step[s, c])
            done = rule.updates if stopped < 0 else stopped
            counts = counters.staleness_counts[s, c]
            worse = not final["train_loss"][s, c] <= initial["train_loss"][s, c]
            row = setting | {
                "seed": seed,
                "updates": done,
                "examples": int(rule.examples(done)[s]),
                "diverged": int(stopped >= 0 or worse),
                "diverged_update": stopped,
                **{name: float(values[s, c]) for name, values in final.items()},
                **staleness_summary(counts),
                "dropped": float(dropped[s, c]),
                "dropped_in_row": int(counters.dropped_in_row[s, c]),
            }
            if rule.seconds is not None:
                row["seconds"] = float(rule.seconds(done)[s])
            rows.append(row)
    return rows


def curves(program: Program, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a program for curves.csv, one a seed, cell and evaluation."""
    found = []
    for row in rows:
        for s, seed in enumerate(program.seeds if "evaluation" in row else ()):
            for c, setting in enumerate(program.settings()):
                values = {
                    name: math.nan if table[s][c] is None else table[s][c]
                    for name, table in row["evaluation"].items()
                }
                when = {"seconds": row["seconds"][s]} if "seconds" in row else {}
                found.append(
                    setting
                    | {"seed": seed, "update": row["step"]}
                    | {"examples": row["examples"][s], **when}
                    | values
                )
    return found


def settings(programs: Iterable[Program]) -> list[str]:
    """The columns that say what was trained: labels and axes of all programs."""
    return list(dict.fromkeys(name for p in programs for name in p.settings()[0]))


def tables(
    experiment: Experiment,
    settings: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    curves: Sequence[Mapping[str, Any]],
) -> Found:
    """Rows as tables: settings on the left of the seed, what was measured right.

    The rows of the tuning seeds are in the tables of `choice` alone.
    """
    made = []
    for rows in (results, curves):
        table = analysis.derived(pd.DataFrame(rows))
        measured = [name for name in table if name not in settings]
        made.append(table.reindex(columns=[*settings, *measured]))
    choice = analysis.Choice(experiment.tuned_axes, experiment.tuned_by)
    tuning = experiment.tuning_seed_numbers
    if not tuning:
        return Found(*made, choice)
    chooses = [table["seed"].isin(tuning) for table in made]
    reported, chosen = (
        [
            table[rows].reset_index(drop=True)
            for table, rows in zip(made, own, strict=True)
        ]
        for own in ([~rows for rows in chooses], chooses)
    )
    return Found(*reported, choice._replace(results=chosen[0], curves=chosen[1]))


def _metric_record(metric: str | analysis.TimeTo) -> Any:
    """A metric for run.json."""
    return metric if isinstance(metric, str) else metric._asdict()


def _metric(record: Any) -> str | analysis.TimeTo:
    return record if isinstance(record, str) else analysis.TimeTo(**record)


def with_lost(folder: Path, found: Found) -> Found:
    """The tables, with evaluations that only the folder's own curves.csv has.

    They are those of lines of metrics.jsonl that can be read no more.
    """
    found = found._replace(curves=_with_lost(folder / "curves.csv", found.curves))
    choice = found.choice
    if choice.curves is None:
        return found
    curves = _with_lost(folder / _TUNING / "curves.csv", choice.curves)
    return found._replace(choice=choice._replace(curves=curves))


def _with_lost(file: Path, curves: pd.DataFrame) -> pd.DataFrame:
    if not file.exists():
        return curves
    before = _read_table(file)
    text = io.StringIO(curves.to_csv(index=False))
    now = pd.read_csv(text, keep_default_na=False, na_values=[""])
    keys = [*analysis.settings(now), "seed", "update"]
    if not {*keys} <= {*before}:
        return curves
    there = set(now[keys].astype(str).itertuples(index=False, name=None))
    rows = before[keys].astype(str).itertuples(index=False, name=None)
    lost = before[[row not in there for row in rows]]
    if lost.empty:
        return curves
    return pd.concat([now, lost], ignore_index=True).sort_values(
        "update", kind="stable", ignore_index=True
    )


def write_tables(folder: Path, found: Found) -> None:
    """Writes results.csv and curves.csv, each whole or not at all.

    Those of the tuning seeds are in the folder tuning/.
    """
    choice = found.choice
    if choice.results is not None:
        (folder / _TUNING).mkdir(exist_ok=True)
        replace(folder / _TUNING / "results.csv", choice.results.to_csv(index=False))
        replace(folder / _TUNING / "curves.csv", choice.curves.to_csv(index=False))
    replace(folder / "results.csv", found.results.to_csv(index=False))
    replace(folder / "curves.csv", found.curves.to_csv(index=False))


_TUNING = "tuning"
"""The folder with the tables of the tuning seeds."""


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
    choice: analysis.Choice = dataclasses.field(default_factory=analysis.Choice)

    @classmethod
    def read(cls, *folders: str | os.PathLike[str]) -> "Run":
        """Reads a run, or several as one.

        The tables of several get a column `run`. It is a setting, but of the shards of
        one run, which have the same config and no cell in common.

        Raises:
            ValueError: if a folder holds no finished run.
        """
        paths = [Path(folder).expanduser() for folder in folders]
        infos = [Folder.info(path) for path in paths]
        rows = [row for path in paths for row in read_metrics(path / "metrics.jsonl")]
        names = [path.name for path in paths]
        if len(set(names)) < len(names):
            names = [str(path) for path in paths]
        tables = [
            [
                _read_table(path / f"{table}.csv").assign(**_named(name, len(paths)))
                for path, name in zip(paths, names, strict=True)
            ]
            for table in ("results", "curves")
        ]
        tuning = [
            [
                _read_table(path / _TUNING / f"{table}.csv").assign(
                    **_named(name, len(paths))
                )
                if info.get("tuning_seeds")
                else own  # its own seeds choose
                for path, info, name, own in zip(
                    paths, infos, names, there, strict=True
                )
            ]
            for table, there in zip(("results", "curves"), tables, strict=True)
        ]
        left = dict.fromkeys(c for own in tables[0] for c in analysis.settings(own))
        joined = [pd.concat(own, ignore_index=True) for own in (*tables, *tuning)]
        what = [[info.get(key) for key in ("question", "config")] for info in infos]
        differ = any(own != what[0] for own in what)
        same = joined[0].duplicated([*left, "seed"]).any()
        if len(paths) > 1 and (differ or same):
            left = {"run": None, **left}
        results, curves, *chosen = (
            table[[*left, *(c for c in table if c not in left)]] for table in joined
        )
        choice = analysis.Choice(
            tuple(infos[0].get("tuned", ())),
            _metric(infos[0].get("tuned_by", "train_loss")),
        )
        if any(info.get("tuning_seeds") for info in infos):
            choice = choice._replace(results=chosen[0], curves=chosen[1])
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
        """Of the tasks, as far as all programs share them."""
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


def _named(name: str, of: int) -> dict[str, str]:
    return {"run": name} if of > 1 else {}


def _read_table(file: Path) -> pd.DataFrame:
    """A label may be "None" or "NA"; an empty place is nan."""
    if not file.exists():
        raise ValueError(f"{file.parent} holds no finished run: there is no {file}.")
    try:
        return pd.read_csv(file, keep_default_na=False, na_values=[""])
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{file} cannot be read: {error}.") from error


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


def number(value: Any) -> float | None:
    """JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def numbers(table: Any) -> list[list[float | None]]:
    """A table without NaN, [seeds][cells]."""
    return [[number(value) for value in row] for row in np.asarray(table)]


def replace(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
