"""What the recorded times and the simulations say, as sentences and tables."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

import delayjax as dj
from experiments.page import Table

_MUCH = 1.1  # a worker that makes steps so many times as long is named
_FEW = 50  # steps
_LONG = 3.0  # times the median step: programs were compiled in the first one
_LASTS = {
    "task": (
        "Slowness lasts one task: the times of successive tasks are independent, and"
        " each task takes the time of a random step, the same step for all workers."
    ),
    "clock": (
        "Slowness lasts with the clock: a worker is slow at the times at which it was"
        " slow in the log, and keeps its mean speed after the log's end. Each"
        " simulation takes the same times."
    ),
}


def whole_step(
    recorded: dj.cluster.Recorded, step_seconds: float
) -> tuple[dj.cluster.Recorded, str]:
    """The times with the rest of a step added to each task, and a sentence about it.

    Args:
        recorded: the times of the tasks.
        step_seconds: of a whole step, in which all workers began together; 0 if it is
            not known.
    """
    if not step_seconds:
        return recorded, (
            "The simulation has these tasks alone. What a step does beside them"
            " (communication, input) is not known: give --step_seconds."
        )
    share = recorded.unexplained(step_seconds)
    rest = share * step_seconds
    whole = dj.cluster.Recorded(recorded.seconds + rest, steps=recorded.steps)
    return whole, (
        f"{share:.0%} of a step, {rest:.3g} of {step_seconds:g} s, is not these tasks,"
        " but communication, input and the like. The simulation adds it to each task,"
        " as if no protocol could hide it."
    )


def slow_worker(recorded: dj.cluster.Recorded) -> list[str]:
    """Which worker makes steps long, if there is one; a sentence or none.

    A worker with some long tasks is not meant, so medians are compared.
    """
    seconds = recorded.seconds
    medians = np.nanmedian(seconds, axis=1)
    slow = int(medians.argmax())
    factor = medians[slow] / np.median(np.delete(medians, slow))
    healthy = seconds.copy()
    healthy[slow] /= factor
    now, then = (np.nanmax(each, axis=0).mean() for each in (seconds, healthy))
    if now <= _MUCH * then:
        return []
    return [
        f"Worker {slow} takes {factor:.3g} times as long as the others (medians). If it"
        f" were as fast as they are, a step would take {then:.3g} s in place of"
        f" {now:.3g} s with any synchronous protocol: look for the cause first."
    ]


def doubts(recorded: dj.cluster.Recorded) -> list[str]:
    """What makes the log a poor sample, in sentences."""
    steps = np.nanmax(recorded.seconds, axis=0)
    found = []
    if steps.size < _FEW:
        found.append(
            f"Only {steps.size} steps were recorded: record {_FEW} or more. The"
            " intervals do not show how another log would differ."
        )
    if steps[0] > _LONG * np.median(steps):
        found.append(
            f"The first step took {steps[0]:.3g} s, the median step"
            f" {np.median(steps):.3g} s: leave out steps in which programs compiled."
        )
    return found


def periods(cluster: dj.cluster.Cluster, recorded: dj.cluster.Recorded) -> list[str]:
    """How many local steps islands take between two exchanges; a sentence or none.

    Args:
        cluster: each worker is an island; without `communication` there is no sentence.
        recorded: the times of the tasks.
    """
    if cluster.slowdown:  # slow phases are drawn with their length, not by the clock
        drawn = recorded.service("block")
        cluster = dataclasses.replace(cluster, service=drawn, slowdown=None)
    islands = dj.cluster.Islands.from_cluster(cluster)
    return [str(islands)] if islands else []


def decides(advices: Mapping[float, dj.cluster.Advice]) -> list[str]:
    """Whether the noise decides between the protocols; a sentence or none."""
    best = list(dict.fromkeys(own.best.protocol for own in advices.values()))
    if len(advices) == 1:
        return []
    if len(best) == 1:
        return [f"{best[0]} is the best protocol at each of these noises."]
    return [
        f"The noise decides between {' and '.join(best)}: measure it. It is the simple"
        " noise scale of McCandlish et al. (arXiv:1812.06162) over a worker's batch"
        " size."
    ]


def simulated(
    recorded: dj.cluster.Recorded,
    workers: int,
    resample: str | None = None,
    lasts: Literal["clock", "task"] | None = None,
) -> list[str]:
    """What the simulated cluster has of the recorded one.

    Args:
        recorded: the times of the tasks.
        workers: of the simulated cluster.
        resample: the choice of the user; None is none.
        lasts: likewise.
    """
    how = f"--resample={resample}, all workers together."
    if not resample:
        lasts = lasts or recorded.lasts()
        how = _LASTS[lasts]
    if lasts == "clock" and recorded.starts is None:
        how += " The log has no `start`: all workers begin a step together."
    said = [
        f"{recorded.workers} workers and {recorded.seconds.shape[1]} steps, with a mean"
        f" of {np.nanmean(recorded.seconds):.4g} s. {how} Intervals are over"
        " simulations, and not over other logs."
    ]
    if workers > recorded.workers:
        said.append(
            f"Worker w of the {workers} takes the times of recorded worker w modulo"
            f" {recorded.workers}. Such copies are slow together, so real workers would"
            " wait longer for each other."
        )
    return said


def tables(advices: Mapping[float, dj.cluster.Advice]) -> dict[str, Table]:
    """The tables of the page, `speeds` and `times`, by the noise."""
    of_noise = [own.rows() for own in advices.values()]
    head, *rows = of_noise[-1]  # much noise takes long: the longest simulations
    times = [
        [row[0], *(f"{own[line][-2]}; {own[line][-1]} times" for own in of_noise)]
        for line, row in enumerate(rows, start=1)
    ]
    noises = [f"Noise {noise:g}" for noise in advices]
    fast = "Seconds to the target, and how many times as fast: means (95 % intervals)"
    means = "Speed and staleness: means over the seeds"
    speeds = Table(means, head[:-2], [row[:-2] for row in rows])
    return {"speeds": speeds, "times": Table(fast, [head[0], *noises], times)}
