"""SIGTERM and Ctrl-C: a run that trains stops after its chunk, and saves."""

import signal
from types import FrameType


class Termination:
    """Notes SIGTERM and SIGINT while a program trains, so that its state is saved.

    Before `begin` there is nothing to save: SIGTERM then ends the process at once, also
    while XLA compiles, which may take minutes in which Python runs no signal handler.

    Attributes:
        requested: the signal that arrived, as "SIGTERM"; "" if none.
    """

    requested = ""

    def __enter__(self) -> "Termination":
        """Installs nothing yet."""
        self._previous: dict[signal.Signals, object] = {}
        return self

    def begin(self) -> None:
        """Installs the handlers, once; works only in the main thread."""
        if not self._previous:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)

    def __exit__(self, *exception: object) -> None:
        """Restores the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:  # the second signal stops at once
            raise KeyboardInterrupt
        self.requested = signal.Signals(signum).name
