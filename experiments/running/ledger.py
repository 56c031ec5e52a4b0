"""The trainings of a run's searches, and the file search.csv, which has all of them."""

import csv
import io
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.host import disk, processes
from experiments.host.folder import RunFolder
from experiments.running.search_scores import Trial


class Ledger:
    """The scores so far; each is written to the disk at once, as a line of the file.

    An interrupted search asks for the same trainings again and reads them here. The
    column `crc32` has the checksum of the file until the end of each line, without the
    checksums themselves: a line that was changed, moved or removed is noticed. Lines
    that are cut off at the end are trained again.

    Attributes:
        scores: {(program, number of a series, trial): the score that the search
            compares; nan if the training diverged}.
    """

    def __init__(self, folder: RunFolder, numbers: Mapping[str, Sequence[str]]):
        """Takes the run's folder.

        Args:
            folder: of the run.
            numbers: {program: its searched numbers, in the order of its points}.
        """
        self._file, self._numbers = folder.search, dict(numbers)
        # a column each, in the order in which the programs need them
        axes = dict.fromkeys(axis for one in numbers.values() for axis in one)
        self._columns = ["program", "series", *axes, "seed", "score", "crc32"]
        self._crc32: int | None = None  # of all lines; None before the first
        self.scores: dict[tuple[str, int, Trial], float] = {}

    def text(self) -> str:
        """The lines of the file, except a last line that was cut off."""
        text = self._file.read_text() if self._file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            disk.replace(self._file, whole)
        return whole

    def take(self, text: str) -> None:
        """Takes the scores of these lines.

        Raises:
            ValueError: if a line is not as a search of this run wrote it.
        """
        if not text:
            return
        head, *lines = text.split("\n")[:-1]
        names = head.split(",")
        if {*names} != {*self._columns}:
            raise ValueError(
                f"{self._file} must have the columns {', '.join(self._columns)}, got"
                f" {head}: remove the file, and the same command trains all of it"
                " again."
            )
        self._columns, self._crc32 = names, zlib.crc32(head.encode())
        for number, line in enumerate(lines, start=2):
            if line != self._checked(line.rpartition(",")[0]):
                raise ValueError(
                    f"{self._file}, line {number} is not as the run wrote it: remove it"
                    " and all lines after it, and the same command trains them again."
                )
            row = dict(zip(names, next(csv.reader([line])), strict=True))
            mine = self._numbers.get(row["program"], ())
            trial = Trial(tuple(float(row[axis]) for axis in mine), int(row["seed"]))
            key = row["program"], int(row["series"]), trial
            self.scores[key] = float(row["score"])

    def add(
        self, program: str, call: Sequence[tuple[int, Trial]], scores: Sequence[float]
    ) -> None:
        """Takes the scores of trials, each with the number of its series.

        Process 0 appends their lines, which are on the disk when it returns.

        Raises:
            OSError: if the disk is full; the line that was cut off is trained again.
        """
        rows: list[list[Any]] = []
        for (series, trial), score in zip(call, scores, strict=True):
            self.scores[program, series, trial] = score
            values: dict[str, Any] = dict(program=program, series=series)
            values |= zip(self._numbers[program], trial.point, strict=True)
            values |= dict(seed=trial.seed, score=score)
            # of a float, csv writes its `repr`
            rows.append([values.get(name, "") for name in self._columns[:-1]])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        lines = []
        if self._crc32 is None:
            lines.append(",".join(self._columns))
            self._crc32 = zlib.crc32(lines[0].encode())
        lines += map(self._checked, text.getvalue().split("\n")[:-1])
        if processes.is_first():
            disk.append(self._file, "".join(f"{line}\n" for line in lines))

    def _checked(self, line: str) -> str:
        """The line with its checksum, which goes on from the line before."""
        assert self._crc32 is not None
        self._crc32 = zlib.crc32(line.encode(), self._crc32)
        return f"{line},{self._crc32:08x}"
