"""A run's folder: a local one as it is, a remote one through a local copy."""

import atexit
import shutil
import tempfile
from pathlib import Path

from etils import epath

# what the same command reads when it goes on; checkpoints are read where they are
_READ = ("run.json", "metrics.jsonl", "results.csv", "curves.csv", "traces/*.npz")


class Workdir:
    """Where a run's records are written, and where they end up.

    An object in a bucket cannot be appended to. Records of a remote run (gs://, s3://)
    are therefore written to a local folder, and its files are uploaded whole, those
    that have changed since, by `upload`. Checkpoints go straight to their place.
    """

    def __init__(self, path: str):
        """Names the folder; nothing is read or written yet."""
        self.checkpoints = epath.Path(path) / "checkpoints"
        self._remote = epath.Path(path) if "://" in path else None
        self._uploaded: dict[Path, tuple[int, int]] = {}
        if self._remote is None:
            self.local = Path(path)
        else:
            self.local = Path(tempfile.mkdtemp(prefix="delayjax-"))
            atexit.register(shutil.rmtree, self.local, ignore_errors=True)

    def shown(self, text: object) -> str:
        """A text with the folder's own name in place of the local copy's."""
        if self._remote is None:
            return str(text)
        return str(text).replace(str(self.local), str(self._remote))

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
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(
                f"--workdir={self._remote} cannot be used ({reason}): see that the"
                " bucket is there, that this host may write to it, and that fsspec"
                " knows it (gs:// needs `pip install gcsfs`)."
            ) from error

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


def _version(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size
