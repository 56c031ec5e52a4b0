"""A metric over delay at the fixed and at the re-tuned step size, fairly chosen."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiments.results import METRICS, Row, Setting, recorded

FEWEST_SEEDS = 3  # below it a spread says nothing


class Series(NamedTuple):
    """What is equal along a curve over delay, beside the step size."""

    optimizer: str
    delay_law: str
    modulation: str
    placement: str  # "after" where there is no modulation
    compensation: str
    strength: float  # 0 where there is no compensation
    arm: str = ""  # "" where it is a delay; a point then, at the delay 0

    @property
    def plain(self) -> "Series":
        """The same optimizer under the same delays, with no remedy against them."""
        return Series(
            self.optimizer, self.delay_law, "none", "after", "none", 0.0, self.arm
        )


def series(setting: Setting) -> Series:
    """The series that a row of results.csv or curves.csv belongs to."""
    modulated = setting.modulation != "none"
    compensated = setting.compensation != "none"
    return Series(
        setting.optimizer,
        setting.delay_law,
        setting.modulation,
        setting.placement if modulated else "after",
        setting.compensation,
        setting.strength if compensated else 0.0,
        setting.arm,
    )


class Limit(NamedTuple):
    """The computed step size from which on a series is unstable at one delay."""

    series: Series
    delay: float  # updates
    step: float
    sharpness: float  # lambda


@dataclasses.dataclass(frozen=True)
class Point:
    """A curve at one delay."""

    delay: float  # updates
    learning_rate: float
    values: tuple[float, ...]  # the metric of each seed, nan where it diverged
    diverged: int  # seeds
    edge: str  # "smallest" or "largest" of the steps tried, "" inside or if only one

    @property
    def on_edge(self) -> bool:
        """Whether a better step size may lie beyond the grid."""
        return bool(self.edge)

    @property
    def mean(self) -> float:
        """The mean over seeds; nan where some seed diverged or nothing was run."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest value of the seeds; nan where the mean is."""
        if math.isnan(self.mean):
            return math.nan, math.nan
        return min(self.values), max(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds, with n - 1; nan for one seed."""
        if len(self.values) < 2 or math.isnan(self.mean):
            return math.nan
        return statistics.stdev(self.values)


@dataclasses.dataclass(frozen=True)
class Curve:
    """A metric over delay, at one step size or at the best of each delay."""

    series: Series
    metric: str
    retuned: bool
    steps_tried: tuple[float, ...]  # step sizes, ascending, over all delays
    points: tuple[Point, ...]  # by delay, ascending


def table(rows: Iterable[Row]) -> dict[Series, dict[float, dict[float, list[Row]]]]:
    """Rows by series, delay and step size, each with one row a seed.

    A grid runs the plain baseline once for each placement; the first of a seed counts.
    """
    cells = {}
    for row in rows:
        cell = cells.setdefault(series(row), {}).setdefault(row.delay, {})
        cell.setdefault(row.learning_rate, {}).setdefault(row.seed, row)
    return {
        own: {
            delay: {rate: list(steps[rate].values()) for rate in sorted(steps)}
            for delay, steps in sorted(delays.items())
        }
        for own, delays in cells.items()
    }


def label(series: Series, among: Iterable[Series], *, optimizer: bool = True) -> str:
    """A short name that tells a series from the others."""
    among = list(among)
    parts = [series.optimizer] if optimizer else []
    if series.arm:
        parts.append(series.arm)
    if series.modulation != "none":
        parts.append(f"{series.modulation} {series.placement}")
    if series.compensation != "none":
        strengths = [s.strength for s in among if s.compensation == series.compensation]
        shown = f" {series.strength:g}" if any(strengths) else ""
        parts.append(f"{series.compensation}{shown}")
    if not optimizer and not parts:
        parts.append("plain")
    if len({other.delay_law for other in among}) > 1:
        parts.append(series.delay_law)
    return ", ".join(parts)


def curves(
    rows: Iterable[Row], metric: str, *, select_by: str = "train_loss"
) -> list[Curve]:
    """Each series twice: at its fixed step size, then re-tuned at each delay.

    The best step size has the lowest mean over seeds of `select_by` (the highest if it
    is an accuracy). One under which some seed diverged loses to all that did not; the
    smaller of two equal ones is taken. The fixed step size is the best one of the
    series' plain baseline (the series itself where that was not run) at its smallest
    delay; of arms, the best one of the first arm's plain baseline.

    Args:
        rows: the rows of one run.
        metric: a key of `results.METRICS`.
        select_by: the column that chooses.

    Returns:
        Curves in the order of the rows, the fixed one of a series first.

    Raises:
        ValueError: if either name is unknown or not recorded by the task.
    """
    rows = list(rows)
    for name, value in (("metric", metric), ("select_by", select_by)):
        if value not in METRICS:
            raise ValueError(
                f"`{name}` must be among {', '.join(METRICS)}, got {value!r}."
            )
        if not recorded(rows, value):
            raise ValueError(f"`{name}` is {value!r}, which the task does not record.")
    by_series = table(rows)
    first_arm = next((own.arm for own in by_series), "")
    found = []
    for series, delays in by_series.items():
        first = series._replace(arm=first_arm)
        baseline = by_series.get(first.plain) or by_series.get(first, delays)
        fixed = _best(baseline[min(baseline)], select_by)
        tried = tuple(sorted({rate for steps in delays.values() for rate in steps}))
        for retuned in (False, True):
            points = tuple(
                _point(
                    delay,
                    steps,
                    _best(steps, select_by) if retuned else fixed,
                    metric,
                )
                for delay, steps in delays.items()
            )
            found.append(Curve(series, metric, retuned, tried, points))
    return found


def edge_warnings(curves: Sequence[Curve]) -> list[str]:
    """What makes the comparison of these curves unfair, and its remedy, in sentences.

    Best step sizes on the edge of the grid, grids of one step size, delays at which
    everything diverged, fixed steps that were not run, and fewer than three seeds.
    """
    among = [curve.series for curve in curves]
    # what is wrong -> the series of which it is true
    faults: dict[tuple[str, str], list[str]] = {}
    for curve in curves:
        name = label(curve.series, among)
        for fault in _faults(curve):
            faults.setdefault((curve.series.optimizer, fault), []).append(name)
    sentences = [
        f"{'; '.join(names)}: {fault} opt.{optimizer}.learning_rate."
        for (optimizer, fault), names in faults.items()
    ]
    seeds = [len(point.values) for curve in curves for point in curve.points]
    fewest = min((count for count in seeds if count), default=FEWEST_SEEDS)
    if fewest < FEWEST_SEEDS:
        sentences.append(
            f"{fewest} {'seed' if fewest == 1 else 'seeds'} a cell, and a spread needs"
            f" {FEWEST_SEEDS}: add some to seeds."
        )
    return sentences


def _best(steps: dict[float, list[Row]], select_by: str) -> float:
    # where no step reaches the target, the loss still tells which came closest
    keys = [select_by] + ["train_loss"] * (select_by == "seconds_to_target")

    def score(rate):
        return [_score(steps[rate], key) for key in keys]

    return min(sorted(steps), key=score)


def _score(rows: Sequence[Row], key: str) -> float:
    sign = -1.0 if key.endswith("accuracy") else 1.0
    mean = statistics.fmean(row.value(key) for row in rows)
    return sign * mean if math.isfinite(mean) else math.inf


def _point(
    delay: float, steps: dict[float, list[Row]], rate: float, metric: str
) -> Point:
    rows = steps.get(rate, [])
    edge = ""
    if len(steps) > 1:
        edge = {min(steps): "smallest", max(steps): "largest"}.get(rate, "")
    return Point(
        delay,
        rate,
        values=tuple(row.value(metric) for row in rows),
        diverged=sum(row.diverged for row in rows),
        edge=edge,
    )


def _faults(curve: Curve) -> list[str]:
    """What is wrong with the step sizes of a curve, up to the key to change."""
    if not curve.retuned:
        absent = [point.delay for point in curve.points if not point.values]
        rate = curve.points[0].learning_rate
        text = f"the fixed step size {rate:.3g} was not run{_at(curve, absent)}: add"
        return [f"{text} it to"] if absent else []
    smallest = f"{curve.steps_tried[0]:.3g}"
    found = []
    if len(curve.steps_tried) == 1:
        found.append(
            f"only the step size {smallest} was run, nothing is re-tuned: add some to"
        )
    hopeless, edges = [], {}
    for point in curve.points:
        # the best step diverges only where all do
        if point.diverged:
            hopeless.append(point.delay)
        elif point.edge:
            choice = (point.learning_rate, point.edge)
            edges.setdefault(choice, []).append(point.delay)
    for (rate, edge), delays in edges.items():
        found.append(
            f"the best step size{_at(curve, delays)} is {rate:.3g}, the {edge} tried:"
            f" add {'larger' if edge == 'largest' else 'smaller'} ones to"
        )
    if hopeless:
        found.append(
            f"every step size diverged{_at(curve, hopeless)}, down to {smallest}: add"
            " smaller ones to"
        )
    return found


def _at(curve: Curve, delays: Sequence[float]) -> str:
    """At which delays something is wrong; an arm has but one point."""
    if curve.series.arm or not delays:
        return ""
    plural = "s" if len(delays) > 1 else ""
    return f" at delay{plural} {', '.join(f'{delay:g}' for delay in delays)}"
