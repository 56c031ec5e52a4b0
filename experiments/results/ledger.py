"""The file search.csv: every training of a run's searches."""

import csv
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.host import disk
from experiments.host.folder import RunFolder


class Line(NamedTuple):
    """A training of a search."""

    program: str
    series: int  # of the program
    point: dict[str, float]  # {searched number: its value}
    seed: int
    score: float  # compared by the search; nan if the training diverged


class Ledger:
    """Reads and writes search.csv; each line is on the disk at once.

    An interrupted search asks for the same trainings again and reads them here.
    """

    def __init__(self, folder: RunFolder, axes: Sequence[str]):
        """Takes the run's folder, and the searched numbers of all of its programs."""
        self._file, self._axes = folder.search, tuple(axes)

    def read(self) -> list[Line]:
        """The lines so far, except a last line that was cut off.

        Raises:
            ValueError: if a line does not belong to this file.
        """
        text = self._file.read_text() if self._file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            disk.replace(self._file, whole)
        lines = []
        for number, row in enumerate(csv.DictReader(whole.splitlines()), start=2):
            try:
                point = {axis: float(row[axis]) for axis in self._axes if row[axis]}
                known = row["program"], int(row["series"]), point
                lines.append(Line(*known, int(row["seed"]), float(row["score"])))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{self._file}, line {number} cannot be read ({error!r}): remove"
                    " this line, and the same command trains it again."
                ) from error
        return lines

    def add(self, lines: Sequence[Line]) -> None:
        """Appends lines; they are on the disk when it returns.

        Raises:
            OSError: if the disk is full; the line that was cut off is trained again.
        """
        rows: list[list[Any]] = []
        if not self._file.exists() or not self._file.stat().st_size:
            rows.append(["program", "series", *self._axes, "seed", "score"])
        for line in lines:  # of a float, csv writes its `repr`
            numbers = [line.point.get(axis, "") for axis in self._axes]
            rows.append([line.program, line.series, *numbers, line.seed, line.score])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        disk.append(self._file, text.getvalue())
