"""Sentences and tables about the recorded times and the simulations."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np

import delayjax as dj
from experiments.page import Table

_MUCH = 1.1  # a worker that makes steps longer by this factor is named
_FEW = 50  # a log with fewer steps is doubted
_LONG = 3.0  # a first step of more medians than this contains a compilation
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
        step_seconds: the time of a whole step, which all workers begin together; 0 if
            it is not known.
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
    """A sentence about a worker that makes steps long; no sentence without one.

    Medians are compared, so that a worker with only some long tasks is not named.
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
    """Sentences with the reasons why the log is a poor sample, if there are any."""
    steps = np.nanmax(recorded.seconds, axis=0)
    reasons = []
    if steps.size < _FEW:
        reasons.append(
            f"Only {steps.size} steps were recorded: record {_FEW} or more. The"
            " intervals do not show how another log would differ."
        )
    if steps[0] > _LONG * np.median(steps):
        reasons.append(
            f"The first step took {steps[0]:.3g} s, the median step"
            f" {np.median(steps):.3g} s: leave out steps in which programs compiled."
        )
    return reasons


def periods(cluster: dj.cluster.Cluster, recorded: dj.cluster.Recorded) -> list[str]:
    """A sentence about the local steps of islands between exchanges, or no sentence.

    Args:
        cluster: each worker is an island; without `communication` there is no sentence.
        recorded: the times of the tasks.
    """
    if cluster.slowdown:  # slow phases are drawn with their length, not by the clock
        complete = ~np.isnan(recorded.seconds).any(axis=0)
        seconds, steps = recorded.seconds[:, complete], recorded.steps[complete]
        drawn = dj.cluster.Recorded(seconds, steps=steps).service("block")
        cluster = dataclasses.replace(cluster, service=drawn, slowdown=None)
    islands = dj.cluster.Islands.from_cluster(cluster)
    return [str(islands)] if islands else []


def decides(advices: Mapping[float, dj.cluster.Advice]) -> list[str]:
    """A sentence: whether the noise decides between protocols; none for one noise."""
    best = list(dict.fromkeys(advice.best.protocol for advice in advices.values()))
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
    """Sentences: how the simulated cluster is made from the recorded times.

    Args:
        recorded: the times of the tasks.
        workers: the number of workers in the simulated cluster.
        resample: the value of --resample; None if the user gives none.
        lasts: the value of --lasts; None if the user gives none.
    """
    how = f"--resample={resample}, all workers together."
    if not resample:
        lasts = lasts or recorded.lasts()
        how = _LASTS[lasts]
    if lasts == "clock" and recorded.starts is None:
        how += " The log has no `start`: all workers begin a step together."
    sentences = [
        f"{recorded.workers} workers and {recorded.seconds.shape[1]} steps, with a mean"
        f" of {np.nanmean(recorded.seconds):.4g} s. {how} Intervals are over"
        " simulations, and not over other logs."
    ]
    if workers > recorded.workers:
        sentences.append(
            f"Worker w of the {workers} takes the times of recorded worker w modulo"
            f" {recorded.workers}. Such copies are slow together, so real workers would"
            " wait longer for each other."
        )
    return sentences


def tables(advices: Mapping[float, dj.cluster.Advice]) -> dict[str, Table]:
    """{name in the template: table}: `speeds`, and `times` with a column a noise."""
    of_noise = [advice.rows() for advice in advices.values()]
    head, *rows = of_noise[-1]  # the last noise is large: its simulations are long
    times = [
        [row[0], *(_pair(*each[line][-2:]) for each in of_noise)]
        for line, row in enumerate(rows, start=1)
    ]
    noises = [f"Noise {noise:g}" for noise in advices]
    fast = "Seconds to the target, and how many times as fast: means (95 % intervals)"
    means = "Speed and staleness: means over the seeds"
    speeds = Table(means, head[:-2], [row[:-2] for row in rows])
    return {"speeds": speeds, "times": Table(fast, [head[0], *noises], times)}


def _pair(seconds: str, times: str) -> str:
    """The seconds to the target, and how many times as fast, where it is reached."""
    return seconds if times == "-" else f"{seconds}; {times} times"
