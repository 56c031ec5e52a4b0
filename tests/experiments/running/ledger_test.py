"""The lines of search.csv, written and read."""

import math
import os

import pytest

from experiments.host.folder import RunFolder
from experiments.running.ledger import Ledger
from experiments.running.search_scores import Trial

NUMBERS = {"a": ["rate", "decay"], "b": ["decay"], "c": ["decay", "rate"]}
LINES = [
    ("a", 0, Trial((0.1, 1.0), 2**31 - 1), 0.1 + 0.2),
    ("a", 10, Trial((1e-30, 0.0), 0), math.inf),
    ("b", 0, Trial((1 / 3,), 7), -5e-324),
    ("c", 0, Trial((0.5, 0.2), 7), 1.0),
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
    first = ledger(tmp_path)
    add(first, LINES[:1])
    second = ledger(tmp_path)
    add(second, LINES[1:])
    assert second.scores == ledger(tmp_path).scores == SCORES
    assert [*ledger(tmp_path).scores] == [*SCORES]
    # another order of the numbers only changes the order of the columns
    turned = ledger(tmp_path, dict(reversed(NUMBERS.items())))
    assert turned.scores == SCORES
    last = (*LINES[0][:2], Trial((0.1, 1.0), 3))
    add(turned, [(*last, math.nan)])
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
    columns = "must have the columns program, series, rate, decay, seed, score, crc32,"
    with pytest.raises(
        ValueError, match=rf"search.csv {columns} got .*remove the file"
    ):
        ledger(tmp_path)


def test_a_file_without_checksums_is_refused(tmp_path):
    add(ledger(tmp_path), LINES)
    lines = (tmp_path / "search.csv").read_text().splitlines()
    without = "".join(line.rpartition(",")[0] + "\n" for line in lines)
    (tmp_path / "search.csv").write_text(without)
    with pytest.raises(ValueError, match=r"crc32, got program.*score: remove the file"):
        ledger(tmp_path)


def swapped(lines):
    lines[2], lines[3] = lines[3], lines[2]


def edited(lines):
    lines[2] = lines[2].replace(",inf,", ",0.5,")


# a change of the lines -> the number of the line that the error names
CHANGES = {
    "removed": (lambda lines: lines.pop(2), 3),
    "moved": (swapped, 3),
    "edited": (edited, 3),
    "doubled": (lambda lines: lines.insert(2, lines[1]), 3),
    "empty": (lambda lines: lines.insert(2, ""), 3),
    "of another head": (lambda lines: lines.insert(0, turned(lines.pop(0))), 2),
}


def turned(head):
    return head.replace("rate,decay", "decay,rate")


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed_and_what_the_error_says_helps(name, tmp_path):
    add(ledger(tmp_path), LINES)
    file = tmp_path / "search.csv"
    whole = file.read_text().splitlines()
    change, number = CHANGES[name]
    lines = [*whole]
    change(lines)
    assert lines != whole
    file.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(
        ValueError, match=rf"search.csv, line {number} is not as .*: remove it and all"
    ):
        ledger(tmp_path)
    file.write_text("".join(f"{line}\n" for line in lines[: number - 1]))
    again = ledger(tmp_path)
    add(again, LINES[number - 2 :])
    assert ledger(tmp_path).scores == SCORES


def test_lines_are_on_the_disk_when_they_are_added(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append((tmp_path / "search.csv").read_text())
    )
    add(ledger(tmp_path), LINES[:1])
    assert synced == [(tmp_path / "search.csv").read_text()]
