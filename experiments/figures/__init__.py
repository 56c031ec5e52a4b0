"""Figures of a run: small objects that draw its tables; nothing trains here.

A figure is anything with a `name`, which its file gets, and `draw(run)`, which returns
a Matplotlib figure of a `results.runs.Run`. The functions below make the common ones.
Matplotlib is imported when the first one draws.
"""

import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

from experiments.results import analysis
from experiments.results.choice import TimeTo as TimeTo
from experiments.results.column_words import words
from experiments.results.runs import Run

P = ParamSpec("P")

Theory = Callable[..., float | None]
"""A formula; its arguments are named as labels and axes of the run are."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure that a module of this package draws.

    Attributes:
        name: of its file.
        text: what it shows, for those who cannot see it.
        module: of this package; its function `draw(run, **options)` draws.
        options: of that function.
    """

    name: str
    text: str
    module: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def draw(self, run: Run) -> Any:
        """The Matplotlib figure of a run."""
        module = importlib.import_module(f"experiments.figures.drawing.{self.module}")
        return module.draw(run, **self.options)


class Table(NamedTuple):
    """A table of the report, and a file beside it.

    Attributes:
        name: of the file, without ".csv".
        caption: above the table.
        of: run -> the table, a frame.
    """

    name: str
    caption: str
    of: Callable[[Run], Any]


def _kind(describe: Callable[P, tuple[str, str]]) -> Callable[P, Figure]:
    """A kind of figure, of a function that says the name and the text of one.

    The module of the function's name draws it: `draw` there takes its arguments, but
    for `name`, which is the file's where it is given.
    """
    signature = inspect.signature(describe)

    @functools.wraps(describe)
    def figure(*args, **kwargs):
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        options = dict(given.arguments)
        usual, text = describe(*args, **kwargs)
        name = re.sub(r"[^\w.-]+", "_", options.pop("name") or usual)
        return Figure(name, text, describe.__name__, options)

    return figure


@_kind
def over(
    x: str,
    metric: str | TimeTo = "test_error",
    *,
    fixed: bool | Mapping[str, Any] = True,
    panels: str | None = None,
    color: str | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
    theory: Theory | None = None,
    title: str = "",
    x_label: str = "",
    name: str = "",
) -> tuple[str, str]:
    """A metric against an axis or a label, with intervals of 95 %.

    A series is what the other settings tell apart; a setting that it lacks `x` for is a
    horizontal line. Where the experiment tunes an axis, solid is its best value at each
    `x`, and dashed the best value of the first `x`, kept.

    Args:
        x: an axis or a label, of numbers or of names.
        metric: a column of the results, or a `TimeTo`.
        fixed: whether to show the kept value as well; or {setting: value}, and all
            series keep the value that is best for this one.
        panels: a setting with a panel for each value; by default one only where series
            are too many.
        color: the setting that is named first, and has the colors in order.
        only: {setting: the values shown}.
        theory: drawn as a thin line; takes `x` and, if named so, settings of a series.
        title: the question or the finding.
        x_label: with the unit.
        name: of the file.
    """
    return f"{_name(metric)}_over_{x}", (
        f"{words(_name(metric)).capitalize()} against {words(x)}: means over seeds with"
        " 95 % intervals. The table below has the numbers."
    )


@_kind
def best_step(
    x: str,
    axis: str | None = None,
    *,
    limit: Theory | Mapping[Any, float] | None = None,
    panels: str | None = None,
    color: str | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
    title: str = "",
    x_label: str = "",
    name: str = "",
) -> tuple[str, str]:
    """The best value of a tuned axis against another; rings mark the grid's edge.

    Args:
        x: an axis or a label.
        axis: that is tuned; by default the experiment's first.
        limit: the largest stable step, dotted: a function of settings, or {x: limit}.
        panels: as in `over`.
        color: as in `over`.
        only: as in `over`.
        title: the question or the finding.
        x_label: with the unit.
        name: of the file.
    """
    return f"best_{axis or 'value'}_over_{x}", (
        f"The best {words(axis or 'value')} against {words(x)}. The table below has the"
        " numbers."
    )


@_kind
def curves(
    metric: str = "train_loss",
    *,
    against: str = "update",
    panels: str | None = None,
    color: str | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
    target: float | None = None,
    title: str = "",
    name: str = "",
) -> tuple[str, str]:
    """A metric on its way: each series at its best value of what is tuned.

    Args:
        metric: a column of the curves.
        against: "update", "seconds" or "examples".
        panels: as in `over`.
        color: as in `over`.
        only: as in `over`.
        target: a value of the metric to mark.
        title: the question or the finding.
        name: of the file.
    """
    return f"{metric}_over_{against}", (
        f"{words(metric).capitalize()} of the best cell of each series against"
        f" {words(against)}: means over seeds with 95 % intervals."
    )


@_kind
def stability_map(
    x: str,
    axis: str,
    *,
    metric: str = "train_loss",
    limit: Theory | Mapping[Any, float] | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
    title: str = "",
    name: str = "",
) -> tuple[str, str]:
    """The final loss over the step and another axis; cells that end higher are black.

    What else is varied has a panel for each value.

    Args:
        x: the other axis, upwards.
        axis: the step.
        metric: whose logarithm is shown; the excess over the task's `optimum_loss`
            where that is known.
        limit: the largest stable step: a function of settings, or {x: limit}.
        only: as in `over`.
        title: the question or the finding.
        name: of the file.
    """
    return "stability_map", (
        f"Map of the final {words(metric)} over {words(axis)} and {words(x)}. Cells"
        " that end above where they began, or diverge, are black; where it is known, a"
        " line is the computed limit."
    )


@_kind
def bars(
    metric: str | TimeTo = "test_error",
    *,
    fixed: bool = False,
    panels: str | None = None,
    color: str | None = None,
    only: Mapping[str, Sequence[Any]] | None = None,
    theory: Theory | None = None,
    title: str = "",
    name: str = "",
) -> tuple[str, str]:
    """How each label ends: a row for each, a dot and an interval.

    Args:
        metric: a column of the results, or a `TimeTo`.
        fixed: whether to show as well, hollow, the best value of the first row.
        panels: as in `over`.
        color: a setting whose values share a row, in colors.
        only: as in `over`.
        theory: what a formula of settings says, as a diamond.
        title: the question or the finding.
        name: of the file.
    """
    return f"{_name(metric)}_bars", (
        f"{words(_name(metric)).capitalize()} at the end, a row for each label: means"
        " over seeds with 95 % intervals. The table below has the numbers."
    )


@_kind
def staleness(
    *, theory: Theory | None = None, title: str = "", name: str = "staleness"
) -> tuple[str, str]:
    """How stale the gradients of each arm were, under the first seed.

    Args:
        theory: the mean that a formula of labels says, in updates; None for none.
        title: the question or the finding.
        name: of the file.
    """
    return name, (
        "Histograms of the staleness of each arm's gradients, with their mean."
    )


@_kind
def update_times(
    *, theory: Theory | None = None, title: str = "", name: str = "update_times"
) -> tuple[str, str]:
    """How long the updates of each arm took, under the first seed.

    Args:
        theory: the mean that a formula of labels says, in seconds; None for none.
        title: the question or the finding.
        name: of the file.
    """
    return name, (
        "The time between updates of each arm: where nine of ten lie, and their mean."
    )


@_kind
def gantt(
    *, only: Sequence[str] | None = None, title: str = "", name: str = "gantt"
) -> tuple[str, str]:
    """What the workers of each arm did in the first seconds, under the first seed.

    Args:
        only: names of the arms shown; by default the first four.
        title: the question or the finding.
        name: of the file.
    """
    return name, (
        "What the workers do in the first seconds: bars of computing, idle gaps,"
        " dropped gradients, and updates as ticks."
    )


@_kind
def noise_floor(
    x: str,
    axis: str,
    *,
    theory: Theory,
    limit: Theory | None = None,
    metric: str = "train_loss",
    only: Mapping[str, Sequence[Any]] | None = None,
    title: str = "",
    name: str = "noise_floor",
) -> tuple[str, str]:
    """Where gradient noise leaves the loss at each step, beside theory.

    Args:
        x: the axis to the right.
        axis: the step, a color for each.
        theory: the loss at the end, of settings; inf where training does not converge.
        limit: the largest stable step, of settings; with it a second panel shows
            measured / theory over step / limit.
        metric: the loss.
        only: as in `over`.
        title: the question or the finding.
        name: of the file.
    """
    return name, (
        f"{words(metric).capitalize()} at the end against {words(x)} at each step, and"
        " lines of what theory says."
    )


@_kind
def decay_rate(
    x: str = "workers",
    *,
    theory: Theory | None = None,
    metric: str = "train_loss",
    only: Mapping[str, Sequence[Any]] | None = None,
    title: str = "",
    name: str = "decay_rate",
) -> tuple[str, str]:
    """How fast the error of each series dies out in simulated time.

    Args:
        x: the axis to the right, of whole numbers.
        theory: the rate, 1 / seconds, of settings; a star marks its largest value. None
            where it knows none.
        metric: the loss, a sum of squared errors.
        only: as in `over`.
        title: the question or the finding.
        name: of the file.
    """
    return name, (
        f"The rate at which the error dies out against {words(x)}: means over seeds"
        " with 95 % intervals, and lines of what theory says."
    )


class Drawn(NamedTuple):
    """A figure that was drawn, or why it was not."""

    name: str
    text: str
    path: Path | None
    reason: str = ""


def save(run: Run, figures: Sequence[Any], format: str = "png") -> list[Drawn]:
    """Draws figures into the run's folder figures/; one that fails says why.

    Args:
        run: whose tables are drawn.
        figures: objects with `name` and `draw(run)`.
        format: "png", "svg" or "pdf".
    """
    from experiments.figures import sheets

    drawn = []
    for figure in figures:
        text = getattr(figure, "text", figure.name)
        path = run.folder / "figures" / f"{figure.name}.{format}"
        try:
            made = sheets.STYLED(figure.draw)(run)
            sheets.save(made, path, run.found.not_found())
        except (
            Exception
        ) as error:  # a figure of the user's own, or of what is not there
            reason = f"{type(error).__name__}: {error}"
            drawn.append(Drawn(figure.name, text, None, reason))
        else:
            drawn.append(Drawn(figure.name, text, path))
    return drawn


def default(run: Run) -> list[Figure]:
    """The figures of an experiment that names none."""
    metrics = ("test_error", "test_loss", "train_loss")
    metric = next((own for own in metrics if own in run.results), None)
    if metric is None or "train_loss" not in run.results:
        return []
    told = analysis.told_by(run.results[run.settings])
    found = [over(x, metric) for x in told if x not in run.choice.axes][:1]
    return [*found, curves("train_loss")]


def _name(metric: str | TimeTo) -> str:
    return metric if isinstance(metric, str) else metric.name
