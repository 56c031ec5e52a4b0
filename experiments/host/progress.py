"""The lines of the log that a run writes on its way."""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax.monitoring
from absl import logging as absl_logging

_SECONDS_BETWEEN_LINES = 5.0

log = logging.getLogger("experiments")
"""The logger of the run."""

_COMPILING = ("jaxpr_to_mlir_module_duration", "backend_compile_duration")
_compiled = [0.0]  # the seconds in which JAX has lowered and compiled programs


def _note(event: str, seconds: float, **about: object) -> None:
    if event.endswith(_COMPILING):
        _compiled[0] += seconds


jax.monitoring.register_event_duration_secs_listener(_note)


def working() -> float:
    """A clock, in seconds, that stops while JAX compiles."""
    return time.monotonic() - _compiled[0]


def start_log(*, quiet: bool = False) -> None:
    """Sends the lines of the run to stderr, but of libraries only the warnings."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.handlers = [handler]
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    log.propagate = False


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Shows the lines of the run in the block, unless the log has a level already.

    They go to the handlers of the program's logging, or to stderr.
    """
    if log.level != logging.NOTSET:
        yield
        return
    logging.basicConfig()  # changes nothing where logging is set up
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(logging.NOTSET)


class Lines:
    """Reports the state of long work every 5 s, and nothing for short work."""

    def __init__(self, text: str):
        """Starts the clock; `text` has a %s for each value that a line shows."""
        self._text, self._last = text, time.monotonic()

    def say(self, *values: Any, at_once: bool = False) -> None:
        """Writes a line if 5 s have passed since the last line or the start."""
        if at_once or time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            log.info(self._text, *values)


class SearchMeter:
    """Rounds, trainings and the most time left of a program's search, every 5 s.

    Each training that the search may still need takes as long as the average training
    so far; most searches end much earlier.
    """

    def __init__(self, name: str, most: int):
        """Takes the name of the program, and the most trainings of its search."""
        self._name, self._most = name, most
        self._rounds, self._asked, self._trained = 0, 0, 0
        self._began = working()
        self._lines = Lines(
            "searching %s: round %s, %s of at most %s trainings, at most %s left"
        )
        log.info("searching %s: at most %s trainings", name, f"{most:,}")

    def begin_round(self) -> None:
        """Counts a round."""
        self._rounds += 1

    def update(self, asked: int, trained: int) -> None:
        """Adds trainings of the round, of which some were not known before."""
        self._asked, self._trained = self._asked + asked, self._trained + trained
        if not self._trained:
            return
        left = (working() - self._began) / self._trained * (self._most - self._asked)
        done, most = f"{self._asked:,}", f"{self._most:,}"
        self._lines.say(self._name, self._rounds, done, most, _duration(left))


class Meter:
    """Updates, loss, speed and time left of a run's programs, one after another.

    The time left takes the average time of the program's updates so far, and for later
    programs the average of the whole run, compiling included.
    """

    def __init__(self, updates: Sequence[int]):
        """Takes the number of updates of each program."""
        self._later, self._programs = [*updates], len(updates)
        self._done, self._seconds = 0, 0.0  # of the programs before

    @contextlib.contextmanager
    def program(self, name: str) -> Iterator[None]:
        """Shows that the next program is compiled, and counts its time."""
        self._updates, *self._later = self._later
        number = self._programs - len(self._later)
        several = f"{number} of {self._programs}: " * (self._programs > 1)
        self._name = several + name
        self._opened, self._lines = time.monotonic(), Lines("%s, %s, %s, %s left")
        log.info("%s: compiling", self._name)
        yield
        if self._start < self._updates:
            self._done += self._updates - self._start
            self._seconds += time.monotonic() - self._opened

    def begin(self, start: int) -> None:
        """Marks the start of training after update `start`."""
        self._start, self._began = start, working()
        if start < self._updates:
            log.info("%s: updates %d to %d", self._name, start, self._updates)

    def update(self, row: dict[str, Any], ended: float) -> None:
        """Shows the numbers of a chunk; `ended` is its end on the clock `working`."""
        step, loss = row["step"], row["train_loss"]
        # the loss on the chunk's batches; of several cells and seeds the median
        several = sum(map(len, row["losses"])) > 1
        shown = f"{'median ' * several}batch loss "
        shown += "-" if loss is None else f"{loss:.3g}"
        if row["not_finite"]:
            shown += f", {row['not_finite']} not finite"
        speed = f"{row['updates_per_second']:.3g}/s"
        done = step - self._start
        spent = self._seconds + time.monotonic() - self._opened
        left = (ended - self._began) / done * (self._updates - step)
        left += spent / (self._done + done) * sum(self._later)
        where = f"{self._name}: update {step}/{self._updates}"
        last = step >= self._updates
        self._lines.say(where, shown, speed, _duration(left), at_once=last)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
