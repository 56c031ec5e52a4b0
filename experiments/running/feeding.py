"""The data of a program's updates, drawn on the host one chunk at a time."""

import copy
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.running.execution import Execution, workers_here
from experiments.training.jobs import Job

_CHUNK_BYTES = 2**26  # the most bytes of batches to send to the device at once


class Feed:
    """Draws the data of updates and sends them to the devices.

    Attributes:
        chunk: the most updates to draw at once.
        bytes: the bytes of the data of `chunk` updates.
        one: the shapes of the data of one update of all workers.
    """

    def __init__(self, job: Job, executed: Execution):
        self._job, self._executed = job, executed
        self._last: tuple[int, int, Any] | None = None
        self.one = self._one()
        leaves = jax.tree.leaves(self.one)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        self.chunk = _chunk(job.evaluate_every, size)
        self.bytes = self.chunk * size

    def for_job(self, job: Job) -> "Feed":
        """The feed of another job that has the same compiled program."""
        other = copy.copy(self)
        other._job, other._last = job, None
        return other

    def _one(self) -> Any:
        """Draws data of one worker for their shapes."""
        axes = self._job.worker_axes

        def of_all(leaf):
            shape = leaf.shape[1:]
            if axes:
                shape = *axes.values(), *shape[1:]
            return jax.ShapeDtypeStruct(shape, leaf.dtype)

        return jax.tree.map(of_all, self._job.given(0, 1, np.arange(1)))

    def given(self, start: int, stop: int) -> Any:
        """The data of updates start .. stop - 1, padded to a whole chunk.

        The last data are kept, because a search trains under a seed many times.
        """
        if self._last is None or self._last[:2] != (start, stop):
            self._last = start, stop, self._drawn(start, stop)
        return self._last[2]

    def _drawn(self, start: int, stop: int) -> Any:
        axes = self._job.worker_axes
        workers = workers_here(self._executed.fed, axes)
        rows = self._job.given(start, stop, workers)
        _check_shapes(rows, self.one, (stop - start,), axes)
        more = self.chunk - (stop - start)
        if more > 0:
            rows = jax.tree.map(lambda x: np.r_[x, np.repeat(x[-1:], more, 0)], rows)
        return self._executed.place(rows)

    def shapes(self) -> Any:
        """The shapes of the arguments of `run_chunk` after the state, with shardings.

        They are the data of a chunk, and the number of updates in it.
        """
        executed = self._executed

        def of_chunk(leaf):
            shape = self.chunk, *leaf.shape
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=executed.fed)

        count = jax.ShapeDtypeStruct((), jnp.int32, sharding=executed.everywhere)
        return jax.tree.map(of_chunk, self.one), count


def _check_shapes(rows: Any, one: Any, updates: tuple[int], axes: Any) -> None:
    """Checks the data of a chunk: another shape would be compiled and trained on.

    Args:
        rows: the data, [updates, ...]; with several workers [updates, workers, ...].
        one: the shapes of one update of all workers, [*axes, ...].
        updates: the number of updates of the chunk.
        axes: the axes of the workers.
    """
    first = 2 if axes else 1
    for leaf, like in zip(jax.tree.leaves(rows), jax.tree.leaves(one), strict=True):
        shape, expected = leaf.shape, like.shape[len(axes) :]
        if shape[:1] != updates or shape[first:] != expected:
            raise ValueError(
                "The task's `batches` must return arrays of one shape at all updates,"
                f" got {shape[first:]} for {shape[0]} updates, and {expected} at first"
                f" (asked for {updates[0]} updates)."
            )


def _chunk(evaluate_every: int, bytes_of_one: int) -> int:
    """The updates of a chunk: `evaluate_every` in the fewest equal parts that fit."""
    most = max(1, _CHUNK_BYTES // max(1, bytes_of_one))
    return math.ceil(evaluate_every / math.ceil(evaluate_every / most))
