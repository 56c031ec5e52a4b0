"""The file search.csv: every training of a run's searches."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.results.folder import replace


class Line(NamedTuple):
    """A training of a search."""

    program: str
    series: int  # of the program
    point: dict[str, float]  # {searched number: its value}
    seed: int
    score: float  # what the search compares; nan where it diverged


class Ledger:
    """Reads and writes search.csv: a line is on the disk as soon as it is known.

    A search that was interrupted asks for the same trainings again, and finds them.
    """

    def __init__(self, folder: Path, axes: Sequence[str]):
        """Takes the run's folder, and the searched numbers of all of its programs."""
        self._path, self._axes = folder / "search.csv", tuple(axes)

    def read(self) -> list[Line]:
        """The lines so far, without one whose writing was cut off.

        Raises:
            ValueError: if a line is none of this file's.
        """
        if not self._path.exists():
            return []
        text = self._path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            replace(self._path, whole)
        lines = []
        for number, row in enumerate(csv.DictReader(whole.splitlines()), start=2):
            try:
                point = {axis: float(row[axis]) for axis in self._axes if row[axis]}
                known = row["program"], int(row["series"]), point
                lines.append(Line(*known, int(row["seed"]), float(row["score"])))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{self._path}, line {number} cannot be read ({error!r}): remove"
                    " this line, and the same command trains it again."
                ) from error
        return lines

    def add(self, lines: Sequence[Line]) -> None:
        """Appends lines; they are on the disk when it returns."""
        begun = self._path.exists() and self._path.stat().st_size
        with self._path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not begun:
                writer.writerow(["program", "series", *self._axes, "seed", "score"])
            for line in lines:
                numbers = [repr(line.point.get(axis, "")) for axis in self._axes]
                writer.writerow(
                    [line.program, line.series]
                    + [number.strip("'") for number in numbers]
                    + [line.seed, repr(line.score)]
                )
            file.flush()
            os.fsync(file.fileno())
