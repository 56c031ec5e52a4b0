"""What a run leaves in its workdir: config.json, metrics.jsonl, tables, events."""

import csv
import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict
from tensorboardX import SummaryWriter

import delayjax as dj
from experiments import arms, grid, throughput
from experiments import results as tables
from experiments.course import Course
from experiments.train import Chunk, Counters
from experiments.tuning import Limit

# What may differ between two commands that work on the same run.
_NOT_THE_RUN = ("dry_run", "profile", "advise")

_SETTING = (
    *("task", "arm", "optimizer", "learning_rate", "delay_law", "delay"),
    *("modulation", "placement", "compensation", "strength", "seed"),
)
COLUMNS = (
    *_SETTING,
    *("steps", "updates", "seconds", "seconds_to_target", "diverged", "diverged_step"),
    *tables.EVALUATED,
    *("staleness_mean", "staleness_p99", "staleness_max", "clipped", "dropped"),
)
CURVE_COLUMNS = (*_SETTING, "step", "seconds", "examples", *tables.EVALUATED)


def open_workdir(workdir: Path, config: ConfigDict) -> None:
    """Creates the folder, or checks that it holds a run of the same config.

    Raises:
        ValueError: if it cannot be written, or holds another config's run.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"--workdir={workdir} cannot be written ({error.strerror}): choose a folder"
            " of your own."
        ) from error
    path = workdir / "config.json"
    if not path.exists():
        return
    try:
        there = flatten_dict(json.loads(path.read_text())["config"], sep=".")
    except (json.JSONDecodeError, KeyError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): choose another --workdir."
        ) from error
    here = flatten_dict(json.loads(json.dumps(config.to_dict())), sep=".")
    differences = [
        f"  {key}: {there.get(key, 'absent')} there, {here.get(key, 'absent')} now"
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key) and key not in _NOT_THE_RUN
    ]
    if differences:
        raise ValueError(
            f"--workdir={workdir} holds the run of another config:\n"
            + "\n".join(differences)
            + "\nChoose another --workdir, or give the same config to go on with it."
        )


def write_config(
    workdir: Path,
    config: ConfigDict,
    *,
    docstring: str,
    facts: Mapping[str, Any],
    limits: Sequence[Limit] = (),
    wall_seconds: float | None,
) -> None:
    """Writes config.json: what ran, on what, with what."""
    path = workdir / "config.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    spent = before.get("wall_seconds")
    record = {
        "config": config.to_dict(),
        "expected": config.expected.to_dict(),
        "docstring": docstring,
        "argv": sys.argv,
        "seeds": list(config.seeds),
        "versions": {
            "python": platform.python_version(),
            **{
                name: importlib.metadata.version(name)
                for name in ("jax", "jaxlib", "optax", "flax", "numpy")
            },
            "delayjax": dj.__version__,
        },
        "git": git_hash(),
        "devices": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "facts": dict(facts),
        # a repeated command need not ask for them again
        "limits": [
            {**limit._asdict(), "series": limit.series._asdict()} for limit in limits
        ]
        or before.get("limits", []),
        "started": before.get("started")
        or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "wall_seconds": spent if wall_seconds is None else (spent or 0) + wall_seconds,
    }
    _replace(path, json.dumps(record, indent=2) + "\n")


def git_hash() -> str:
    """The commit of the checkout, with "+" where files differ from it."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


class Metrics:
    """One row a chunk in metrics.jsonl, and the same numbers as TensorBoard events."""

    def __init__(
        self,
        workdir: Path,
        program: grid.Program,
        steps_kept: int,
        course: Course | None = None,
        work: throughput.Work | None = None,
    ):
        """Opens both; rows of `program` after update `steps_kept` are forgotten.

        Args:
            workdir: the run's folder.
            program: whose rows these are.
            steps_kept: the update that the run resumes from, so that the file ends as
                if it had never been interrupted.
            course: of the program's arm.
            work: of an update, for what is trained on a second; None writes none.
        """
        self._course, self._work = course, work
        self._path = workdir / "metrics.jsonl"
        self._program = program.name
        kept = [
            row
            for row in tables.read_metrics(self._path)
            if row["program"] != program.name or row["step"] <= steps_kept
        ]
        _replace(self._path, "".join(json.dumps(row) + "\n" for row in kept))
        self._events = SummaryWriter(
            str(workdir / "tensorboard" / program.name), purge_step=steps_kept + 1
        )

    def write(
        self, step: int, chunk: Chunk, counters: Counters, seconds: float
    ) -> dict[str, Any]:
        """Appends the numbers of a chunk and returns them."""
        live = counters.diverged_step < 0
        trained = self._trained(step, chunk)
        with np.errstate(over="ignore"):  # of losses on their way to infinity
            losses = np.mean(chunk.loss, axis=0, where=trained)
        counts = counters.staleness_counts.sum((0, 1))
        summary = staleness_summary(counts)
        used = max(int(counts.sum()), 1)
        steps_per_second = len(chunk.loss) / seconds
        row = {
            "program": self._program,
            "step": step,
            "train_loss": _number(np.median(losses[live])) if live.any() else None,
            "not_finite": int((~live).sum()),
            **summary,
            "clipped": int(counters.clipped.sum()) / used,
            "dropped": int(counters.dropped.sum()) / used,
            "steps_per_second": steps_per_second,
            **(self._work.rates(steps_per_second) if self._work else {}),
            "losses": _numbers(losses),
        }
        if self._course is not None:
            row |= {
                "dropped": float(self._course.dropped_share(step).mean()),
                "seconds": self._course.seconds(step).tolist(),
                "examples": self._course.examples(step).tolist(),
                "evaluation": {
                    name: _numbers(values) for name, values in chunk.evaluation.items()
                },
            }
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        for key, value in row.items():
            if isinstance(value, (int, float)) and key != "step":
                self._events.add_scalar(key, value, step)
        self._events.flush()
        return row

    def rows(self) -> list[dict[str, Any]]:
        """The program's rows so far."""
        return tables.read_metrics(self._path, self._program)

    def close(self) -> None:
        """Closes the event file."""
        self._events.close()

    def _trained(self, step: int, chunk: Chunk) -> Any:
        """Which updates of a chunk had gradients, [chunk, seeds, 1]; all in a delay."""
        if self._course is None:
            return True
        return self._course.counts(step - len(chunk.loss), step)[..., None] > 0


def staleness_summary(counts: np.ndarray) -> dict[str, float]:
    """Mean, 99th percentile and maximum of staleness from counts [max_delay + 1]."""
    total = counts.sum()
    if total == 0:
        return {"staleness_mean": 0.0, "staleness_p99": 0, "staleness_max": 0}
    ages = np.arange(len(counts))
    at_most = np.cumsum(counts)
    return {
        "staleness_mean": float(ages @ counts / total),
        "staleness_p99": int(np.searchsorted(at_most, 0.99 * total)),
        "staleness_max": int(ages[counts > 0].max()),
    }


def settings(config: ConfigDict, program: grid.Program) -> list[list[dict[str, Any]]]:
    """What tells apart the rows of a program: a record for each seed and cell."""
    cells = jax.tree.map(np.asarray, grid.cells(config, program))
    # as the config has them: float32 cells would print as 0.009999999776
    rates = config.opt[program.optimizer].learning_rate
    rates = dict(zip(np.float32(rates), rates, strict=True))
    strengths = (*config.compensation.strength, 0.0)
    strengths = dict(zip(np.float32(strengths), strengths, strict=True))
    delay_laws = (arms.LOGGED,) if program.arm else config.delay.law
    return [
        [
            {
                "task": config.task.name,
                "arm": program.arm,
                "optimizer": program.optimizer,
                "learning_rate": rates[cells.learning_rate[c]],
                "delay_law": delay_laws[cells.delay_law[c]],
                "delay": f"{cells.delay[c]:g}",
                "modulation": config.modulation.law[cells.modulation[c]],
                "placement": program.placement,
                "compensation": program.compensation,
                "strength": strengths[cells.strength[c]],
                "seed": seed,
            }
            for c in range(len(cells.delay))
        ]
        for seed in config.seeds
    ]


def results(
    config: ConfigDict,
    program: grid.Program,
    counters: Counters,
    initial: Mapping[str, jax.Array],
    final: Mapping[str, jax.Array],
    course: Course | None = None,
) -> list[dict[str, Any]]:
    """The rows of one program for results.csv, one a seed and cell.

    A cell has diverged if its loss was not finite at some step, or if its training loss
    ends above where it began.
    """
    steps = config.steps
    rows = []
    for s, of_seed in enumerate(settings(config, program)):
        for c, setting in enumerate(of_seed):
            began, ends = initial["train_loss"][s, c], final["train_loss"][s, c]
            stopped = int(counters.diverged_step[s, c])
            used = max(int(counters.staleness_counts[s, c].sum()), 1)
            row = setting | {
                "steps": steps,
                "updates": steps if stopped < 0 else stopped,
                "diverged": int(stopped >= 0 or not ends <= began),
                "diverged_step": stopped,
                **{
                    key: float(values[s, c])
                    for key, values in final.items()
                    if key in COLUMNS
                },
                **staleness_summary(counters.staleness_counts[s, c]),
                "clipped": int(counters.clipped[s, c]) / used,
                "dropped": int(counters.dropped[s, c]) / used,
            }
            if course is not None:
                row["seconds"] = float(course.seconds(row["updates"])[s])
                row["dropped"] = float(course.dropped_share(steps)[s])
            rows.append(row)
    return rows


def write_results(workdir: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes results.csv, whole or not at all."""
    _write_table(workdir / "results.csv", COLUMNS, rows)


def write_curves(workdir: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes curves.csv, whole or not at all."""
    _write_table(workdir / "curves.csv", CURVE_COLUMNS, rows)


def write_trace(workdir: Path, course: Course, seed: int) -> None:
    """Keeps the first seed's trace of an arm for the figures, traces/ARM-seedS.npz.

    Raises:
        ValueError: if another one is there already: the run cannot go on along it.
    """
    path = workdir / arms.trace_file(course.name, seed)
    trace = course.traces[0]
    if path.exists():
        there = dj.cluster.load_trace(path)
        if not all(
            np.array_equal(getattr(trace, name), getattr(there, name))
            for name in ("seconds", "update", "worker", "read_version", "divisor")
        ):
            raise ValueError(
                f"{path} is the trace of another run of {course.name!r}: the file"
                " config.trace or the simulator has changed. Choose another --workdir."
            )
        return
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"part-{path.name}")
    trace.save(part)
    part.replace(path)


def _write_table(
    path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)


def _number(value: Any) -> float | None:
    """JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def _numbers(table: Any) -> list[list[float | None]]:
    return [[_number(value) for value in row] for row in table]


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
