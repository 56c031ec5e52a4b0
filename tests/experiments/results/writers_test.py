"""Where the numbers of a run go: a full disk is one line there too."""

import errno
import logging
import os
import subprocess
import sys

import pytest
from tensorboardX import SummaryWriter

from experiments.results.writers import TensorBoard, scalars
from tests.support.commands import ROOT

pytestmark = pytest.mark.runs


def full(file):
    raise OSError(errno.ENOSPC, "No space left on device")


# the thread of tensorboardX may meet the full disk too
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
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


def test_the_names_of_scalars_are_written_without_a_warning(
    tmp_path, monkeypatch, caplog
):
    row = {"step": 3, "losses": [[0.5, 0.25]], "/lost (share)": 0.0}
    row["evaluation"] = {"test error, %": [[3.0, 2.0]]}
    shown = scalars([{"rate": 0.1, "law": "a b"}, {"rate": 1.0, "law": "c"}], row)
    add, tags = SummaryWriter.add_scalar, {}

    def kept(events, tag, value, step):
        tags[tag] = value
        add(events, tag, value, step)

    monkeypatch.setattr(SummaryWriter, "add_scalar", kept)
    writer = TensorBoard(tmp_path)
    with caplog.at_level(logging.INFO):
        writer.write("all", 3, shown)
    writer.close()
    assert not caplog.records
    assert tags == {
        "lost__share_": 0.0,
        "best_cell__rate_1.0__law_c_/batch_loss": 0.25,
        "best_cell__rate_1.0__law_c_/test_error___": 2.0,
    }
