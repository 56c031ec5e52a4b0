"""Where the numbers of a run go while it trains: TensorBoard, Weights & Biases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tensorboardX import SummaryWriter

from experiments.host import disk


class Writer(Protocol):
    """Takes the numbers of each chunk. metrics.jsonl is written whatever there is."""

    def write(self, program: str, step: int, scalars: Mapping[str, float]) -> None:
        """Takes named numbers of a program after an update."""

    def close(self) -> None:
        """Writes what is left."""


class TensorBoard:
    """Event files, one folder a program."""

    def __init__(self, folder: Path):
        """Names the folder; nothing is written yet."""
        self._folder = folder
        self._events: dict[str, SummaryWriter] = {}

    def write(self, program: str, step: int, scalars: Mapping[str, float]) -> None:
        """See `Writer`."""
        if program not in self._events:
            self._events[program] = SummaryWriter(
                str(self._folder / program),
                purge_step=step,  # hides what an interrupted run wrote after it
            )
        with disk.one_line_if_full(self._folder):
            for name, value in scalars.items():
                self._events[program].add_scalar(name, value, step)
            self._events[program].flush()

    def close(self) -> None:
        """See `Writer`. On a full disk it is silent: what filled it has been said."""
        for events in self._events.values():
            try:
                events.close()
            except OSError:
                # as the process ends tensorboardX would try again, with a traceback
                writer = events.file_writer.event_writer
                writer._worker.stop()
                writer._closed = True


class WeightsAndBiases:
    """A run of Weights & Biases, where the user has it installed and is logged in."""

    def __init__(self, project: str, name: str, config: Mapping[str, Any]):
        """Begins the run.

        Raises:
            ValueError: if the package is missing, nobody is logged in, or the service
                refuses the run.
        """
        try:
            import wandb
        except ImportError:
            raise ValueError("--wandb needs `pip install wandb`.") from None
        try:
            self._run = wandb.init(
                project=project, name=name, config=dict(config), resume="allow"
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"--wandb={project}: {reason} Run `wandb login`, set WANDB_API_KEY, or"
                " keep the numbers here with WANDB_MODE=offline."
            ) from error

    def write(self, program: str, step: int, scalars: Mapping[str, float]) -> None:
        """See `Writer`."""
        named = {f"{program}/{name}": value for name, value in scalars.items()}
        self._run.log(named | {f"{program}/update": step})

    def close(self) -> None:
        """See `Writer`."""
        self._run.finish()


def scalars(
    settings: Sequence[Mapping[str, Any]], row: Mapping[str, Any]
) -> dict[str, float]:
    """What is shown of a chunk: the best cell, by name, and numbers of all cells.

    The best cell has the smallest training loss, on average over the seeds.

    Args:
        settings: of the cells.
        row: of metrics.jsonl.
    """
    found = {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in ("step", "train_loss")
    }
    losses = row.get("losses")
    if losses is None:
        return found
    by_cell = np.asarray(losses, float).mean(axis=0)  # None is nan
    if np.isfinite(by_cell).any():
        best = int(np.nanargmin(by_cell))
        named = ", ".join(f"{key}={value}" for key, value in settings[best].items())
        prefix = f"best cell ({named})" if named else "the cell"
        found[f"{prefix}/batch_loss"] = float(by_cell[best])
        for name, table in row.get("evaluation", {}).items():
            value = np.asarray(table, float).mean(axis=0)[best]
            found[f"{prefix}/{name}"] = float(value)
    return found
