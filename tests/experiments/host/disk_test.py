"""A full disk is known by the system's number, and a file is whole or not there."""

import errno
import os
from pathlib import Path

import pytest

from experiments.host import disk

# as TensorStore says it, which raises no OSError
TENSORSTORE = "RESOURCE_EXHAUSTED: Failed to write 9 bytes [os_error_code='{}']"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("kind", ["system", "TensorStore"])
def test_a_full_disk_and_a_used_up_quota_are_one_line(tmp_path, number, kind):
    error = OSError(number, "in any language")
    if kind == "TensorStore":
        error = ValueError(TENSORSTORE.format(number))
    with (
        pytest.raises(OSError, match=rf"^the disk of {tmp_path} is full: make room"),
        disk.one_line_if_full(tmp_path),
    ):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "No space left on device, in words"),
        ValueError(TENSORSTORE.format(errno.EIO)),
        ValueError("No space left on device, and the quota is exceeded"),
    ],
)
def test_another_error_stays_what_it_was(tmp_path, error):
    with (
        pytest.raises(type(error)) as raised,
        disk.one_line_if_full(tmp_path),
    ):
        raise error
    assert raised.value is error


def test_what_is_added_to_a_full_disk_says_so():
    with pytest.raises(OSError, match=r"^the disk of /dev is full"):
        disk.append(Path("/dev/full"), "a line\n")


def test_a_file_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    disk.replace(path, "before")

    def full(file):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"the disk of {tmp_path} is full"):
        disk.replace(path, "after")
    assert path.read_text() == "before"
