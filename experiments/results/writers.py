"""Sends the numbers of a run to TensorBoard while it trains."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tensorboardX import SummaryWriter

from experiments.host import disk


class Writer(Protocol):
    """Takes the numbers of each chunk. metrics.jsonl is written in any case."""

    def write(self, program: str, step: int, scalars: Mapping[str, float]) -> None:
        """Takes named numbers of a program after an update."""

    def close(self) -> None:
        """Writes what is left."""


class TensorBoard:
    """Writes event files, one folder per program."""

    def __init__(self, folder: Path):
        """Names the folder; nothing is written yet."""
        self._folder = folder
        self._events: dict[str, SummaryWriter] = {}

    def write(self, program: str, step: int, scalars: Mapping[str, float]) -> None:
        """See `Writer`."""
        if program not in self._events:
            self._events[program] = SummaryWriter(
                str(self._folder / program),
                purge_step=step,  # hides later steps of an interrupted run
            )
        with disk.one_line_if_full(self._folder):
            for name, value in scalars.items():
                # tensorboardX would replace other characters too, with a warning
                tag = re.sub(r"[^-/.\w]", "_", name).lstrip("/")
                self._events[program].add_scalar(tag, value, step)
            self._events[program].flush()

    def close(self) -> None:
        """See `Writer`. Ignores a full disk, which has been reported."""
        for events in self._events.values():
            try:
                events.close()
            except OSError:
                # tensorboardX would try again at exit, with a traceback
                writer = events.file_writer.event_writer
                writer._worker.stop()
                writer._closed = True


def scalars(
    settings: Sequence[Mapping[str, Any]], row: Mapping[str, Any]
) -> dict[str, float]:
    """The scalars of a chunk: the best cell, by name, and numbers of all cells.

    The best cell has the smallest training loss, on average over the seeds.

    Args:
        settings: the settings of the cells.
        row: a row of metrics.jsonl.
    """
    scalars = {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in ("step", "train_loss")
    }
    losses = row.get("losses")
    if losses is None:
        return scalars
    by_cell = np.asarray(losses, float).mean(axis=0)  # None is nan
    if np.isfinite(by_cell).any():
        best = int(np.nanargmin(by_cell))
        named = ", ".join(f"{key}={value}" for key, value in settings[best].items())
        prefix = f"best cell ({named})" if named else "the cell"
        scalars[f"{prefix}/batch_loss"] = float(by_cell[best])
        for name, table in row.get("evaluation", {}).items():
            value = np.asarray(table, float).mean(axis=0)[best]
            scalars[f"{prefix}/{name}"] = float(value)
    return scalars
