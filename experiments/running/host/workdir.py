"""A run's folder: a local one as it is, a remote one through a local copy."""

import atexit
import json
import secrets
import shutil
import socket
import tempfile
import time
from pathlib import Path

import jax
from etils import epath

from experiments.running.host import processes

_PATIENCE = 5.0  # seconds until a file of another host is seen

# what the same command reads when it goes on; checkpoints are read where they are
_READ = ("run.json", "metrics.jsonl", "results.csv", "curves.csv", "traces/*.npz")
_READ += ("tuning/*.csv", "search.csv", "optima.csv")


_WRITTEN = ("run.json", "metrics.jsonl", "results.csv", "curves.csv", "report.html")
_WRITTEN += ("tuning", "traces", "figures", "checkpoints", "tensorboard", "profile")
_WRITTEN += ("search.csv", "optima.csv")


class Workdir:
    """Where a run's records are written, and where they end up.

    An object in a bucket cannot be appended to. Records of a remote run (gs://, s3://)
    are therefore written to a local folder, and its files are uploaded whole, those
    that have changed since, by `upload`. Checkpoints go straight to their place.
    """

    def __init__(self, path: str):
        """Names the folder; nothing is read or written yet. A leading ~ is home."""
        try:
            self._path = epath.Path(path).expanduser()
            self.local = Path(path).expanduser()
        except KeyError:  # a scheme that nobody knows
            raise ValueError(
                f"--workdir={path}: no storage is called {path.partition('://')[0]!r}:"
                " give a folder, or gs:// or s3://."
            ) from None
        except RuntimeError as error:  # a home that nobody has
            raise ValueError(f"--workdir={path}: {error}: give a folder.") from None
        self.checkpoints = self._path / "checkpoints"
        self._remote = self._path if "://" in path else None
        self._uploaded: dict[Path, tuple[int, int]] = {}
        if self._remote is None:
            place = self.local.resolve()
            if place == place.parent or (place / ".git").exists():
                raise ValueError(
                    f"--workdir={path} is {place}, which holds more than a run: name a"
                    f" folder in it, as {self.local / 'runs'}."
                )
        else:
            self.local = Path(tempfile.mkdtemp(prefix="delayjax-"))
            atexit.register(shutil.rmtree, self.local, ignore_errors=True)

    def shown(self, text: object) -> str:
        """A text with the folder's own name in place of the local copy's."""
        if self._remote is None:
            return str(text)
        return str(text).replace(str(self.local), str(self._remote))

    def check_shared(self) -> None:
        """Checks that all processes of a run reach this one folder.

        Process 0 writes a random number there, and all must read it. It is removed.

        Raises:
            ValueError: in every process, naming those that do not read it; or if
                process 0 cannot write there.
        """
        if jax.process_count() == 1:
            return
        processes.check_agreement({"--workdir": str(self._path)})
        nonce = processes.of_all(secrets.token_hex(8))[0]
        # a new name each time: a network file system remembers what was not there
        file = self._path / f".nonce-{nonce}"
        processes.together(lambda: self._write_nonce(file, nonce))
        try:
            said = processes.of_all(json.dumps(_cannot_read(file, nonce)))
        finally:
            if processes.is_first():
                file.unlink(missing_ok=True)
        found = [json.loads(text) for text in said]
        missing = [i for i, (_, reason) in enumerate(found) if reason]
        if missing:
            (where, _), (there, reason) = found[0], found[missing[0]]
            raise ValueError(
                f"--workdir={self._path} must be one folder that all hosts reach:"
                f" process {', '.join(map(str, missing))} cannot read there what"
                f" process 0 wrote. Process 0 wrote {where}; process {missing[0]}"
                f" looked for {there} ({reason}). Choose a shared folder, by its"
                " absolute path, or a bucket."
            )

    def _write_nonce(self, file: epath.Path, nonce: str) -> None:
        if not processes.is_first():
            return
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            file.write_text(nonce)
        except Exception as error:  # each storage has errors of its own
            raise ValueError(self._unusable(error)) from error

    def download(self) -> None:
        """Fetches what the run wrote before; nothing to do for a local folder.

        Raises:
            ValueError: if the remote folder cannot be read and written.
        """
        if self._remote is None:
            return
        try:
            self._remote.mkdir(parents=True, exist_ok=True)
            probe = self._remote / ".writable"
            probe.write_text("")
            probe.unlink()
            for pattern in _READ:
                for path in self._remote.glob(pattern):
                    there = self.local / path.relative_to(self._remote)
                    there.parent.mkdir(exist_ok=True)
                    there.write_bytes(path.read_bytes())
                    self._uploaded[there] = _version(there)
        except Exception as error:  # each storage has errors of its own
            raise ValueError(self._unusable(error)) from error

    def _unusable(self, error: Exception) -> str:
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = "choose a folder of your own"
        if self._remote is not None:
            remedy = (
                "see that the bucket is there, that this host may write to it, and that"
                " fsspec knows it (gs:// needs `pip install gcsfs`)"
            )
        return f"--workdir={self._path} cannot be used ({reason}): {remedy}."

    def clear(self) -> None:
        """Removes what a run writes, here and where it ends up; nothing else."""
        for root in {self._path, epath.Path(self.local)}:
            for name in _WRITTEN:
                path = root / name
                if path.is_dir():
                    path.rmtree()
                else:
                    path.unlink(missing_ok=True)
        self._uploaded = {}

    def remove_checkpoints(self, program: str = "") -> None:
        """Removes all checkpoints, or the checkpoints of one program."""
        folder = self.checkpoints / program
        if folder.exists():
            folder.rmtree()

    def upload(self) -> None:
        """Copies what has changed since; nothing to do for a local folder."""
        if self._remote is None:
            return
        for path in sorted(self.local.rglob("*")):
            if path.is_file() and self._uploaded.get(path) != _version(path):
                version = _version(path)
                there = self._remote / path.relative_to(self.local)
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_bytes(path.read_bytes())
                self._uploaded[path] = version


def _cannot_read(file: epath.Path, nonce: str) -> tuple[str, str]:
    """Where this process looks for a file, and why it is not there; "" if it is."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            reason = "" if file.read_text() == nonce else "it has other contents"
        except Exception as error:  # each storage has errors of its own
            reason = type(error).__name__
        if not reason or time.monotonic() > deadline:
            return f"{socket.gethostname()}:{file.parent.resolve()}", reason
        time.sleep(0.1)


def _version(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size
