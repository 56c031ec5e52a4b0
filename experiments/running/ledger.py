"""The trainings of a run's searches, and the file search.csv, which has all of them."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.host import disk, processes
from experiments.host.folder import RunFolder
from experiments.running.search_scores import Trial


class Ledger:
    """The scores so far; each is written to the disk at once, as a line of the file.

    An interrupted search asks for the same trainings again and reads them here.

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
        self._axes = [*dict.fromkeys(axis for one in numbers.values() for axis in one)]
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
            ValueError: if a line does not belong to this file.
        """
        for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
            try:
                every = {axis: row[axis] for axis in self._axes}
                mine = self._numbers.get(row["program"], ())
                trial = Trial(tuple(float(every[a]) for a in mine), int(row["seed"]))
                key = row["program"], int(row["series"]), trial
                self.scores[key] = float(row["score"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{self._file}, line {number} cannot be read ({error!r}): remove"
                    " this line, and the same command trains it again."
                ) from error

    def add(
        self, program: str, call: Sequence[tuple[int, Trial]], scores: Sequence[float]
    ) -> None:
        """Takes the scores of trials, each with the number of its series.

        Process 0 appends their lines, which are on the disk when it returns.

        Raises:
            OSError: if the disk is full; the line that was cut off is trained again.
        """
        rows: list[list[Any]] = []
        if not self._file.exists() or not self._file.stat().st_size:
            rows.append(["program", "series", *self._axes, "seed", "score"])
        for (series, trial), score in zip(call, scores, strict=True):
            self.scores[program, series, trial] = score
            point = dict(zip(self._numbers[program], trial.point, strict=True))
            numbers = [point.get(axis, "") for axis in self._axes]
            # of a float, csv writes its `repr`
            rows.append([program, series, *numbers, trial.seed, score])
        if processes.is_first():
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            disk.append(self._file, text.getvalue())
