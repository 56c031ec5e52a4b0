"""A live bar on a terminal, plain log lines elsewhere."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import logging as absl_logging
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

_SECONDS_BETWEEN_LINES = 5.0

log = logging.getLogger("experiments")
"""The run's own lines."""


def start_log(*, quiet: bool = False) -> None:
    """Sends the run's lines to stderr, and only the warnings of its libraries."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.handlers = [handler]
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    log.propagate = False


class Bars:
    """The programs of a run, one after the other: which one, and the time left."""

    def __init__(self, updates: Sequence[int]):
        """Takes how many updates each program has."""
        self._updates, self._number = list(updates), 0
        self._done, self._began = 0, time.monotonic()

    @contextlib.contextmanager
    def of(self, name: str, start: int) -> Iterator["Bar"]:
        """The bar of the next program, which begins at update `start`."""
        updates = self._updates[self._number]
        self._number += 1
        total = len(self._updates)
        title = f"{self._number} of {total}: {name}" if total > 1 else name
        later = sum(self._updates[self._number :])

        def seconds_left(step):
            done = self._done + step - start
            each = (time.monotonic() - self._began) / max(done, 1)
            return each * (later + updates - step)

        bar = Bar(title, start, updates, seconds_left)
        try:
            yield bar
        finally:
            bar.close()
            self._done += updates - start


class Bar:
    """Updates, loss, speed and time left of one program."""

    def __init__(
        self, name: str, start: int, updates: int, left: Callable[[int], float]
    ):
        """Starts at update `start` of `updates`; `left` says how long the run takes."""
        self._name, self._start, self._updates = name, start, updates
        self._left = left
        self._last_line = time.monotonic()
        self._bar = None
        if sys.stderr.isatty() and log.level <= logging.INFO:
            self._bar = Progress(
                TextColumn("{task.fields[numbers]}"),
                BarColumn(bar_width=None),
                TaskProgressColumn(),
                console=Console(stderr=True),
                expand=True,
            )
            self._task = self._bar.add_task(
                name, total=updates, completed=start, numbers=fitted(name, "compiling")
            )
            self._bar.start()
        elif start < updates:
            log.info("%s: updates %d to %d", name, start, updates)

    def update(self, row: dict[str, Any]) -> None:
        """Shows the numbers of a chunk."""
        step, loss = row["step"], row["train_loss"]
        shown = "loss " + ("-" if loss is None else f"{loss:.3g}")
        if row["not_finite"]:
            shown += f", {row['not_finite']} not finite"
        numbers = [shown, f"{row['updates_per_second']:.3g}/s"]
        if "tokens_per_second" in row:
            numbers.append(f"{row['tokens_per_second']:.3g} tokens/s")
        if "mfu" in row:
            numbers.append(f"MFU {row['mfu']:.1%}")
        numbers.append(f"{_duration(self._left(step))} left")
        if self._bar is not None:
            self._bar.update(
                self._task, completed=step, numbers=fitted(self._name, *numbers)
            )
            return
        now = time.monotonic()
        if now - self._last_line < _SECONDS_BETWEEN_LINES and step < self._updates:
            return
        self._last_line = now
        said = ", ".join(numbers)
        log.info("%s: update %d/%d, %s", self._name, step, self._updates, said)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


def fitted(name: str, *numbers: str) -> str:
    """A line that leaves room for a bar in 80 columns; the first and the last stay.

    Example:
        >>> fitted("adam", "loss 2.3", "12/s", "MFU 40.0%", "1 h 3 min left")
        'adam: loss 2.3, 12/s, MFU 40.0%, 1 h 3 min left'
        >>> len(fitted("a" * 30, "loss 2.3", "12/s", "8.19e+04 tokens/s", "59 s left"))
        60
    """
    while len(numbers) > 2 and len(", ".join(numbers)) > 48:
        numbers = numbers[:1] + numbers[2:]
    said = ", ".join(numbers)
    room = max(60 - len(said) - 2, 2)
    short = name if len(name) <= room else f"{name[: room - 1]}…"
    return f"{short}: {said}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
