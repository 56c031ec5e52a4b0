"""What the recorded times say before any simulation, and what it leaves out."""

from collections.abc import Mapping

import numpy as np

import delayjax as dj

_MUCH = 1.1  # a worker that makes steps so many times as long is named


def unexplained(recorded: dj.cluster.Recorded, step_seconds: float) -> str:
    """Which part of a step the recorded times do not explain.

    Args:
        recorded: the times of the tasks.
        step_seconds: of a whole step; 0 if it is not known.
    """
    if not step_seconds:
        return (
            "The simulation has these tasks alone. What a step does beside them"
            " (communication, input) is not known: give --step_seconds."
        )
    share = recorded.unexplained(step_seconds)
    return (
        f"{share:.0%} of a step, {share * step_seconds:.3g} of {step_seconds:g} s, is"
        " not these tasks, but communication, input or waiting. The simulation leaves"
        " it out: the times below are of these tasks alone."
    )


def slow_worker(recorded: dj.cluster.Recorded) -> list[str]:
    """Which worker makes steps long, if there is one; a sentence or none."""
    seconds = recorded.seconds
    slow = int(seconds.mean(axis=1).argmax())
    usual = np.median(np.delete(seconds, slow, axis=0), axis=0)
    healthy = seconds.copy()
    healthy[slow] = usual
    now, then = seconds.max(axis=0).mean(), healthy.max(axis=0).mean()
    if now <= _MUCH * then:
        return []
    return [
        f"Worker {slow} takes {seconds[slow].mean() / usual.mean():.2g} times as long"
        f" as the median of the others. If it were as fast as they are, a step of these"
        f" tasks would take {then:.3g} s in place of {now:.3g} s: look for the cause"
        " first."
    ]


def whole_run(advice: dj.cluster.Advice, rest: float) -> list[str]:
    """How much faster a whole step is with the best protocol; a sentence or none.

    Args:
        advice: whose first protocol is the one of the recorded steps.
        rest: the share of a step that is not simulated, r: the whole run is
            1 / (r + (1 - r) / gain) times as fast.
    """
    gain = advice.best.gain.mean
    if not rest or advice.best is advice.choices[0] or not np.isfinite(gain):
        return []
    return [
        f"With the rest of a step as it is now, {advice.best.protocol} is"
        f" {1 / (rest + (1 - rest) / gain):.3g} times as fast as"
        f" {advice.choices[0].protocol}, and not {gain:.3g} times."
    ]


def decides(advices: Mapping[float, dj.cluster.Advice]) -> list[str]:
    """Whether late gradients pay at each noise alike; a sentence or none."""
    if len(advices) == 1:
        return []
    late = {bool(own.best.max_staleness) for own in advices.values()}
    if len(late) == 1:
        return ["Late gradients or not: the advice is the same for each noise."]
    return [
        "Late gradients or not: the noise decides. Measure it: it is the simple noise"
        " scale of McCandlish et al. (arXiv:1812.06162) over a worker's batch size."
    ]


def simulated(recorded: dj.cluster.Recorded, workers: int, resample: str) -> list[str]:
    """What the simulated cluster has of the recorded one."""
    found = [
        f"{recorded.workers} workers and {recorded.seconds.shape[1]} steps were"
        f" recorded, with a mean of {recorded.seconds.mean():.4g} s;"
        f" --resample={resample}, all workers together."
    ]
    if workers != recorded.workers:
        found.append(
            f"Worker w of the {workers} takes the times of recorded worker w modulo"
            f" {recorded.workers}."
        )
    return found
