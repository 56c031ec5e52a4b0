"""Examples read in processes of their own, so that all cores decode."""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

AT_ONCE = 16
"""Examples that a process reads before it hands them over."""

Read = Callable[[int, Sequence[int]], Any]
"""(seed, places) -> the examples there, leaves [places, ...]; it can be pickled."""


class Processes:
    """Processes that read: they begin with the first call, and end with this one.

    A signal to the whole run does not reach them, so that its last chunk is read, too.

    Args:
        read: what they do; it is sent to each once.
        count: how many, at least 1.
    """

    def __init__(self, read: Read, count: int):
        self._pool = concurrent.futures.ProcessPoolExecutor(
            count,
            multiprocessing.get_context("spawn"),  # a fork of JAX may hang
            initializer=_begin,
            initargs=(read,),
        )
        # before the interpreter takes apart what the pool needs for it
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def __call__(self, seed: int, places: np.ndarray) -> list[Any]:
        """The examples at places [n], in parts: trees of leaves [some of n, ...].

        Raises:
            ChildProcessError: if a process was killed.
        """
        parts = [places[i : i + AT_ONCE] for i in range(0, len(places), AT_ONCE)]
        try:
            with _without_signals():  # a process that begins has those of who begins it
                found = self._pool.map(functools.partial(_read, seed), parts)
            return list(found)
        except concurrent.futures.process.BrokenProcessPool as error:
            raise ChildProcessError(
                "A process that reads examples was killed, for memory most often: lower"
                " `worker_processes`; 0 reads in threads of the run itself."
            ) from error


_own: Read | None = None  # of a process that reads


def _begin(read: Read) -> None:
    global _own
    _own = read
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _read(seed: int, places: np.ndarray) -> Any:
    return _own(seed, places)


def _end_with_the_run() -> None:
    """Of a run that was killed nobody tells its processes to end."""
    multiprocessing.parent_process().join()
    os._exit(1)


@contextlib.contextmanager
def _without_signals() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
