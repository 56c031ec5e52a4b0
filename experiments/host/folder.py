"""A run's folder: its files, the processes that write them, and remote folders."""

import atexit
import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import pandas as pd
from etils import epath

import delayjax as dj
from experiments.host import disk, identity, processes, software
from experiments.host.progress import log

TABLES = ("results", "curves")
"""The tables of a finished run, each a file .csv."""

TUNING = "tuning"
"""The folder with the tables of the tuning seeds."""

_TABLE_FILES = (*(f"{name}.csv" for name in TABLES), "optima.csv")
_TABLE_FILES += tuple(f"{TUNING}/{name}.csv" for name in TABLES)
_RECORDS = ("run.json", "metrics.jsonl", "search.csv")
_FOLDERS = ("checkpoints/", f"{TUNING}/", "traces/", "figures/", "tensorboard/")
_FOLDERS += ("profile/",)
# a resumed run reads these; checkpoints are read from their place
_READ = (*_RECORDS, *_TABLE_FILES, "traces/*.npz")


class RunFolder:
    """A local folder of a run, or a local copy of a remote one.

    An object in a bucket cannot be appended to, nor written many times a second. Files
    of a remote run (gs://, s3://) are therefore written to a local folder, and `upload`
    copies the changed ones as a whole. Checkpoints are written directly to the bucket.

    Attributes:
        path: the local folder in which files are read and written.
        checkpoints: the folder of the checkpoints, remote if the run's folder is.
        metrics: the file with the numbers of the training, one line per chunk.
        search: the file with the trainings of the searches.
        tensorboard: the folder of TensorBoard's event files.
        profile: the folder of JAX's profiles.
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Names the files; nothing is read or written yet. A leading ~ is home."""
        text = os.fspath(path)
        if not text:
            raise ValueError("--workdir is empty: give the folder to write to.")
        try:
            self._place = epath.Path(text).expanduser()
            self.path = Path(text).expanduser()
            home = Path(text.partition("/")[0]).expanduser()
        except KeyError:  # an unknown scheme
            raise ValueError(
                f"--workdir={text}: no storage is called {text.partition('://')[0]!r}:"
                " give a folder, or gs:// or s3://."
            ) from None
        except RuntimeError as error:  # an unknown home
            raise ValueError(f"--workdir={text}: {error}: give a folder.") from None
        if text.startswith("~") and not home.is_dir():  # as /nonexistent, of ~nobody
            raise ValueError(
                f"--workdir={text}: there is no folder {home}: give another folder."
            )
        self._is_remote = "://" in text
        if self._is_remote:
            self.path = Path(tempfile.mkdtemp(prefix="delayjax-"))
            atexit.register(shutil.rmtree, self.path, ignore_errors=True)
        self._uploaded: dict[Path, int] = {}  # when each uploaded file was written
        self.checkpoints = self._place / "checkpoints"
        self._record, self.metrics, self.search = (self.path / n for n in _RECORDS)
        self.tensorboard = self.path / "tensorboard"
        self.profile = self.path / "profile"

    # the processes that write

    def check_shared(self) -> None:
        """Checks that all processes of a run reach this one folder.

        Raises:
            ValueError: in every process, if one does not see what process 0 writes; or
                if process 0 cannot write there.
        """
        if jax.process_count() == 1:
            return
        # a new name each time: a network file system caches that a file was missing
        file = self._place / f".{processes.of_all(secrets.token_hex(8))[0]}"

        def write():
            if processes.is_first():
                self._place.mkdir(parents=True, exist_ok=True)
                file.write_text("")

        processes.together(write)
        (missing,) = processes.any_of(not file.exists())
        if processes.is_first():
            file.unlink()
        if missing:
            raise ValueError(
                f"--workdir={self._place} must be one folder that all hosts reach:"
                " choose a shared folder, by its absolute path, or a bucket."
            )

    def check_place(self) -> None:
        """Checks that the folder holds a run, or nothing that a run would replace.

        Raises:
            ValueError: if it holds more than a run, or files that no run wrote.
        """
        has_run = (self._place / self._record.name).exists()
        place = self.path.resolve()
        if (
            place in (place.parent, Path(os.path.expanduser("~")).resolve())
            or (place / ".git").exists()
            or (not has_run and software.has_tracked_files(place))
        ):
            raise ValueError(
                f"--workdir={self.path} is {place}, which holds more than a run: name a"
                f" folder in it, as {self.path / 'runs'}."
            )
        info = self.info
        if has_run and not (isinstance(info, dict) and "programs" in info):
            raise ValueError(
                f"{self._record} cannot be read (no run wrote it): choose another"
                " --workdir."
            )
        files = (*_RECORDS, *_TABLE_FILES, "report.html", *_FOLDERS)
        theirs = [name for name in files if (self._place / name).exists()]
        if theirs and not has_run:
            raise ValueError(
                f"--workdir={self.path} has {theirs[0]}, but no run.json: no run wrote"
                " it, and this run would replace or remove it. Choose another"
                " --workdir."
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder, and locks other runs out of it in the block.

        Raises:
            ValueError: as `check_place`, or if the folder cannot be written, or is in
                use by another run.
        """
        self.check_place()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise ValueError(
                f"--workdir={self.path} cannot be written ({error.strerror}): choose a"
                " folder of your own."
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"--workdir={self.path} is in use by another run: wait for it, or"
                    " choose another folder."
                ) from None
            yield

    # the copy of a remote folder

    def download(self) -> None:
        """Fetches the earlier files of the run; does nothing for a local folder.

        Raises:
            ValueError: if the remote folder cannot be read and written.
        """
        if not self._is_remote:
            return
        try:
            probe = self._place / ".writable"
            probe.write_text("")
            probe.unlink()
            for path in (path for name in _READ for path in self._place.glob(name)):
                here = self.path / path.relative_to(self._place)
                here.parent.mkdir(exist_ok=True)
                here.write_bytes(path.read_bytes())
        except Exception as error:  # each storage raises different errors
            raise ValueError(
                f"--workdir={self._place} cannot be used ({error!r}): check that the"
                " bucket exists, that this host may write to it, and that fsspec"
                " supports it (gs:// needs `pip install gcsfs`)."
            ) from error

    def upload(self) -> None:
        """Copies the files that have changed; does nothing for a local folder."""
        every = self.path.rglob("*") if self._is_remote else ()
        # run.json first: without it the next command would refuse the other files
        for here in sorted(every, key=lambda path: path != self._record):
            written = here.stat().st_mtime_ns
            if here.is_file() and self._uploaded.get(here) != written:
                path = self._place / here.relative_to(self.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(here.read_bytes())
                self._uploaded[here] = written

    def remove_checkpoints(self, program: str = "") -> None:
        """Removes the run's checkpoints, or one program's; other files stay."""
        names = [program] if program else [p["name"] for p in self.info["programs"]]
        written = [re.escape(name) for name in names]
        written += ["search-[0-9a-f]{8}"] * (not program)
        pattern = rf"({'|'.join(written)})(-broken-\d+)?"
        there = [*self.checkpoints.iterdir()] if self.checkpoints.exists() else []
        for path in there:
            if re.fullmatch(pattern, path.name):
                path.rmtree()
        if there and not any(self.checkpoints.iterdir()):
            self.checkpoints.rmdir()

    # run.json: the record of the run

    @property
    def info(self) -> dict[str, Any]:
        """The contents of run.json; empty if there is none.

        Raises:
            ValueError: if it cannot be read.
        """
        if not self._record.exists():
            return {}
        try:
            return json.loads(self._record.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{self._record} cannot be read ({error}): choose another --workdir."
            ) from error

    def check_same(
        self,
        record: Mapping[str, Any],
        digests: Mapping[str, Callable[[int], dict[str, str]]],
    ) -> None:
        """Checks that the files in the folder belong to this run.

        Args:
            record: the record of the run for run.json.
            digests: {program: its digest, as in `identity.changes`}.

        Raises:
            ValueError: if the folder holds another run, naming what changed.
        """
        before = self.info
        if not before:
            return
        changed = identity.changes(before, _as_written(record), digests)
        if changed:
            raise ValueError(
                f"--workdir={self.path} holds another run: {', '.join(changed)}"
                " changed. Choose another --workdir, give the same config and code"
                " to go on with it, or remove the folder to begin again."
            )

    def begin(
        self,
        record: Mapping[str, Any],
        traces: Mapping[str, tuple[Mapping[str, Any], dj.cluster.Trace]],
        finished: bool = False,
    ) -> None:
        """Writes run.json and traces, once `check_same` has accepted the record.

        Checkpoints from which the run cannot go on are removed, and a line says so.

        Args:
            record: the record of the run for run.json.
            traces: {program: (labels, the trace of its cluster)}.
            finished: whether nothing is left to train: then run.json keeps the old
                command, commit, devices and versions.
        """
        before, record = self.info, _as_written(record)
        reasons = identity.begun_again(before, record) if before else {}
        for name, reason in reasons.items():
            log.info("%s begins at update 0: %s", name, reason)
            self.remove_checkpoints(name)
        saved = [
            {"file": f"traces/{name}.npz", "labels": dict(labels)}
            for name, (labels, _) in traces.items()
        ]
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._update(
            {"started": now, "wall_seconds": 0.0, "finished": {}, "tables": {}}
            | before
            | record
            | {
                "traces": saved,
                "argv": sys.argv,
                "git": software.git_hash(),
                "devices": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
                # as it was stated before the run began
                "published": before.get("published") or record.get("published"),
            }
            # what has made a finished run stays in its record
            | (_made_with(before) if finished else {})
        )
        for item, (_, trace) in zip(saved, traces.values(), strict=True):
            _save_trace(self.path / item["file"], trace)

    def finish(self, programs: Mapping[str, Any]) -> None:
        """Records that the tables are whole, with a digest of each.

        Args:
            programs: {name: {"updates": ..., "evaluate_every": ..., "metrics": [...]}},
                and "most" if the program is searched.
        """
        there = [name for name in _TABLE_FILES if (self.path / name).exists()]
        hashes = {name: _digest(self.path / name) for name in there}
        self._update({"finished": dict(programs), "tables": hashes})

    def is_finished(self, programs: Mapping[str, Any]) -> bool:
        """Whether the tables have all updates, evaluations and metrics of the programs.

        If a table has changed after the run wrote it, a warning names it, and the
        result is False.
        """
        info, changed = self.info, self.changed_tables()
        for name in changed:
            log.warning(
                "%s is not as the run wrote it: the tables are made anew.",
                self.path / name,
            )
        if changed or not info.get("tables"):
            return False
        for name, asked in programs.items():
            done = info["finished"].get(name, {})
            # there may be further metrics
            metrics = [m for m in done.get("metrics", ()) if m in asked["metrics"]]
            if done | {"metrics": metrics} != asked:
                return False
        return True

    def spent(self, seconds: float) -> None:
        """Adds to the time that the run took."""
        before = self.info.get("wall_seconds", 0.0)
        with contextlib.suppress(OSError):  # a full disk, which is reported elsewhere
            self._update({"wall_seconds": before + seconds})

    def _update(self, record: Mapping[str, Any]) -> None:
        text = json.dumps({**self.info, **record}, indent=2) + "\n"
        disk.replace(self._record, text)

    # metrics.jsonl: the numbers of the training

    def rows(self, program: str | None = None) -> list[dict[str, Any]]:
        """The rows of one program or of all, without lines that cannot be read."""
        text = self.metrics.read_text() if self.metrics.exists() else ""
        rows, broken = [], 0
        for line in text.splitlines():
            try:
                row = json.loads(line)
                rows.append(row | {"program": row["program"], "step": row["step"]})
            except (json.JSONDecodeError, KeyError, TypeError):
                broken += 1
        if broken:
            log.warning(
                "%s: %d lines cannot be read and are left out.", self.metrics, broken
            )
        return [row for row in rows if program in (None, row["program"])]

    def cut_rows_after(self, program: str, last: int) -> None:
        """Removes the rows of a program after the update from which it resumes.

        The file then ends as if the run had never been interrupted.

        Args:
            program: the name of the program.
            last: the update; 0 removes all rows of the program.
        """
        rows = [
            row
            for row in self.rows()
            if row["program"] != program or (last and row["step"] <= last)
        ]
        disk.replace(self.metrics, "".join(map(_line, rows)))

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Appends the numbers of a chunk."""
        disk.append(self.metrics, _line(row))

    # the tables

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        """Writes a table whole or not at all."""
        path = self.path / f"{name}.csv"
        path.parent.mkdir(exist_ok=True)
        disk.replace(path, table.to_csv(index=False))

    def table(self, name: str) -> pd.DataFrame:
        """Reads a table.

        Raises:
            ValueError: if the table is missing or cannot be read.
        """
        path = self.path / f"{name}.csv"
        if not path.exists():
            raise ValueError(
                f"{path.parent} holds no finished run: there is no {path}."
            )
        return read_table(path)

    def changed_tables(self) -> list[str]:
        """The tables that are not as the run wrote them: cut off, edited, or gone.

        Before its end a run has no tables.
        """
        known = self.info.get("tables", {}).items()
        paths = {name: self.path / name for name, _ in known}
        return [
            name
            for name, hashed in known
            if not paths[name].exists() or _digest(paths[name]) != hashed
        ]


def read_table(file: Any) -> pd.DataFrame:
    """Reads a table. A label may be "None" or "NA"; an empty place is nan."""
    return pd.read_csv(file, keep_default_na=False, na_values=[""])


def _as_written(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as run.json has it, with the versions of the software."""
    written = json.loads(json.dumps(record, default=str))
    return written | {"versions": software.versions()}


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _save_trace(path: Path, trace: dj.cluster.Trace) -> None:
    """Writes a trace, unless the file has as many updates of the same run's trace."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or dj.cluster.load_trace(path).num_updates < trace.num_updates:
        trace.save(path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _made_with(info: Mapping[str, Any]) -> dict[str, Any]:
    """The command, commit, devices and versions with which a run was made."""
    return {name: info[name] for name in ("argv", "git", "devices", "versions")}
