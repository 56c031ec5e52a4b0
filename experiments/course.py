"""What the cluster of an arm did, and how far training follows it."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

import delayjax as dj
from experiments.timetable import Timetable


@dataclasses.dataclass(frozen=True)
class Budget:
    """Where an arm ends: before the first update that is beyond one of these."""

    updates: float = math.inf
    seconds: float = math.inf  # simulated
    gradients: float = math.inf

    def fitting(self, trace: dj.cluster.Trace) -> int:
        """How many updates of a trace are within."""
        in_time = np.searchsorted(trace.seconds, self.seconds, side="right")
        in_number = np.searchsorted(np.cumsum(trace.counts), self.gradients, "right")
        return int(min(self.updates, trace.num_updates, in_time, in_number))


@dataclasses.dataclass(frozen=True, eq=False)
class Course:
    """One trace a seed, followed in chunks between two evaluations.

    Attributes:
        name: the arm's.
        traces: one a seed; the same one several times where it was logged.
        steps: updates that are followed, a multiple of `chunk`.
        chunk: updates between two evaluations.
        batch_size: examples in a gradient.
        timetables: one a seed, of workers with models of their own; none where the
            workers read a server's.
    """

    name: str
    traces: tuple[dj.cluster.Trace, ...]
    steps: int
    chunk: int
    batch_size: int
    timetables: tuple[Timetable, ...] = ()

    @property
    def workers(self) -> int:
        """P."""
        return self.traces[0].num_workers

    @cached_property
    def width(self) -> int:
        """K, the most gradients of an update."""
        return max(1, *(trace.max_gradients for trace in self.traces))

    @property
    def max_staleness(self) -> int:
        """The largest staleness, in updates."""
        return max(trace.max_staleness for trace in self.traces)

    @cached_property
    def mean_staleness(self) -> float:
        """Over all gradients of all seeds, in updates."""
        ages = self.arrivals(0, self.steps).staleness
        return float(ages[ages >= 0].mean()) if (ages >= 0).any() else 0.0

    def arrivals(self, start: int, stop: int) -> Any:
        """The updates start .. stop - 1: [n, seeds, K], the divisor [n, seeds]."""
        rows = [trace.arrivals(start, stop, width=self.width) for trace in self.traces]
        return jax.tree.map(lambda *columns: np.stack(columns, axis=1), *rows)

    def seconds(self, step: int) -> np.ndarray:
        """When `step` updates were done, float64 [seeds]."""
        if step == 0:
            return np.zeros(len(self.traces))
        return np.asarray([trace.seconds[step - 1] for trace in self.traces])

    def gradients(self, step: int) -> np.ndarray:
        """Gradients in the first `step` updates, int64 [seeds]."""
        return np.asarray(
            [np.searchsorted(trace.update, step) for trace in self.traces], np.int64
        )

    def counts(self, start: int, stop: int) -> np.ndarray:
        """Gradients of each of the updates start .. stop - 1, int64 [n, seeds]."""
        return np.stack([trace.counts[start:stop] for trace in self.traces], axis=1)

    def examples(self, step: int) -> np.ndarray:
        """Examples in them, int64 [seeds]; the gradients where a batch is all."""
        return self.gradients(step) * (self.batch_size or 1)

    def dropped_share(self, step: int) -> np.ndarray:
        """Of the gradients that arrived before update `step` was done, [seeds]."""
        dropped = [(trace.dropped.version < step).sum() for trace in self.traces]
        return dropped / np.maximum(dropped + self.gradients(step), 1)


def simulated(
    name: str,
    simulators: Sequence[Callable[[int, float], dj.cluster.Trace]],
    budget: Budget,
    *,
    evaluations: int,
    batch_size: int,
) -> Course:
    """Simulates an arm under every seed, all for as many updates as fit in each.

    Args:
        name: the arm's.
        simulators: one a seed, (updates, seconds) -> the trace of at most so many.
        budget: where it ends. What remains of it after the last whole chunk is lost.
        evaluations: at least so many chunks, where there are as many updates.
        batch_size: examples in a gradient.

    Raises:
        ValueError: if not a single update fits.
    """
    fitting = budget.updates
    if fitting == math.inf:
        fitting = min(_fitting(simulate, budget) for simulate in simulators)
    steps, chunk = _chunks(int(fitting), evaluations)
    traces = tuple(simulate(steps, math.inf) for simulate in simulators)
    return Course(name, traces, steps, chunk, batch_size)


def timed(
    name: str,
    timetables: Sequence[Callable[[int], Timetable]],
    budget: Budget,
    *,
    evaluations: int,
    batch_size: int,
) -> Course:
    """Workers with models of their own, for as many steps as fit; see `simulated`.

    Args:
        name: the arm's.
        timetables: one a seed, of so many steps.
        budget: likewise.
        evaluations: likewise.
        batch_size: likewise.
    """
    simulators = [lambda steps, _, of=of: of(steps).trace for of in timetables]
    course = simulated(
        name, simulators, budget, evaluations=evaluations, batch_size=batch_size
    )
    return dataclasses.replace(
        course, timetables=tuple(of(course.steps) for of in timetables)
    )


def logged(
    name: str,
    trace: dj.cluster.Trace,
    budget: Budget,
    *,
    seeds: int,
    evaluations: int,
    batch_size: int,
) -> Course:
    """Follows the log of a cluster, the same under every seed; see `simulated`."""
    steps, chunk = _chunks(budget.fitting(trace), evaluations)
    return Course(name, (trace,) * seeds, steps, chunk, batch_size)


_MOST = 2**22  # updates, before a budget counts as one that is never used


def _fitting(simulate: Callable[[int, float], dj.cluster.Trace], budget: Budget) -> int:
    updates = 64
    while updates <= _MOST:
        fitting = budget.fitting(simulate(updates, budget.seconds))
        if fitting < updates:
            return fitting
        updates *= 2
    raise ValueError(
        f"{_MOST} updates use up neither config.cluster.seconds nor"
        " config.cluster.examples: lower them."
    )


def _chunks(updates: int, evaluations: int) -> tuple[int, int]:
    if updates == 0:
        raise ValueError(
            "no update is done within config.cluster.seconds and"
            " config.cluster.examples: raise them."
        )
    chunk = max(1, updates // evaluations)
    return updates - updates % chunk, chunk
