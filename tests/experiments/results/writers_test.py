"""Where the numbers of a run go: a full disk is one line there too."""

import errno
import os
import subprocess
import sys

import pytest

from experiments.results.writers import TensorBoard
from tests.support.commands import ROOT

pytestmark = pytest.mark.runs


def full(file):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_event_files_on_a_full_disk_are_one_line_and_their_end_says_nothing(
    tmp_path, monkeypatch
):
    writer = TensorBoard(tmp_path)
    writer.write("all", 0, {"loss": 1.0})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"^the disk of {tmp_path} is full: make room"):
        writer.write("all", 1, {"loss": 0.5})
    writer.close()


def test_a_process_with_event_files_on_a_full_disk_ends_without_a_word(tmp_path):
    """TensorBoardX closes its files once more as the process ends."""
    program = f"""
import os, pathlib
from experiments.results.writers import TensorBoard
from tests.experiments.results.writers_test import full
writer = TensorBoard(pathlib.Path({str(tmp_path)!r}))
writer.write("all", 0, {{"loss": 1.0}})
os.fsync = full
writer.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
