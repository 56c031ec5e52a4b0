"""What a run says while it trains: a row a chunk in metrics.jsonl."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.results.folder import replace
from experiments.results.writers import Writer, scalars

_log = logging.getLogger("experiments")


class Metrics:
    """The rows of one program in metrics.jsonl; writers take the same numbers."""

    def __init__(
        self,
        folder: Path,
        program: str,
        cells: Sequence[Mapping[str, Any]],
        kept: int,
        writers: Sequence[Writer] = (),
    ):
        """Opens the file.

        Args:
            folder: the run's.
            program: the name of the one whose rows these are.
            cells: its settings.
            kept: the update that the run resumes from, 0 where it begins; later rows
                are forgotten, so that the file ends as if it had never been
                interrupted.
            writers: of the same numbers.
        """
        self._path, self._program = folder / "metrics.jsonl", program
        self._cells, self._writers = cells, writers
        rows = [
            row
            for row in read(folder)
            if row["program"] != program or (kept and row["step"] <= kept)
        ]
        replace(self._path, "".join(json.dumps(row) + "\n" for row in rows))

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends the numbers of a chunk."""
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = scalars(self._cells, row)
        for writer in self._writers:
            writer.write(self._program, row["step"], shown)

    def rows(self) -> list[dict[str, Any]]:
        """The program's rows so far."""
        rows = read(self._path.parent)
        return [row for row in rows if row["program"] == self._program]


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of all programs of a run; a line that cannot be read is left out."""
    path, rows, broken = folder / "metrics.jsonl", [], 0
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
            rows.append(row | {"program": row["program"], "step": row["step"]})
        except (json.JSONDecodeError, KeyError, TypeError):
            broken += 1
    if broken:
        _log.warning("%s: %d lines cannot be read and are left out.", path, broken)
    return rows
