"""The tables of a run: reading them, choosing step sizes, answering queries."""

import csv
import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

METRICS = {
    "train_loss": "training loss",
    "test_loss": "test loss",
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
    "gap": "test loss - training loss",
}
FIGURES = ("over_delay", "gap_over_delay", "best_step", "stability_map", "loss_curves")
FEWEST_SEEDS = 3  # below it a spread says nothing


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of results.csv: a cell of the grid under one seed."""

    task: str
    optimizer: str
    learning_rate: float
    delay_law: str
    delay: float  # updates; the mean where the law is random
    modulation: str
    placement: str
    compensation: str
    strength: float
    seed: int
    steps: int
    diverged: bool  # a training loss that is not finite counts too
    diverged_step: int  # -1 where it did not
    train_loss: float  # nan where the task has none, as are the next three
    test_loss: float
    train_accuracy: float
    test_accuracy: float
    staleness_mean: float  # updates, as are the next two
    staleness_p99: float
    staleness_max: float
    clipped: float  # share of the updates, as is dropped
    dropped: float

    def value(self, metric: str) -> float:
        """A column, or the gap between test and training loss; nan if diverged."""
        if self.diverged:
            return math.nan
        if metric == "gap":
            return self.test_loss - self.train_loss
        return getattr(self, metric)


class Series(NamedTuple):
    """What is equal along a curve over delay, beside the step size."""

    optimizer: str
    delay_law: str
    modulation: str
    placement: str  # "after" where there is no modulation
    compensation: str
    strength: float  # 0 where there is no compensation

    @property
    def plain(self) -> "Series":
        """The same optimizer under the same delays, with no remedy against them."""
        return Series(self.optimizer, self.delay_law, "none", "after", "none", 0.0)


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


def read(path: Path | str) -> list[Row]:
    """Reads a results.csv.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if columns or rows are missing, or a value cannot be read.
    """
    path = Path(path)
    _require(path)
    fields = {field.name: field.type for field in dataclasses.fields(Row)}
    rows = []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in fields if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} lacks the columns {', '.join(missing)}.")
        for record in reader:
            values = {}
            for name, kind in fields.items():
                try:
                    values[name] = _parse(record[name], kind)
                except (TypeError, ValueError) as error:
                    raise ValueError(
                        f"{path}, line {reader.line_num}: `{name}` must be"
                        f" {kind.__name__}, got {record[name]!r}."
                    ) from error
            values["diverged"] |= not math.isfinite(values["train_loss"])
            rows.append(Row(**values))
    if not rows:
        raise ValueError(f"{path} has no rows: the run has not ended.")
    return rows


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut short by a kill is left out."""
    path = Path(path)
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def read_config(workdir: Path | str) -> dict[str, Any]:
    """Reads the config.json of a run.

    Raises:
        FileNotFoundError: if there is none.
    """
    path = Path(workdir) / "config.json"
    _require(path)
    return json.loads(path.read_text())


def loss_unit(task: str) -> str:
    """The unit of a task's loss: cross entropies are in nats, others have none."""
    own = ":" in task and not task.startswith(("tokens:", "tfds:"))
    return "" if own or task == "quadratic" else "nats"


def label(series: Series, among: Iterable[Series], *, optimizer: bool = True) -> str:
    """A short name that tells a series from the others."""
    among = list(among)
    parts = [series.optimizer] if optimizer else []
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


def recorded(rows: Iterable[Row], metric: str) -> bool:
    """Whether the task records a metric, or nothing survived that could tell."""
    values = [row.value(metric) for row in rows if not row.diverged]
    return not values or any(not math.isnan(value) for value in values)


def table(rows: Iterable[Row]) -> dict[Series, dict[float, dict[float, list[Row]]]]:
    """Rows by series, delay and step size, each with one row a seed.

    A grid runs the plain baseline once for each placement; the first of a seed counts.
    """
    cells = {}
    for row in rows:
        modulated, compensated = row.modulation != "none", row.compensation != "none"
        series = Series(
            row.optimizer,
            row.delay_law,
            row.modulation,
            row.placement if modulated else "after",
            row.compensation,
            row.strength if compensated else 0.0,
        )
        cell = cells.setdefault(series, {}).setdefault(row.delay, {})
        cell.setdefault(row.learning_rate, {}).setdefault(row.seed, row)
    return {
        series: {
            delay: {rate: list(steps[rate].values()) for rate in sorted(steps)}
            for delay, steps in sorted(delays.items())
        }
        for series, delays in cells.items()
    }


def curves(
    rows: Iterable[Row], metric: str, *, select_by: str = "train_loss"
) -> list[Curve]:
    """Each series twice: at its fixed step size, then re-tuned at each delay.

    The best step size has the lowest mean over seeds of `select_by` (the highest if it
    is an accuracy). One under which some seed diverged loses to all that did not; the
    smaller of two equal ones is taken. The fixed step size is the best one of the
    series' plain baseline (the series itself where that was not run) at its smallest
    delay.

    Args:
        rows: the rows of one run.
        metric: a key of `METRICS`.
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
    found = []
    for series, delays in by_series.items():
        baseline = by_series.get(series.plain, delays)
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
    by_series = table(rows)
    wanted = {"optimizer": optimizer, "modulation": "none", "compensation": "none"} | {
        _KEYS[key]: value for key, value in wanted.items()
    }
    matches = [
        series
        for series in by_series
        if all(_equal(getattr(series, key), value) for key, value in wanted.items())
    ]
    if len(matches) != 1:
        names = [label(series, by_series) for series in matches or by_series]
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
        for curve in curves(rows, column, select_by=select_by)
        if curve.series == series and curve.retuned != fixed
        for point in curve.points
        if point.delay == delay
    )
    return point.learning_rate if metric == "learning_rate" else point.mean


_KEYS = {
    "law": "delay_law",
    "modulation": "modulation",
    "placement": "placement",
    "compensation": "compensation",
    "strength": "strength",
}


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


def _parse(text: str, kind: type) -> Any:
    if kind is bool:
        return bool(int(text))
    if kind is float and text == "":
        return math.nan
    return kind(text)


def _require(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: make it with `python -m experiments.main"
            f" --config=configs/default.py --workdir={path.parent}`."
        )


def _best(steps: dict[float, list[Row]], select_by: str) -> float:
    sign = -1.0 if select_by.endswith("accuracy") else 1.0

    def score(rate):
        mean = statistics.fmean(row.value(select_by) for row in steps[rate])
        return sign * mean if math.isfinite(mean) else math.inf

    return min(sorted(steps), key=score)


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
        text = f"the fixed step size {rate:.3g} was not run at {_delays(absent)}: add"
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
            f"the best step size at {_delays(delays)} is {rate:.3g}, the {edge} tried:"
            f" add {'larger' if edge == 'largest' else 'smaller'} ones to"
        )
    if hopeless:
        found.append(
            f"every step size diverged at {_delays(hopeless)}, down to {smallest}: add"
            " smaller ones to"
        )
    return found


def _delays(delays: Sequence[float]) -> str:
    plural = "s" if len(delays) > 1 else ""
    return f"delay{plural} {', '.join(f'{delay:g}' for delay in delays)}"
