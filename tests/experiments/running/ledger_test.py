"""The lines of search.csv, written and read."""

import math
import os

import pytest

from experiments.host.folder import RunFolder
from experiments.running.ledger import Ledger
from experiments.running.search_scores import Trial

NUMBERS = {"a": ["rate", "decay"], "b": ["decay"]}
LINES = [
    ("a", 0, Trial((0.1, 1.0), 2**31 - 1), 0.1 + 0.2),
    ("a", 10, Trial((1e-30, 0.0), 0), math.inf),
    ("b", 0, Trial((1 / 3,), 7), -5e-324),
]
SCORES = {line[:3]: line[3] for line in LINES}


def ledger(path, numbers=NUMBERS):
    """A ledger that has read its file."""
    result = Ledger(RunFolder(path), numbers)
    result.take(result.text())
    return result


def add(file, lines):
    for program, series, trial, score in lines:
        file.add(program, [(series, trial)], [score])


def test_lines_are_read_as_they_are_written(tmp_path):
    first, second = (Ledger(RunFolder(tmp_path), NUMBERS) for _ in range(2))
    add(first, LINES[:1])
    add(second, LINES[1:])
    assert first.scores | second.scores == ledger(tmp_path).scores == SCORES
    assert [*ledger(tmp_path).scores] == [*SCORES]
    # another order of the numbers only changes the order of the columns
    turned = {"b": NUMBERS["b"], "a": NUMBERS["a"]}
    assert ledger(tmp_path, turned).scores == SCORES
    last = (*LINES[0][:2], Trial((0.1, 1.0), 3))
    add(first, [(*last, math.nan)])
    assert math.isnan(ledger(tmp_path).scores[last])


def test_trials_of_one_call_are_written_at_once_as_one_after_the_other(tmp_path):
    whole, apart = tmp_path / "whole", tmp_path / "apart"
    for path in (whole, apart):
        path.mkdir()
    of_a = LINES[:2]
    call, scores = [line[1:3] for line in of_a], [line[3] for line in of_a]
    Ledger(RunFolder(whole), NUMBERS).add("a", call, scores)
    add(Ledger(RunFolder(apart), NUMBERS), of_a)
    assert (whole / "search.csv").read_text() == (apart / "search.csv").read_text()


@pytest.mark.parametrize("cut", [1, 5])
def test_a_line_that_was_cut_off_is_written_anew(tmp_path, cut):
    add(ledger(tmp_path), LINES)
    text = (tmp_path / "search.csv").read_text()
    (tmp_path / "search.csv").write_text(text[:-cut])
    second = ledger(tmp_path)
    assert [*second.scores] == [*SCORES][:-1]
    add(second, LINES[-1:])
    assert (tmp_path / "search.csv").read_text() == text


def test_a_file_that_was_cut_off_in_its_head_begins_anew(tmp_path):
    (tmp_path / "search.csv").write_text("program,ser")
    begun = ledger(tmp_path)
    assert begun.scores == {}
    add(begun, LINES)
    assert ledger(tmp_path).scores == SCORES


def test_the_lines_of_another_search_are_refused(tmp_path):
    one = {"a": ["rate"]}
    add(ledger(tmp_path, one), [("a", 0, Trial((0.1,), 3), 0.5)])
    with pytest.raises(ValueError, match=r"search.csv, line 2 cannot be read"):
        ledger(tmp_path)


def test_lines_are_on_the_disk_when_they_are_added(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append((tmp_path / "search.csv").read_text())
    )
    add(ledger(tmp_path), LINES[:1])
    assert synced == [(tmp_path / "search.csv").read_text()]
