"""The processes of a run: they join, agree, and end together."""

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.host import progress

T = TypeVar("T")


def join(
    *,
    coordinator: str | None,
    num_processes: int | None,
    process_id: int | None,
    timeout_seconds: int,
) -> None:
    """Joins the processes of a run; call it before any device is used.

    If a process dies or is silent for too long, JAX's runtime aborts the others.

    Args:
        coordinator: HOST:PORT of process 0. It and the next two may be None if JAX can
            detect them (TPU, Slurm, Open MPI).
        num_processes: the number of processes of the run.
        process_id: the number of this process, from 0.
        timeout_seconds: the time to wait for the others at the start, and later for a
            sign of life from each of them.

    Raises:
        ValueError: if the coordinator is no HOST:PORT, its port is taken, or JAX cannot
            detect an argument that is not given.
    """
    given = re.fullmatch(r".+:(\d{1,5})", coordinator or "host:1")
    if not given or not 1 <= int(given[1]) <= 65535:  # JAX would wait, and abort
        raise ValueError(
            "--coordinator must be HOST:PORT, with a port of 1 .. 65535, got"
            f" {coordinator!r}."
        )
    progress.log.info(
        "joining the other processes; if one is missing after --timeout_seconds=%d,"
        " JAX aborts",
        timeout_seconds,
    )
    # `Termination` handles SIGTERM: a run that has begun is saved, otherwise the
    # process ends. JAX's service would replace Python's handler, and would miss the
    # signal if Python then installed another handler
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=timeout_seconds,
            # JAX checks it at intervals; with 3/4 all have ended within the timeout
            heartbeat_timeout_seconds=max(1, 3 * timeout_seconds // 4),
            shutdown_timeout_seconds=timeout_seconds,
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"--distributed: {' '.join(str(error).split())} Start the same command on"
            " every host. If JAX cannot detect the processes, give"
            " --coordinator=HOST:PORT --num_processes=N --process_id=I."
        ) from error

    def end(kind, error, trace):
        # `sys.exit` would wait for the other processes, which wait for this process
        traceback.print_exception(kind, error, trace)
        sys.stdout.flush()
        os._exit(1)

    sys.excepthook = end
    if not is_first():  # process 0 prints for all
        progress.log.setLevel(logging.WARNING)


def is_first() -> bool:
    """Whether this process writes the records."""
    return jax.process_index() == 0


def check_agreement(values: Mapping[str, Any]) -> None:
    """Checks that all processes were given the same values.

    Args:
        values: {name, as the user writes it: value}.

    Raises:
        ValueError: naming the values that differ, and the processes.
    """
    text = json.dumps(values, default=str, sort_keys=True)
    first, *others = map(json.loads, of_all(text))
    differing = [
        f"{name}: {first.get(name)} in process 0, {other.get(name)} in process {i}"
        for i, other in enumerate(others, start=1)
        for name in sorted({*first, *other})
        if first.get(name) != other.get(name)
    ]
    if differing:
        raise ValueError(
            f"the processes were given different values: {'; '.join(differing)}. Start"
            " the same command on every host."
        )


def of_all(text: str) -> list[str]:
    """The text of every process, in their order."""
    if jax.process_count() == 1:
        return [text]
    encoded = text.encode()
    sizes = multihost_utils.process_allgather(np.int32(len(encoded)))
    padded = np.frombuffer(encoded.ljust(int(sizes.max())), np.uint8)
    gathered = multihost_utils.process_allgather(padded)
    return [
        bytes(row[:size]).decode() for row, size in zip(gathered, sizes, strict=True)
    ]


def together(work: Callable[[], T]) -> T:
    """Calls `work` in every process; if it fails in one, all fail.

    Raises:
        ValueError, TypeError, OSError: from `work`; ValueError if others failed.
    """
    result = failed = None
    try:
        result = work()
    except (ValueError, TypeError, OSError) as error:
        failed = error
    of_each = enumerate(_of_each(failed is not None))
    others = [str(i) for i, (flag,) in of_each if flag]
    if failed is not None:
        raise failed
    if others:
        raise ValueError(f"process {', '.join(others)} stops, and says why.")
    return result


def any_of(*flags: bool) -> list[bool]:
    """Whether each flag is set in at least one process."""
    return [any(of_one) for of_one in zip(*_of_each(*flags), strict=True)]


def _of_each(*flags: bool) -> list[list[bool]]:
    """The flags of every process."""
    if jax.process_count() == 1:
        return [list(flags)]
    return multihost_utils.process_allgather(np.array(flags)).tolist()


def wait(reason: str) -> None:
    """Waits until all processes are here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(reason)
