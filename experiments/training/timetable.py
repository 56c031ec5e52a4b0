"""What workers with models of their own do, step by step, and when."""

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
        seconds: when each step is done, on average over the workers, float64 [T].
        begun: seconds when a worker begins its gradient of a step, float64 [T, P].
        arrived: seconds when it has it, float64 [T, P].
        there: whether it takes the step, bool [T, P].
        delivers: whether a gradient counts as used then, bool [T, P].
        place: in the step's queue for the center, -1 stays away, int32 [T, P].
        behind: how many steps old is what it gives to the step's sum, int32 [T, P].
        in_time: whether its gradient is in the step's sum, bool [T, P].
    """

    seconds: np.ndarray
    begun: np.ndarray
    arrived: np.ndarray
    there: np.ndarray
    delivers: np.ndarray
    place: np.ndarray
    behind: np.ndarray
    in_time: np.ndarray

    @cached_property
    def trace(self) -> dj.cluster.Trace:
        """The same as a trace: an update is a step, of the gradients taken in it.

        Gradients are used as they are taken; `read_version` is the version of the model
        that a late worker gives to a sum.
        """
        update, worker = map(np.int32, np.nonzero(self.delivers))
        begun, arrived = self.begun[self.delivers], self.arrived[self.delivers]
        workers = self.there.shape[1]
        return dj.cluster.Trace(
            num_workers=workers,
            seconds=self.seconds,
            update=update,
            worker=worker,
            read_version=update - self.behind[self.delivers],
            begun=begun,
            arrived=arrived,
            divisor=np.maximum(self.delivers.sum(axis=1), 1).astype(np.float64),
            busy_seconds=np.bincount(worker, arrived - begun, minlength=workers),
        )


def service_seconds(
    cluster: dj.cluster.Cluster, steps: int, *, seed: int
) -> np.ndarray:
    """What each step takes each worker, float64 [T, P]."""
    own = [
        speed.factors[0] * cluster.draw(worker, steps, seed=seed)
        for worker, speed in enumerate(cluster.speeds())
    ]
    return np.stack(own, axis=1)


def together(
    seconds: np.ndarray,
    on: np.ndarray,
    *,
    behind: np.ndarray | None = None,
    in_time: np.ndarray | None = None,
) -> Timetable:
    """All workers take every step.

    Args:
        seconds: what each takes, float64 [T, P].
        on: when each worker goes on to the next, float64 [T, P].
        behind: as in `Timetable`; nothing by default.
        in_time: likewise; all by default.
    """
    begun = np.concatenate([np.zeros((1, on.shape[1])), on[:-1]])
    everywhere = np.ones(on.shape, bool)
    return Timetable(
        seconds=on.mean(axis=1),
        begun=begun,
        arrived=begun + seconds,
        there=everywhere,
        delivers=everywhere,
        place=np.zeros(on.shape, np.int32),
        behind=np.zeros(on.shape, np.int32) if behind is None else behind,
        in_time=everywhere if in_time is None else in_time,
    )


def in_turn(
    cluster: dj.cluster.Cluster, steps: int, *, seed: int, period: int, by_rank: bool
) -> Timetable:
    """Workers come to a center one after the other, each after its own local steps.

    A visit is a message there and one back, as the cluster's communication says. Visits
    are cut into rounds in which each worker comes once at most, and a round has
    `period` steps; so training along it is exact: between two visits a worker depends
    on itself alone.

    Args:
        cluster: with the service times of a local step.
        steps: T.
        seed: of the service times.
        period: local steps between two visits.
        by_rank: whether they come in the order of their numbers, each waiting for the
            one before; else as they are done.
    """
    workers, rounds = cluster.workers, -(-steps // period) + 1
    several = dataclasses.replace(cluster, service=_several(cluster, period))
    protocol = dj.cluster.protocols.k_async(1)
    if by_rank:
        protocol = dj.cluster.protocols.round_robin()
    trace = dj.cluster.simulate(several, protocol, rounds * workers, seed=seed)
    table = dj.cluster.visits_to_rounds(trace.worker, workers)
    table = table[:rounds]  # the last one may be cut off
    last = np.where(np.isinf(table), -1, table).max(axis=1).astype(int)
    ends = np.concatenate([[0.0], trace.seconds[last]])
    delivers = np.isfinite(table)
    there = np.isfinite(table)
    places = np.where(there, np.argsort(np.argsort(table, kind="stable")), -1)
    visit = np.where(delivers, table, 0).astype(int)
    share = (np.arange(period) / period)[:, None]
    lasted = trace.arrived[visit] - trace.begun[visit]

    def rows(of_rounds):
        return np.repeat(of_rounds, period, axis=0)[:steps]

    # the center is what the last visits left, whatever local steps came after them
    seconds = np.repeat(ends, period)[1:]
    begun = trace.begun[visit][:, None] + share * lasted[:, None]
    return Timetable(
        seconds=seconds[:steps],
        begun=begun.reshape(-1, workers)[:steps],
        arrived=(begun + lasted[:, None] / period).reshape(-1, workers)[:steps],
        there=rows(there),
        delivers=rows(delivers),
        place=rows(places).astype(np.int32),
        behind=np.zeros((steps, workers), np.int32),
        in_time=np.ones((steps, workers), bool),
    )


def _several(cluster: dj.cluster.Cluster, count: int) -> list[Any]:
    """Each worker's law of so many tasks, one after the other."""

    def of(worker):
        def law(rng, number):
            tasks = itertools.chain.from_iterable(
                cluster.service_of(worker)(rng, number)
            )
            while True:
                drawn = itertools.islice(tasks, 64 * count)
                yield np.fromiter(drawn, np.float64).reshape(-1, count).sum(axis=1)

        return law

    return [of(worker) for worker in range(cluster.workers)]
