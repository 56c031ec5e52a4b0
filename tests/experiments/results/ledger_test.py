"""The lines of search.csv, written and read."""

import math
import os

import pytest

from experiments.host.folder import RunFolder
from experiments.results.ledger import Ledger, Line

AXES = ["rate", "decay"]
LINES = [
    Line("a", 0, {"rate": 0.1, "decay": 1.0}, 2**31 - 1, 0.1 + 0.2),
    Line("a", 10, {"rate": 1e-30, "decay": 0.0}, 0, math.inf),
    Line("b", 0, {"decay": 1 / 3}, 7, -5e-324),
]


def test_lines_are_read_as_they_are_written(tmp_path):
    Ledger(RunFolder(tmp_path), AXES).add(LINES[:1])
    Ledger(RunFolder(tmp_path), AXES).add(LINES[1:])
    assert Ledger(RunFolder(tmp_path), AXES).read() == LINES
    # another order of the numbers is another order of the columns, and no more
    assert Ledger(RunFolder(tmp_path), AXES[::-1]).read() == LINES
    Ledger(RunFolder(tmp_path), AXES).add([LINES[0]._replace(score=math.nan)])
    assert math.isnan(Ledger(RunFolder(tmp_path), AXES).read()[-1].score)


@pytest.mark.parametrize("cut", [1, 5])
def test_a_line_that_was_cut_off_is_written_anew(tmp_path, cut):
    Ledger(RunFolder(tmp_path), AXES).add(LINES)
    text = (tmp_path / "search.csv").read_text()
    (tmp_path / "search.csv").write_text(text[:-cut])
    again = Ledger(RunFolder(tmp_path), AXES)
    assert again.read() == LINES[:-1]
    again.add(LINES[-1:])
    assert (tmp_path / "search.csv").read_text() == text


def test_a_file_that_was_cut_off_in_its_head_begins_anew(tmp_path):
    (tmp_path / "search.csv").write_text("program,ser")
    ledger = Ledger(RunFolder(tmp_path), AXES)
    assert ledger.read() == []
    ledger.add(LINES)
    assert ledger.read() == LINES


def test_the_lines_of_another_search_are_refused(tmp_path):
    Ledger(RunFolder(tmp_path), ["rate"]).add([LINES[0]._replace(point={"rate": 0.1})])
    with pytest.raises(ValueError, match=r"search.csv, line 2 cannot be read"):
        Ledger(RunFolder(tmp_path), AXES).read()


def test_lines_are_on_the_disk_when_they_are_added(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append((tmp_path / "search.csv").read_text())
    )
    Ledger(RunFolder(tmp_path), AXES).add(LINES)
    assert synced == [(tmp_path / "search.csv").read_text()]
