"""What all figures share: style, sheet, axes and file."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
)
from numpy.typing import ArrayLike

from experiments import results

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
# Okabe and Ito's colors, without the yellow, which is too light for a line
COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
)
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# how a value that theory gives is marked
THEORY = {"color": COLORS[6], "marker": "D", "mfc": "none", "ls": ""}
NOTE_COLOR = "#A33B00"
_NOTES_SHOWN = 3


class Style(NamedTuple):
    """How one of several lines is told from the others."""

    color: str
    marker: str
    dashes: Any


@STYLED
def save(figure: Figure, path: Path | str) -> Path:
    """Writes a figure as PNG and returns its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, facecolor="white")
    return path


def style(index: int) -> Style:
    """The style of the line of this index, other for each of the first 49."""
    i = index % len(COLORS)
    # the second time round the same colors come with other markers and dashes
    j = (index + index // len(COLORS)) % len(COLORS)
    return Style(COLORS[i], _MARKERS[j], _DASHES[j])


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
        below.text(0.02, 0.95, "\n".join(lines), color=NOTE_COLOR, va="top")
    body.suptitle(title, fontweight="bold")
    axes = list(body.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for extra in axes[len(panels) :]:
        extra.remove()
    for axis, name in zip(axes, panels, strict=False):
        axis.set_title(name)
    if handles:
        body.legend(handles=handles, loc="outside lower center", ncols=legend_columns)
    return figure, axes[: len(panels)]


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


def delay_ticks(axis: Any, delays: Sequence[float], position: Any) -> None:
    """Ticks at the delays that were run, as many as there is room for."""
    shown: list[float] = []
    powers = [d for d in delays if d == 0 or math.log2(d).is_integer()]
    for delay in powers if len(delays) > 8 and len(powers) > 3 else delays:
        octaves = [math.log2(2 * value + 1) for value in (*shown[-1:], delay)]
        if not shown or octaves[1] - octaves[0] > 0.5:
            shown.append(delay)
    axis.set_major_locator(FixedLocator([position(delay) for delay in shown]))
    axis.set_minor_locator(NullLocator())
    axis.set_ticklabels([f"{delay:g}" for delay in shown])


def log_if_wide(axis: Axes, values: Iterable[float]) -> None:
    """A logarithmic axis for values that span more than a factor of ten."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and 0 < 10 * min(finite) < max(finite):
        axis.set_yscale("log")


def log_ticks(axis: Any, values: Iterable[float]) -> None:
    """Labels 1, 2 and 5 times powers of ten, or the powers alone where these are many.

    Args:
        axis: an `XAxis` or `YAxis`, already logarithmic.
        values: that it spans.
    """
    positive = [value for value in values if 0 < value < math.inf]
    few = not positive or max(positive) < 200 * min(positive)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(LogLocator(subs=range(2, 10)))
    axis.set_minor_formatter(NullFormatter())


def beside(axis: Axes, height: float, text: str) -> None:
    """A text in a column of its own, right of the axis."""
    axis.text(1.02, height, text, va="center", transform=axis.get_yaxis_transform())


def mean_and_theory(mean: float, theory: float | None) -> str:
    """What was measured, and in brackets what theory says, if anything."""
    measured = "none" if math.isnan(mean) else f"{mean:.3g}"
    return measured if theory is None else f"{measured} ({theory:.3g})"


def quantity(metric: str, unit: str) -> str:
    """The words for a metric, with its unit; `unit` is the loss's."""
    own = {"gradient_norm": "", "seconds_to_target": "simulated s"}
    if metric.endswith("accuracy"):
        unit = "share"
    return results.METRICS[metric] + in_unit(own.get(metric, unit))


class Error(NamedTuple):
    """A metric such that less is better: an accuracy is shown as what it misses."""

    label: str
    sign: float
    offset: float

    def of(self, values: ArrayLike) -> np.ndarray:
        """The errors of these values of the metric."""
        return self.offset + self.sign * np.asarray(values, float)


def error(metric: str, unit: str) -> Error:
    """How a metric is shown where small differences matter."""
    label = quantity(metric, unit)
    if metric.endswith("accuracy"):
        return Error(label.replace("accuracy", "error"), -1.0, 1.0)
    return Error(label, 1.0, 0.0)


def in_unit(unit: str) -> str:
    """A unit in brackets; empty if there is none."""
    return f" ({unit})" if unit else ""
