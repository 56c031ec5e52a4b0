"""Figures of a run: small objects that draw its tables; nothing trains here.

A figure is any object with a `name`, which is also the name of its file, and a method
`draw(run)`, which returns a Matplotlib figure of a `results.runs.Run`. Its `caption`
describes the figure for readers who cannot see it. The functions below make common
figures. Matplotlib is imported when a figure is drawn.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.figures.drawing.ages import staleness as staleness
from experiments.figures.drawing.bars import bars as bars
from experiments.figures.drawing.bars import update_times as update_times
from experiments.figures.drawing.curves import curves as curves
from experiments.figures.drawing.gantt import gantt as gantt
from experiments.figures.drawing.over import best_step as best_step
from experiments.figures.drawing.over import over as over
from experiments.figures.figure import Figure as Figure
from experiments.results import analysis
from experiments.results.decay import DecayRate as DecayRate
from experiments.results.metrics import LargestStable as LargestStable
from experiments.results.metrics import TimeTo as TimeTo
from experiments.results.runs import Run


class Table(NamedTuple):
    """A table of the report, and a file beside it.

    Attributes:
        name: the name of the file, without ".csv".
        caption: the text above the table.
        make: run -> the data frame of the table.
    """

    name: str
    caption: str
    make: Callable[[Run], Any]


class Drawn(NamedTuple):
    """The file of a figure, or the reason why the figure could not be drawn."""

    name: str
    caption: str
    path: Path | None
    reason: str = ""


def save(run: Run, figures: Sequence[Any], format: str = "svg") -> list[Drawn]:
    """Draws figures into the folder figures/ of a run; returns their paths or errors.

    Args:
        run: the run whose tables are drawn.
        figures: objects with `name` and `draw(run)`.
        format: "svg", which has light texts on a dark page, "png" or "pdf".
    """
    from experiments.figures import sheets

    drawn = []
    for figure in figures:
        caption = getattr(figure, "caption", figure.name)
        path = run.folder / "figures" / f"{figure.name}.{format}"
        try:
            made = sheets.STYLED(figure.draw)(run)
            sheets.save(made, path, run.not_found())
        except Exception as error:  # the user's code fails, or a column is missing
            reason = f"{type(error).__name__}: {error}"
            drawn.append(Drawn(figure.name, caption, None, reason))
        else:
            drawn.append(Drawn(figure.name, caption, path))
    return drawn


def default(run: Run) -> list[Figure]:
    """The figures of an experiment that does not define figures."""
    metrics = ("test_error", "test_loss", "train_loss")
    metric = next((name for name in metrics if name in run.results), None)
    if metric is None or "train_loss" not in run.results:
        return []
    varied = analysis.distinguishing(run.results[run.settings])
    first = [over(x, metric) for x in varied if x not in run.selection.axes][:1]
    return [*first, curves("train_loss")]
