"""A metric of each arm at its best step size, on its way."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import patches
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from experiments import tuning
from experiments.figures import look, names
from experiments.results import Evaluation
from experiments.tuning import Curve, Series

_AXES = {
    "seconds": ("Which arm is fastest?", "simulated time (s)"),
    "step": ("Which arm needs the fewest updates?", "updates"),
    "examples": ("Which arm needs the fewest examples?", "examples"),
}
_WIDE = 3.0  # a factor between the ends of arms that takes a logarithmic axis
_BEHIND = {"color": "0.82", "linewidth": 1.0}
_TARGET = {"color": "0.4", "linewidth": 1.0, "linestyle": (0, (2, 2))}


class Progress(NamedTuple):
    """A metric on its way, at one step size; all arrays are [moments]."""

    at: np.ndarray  # the median over seeds of where it was evaluated
    median: np.ndarray  # over seeds, as are the next two
    low: np.ndarray
    high: np.ndarray


@look.STYLED
def draw(
    curves: Sequence[Curve],
    evaluations: Iterable[Evaluation],
    metric: str,
    unit: str = "nats",
    *,
    against: str = "seconds",
    target: float | None = None,
) -> Figure:
    """Median and range over seeds of a metric at the best step size of each arm.

    An accuracy is shown as an error. With too many lines for their panels, each arm is
    drawn at the best of its laws and compensations alone, and those of other panels
    stand behind in gray.

    Args:
        curves: of the column that chooses the step size, from `tuning.curves`.
        evaluations: of the same run.
        metric: a field of an evaluation, or "gap".
        unit: of the loss.
        against: "seconds", "step" or "examples".
        target: a value of the metric to mark.
    """
    tuned = [curve for curve in curves if curve.retuned]
    panels = arrange(tuned)
    shown = look.error(metric, unit)
    found = progress(tuned, evaluations, metric, shown, against)
    ends = [found[c.series].at[-1] for c in tuned if not c.points[0].diverged]
    wide = bool(ends) and max(ends) > _WIDE * min(ends)
    if wide:  # a logarithmic axis has no place for 0
        found = {series: _after_the_beginning(own) for series, own in found.items()}
    order = list(dict.fromkeys(t for own in panels.values() for t in own.values()))
    styles = {label: look.style(i) for i, label in enumerate(order)}
    diverged = {c.series for c in tuned if c.points[0].diverged}
    title, where = _AXES[against]
    drawn = {series: label for own in panels.values() for series, label in own.items()}
    if len(drawn) < len(tuned):
        title += "\n(each at its best setting)"
    behind = {
        name: [s for s in drawn if s not in diverged and s.arm not in arms]
        for name, own in panels.items()
        for arms in [{series.arm for series in own}]
    }
    figure, axes = look.sheet(
        title,
        panels,
        _handles(panels, styles, diverged, any(behind.values()), target),
        tuning.edge_warnings(curves),
    )
    for axis, (name, own) in zip(axes, panels.items(), strict=True):
        for series in behind[name]:
            axis.plot(*found[series][:2], zorder=1, **_BEHIND)
        for series, label in own.items():
            if series not in diverged:
                _plot(axis, found[series], styles[label])
        if target is not None:
            axis.axhline(float(shown.of(target)), **_TARGET)
        axis.set_xlabel(where)
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel(shown.label)
    shown_ones = [found[series] for series in drawn if series not in diverged]
    _scales(axes, shown_ones, wide=wide)
    return figure


def progress(
    curves: Iterable[Curve],
    evaluations: Iterable[Evaluation],
    metric: str,
    shown: look.Error,
    against: str,
) -> dict[Series, Progress]:
    """Each series at the step size that its curve chose.

    Seeds are compared at equal numbers of updates.

    Raises:
        ValueError: if one was not evaluated at that step size.
    """
    wanted = {curve.series: curve.points[0].learning_rate for curve in curves}
    # series -> seed -> step -> what was evaluated
    found: dict[Series, dict[int, dict[int, Evaluation]]] = {s: {} for s in wanted}
    for evaluation in evaluations:
        series = tuning.series(evaluation)
        if wanted.get(series) == evaluation.learning_rate:
            seed = found[series].setdefault(evaluation.seed, {})
            seed.setdefault(evaluation.step, evaluation)
    made = {}
    for series, seeds in found.items():
        if not seeds:
            raise ValueError(
                f"curves.csv has no rows of {series.arm!r} at the step size"
                f" {wanted[series]:g}: it belongs to another run than results.csv."
            )
        steps = sorted(set.intersection(*map(set, seeds.values())))
        moments = [[own[step] for own in seeds.values()] for step in steps]
        values = shown.of([[_value(e, metric) for e in row] for row in moments])
        at = np.median([[getattr(e, against) for e in row] for row in moments], axis=1)
        made[series] = Progress(
            at, np.median(values, axis=1), values.min(axis=1), values.max(axis=1)
        )
    return made


def arrange(curves: Sequence[Curve]) -> dict[str, dict[Series, str]]:
    """Labels by panel and series: one panel, one a law, or arms as `names.panels` does.

    Args:
        curves: of the column that chooses, one for each series.
    """
    among = [curve.series for curve in curves]
    arms = list(dict.fromkeys(series.arm for series in among))
    laws = names.variants(among)
    short = {arm: str(name) for arm, name in names.short(arms).items()}
    if len(among) <= names.MOST or len(arms) == 1:
        several = len(set(laws.values())) > 1

        def label(series):
            named = [short[series.arm]] if len(arms) > 1 or not several else []
            return ", ".join(named + [laws[series]] * several)

        return {"": {series: label(series) for series in among}}
    if len(arms) <= names.MOST:
        panels = {law: {} for law in laws.values()}
        for series in among:
            panels[laws[series]][series] = short[series.arm]
        return panels
    best = {arm: _best([c for c in curves if c.series.arm == arm]) for arm in arms}
    return {
        title: {best[arm]: label for arm, label in own.items()}
        for title, own in names.panels(arms).items()
    }


def _best(curves: Sequence[Curve]) -> Series:
    def score(curve):
        sign = -1.0 if curve.metric.endswith("accuracy") else 1.0
        mean = curve.points[0].mean
        return sign * mean if math.isfinite(mean) else math.inf

    return min(curves, key=score).series


def _value(evaluation: Evaluation, metric: str) -> float:
    if metric == "gap":
        return evaluation.test_loss - evaluation.train_loss
    return getattr(evaluation, metric)


def _plot(axis: Axes, own: Progress, style: look.Style) -> None:
    at, median, low, high = own
    axis.fill_between(at, low, high, color=style.color, alpha=0.15, linewidth=0)
    axis.plot(at, median, color=style.color, linestyle=style.dashes, zorder=3)


def _after_the_beginning(own: Progress) -> Progress:
    return Progress(*(field[own.at > 0] for field in own))


def _scales(axes: Sequence[Axes], drawn: Sequence[Progress], *, wide: bool) -> None:
    """Logarithmic where arms end far apart, or where a metric moves far."""
    medians = [y for own in drawn for y in own.median]
    for axis in axes:
        if wide:
            axis.set_xscale("log")
            look.log_ticks(axis.xaxis, [x for own in drawn for x in own.at])
        else:
            axis.xaxis.set_major_locator(MaxNLocator(4))  # a panel is narrow
        look.log_if_wide(axis, medians)
        if axis.get_yscale() == "log":
            look.log_ticks(axis.yaxis, medians)


def _handles(
    panels: Mapping[str, Mapping[Series, str]],
    styles: Mapping[str, look.Style],
    diverged: set[Series],
    behind: bool,
    target: float | None,
) -> list[Artist]:
    gone = {
        label
        for own in panels.values()
        for series, label in own.items()
        if series in diverged
    }
    handles: list[Artist] = [
        Line2D(
            [],
            [],
            color=style.color,
            linestyle=style.dashes,
            label=f"{label} (diverged)" if label in gone else label,
        )
        for label, style in styles.items()
    ]
    if behind:
        handles.append(Line2D([], [], label="other arms", **_BEHIND))
    if target is not None:
        handles.append(Line2D([], [], label="target", **_TARGET))
    handles.append(patches.Patch(color="0.3", alpha=0.18, label="range of seeds"))
    return handles
