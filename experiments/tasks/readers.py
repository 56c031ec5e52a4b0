"""Reads examples in separate processes, so that all cores decode."""

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
"""The number of examples that a process reads before it returns them."""

Read = Callable[[int, Sequence[int]], Any]
"""(seed, places) -> the examples there, leaves [places, ...]; must be picklable."""


class Processes:
    """Processes that read: they start at the first call and exit with their parent.

    They block the signals that are sent to the whole run, so that the last chunk of the
    run is still read.

    Args:
        read: what each process calls; it is sent to each process once.
        count: the number of processes, at least 1.
    """

    def __init__(self, read: Read, count: int):
        self._pool = concurrent.futures.ProcessPoolExecutor(
            count,
            multiprocessing.get_context("spawn"),  # a fork of JAX may hang
            initializer=_begin,
            initargs=(read,),
        )
        # shuts down before the interpreter destroys what the pool needs to shut down
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def __call__(self, seed: int, places: np.ndarray) -> list[Any]:
        """The examples at places [n], in parts: trees of leaves [at most AT_ONCE, ...].

        Raises:
            ChildProcessError: if a process was killed.
        """
        parts = [places[i : i + AT_ONCE] for i in range(0, len(places), AT_ONCE)]
        try:
            with _without_signals():  # a new process inherits the blocked signals
                examples = self._pool.map(functools.partial(_read, seed), parts)
            return list(examples)
        except concurrent.futures.process.BrokenProcessPool as error:
            raise ChildProcessError(
                "A process that reads examples was killed, most often for lack of"
                " memory: lower `worker_processes`; with 0, threads of the run read."
            ) from error


_read_here: Read | None = None  # set in each process that reads


def _begin(read: Read) -> None:
    global _read_here
    _read_here = read
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _read(seed: int, places: np.ndarray) -> Any:
    return _read_here(seed, places)


def _end_with_the_run() -> None:
    """Exits if the parent exits: a killed parent cannot end its processes."""
    multiprocessing.parent_process().join()
    os._exit(1)


@contextlib.contextmanager
def _without_signals() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
