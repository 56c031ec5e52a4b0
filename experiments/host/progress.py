"""A live bar on a terminal, plain log lines elsewhere."""

import logging
import statistics
import sys
import time
from typing import Any

from absl import logging as absl_logging
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

_SECONDS_BETWEEN_LINES = 5.0

log = logging.getLogger("experiments")
"""The run's own lines."""


def start_log() -> None:
    """Sends the run's lines to stderr, and of its libraries' the warnings alone."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


class Bar:
    """Step, loss, steps/s and time left of one program."""

    def __init__(self, name: str, start: int, steps: int):
        """Starts at update `start` of `steps`."""
        self._name, self._start, self._steps = name, start, steps
        self._began = self._last_line = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("step {task.completed}/{task.total} {task.fields[numbers]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(
                name, total=steps, completed=start, numbers="compiling"
            )
            self._bar.start()
        elif start < steps:
            log.info("%s: steps %d to %d", name, start, steps)

    def update(self, row: dict[str, Any]) -> None:
        """Shows the numbers of a chunk."""
        step, loss = row["step"], row["train_loss"]
        numbers = "loss " + ("-" if loss is None else f"{loss:.4g}")
        if row["not_finite"]:
            numbers += f", {row['not_finite']} not finite"
        numbers += f", {row['steps_per_second']:.3g} steps/s"
        for unit in ("examples", "tokens"):
            if f"{unit}_per_second" in row:
                numbers += f", {row[f'{unit}_per_second']:,.4g} {unit}/s"
        if row.get("mfu") is not None:
            numbers += f", MFU {row['mfu']:.1%}"
        if "seconds" in row:
            numbers += f", {statistics.fmean(row['seconds']):,.5g} s simulated"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, numbers=numbers)
            return
        now = time.monotonic()
        if now - self._last_line < _SECONDS_BETWEEN_LINES and step < self._steps:
            return
        self._last_line = now
        per_step = (now - self._began) / max(step - self._start, 1)
        left = per_step * (self._steps - step)
        log.info(
            "%s: step %d/%d %s, %.0f s left",
            *(self._name, step, self._steps, numbers, left),
        )

    def close(self) -> None:
        """Leaves the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
