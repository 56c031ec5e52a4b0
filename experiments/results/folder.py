"""A run's folder: whose run it is, in run.json, and what its clusters did."""

import contextlib
import datetime
import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import delayjax as dj

TABLES = ("results", "curves")
"""What a finished run has, each a file .csv."""

TUNING = "tuning"
"""The folder with the tables of the tuning seeds."""

Digest = Callable[[int], dict[str, str]]
"""updates -> {part of a program: its fingerprint}, of a run of so many."""


_log = logging.getLogger("experiments")


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
        record: Mapping[str, Any],
        digests: Mapping[str, Digest],
        traces: Mapping[str, tuple[Mapping[str, Any], dj.cluster.Trace]],
        forget: Callable[[str], None],
    ) -> None:
        """Checks that what is there belongs to this run; writes run.json and traces.

        Args:
            record: what is run, as run.json has it.
            digests: {program: its digest}.
            traces: {program: (labels, what its cluster does)}.
            forget: called with each program that begins at update 0 once more: what
                there is of it lacks evaluations that a run from the start has.

        Raises:
            ValueError: if the folder holds another run, naming what differs, or files
                of no run that would be overwritten.
        """
        before = read_info(self.path)
        record = json.loads(json.dumps(record, default=str))
        if before:
            _check_same(self.path, before, record, digests)
            for name in _evaluated_otherwise(before, record):
                forget(name)
        else:
            _check_empty(self.path)
        saved = []
        for name, (labels, trace) in traces.items():
            saved.append({"file": f"traces/{name}.npz", "labels": dict(labels)})
            self._save_trace(self.path / saved[-1]["file"], trace)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._write(
            record
            | {
                "traces": saved,
                "argv": sys.argv,
                "versions": versions(),
                "git": git_hash(),
                "devices": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
                # as it was stated before the run began
                "published": before.get("published") or record.get("published"),
                "started": before.get("started") or now,
                "wall_seconds": before.get("wall_seconds", 0.0),
                "finished": before.get("finished", {}),
                "tables": before.get("tables", {}),
            }
        )

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

    def finish(self, programs: Mapping[str, Any]) -> None:
        """Notes that the tables are whole, and a fingerprint of each.

        Args:
            programs: {name: {"updates": ..., "evaluate_every": ..., "metrics": [...]}}.
        """
        tables = {
            name: _fingerprint(path)
            for name, path in _tables(self.path).items()
            if path.exists()
        }
        done = {"finished": dict(programs), "tables": tables}
        self._write(read_info(self.path) | done)

    def is_finished(self, programs: Mapping[str, Any]) -> bool:
        """Whether the tables have these updates, evaluations and metrics of these.

        Tables that are not as the run wrote them are said, and are to be made anew.
        """
        info = read_info(self.path)
        there, changed = info.get("finished", {}), changed_tables(self.path, info)
        for name in changed:
            _log.warning(
                "%s is not as the run wrote it: the tables are made anew.",
                self.path / name,
            )
        return (
            not changed
            and bool(info.get("tables"))
            and all(
                name in there
                and there[name] | {"metrics": asked["metrics"]} == asked
                and {*asked["metrics"]} <= {*there[name]["metrics"]}
                for name, asked in programs.items()
            )
        )

    def spent(self, seconds: float) -> None:
        """Adds to the time that the run took."""
        record = read_info(self.path)
        with contextlib.suppress(OSError):  # a full disk, which is said elsewhere
            self._write(
                record | {"wall_seconds": record.get("wall_seconds", 0.0) + seconds}
            )

    def _write(self, record: Mapping[str, Any]) -> None:
        replace(self.path / "run.json", json.dumps(record, indent=2) + "\n")


def read_info(folder: Path) -> dict[str, Any]:
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


def changed_tables(folder: Path, info: Mapping[str, Any]) -> list[str]:
    """The tables that are not as the run wrote them: cut off, edited, or gone.

    Args:
        folder: the run's.
        info: its run.json. Before the end of a run it knows of no table.
    """
    paths, known = _tables(folder), info.get("tables", {})
    return [
        name
        for name, fingerprint in known.items()
        if not paths[name].exists() or _fingerprint(paths[name]) != fingerprint
    ]


def _tables(folder: Path) -> dict[str, Path]:
    """{name: file} of all tables that a run may have."""
    names = [f"{name}.csv" for name in TABLES]
    names += [*(f"{TUNING}/{name}" for name in names), "optima.csv"]
    return {name: folder / name for name in names}


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _check_same(
    path: Path,
    there: Mapping[str, Any],
    here: Mapping[str, Any],
    digests: Mapping[str, Digest],
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
        f"  {what.replace('_', ' ')}: {there.get(what)} there, {here.get(what)} now"
        for what in ("seeds", "tuning_seeds", "search")
        if (there.get(what) or []) != (here.get(what) or [])
    ]
    for what in ("cells", "searched", "facts", "batch"):
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


def _evaluated_otherwise(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> list[str]:
    """The programs that have not been evaluated wherever this run evaluates them."""
    now = {
        program["name"]: program.get("evaluate_every", 1)
        for program in here["programs"]
    }
    every = {
        program["name"]: (
            program["updates"],
            program.get("evaluate_every", now[program["name"]]),
        )
        for program in there["programs"]
        if program["name"] in now
    }
    return [
        name
        for name, (updates, before) in every.items()
        if any(update % before for update in range(0, updates, now[name]))
    ]


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


def replace(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
