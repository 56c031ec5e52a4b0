"""The digest of a program, which shows whether a folder's records belong to it."""

import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from experiments.running.program import Program
from experiments.running.trainer import Trainer
from experiments.training.jobs import data_seed

Digest = Callable[[int], dict[str, str]]
"""updates -> {part of a program: its digest}, for a run of so many updates."""


def of_trainer(trainer: Trainer) -> Digest:
    """The digest of the first updates of a program.

    It covers the functions (operations, shapes, every constant), the seeds and cells,
    the batches of all workers in the first, the middle and the last of these updates,
    the number of examples, the simulated times, and the traces until then. If each
    worker along a trace has its part of the data, it covers one batch of each worker. A
    callback of Python is covered by its shapes alone. A longer run of the same program
    has the same digest for the shorter number of updates, unless a schedule
    depends on this number: it is a constant.
    """
    job, (named, values) = trainer.program.job, _named(trainer.values)

    @functools.cache
    def functions():
        return {name: hash_of(traced) for name, traced in trainer.traced().items()}

    def parts(updates):
        steps = sorted({0, updates // 2, updates - 1})
        batches = [job.given(step, step + 1) for step in steps]
        arrays = jax.tree.leaves([*batches, *_of_each_worker(trainer.program)])
        clocks = [clock(updates) for clock in (job.examples, job.seconds) if clock]
        return functions() | {
            "grid and seeds": _hash(repr(named).encode(), *map(_of_array, values)),
            "clocks": _hash(*map(_of_array, clocks)),
            "data": _hash(*map(_of_array, arrays)),
            "traces": _hash(
                *(part for t in job.traces for part in _of_trace(t, updates))
            ),
        }

    return parts


def _of_each_worker(program: Program) -> list[Any]:
    """A batch of each worker of the traces, if each has its part of the data."""
    drawn = program.task.batches_of
    if drawn is None:
        return []
    return [
        drawn(data_seed(seed), 0, np.arange(trace.num_workers))
        for seed, trace in zip(program.seeds, program.job.traces, strict=False)
    ]


def _named(values: Any) -> tuple[list[str], list[Any]]:
    """The names and the arrays of a tree."""
    pairs = jax.tree.leaves_with_path(values)
    return [jax.tree_util.keystr(path) for path, _ in pairs], [x for _, x in pairs]


def hash_of(traced: jax.stages.Traced) -> str:
    """The digest of a traced function: of its StableHLO text.

    The text has every constant. A Pallas kernel is in it as bytes, which would contain
    names of files and numbers of lines: JAX is told to write none.
    """
    limit = jax.config.jax_traceback_in_locations_limit
    try:
        jax.config.update("jax_traceback_in_locations_limit", 0)
        return _hash(traced.lower().as_text().encode())
    finally:
        jax.config.update("jax_traceback_in_locations_limit", limit)


def _of_trace(trace: Any, updates: int) -> Iterator[bytes]:
    """The gradients of the first updates, and the times of these updates."""
    mine = trace.update < updates
    for column in (trace.update, trace.worker, trace.read_version):
        yield _of_array(column[mine])
    yield _of_array(trace.seconds[:updates])
    yield _of_array(trace.divisor[:updates])


def _of_array(array: Any) -> bytes:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = np.asarray(array)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def _hash(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]
