"""What a config expects of a run: queries by name, and what the run measured."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments import arms, tuning
from experiments.results import METRICS, Row

# a query's key -> the field of `Series` it names
_KEYS = {
    "arm": "arm",
    "law": "delay_law",
    "modulation": "modulation",
    "placement": "placement",
    "compensation": "compensation",
    "strength": "strength",
}


# of the clock and the cluster: what they are does not depend on the step size
_FACTS = ("seconds", "updates", "staleness_mean", "staleness_p99", "dropped")
_FORM = "METRIC/OPTIMIZER/delay=D|arm=A[/fixed][/KEY=VALUE[,KEY=VALUE]]"


class _Query(NamedTuple):
    metric: str
    optimizer: str
    delay: float
    fixed: bool
    options: dict[str, Any]  # the other keys


def measure(rows: Sequence[Row], query: str, *, select_by: str = "train_loss") -> float:
    """What a run measured, by a name that a config can write down beforehand.

        METRIC/OPTIMIZER/delay=D[/fixed][/KEY=VALUE[,KEY=VALUE]]...
        METRIC/OPTIMIZER/arm=A[/fixed][/KEY=VALUE[,KEY=VALUE]]...

    METRIC is train_loss, test_loss, train_accuracy, test_accuracy, gap, gradient_norm
    or seconds_to_target (inf where a seed never gets there): the mean over seeds at the
    step size re-tuned at this delay or arm, or at the fixed one. So are seconds,
    updates, staleness_mean, staleness_p99 and dropped. It may also be `learning_rate`,
    the step size so chosen, or `stable_step`, the largest step size such that no seed
    diverged at it or at a smaller one. A is an arm as the config has it, a beginning
    that no other arm has, or its number, from 0. KEY is law (of the delay), modulation,
    placement, compensation or strength; modulation and compensation are none unless
    given, the others may be left out where one series alone remains. A key of a config
    holds no dot: write strength=4e-2.

    Args:
        rows: the rows of one run.
        query: such a name, "test_loss/sgd/delay=8/compensation=dc,strength=4e-2" say.
        select_by: the column that chooses the step size.

    Returns:
        The number; nan where some seed of the cell diverged.

    Raises:
        ValueError: if the query cannot be read, or names nothing or several things.
    """
    wanted = _parse_query(query)
    by_series = tuning.table(rows)
    series = _series(query, wanted, by_series)
    delays = by_series[series]
    if wanted.delay not in delays:
        raise ValueError(
            f"{query!r}: the run has no delay {wanted.delay:g}, only"
            f" {', '.join(f'{value:g}' for value in delays)}."
        )
    cells = delays[wanted.delay]
    if wanted.metric == "stable_step":
        largest = math.nan
        for rate, cell in cells.items():
            if any(row.diverged for row in cell):
                break
            largest = rate
        return largest
    (point,) = (
        point
        for curve in tuning.curves(
            rows,
            wanted.metric if wanted.metric in METRICS else "train_loss",
            select_by=select_by,
        )
        if curve.series == series and curve.retuned != wanted.fixed
        for point in curve.points
        if point.delay == wanted.delay
    )
    if wanted.metric == "learning_rate":
        return point.learning_rate
    if wanted.metric in _FACTS:
        cell = cells[point.learning_rate]
        return statistics.fmean(getattr(row, wanted.metric) for row in cell)
    return point.mean


def _series(
    query: str,
    wanted: _Query,
    among: Sequence[tuning.Series],
) -> tuning.Series:
    """The one series that a query names."""
    fields = {
        "optimizer": wanted.optimizer,
        "modulation": "none",
        "compensation": "none",
    } | {_KEYS[key]: value for key, value in wanted.options.items()}
    if "arm" in fields:
        run = list(dict.fromkeys(series.arm for series in among if series.arm))
        try:
            fields["arm"] = arms.find(fields["arm"], run)
        except ValueError as error:
            raise ValueError(f"{query!r}: {error}") from None
    matches = [
        series
        for series in among
        if all(_equal(getattr(series, key), value) for key, value in fields.items())
    ]
    if len(matches) != 1:
        names = [tuning.label(series, among) for series in matches or among]
        raise ValueError(
            f"{query!r} names {'several' if matches else 'none'} of the run's series:"
            f" {'; '.join(names)}."
        )
    return matches[0]


def _parse_query(query: str) -> _Query:
    metric, *rest = query.split("/")
    known = (*METRICS, *_FACTS, "learning_rate", "stable_step")
    if metric not in known:
        raise ValueError(
            f"{query!r}: the metric must be among {', '.join(known[:-1])} and"
            f" {known[-1]}."
        )
    if len(rest) < 2:
        raise ValueError(f"{query!r} must have the form {_FORM}.")
    optimizer, *rest = rest
    options = {}
    for part in rest:
        if part != "fixed":
            for option in arms.split(part, ",") or [part]:
                key, value = _parse_option(query, option)
                options[key] = value
    if not {"delay", "arm"} & options.keys():
        raise ValueError(f"{query!r} must have the form {_FORM}.")
    delay = options.pop("delay", 0.0)
    return _Query(metric, optimizer, delay, "fixed" in rest, options)


def _parse_option(query: str, option: str) -> tuple[str, Any]:
    key, equals, value = option.partition("=")
    if not equals or key not in ("delay", *_KEYS):
        raise ValueError(
            f"{query!r} must have the form {_FORM}; {option!r} is no KEY=VALUE with a"
            f" KEY among delay, {', '.join(_KEYS)}."
        )
    try:
        return key, float(value) if key in ("delay", "strength") else value
    except ValueError as error:
        raise ValueError(
            f"{query!r}: {key} must be a number, got {value!r}."
        ) from error


def _equal(value: str | float, wanted: str | float) -> bool:
    if isinstance(value, str):
        return value == wanted
    return math.isclose(value, wanted, rel_tol=1e-6)
