"""Slots for versions: a version has a slot from its update until its last read."""

from heapq import heappop, heappush

import numpy as np


def needed(last: np.ndarray) -> int:
    """The most versions kept at once; version t is kept from update t to `last[t]`."""
    ended = np.bincount(last + 1, minlength=len(last) + 1)[: len(last)].cumsum()
    return int((np.arange(1, len(last) + 1) - ended).max(initial=1))


def of_versions(last: np.ndarray) -> np.ndarray:
    """The slot of each version, int32 [T]: the first free slot.

    It depends on earlier versions alone, so a longer trace of the same cluster gives
    the same slots.
    """
    by_end = np.argsort(last, kind="stable").tolist()
    ends = last[by_end].tolist()
    slots: list[int] = []
    free: list[int] = []
    used = ended = 0
    for update in range(len(last)):
        while ends[ended] < update:
            heappush(free, slots[by_end[ended]])
            ended += 1
        if not free:
            free.append(used)
            used += 1
        slots.append(heappop(free))
    return np.asarray(slots, np.int32)
