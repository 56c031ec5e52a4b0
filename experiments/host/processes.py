"""Coordinates the processes of a run: who writes, who failed, who has arrived."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T")


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
