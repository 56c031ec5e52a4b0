"""Arms on their way: what was evaluated when, and the time to a target."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

_ACCURACIES = ("train_accuracy", "test_accuracy")


def rows(
    settings: Sequence[Sequence[Mapping[str, Any]]],
    initial: Mapping[str, np.ndarray],
    metrics: Iterable[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The rows of one program for curves.csv: by seed, cell and step, from step 0 on.

    Args:
        settings: what tells apart seeds and cells, [seeds][cells].
        initial: the metrics of the initial parameters, [seeds, cells].
        metrics: the program's rows of metrics.jsonl.
    """
    beginning = {
        "step": 0,
        "seconds": [0.0] * len(settings),
        "examples": [0] * len(settings),
        "evaluation": initial,
    }
    moments = [beginning, *metrics]
    return [
        {
            **setting,
            "step": moment["step"],
            "seconds": moment["seconds"][s],
            "examples": moment["examples"][s],
            **{
                name: _number(values[s][c])
                for name, values in moment["evaluation"].items()
            },
        }
        for s, cells in enumerate(settings)
        for c, setting in enumerate(cells)
        for moment in moments
    ]


def seconds_to_target(
    curve: Iterable[Mapping[str, Any]], metric: str, value: float
) -> float:
    """When a cell was first evaluated at or beyond a target.

    Args:
        curve: its rows of curves.csv, by step.
        metric: an accuracy must rise to the target, all else fall to it.
        value: the target.

    Returns:
        Simulated seconds; inf if it never was.

    Example:
        >>> curve = [dict(seconds=0.0, train_loss=2.0), dict(seconds=9.0, train_loss=1)]
        >>> seconds_to_target(curve, "train_loss", 1.5)
        9.0
    """
    sign = -1.0 if metric in _ACCURACIES else 1.0
    reached = (row["seconds"] for row in curve if sign * row[metric] <= sign * value)
    return next(reached, math.inf)


def with_target(
    results: Sequence[Mapping[str, Any]],
    curves: Sequence[Mapping[str, Any]],
    metric: str,
    value: float,
) -> list[dict[str, Any]]:
    """A program's rows of results.csv with the time to a target; inf if diverged.

    Args:
        results: one a seed and cell.
        curves: its rows of curves.csv, by the same seeds and cells.
        metric: see `seconds_to_target`.
        value: likewise.
    """
    moments = len(curves) // len(results)
    timed = []
    for i, row in enumerate(results):
        curve = curves[i * moments : (i + 1) * moments]
        seconds = math.inf
        if not row["diverged"]:
            seconds = seconds_to_target(curve, metric, value)
        timed.append({**row, "seconds_to_target": seconds})
    return timed


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
