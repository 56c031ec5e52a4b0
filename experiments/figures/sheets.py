"""The sheet of a figure: title, panels, legend, notes at the foot, and its file."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.figures import palette

STYLED = matplotlib.rc_context(
    {
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.labelsize": 11,
        "figure.titlesize": 13,
        "legend.fontsize": 10,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 6,
    }
)
_DPI = 150
_WIDTH = 6.0  # inches: 900 pixels, what a README shows
_NOTES_SHOWN = 3


@STYLED
def save(figure: Figure, path: Path | str, note: str = "") -> Path:
    """Writes a figure in the format of the file's name, and returns its path.

    Args:
        figure: to write.
        path: of the file.
        note: below the figure, if there is one; the sheet grows by it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    box = None
    if note:
        text = textwrap.fill(note, 90)
        figure.draw_without_rendering()  # the layout places the legend
        figure.set_layout_engine("none")
        for legend in figure.legends:  # else it moves to the foot of the larger sheet
            legend.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)
        figure.text(0.02, -0.01, text, color=palette.NOTE_COLOR, va="top")
        box = "tight"
    figure.savefig(path, dpi=_DPI, facecolor="white", bbox_inches=box)
    return path


def sheet(
    title: str,
    panels: Iterable[str],
    handles: Sequence[Artist] = (),
    notes: Sequence[str] = (),
    *,
    height: float = 2.8,
    columns: int = 2,
    sharey: bool = True,
) -> tuple[Figure, list[Axes]]:
    """An empty figure: title, a panel for each name, legend below, notes at the foot.

    Args:
        title: the question that the figure answers.
        panels: the titles of the panels.
        handles: the legend's.
        notes: warnings; what does not fit is counted.
        height: of a panel, in inches.
        columns: how many panels there are in a row, at most.
        sharey: whether panels have the same vertical axis.
    """
    panels = list(panels)
    title = "\n".join(textwrap.fill(line, 58) for line in title.splitlines())
    columns = min(len(panels), columns)
    rows = math.ceil(len(panels) / columns)
    lines = _note_lines(notes)
    widest = max((len(handle.get_label()) for handle in handles), default=0)
    legend_columns = 3 if widest <= 16 else 2 if widest <= 30 else 1
    foot = 0.18 * len(lines) + 0.1
    top = height * rows + 0.35 + 0.2 * math.ceil(len(handles) / legend_columns)
    top += 0.2 * title.count("\n")
    figure = Figure(
        figsize=(_WIDTH, top + foot if lines else top), dpi=_DPI, layout="constrained"
    )
    body = figure
    if lines:
        body, below = figure.subfigures(2, 1, height_ratios=(top, foot))
        below.text(0.02, 0.95, "\n".join(lines), color=palette.NOTE_COLOR, va="top")
    body.suptitle(title, fontweight="bold")
    axes = list(body.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for extra in axes[len(panels) :]:
        extra.remove()
    for axis, name in zip(axes, panels, strict=False):
        axis.set_title(name)
    if handles:
        body.legend(
            handles=handles,
            loc="outside lower center",
            ncols=legend_columns,
        )
    return figure, axes[: len(panels)]


class Rows(NamedTuple):
    """A sheet with a row for each name."""

    figure: Figure
    axis: Axes
    labels: list[str]  # wrapped names
    theory: dict[str, float]  # the mean in theory by name; nan where there is none
    head: str  # of the column of means


def rows(
    title: str,
    names: Iterable[str],
    handles: Sequence[Artist],
    theory: Mapping[str, float] | None,
    *,
    height: float,
) -> Rows:
    """An empty sheet with a row for each name; the legend has theory where it is known.

    Args:
        title: the question or the finding.
        names: of the rows.
        handles: of the legend.
        theory: the mean that a formula gives, by name.
        height: the least height of a row, in inches.
    """
    expected = dict.fromkeys(names, math.nan) | dict(theory or {})
    labels = [wrapped(name) for name in expected]
    known = any(math.isfinite(value) for value in expected.values())
    if known:
        handles = [
            *handles,
            Line2D([], [], label="theory", **palette.THEORY),
        ]
    lines = max(label.count("\n") + 1 for label in labels)
    total = 1.0 + len(labels) * max(height, 0.2 * lines)
    figure, (axis,) = sheet(title, [""], handles, height=total)
    axis.tick_params(axis="y", length=0)
    head = "mean (theory)" if known else "mean"
    return Rows(figure, axis, labels, expected, head)


def _note_lines(notes: Sequence[str]) -> list[str]:
    shown = [_shortened(note) for note in notes[:_NOTES_SHOWN]]
    if len(notes) > _NOTES_SHOWN:
        shown.append(f"{len(notes) - _NOTES_SHOWN} more: see report.html.")
    return [line for note in shown for line in textwrap.wrap(note, 74)]


def _shortened(note: str) -> str:
    """A note about several things, "A; B; C; D: what", names the first two."""
    names, colon, what = note.partition(": ")
    listed = names.split("; ")
    if len(listed) < 4:
        return note
    return f"{'; '.join(listed[:2])} and {len(listed) - 2} more{colon}{what}"


def empty(axis: Axes, lost: str) -> None:
    """Says that there is nothing to draw; an empty scale would look like numbers."""
    said = f"is {lost}" if lost.startswith("not ") else lost
    axis.set_yticks([])
    axis.text(
        0.5,
        0.5,
        f"every series {said}",
        color=palette.NOTE_COLOR,
        ha="center",
        va="center",
        transform=axis.transAxes,
    )


def beside(axis: Axes, height: float, text: str) -> None:
    """A text in a column of its own, right of the axis."""
    axis.text(1.02, height, text, va="center", transform=axis.get_yaxis_transform())


def mean_and_theory(mean: float, theory: float) -> str:
    """What was measured, and in brackets what theory says, if anything."""
    measured = "none" if math.isnan(mean) else f"{mean:.3g}"
    return measured if math.isnan(theory) else f"{measured} ({theory:.3g})"


def wrapped(label: str, width: int = 26) -> str:
    """A label in several lines, broken after commas.

    Example:
        >>> wrapped("n_softsync, workers=30, K=4", 14).splitlines()
        ['n_softsync,', 'workers=30,', 'K=4']
    """
    lines = [""]
    for part in label.split(", "):
        longer = f"{lines[-1]}, {part}" if lines[-1] else part
        if lines[-1] and len(longer) > width:
            lines[-1] += ","
            lines.append(part)
        else:
            lines[-1] = longer
    return "\n".join(lines)
