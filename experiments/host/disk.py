"""Writes files whole or not at all, and reports a full disk in one line."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

_FULL = (
    "the disk of {} is full: make room, and the same command goes on from the last"
    " checkpoint."
)


def full_error(folder: os.PathLike[str]) -> OSError:
    """The error of a full disk."""
    return OSError(_FULL.format(os.fspath(folder)))


@contextlib.contextmanager
def one_line_if_full(folder: os.PathLike[str]) -> Iterator[None]:
    """If the disk or a quota is full in the block, raises an error of one line.

    Raises:
        OSError: one that names the folder.
    """
    try:
        yield
    except Exception as error:
        if errno_of(error) in (errno.ENOSPC, errno.EDQUOT):
            raise full_error(folder) from error
        raise


def errno_of(error: BaseException) -> int | None:
    """The number of a system's error, also from a text of TensorStore.

    Example:
        >>> errno_of(OSError(errno.ENOSPC, "full")) == errno.ENOSPC
        True
        >>> errno_of(ValueError("No space left on device [os_error_code='28']"))
        28
    """
    if isinstance(error, OSError):
        return error.errno
    number = re.search(r"os_error_code='(\d+)'", str(error))
    return int(number[1]) if number else None


def replace(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    _write(part, "w", text)
    part.replace(path)


def append(path: Path, text: str) -> None:
    """Adds lines to a file; they are on the disk when it returns."""
    _write(path, "a", text)


def _write(path: Path, mode: str, text: str) -> None:
    with one_line_if_full(path.parent), path.open(mode) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
