"""The steps of workers that each have a model, and the times of these steps."""

import dataclasses
import itertools
from functools import cached_property
from typing import Any

import numpy as np

import delayjax as dj


@dataclasses.dataclass(frozen=True, eq=False)
class Timetable:
    """T steps of P workers; a worker takes at most one local step in each.

    Attributes:
        seconds: the end of each step, as the mean over the workers, float64 [T].
        begun: the time at which a worker begins its gradient of a step, float64 [T, P].
        arrived: the time at which the worker has this gradient, float64 [T, P].
        there: whether the worker takes the step, which uses its gradient, bool [T, P].
        place: the worker's place in the queue for the center, -1 if it does not visit
            the center, int32 [T, P].
        behind: the age in steps of what the worker adds to the step's sum, int32 [T,
            P].
        in_time: whether the worker's gradient is in the step's sum, bool [T, P].
    """

    seconds: np.ndarray
    begun: np.ndarray
    arrived: np.ndarray
    there: np.ndarray
    place: np.ndarray
    behind: np.ndarray
    in_time: np.ndarray

    @cached_property
    def trace(self) -> dj.cluster.Trace:
        """The timetable as a trace: a step is an update with the gradients of the step.

        A gradient is used in the step in which it is taken; `read_version` is the step
        whose model a worker adds to the sum, and -1 for the initial model.
        """
        update, worker = map(np.int32, np.nonzero(self.there))
        begun, arrived = self.begun[self.there], self.arrived[self.there]
        workers = self.there.shape[1]
        return dj.cluster.Trace(
            num_workers=workers,
            seconds=self.seconds,
            update=update,
            worker=worker,
            read_version=update - self.behind[self.there],
            begun=begun,
            arrived=arrived,
            divisor=np.maximum(self.there.sum(axis=1), 1).astype(np.float64),
            busy_seconds=np.bincount(worker, arrived - begun, minlength=workers),
        )


def together(
    seconds: np.ndarray,
    on: np.ndarray,
    *,
    behind: np.ndarray | None = None,
    in_time: np.ndarray | None = None,
) -> Timetable:
    """The timetable of workers that all take every step.

    Args:
        seconds: the time of each step on each worker, float64 [T, P].
        on: the time at which each worker goes on to the next step, float64 [T, P].
        behind: as in `Timetable`; by default zeros.
        in_time: as in `Timetable`; by default all are in time.
    """
    begun = np.concatenate([np.zeros((1, on.shape[1])), on[:-1]])
    everywhere = np.ones(on.shape, bool)
    return Timetable(
        seconds=on.mean(axis=1),
        begun=begun,
        arrived=begun + seconds,
        there=everywhere,
        place=np.zeros(on.shape, np.int32),
        behind=np.zeros(on.shape, np.int32) if behind is None else behind,
        in_time=everywhere if in_time is None else in_time,
    )


def in_turn(
    cluster: dj.cluster.Cluster, steps: int, *, seed: int, period: int, by_rank: bool
) -> Timetable:
    """The timetable of workers that visit a center in turn, after `period` local steps.

    A visit is one message to the center and one back, with the times of the cluster's
    communication. Visits are cut into rounds of `period` steps, in which each worker
    visits at most once. Training along the rounds is exact, because between two visits
    a worker depends only on itself.

    Args:
        cluster: the cluster, with the service times of a local step.
        steps: the number of steps, T.
        seed: fixes the service times.
        period: the number of local steps between two visits.
        by_rank: whether workers visit in the order of their numbers and wait for each
            other; otherwise a worker visits when it has done its steps.
    """
    workers, rounds = cluster.workers, -(-steps // period) + 1
    several = dataclasses.replace(cluster, service=_several(cluster, period))
    protocol = dj.cluster.protocols.k_async(1)
    if by_rank:
        protocol = dj.cluster.protocols.round_robin()
    trace = dj.cluster.simulate(several, protocol, rounds * workers, seed=seed)
    table = dj.cluster.visits_to_rounds(trace.worker, workers)
    table = table[:rounds]  # the last round may be cut off
    last = np.where(np.isinf(table), -1, table).max(axis=1).astype(int)
    ends = np.concatenate([[0.0], trace.seconds[last]])
    there = np.isfinite(table)
    places = np.where(there, np.argsort(np.argsort(table, kind="stable")), -1)
    visit = np.where(there, table, 0).astype(int)
    share = (np.arange(period) / period)[:, None]
    lasted = trace.arrived[visit] - trace.begun[visit]

    def rows(of_rounds):
        return np.repeat(of_rounds, period, axis=0)[:steps]

    # the center is as the last visits left it, also after further local steps
    seconds = np.repeat(ends, period)[1:]
    begun = trace.begun[visit][:, None] + share * lasted[:, None]
    return Timetable(
        seconds=seconds[:steps],
        begun=begun.reshape(-1, workers)[:steps],
        arrived=(begun + lasted[:, None] / period).reshape(-1, workers)[:steps],
        there=rows(there),
        place=rows(places).astype(np.int32),
        behind=np.zeros((steps, workers), np.int32),
        in_time=np.ones((steps, workers), bool),
    )


def _several(cluster: dj.cluster.Cluster, count: int) -> list[Any]:
    """The law of each worker for `count` tasks in a row."""

    def law_of(worker):
        def law(rng, number):
            tasks = itertools.chain.from_iterable(
                cluster.service_of(worker)(rng, number)
            )
            while True:
                drawn = itertools.islice(tasks, 64 * count)
                yield np.fromiter(drawn, np.float64).reshape(-1, count).sum(axis=1)

        return law

    return [law_of(worker) for worker in range(cluster.workers)]
