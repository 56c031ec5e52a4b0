"""The timetable of a schedule: the simulated times of each pass of each stage."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from delayjax._src.ground import kinds
from delayjax._src.pipelines.schedule import Schedule


class Timetable(NamedTuple):
    """The passes of a pipeline, as arrays [N] in the order of their starts.

    Attributes:
        stage: s, int64.
        forward: whether it is a forward pass, bool.
        microbatch: i, int64.
        chunk: the chunk of the stage's layers, int64.
        start: the start, in the unit of the passes' times, float64.
        end: the end, float64.
        applied: updates that the stage made before the pass, int64: the newest version
            that it can read.
    """

    stage: np.ndarray
    forward: np.ndarray
    microbatch: np.ndarray
    chunk: np.ndarray
    start: np.ndarray
    end: np.ndarray
    applied: np.ndarray

    def in_flight(self, stage: int) -> int:
        """The most (chunks of) microbatches between the two passes of a stage."""
        mine = self.stage == stage
        times = np.concatenate([self.start[mine], self.end[mine]])
        begins = np.where(self.forward[mine], 1, 0)
        ends = np.where(self.forward[mine], 0, -1)
        steps = np.concatenate([begins, ends])
        # if a pass ends when another starts, it is no longer in flight
        order = np.lexsort((steps, times))
        return int(np.cumsum(steps[order]).max())


@kinds.checked
def timetable(
    schedule: Schedule,
    updates: kinds.PositiveInt,
    *,
    forward: kinds.PositiveFloat = 1.0,
    backward: kinds.PositiveFloat = 2.0,
) -> Timetable:
    """Simulates a pipeline, in which each pass starts as soon as its input has arrived.

    Passes of one stage keep the schedule's order. Sending takes no time.

    Args:
        schedule: the schedule of the pipeline.
        updates: the number of updates to simulate.
        forward: the time of a forward pass through a stage; a chunk takes 1/v of it.
        backward: the time of a backward pass.

    Returns:
        The timetable of v M `updates` passes of each kind, on each stage.

    Raises:
        ValueError: if the stages wait for each other forever.

    Example:
        >>> from delayjax.pipelines import gpipe
        >>> table = timetable(gpipe(2, microbatches=3), 1)
        >>> float(table.end.max())                            # (3 + 1) (1 + 2)
        12.0
    """
    seconds = {True: forward / schedule.chunks, False: backward / schedule.chunks}
    count = updates * schedule.microbatches
    orders = [
        list(_order(schedule, stage, updates)) for stage in range(schedule.stages)
    ]
    done: dict[tuple, float] = {}
    free, taken = [0.0] * schedule.stages, [0] * schedule.stages
    finished = [0] * schedule.stages  # backward passes
    passes: list[tuple] = []  # rows of a `Timetable`
    total = 2 * count * schedule.chunks * schedule.stages
    while len(passes) < total:
        before_round = len(passes)
        for stage, order in enumerate(orders):
            while taken[stage] < len(order):
                kind, microbatch, chunk = order[taken[stage]]
                before = _needed(schedule, stage, kind, chunk)
                if before is not None and (*before, microbatch) not in done:
                    break
                ready = 0.0 if before is None else done[*before, microbatch]
                start = max(free[stage], ready)
                end = start + seconds[kind]
                applied = finished[stage] // (schedule.microbatches * schedule.chunks)
                passes.append((stage, kind, microbatch, chunk, start, end, applied))
                done[kind, stage, chunk, microbatch] = free[stage] = end
                finished[stage] += not kind
                taken[stage] += 1
        if len(passes) == before_round:
            raise ValueError(
                "`schedule` must let some stage work, but each stage waits for another:"
                f" raise its `ahead`, got {schedule.ahead}."
            )
    table = Timetable(*map(np.array, zip(*passes, strict=True)))
    order = np.lexsort((table.stage, table.start))
    return Timetable(*(column[order] for column in table))


def _order(
    schedule: Schedule, stage: int, updates: int
) -> Iterator[tuple[bool, int, int]]:
    """The passes of a stage in order: (whether forward, microbatch, chunk)."""
    batches, size = updates, schedule.microbatches
    if not schedule.flush:  # one batch without an end
        batches, size = 1, updates * size
    for batch in range(batches):
        first = batch * size
        forwards, backwards = (
            [(first + i, chunk) for i, chunk in _chunked(schedule, size, backward)]
            for backward in (False, True)
        )
        ahead = schedule.ahead[stage]
        for k in range(len(forwards) + ahead):
            if k < len(forwards):
                yield (True, *forwards[k])
            if k >= ahead:
                yield (False, *backwards[k - ahead])


def _chunked(
    schedule: Schedule, size: int, backward: bool
) -> Iterator[tuple[int, int]]:
    """Microbatches and chunks in turn: S microbatches of a chunk, then the next."""
    chunks = range(schedule.chunks)
    group = schedule.stages if schedule.chunks > 1 else size
    for first in range(0, size, group):
        for chunk in reversed(chunks) if backward else chunks:
            for i in range(first, min(first + group, size)):
                yield i, chunk


def _needed(
    schedule: Schedule, stage: int, forward: bool, chunk: int
) -> tuple[bool, int, int] | None:
    """The pass whose result a pass takes: (whether forward, stage, chunk)."""
    last = schedule.stages - 1
    if forward:
        if stage > 0:
            return True, stage - 1, chunk
        return (True, last, chunk - 1) if chunk > 0 else None
    if stage < last:
        return False, stage + 1, chunk
    if chunk < schedule.chunks - 1:
        return False, 0, chunk + 1
    return True, last, chunk  # the loss of its own forward pass
