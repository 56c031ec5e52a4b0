"""What a config expects of a run: queries by name, and what the run measured."""

import math
from collections.abc import Sequence
from typing import Any

from experiments import tuning
from experiments.results import METRICS, Row

# a query's key -> the field of `Series` it names
_KEYS = {
    "law": "delay_law",
    "modulation": "modulation",
    "placement": "placement",
    "compensation": "compensation",
    "strength": "strength",
}


def measure(rows: Sequence[Row], query: str, *, select_by: str = "train_loss") -> float:
    """What a run measured, by a name that a config can write down beforehand.

        METRIC/OPTIMIZER/delay=D[/fixed][/KEY=VALUE[,KEY=VALUE]]...

    METRIC is train_loss, test_loss, train_accuracy, test_accuracy or gap: the mean over
    seeds at the step size re-tuned at this delay, or at the fixed one. It may also be
    `learning_rate`, the step size so chosen, or `stable_step`, the largest step size
    such that no seed diverged at it or at a smaller one. KEY is law (of the delay),
    modulation, placement, compensation or strength; modulation and compensation are
    none unless given, the others may be left out where one series alone remains. A key
    of a config holds no dot: write strength=4e-2.

    Args:
        rows: the rows of one run.
        query: such a name, "test_loss/sgd/delay=8/compensation=dc,strength=4e-2" say.
        select_by: the column that chooses the step size.

    Returns:
        The number; nan where some seed of the cell diverged.

    Raises:
        ValueError: if the query cannot be read, or names nothing or several things.
    """
    metric, optimizer, delay, fixed, wanted = _parse_query(query)
    by_series = tuning.table(rows)
    wanted = {"optimizer": optimizer, "modulation": "none", "compensation": "none"} | {
        _KEYS[key]: value for key, value in wanted.items()
    }
    matches = [
        series
        for series in by_series
        if all(_equal(getattr(series, key), value) for key, value in wanted.items())
    ]
    if len(matches) != 1:
        names = [tuning.label(series, by_series) for series in matches or by_series]
        raise ValueError(
            f"{query!r} names {'several' if matches else 'none'} of the run's series:"
            f" {'; '.join(names)}."
        )
    (series,) = matches
    if delay not in by_series[series]:
        raise ValueError(
            f"{query!r}: the run has no delay {delay:g}, only"
            f" {', '.join(f'{value:g}' for value in by_series[series])}."
        )
    if metric == "stable_step":
        largest = math.nan
        for rate, cell in by_series[series][delay].items():
            if any(row.diverged for row in cell):
                break
            largest = rate
        return largest
    column = "train_loss" if metric == "learning_rate" else metric
    (point,) = (
        point
        for curve in tuning.curves(rows, column, select_by=select_by)
        if curve.series == series and curve.retuned != fixed
        for point in curve.points
        if point.delay == delay
    )
    return point.learning_rate if metric == "learning_rate" else point.mean


def _parse_query(query: str) -> tuple[str, str, float, bool, dict[str, Any]]:
    form = "METRIC/OPTIMIZER/delay=D[/fixed][/KEY=VALUE[,KEY=VALUE]]"
    metric, *rest = query.split("/")
    if metric not in (*METRICS, "learning_rate", "stable_step"):
        raise ValueError(
            f"{query!r}: the metric must be among {', '.join(METRICS)}, learning_rate"
            " and stable_step."
        )
    if len(rest) < 2:
        raise ValueError(f"{query!r} must have the form {form}.")
    optimizer, *rest = rest
    fixed = "fixed" in rest
    options = {}
    for part in ",".join(part for part in rest if part != "fixed").split(","):
        key, equals, value = part.partition("=")
        if not equals or key not in ("delay", *_KEYS):
            raise ValueError(
                f"{query!r} must have the form {form}; {part!r} is no KEY=VALUE with a"
                f" KEY among delay, {', '.join(_KEYS)}."
            )
        number = key in ("delay", "strength")
        try:
            options[key] = float(value) if number else value
        except ValueError as error:
            raise ValueError(
                f"{query!r}: {key} must be a number, got {value!r}."
            ) from error
    if "delay" not in options:
        raise ValueError(f"{query!r} must have the form {form}.")
    return metric, optimizer, options.pop("delay"), fixed, options


def _equal(value: str | float, wanted: str | float) -> bool:
    if isinstance(value, str):
        return value == wanted
    return math.isclose(value, wanted, rel_tol=1e-6)
