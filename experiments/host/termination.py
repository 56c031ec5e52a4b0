"""SIGTERM and Ctrl-C: a run stops after its chunk, or at once while it compiles."""

import os
import signal
import threading
from types import FrameType

from experiments.host import processes
from experiments.host.progress import log


class Termination:
    """Notes SIGTERM and SIGINT while a program trains, so that its state is saved.

    Before the first chunk there is nothing to save: SIGTERM then ends the process at
    once. XLA may compile for minutes, in which Python runs no signal handler. Therefore
    a thread reads the numbers of the signals from a pipe.

    Attributes:
        requested: the signal that arrived, as "SIGTERM"; "" if none.
        trains: set it when the process has work to lose.
    """

    requested = ""
    trains = False

    def __enter__(self) -> "Termination":
        """Installs the handlers; works only in the main thread."""
        self._previous = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        numbers, self._arrived = os.pipe()
        os.set_blocking(self._arrived, False)
        self._previous_arrived = signal.set_wakeup_fd(self._arrived)
        self._thread = threading.Thread(target=self._hear, args=[numbers], daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Restores the previous handlers."""
        signal.set_wakeup_fd(self._previous_arrived)
        os.close(self._arrived)
        self._thread.join()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if self.requested:  # the second signal stops at once
            raise KeyboardInterrupt
        self.requested = signal.Signals(signum).name

    def _hear(self, numbers: int) -> None:
        """Reads the signals' numbers, each a byte, until none can arrive."""
        with os.fdopen(numbers, "rb", buffering=0) as arrived:
            while number := arrived.read(1):
                if number[0] == signal.SIGTERM and not self.trains:
                    log.warning(
                        "stopped by SIGTERM before the first update, most often while"
                        " compiling; nothing was lost. The same command goes on from"
                        " the last checkpoint."
                    )
                    processes.end_at_once(143)  # as a shell reports SIGTERM
