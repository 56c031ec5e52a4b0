"""What all figures share: style, sheet, axes and file."""

import math
import numbers
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib import transforms
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

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
    """Writes a figure in the format of the file's name, and returns its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, facecolor="white")
    return path


def styles(labels: Sequence[str], *, ordered: bool = False) -> dict[str, Style]:
    """A style for each of several lines; no two have the same color.

    Args:
        labels: of the lines.
        ordered: whether they are values of a number: then many of them go from light
            to dark.
    """
    count = len(labels)
    if count <= len(COLORS):
        colors = list(COLORS)
    elif ordered:
        shades = matplotlib.colormaps["viridis_r"]
        colors = [to_hex(shades(0.1 + 0.9 * i / (count - 1))) for i in range(count)]
    else:
        times = math.ceil(count / len(COLORS))
        colors = [_darker(own, i / times) for i in range(times) for own in COLORS]
    return {
        label: Style(
            colors[i],
            # the second time round, colors come with other markers and dashes
            _MARKERS[(i + i // len(_MARKERS)) % len(_MARKERS)],
            _DASHES[(i + i // len(_DASHES)) % len(_DASHES)],
        )
        for i, label in enumerate(labels)
    }


def _darker(color: str, share: float) -> str:
    """Towards black; black itself towards gray."""
    end = 0.0 if color != "#000000" else 0.75
    return to_hex([(1 - share) * part + share * end for part in to_rgb(color)])


def handles(
    styles: Mapping[str, Style], *, dashes: bool = True, lines: bool = True
) -> list[Artist]:
    """The legend's, for each label but an empty one.

    Args:
        styles: by label.
        dashes: whether these tell lines apart too.
        lines: whether there are lines.
    """
    return [
        Line2D(
            [],
            [],
            color=style.color,
            marker=style.marker,
            linestyle=(style.dashes if dashes else "-") if lines else "",
            label=label,
        )
        for label, style in styles.items()
        if label
    ]


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
        handles = [*handles, Line2D([], [], label="theory", **THEORY)]
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


def delay_ticks(axis: Any, delays: Sequence[float], position: Any) -> None:
    """Ticks at the delays that were run, as many as there is room for."""
    shown: list[float] = []
    least = min((delay for delay in delays if delay > 0), default=1.0)
    powers = [d for d in delays if d == 0 or math.log2(d).is_integer()]
    for delay in powers if len(delays) > 8 and len(powers) > 3 else delays:
        near = (*shown[-1:], delay)
        octaves = [math.log2(2 * value / least + 1) for value in near]
        if not shown or octaves[1] - octaves[0] > 0.5:
            shown.append(delay)
    axis.set_major_locator(FixedLocator([position(delay) for delay in shown]))
    axis.set_minor_locator(NullLocator())
    axis.set_ticklabels([f"{delay:g}" for delay in shown])


def y_label(axis: Axes, text: str) -> None:
    """A label, in two lines where it is longer than a panel is high."""
    axis.set_ylabel(textwrap.fill(text, 22 if len(text) > 24 else 24))


def empty(axis: Axes, lost: str) -> None:
    """Says that there is nothing to draw; an empty scale would look like numbers."""
    axis.set_yticks([])
    axis.text(
        *(0.5, 0.5, f"every series {lost}".replace("series not", "series is not")),
        color=NOTE_COLOR,
        ha="center",
        va="center",
        transform=axis.transAxes,
    )


def log_if_wide(axis: Any, values: Iterable[float], factor: float = 10.0) -> bool:
    """A logarithmic axis for values that span more than a factor.

    Args:
        axis: an `XAxis` or `YAxis`.
        values: that it shows.
        factor: beyond which it is logarithmic.
    """
    finite = [float(value) for value in values if math.isfinite(value)]
    if not finite or not 0 < factor * min(finite) < max(finite):
        return False
    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
    log_ticks(axis, finite)
    return True


def crowds(column: str) -> float:
    """The factor from which on a metric is shown on a logarithmic axis."""
    return 4.0 if column.endswith("error") else 10.0


class Positions(NamedTuple):
    """Where the values of an axis stand: numbers at themselves, names in a row."""

    values: list[Any]  # in order
    numeric: bool

    def of(self, values: Iterable[Any]) -> list[float]:
        """Their places."""
        if self.numeric:
            return [float(value) for value in values]
        return [float(self.values.index(value)) for value in values]


def positions(values: Iterable[Any]) -> Positions:
    """Numbers ascending; names in the order of the run."""
    found = list(dict.fromkeys(values))
    numeric = all(
        isinstance(value, numbers.Real) and not isinstance(value, bool)
        for value in found
    )
    return Positions(sorted(found) if numeric else found, numeric)


def x_axis(axes: Sequence[Axes], places: Positions, label: str) -> None:
    """Scale, ticks and label: octaves from 0 on where numbers are wide apart."""
    for axis in axes:
        axis.set_xlabel(label)
        if not places.numeric:
            long = max(map(len, map(str, places.values))) * len(places.values) > 40
            axis.set_xticks(
                range(len(places.values)),
                [str(value) for value in places.values],
                **({"rotation": 25, "ha": "right"} if long else {}),
            )
            axis.set_xlim(-0.5, len(places.values) - 0.5)
            continue
        positive = [value for value in places.values if value > 0]
        if not positive or min(places.values) < 0 or positive[-1] < 6 * positive[0]:
            axis.xaxis.set_major_locator(MaxNLocator(5))
            continue
        if places.values[0] == 0:
            # half of the linear range, in octaves: 0 stands as far from the first value
            # as twice the first value does
            axis.set_xscale("symlog", base=2, linthresh=positive[0], linscale=0.5)
            left = -0.2 * positive[0]
        else:
            axis.set_xscale("log", base=2)
            left = positive[0] / 1.2
        axis.set_xlim(left, 1.15 * positive[-1])
        delay_ticks(axis.xaxis, places.values, lambda value: value)


def gutter(
    axis: Axes, marks: Sequence[tuple[Sequence[float], Style]], what: str
) -> None:
    """A strip above the scale with a cross for each value that is not on it.

    Args:
        axis: that shares its horizontal scale with the strip.
        marks: places and style of the crosses, a row of the strip each.
        what: happened to them.
    """
    marks = [(places, style) for places, style in marks if len(places)]
    if not marks:
        return
    # in inches: as a share of the panel, the layout of the sheet would not settle
    inches = axis.get_figure(root=True).dpi_scale_trans
    above = inches + transforms.ScaledTranslation(0, 1, axis.transAxes)
    place = transforms.blended_transform_factory(axis.transAxes, above)
    height = 0.05 + 0.11 * len(marks)
    strip = axis.inset_axes((0, 0.05, 1, height), transform=place, sharex=axis)
    for row, (places, style) in enumerate(marks):
        strip.plot(places, [row] * len(places), "x", color=style.color, mew=1.8, ms=5)
    strip.set_ylim(len(marks) - 0.4, -0.6)
    strip.set_facecolor("0.94")
    strip.spines[:].set_visible(False)
    strip.tick_params(axis="x", which="both", bottom=False, labelbottom=False)
    first = axis.get_subplotspec().is_first_col()
    strip.set_yticks([(len(marks) - 1) / 2] if first else [], [what] if first else [])
    strip.tick_params(axis="y", length=0)


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


def mean_and_theory(mean: float, theory: float) -> str:
    """What was measured, and in brackets what theory says, if anything."""
    measured = "none" if math.isnan(mean) else f"{mean:.3g}"
    return measured if math.isnan(theory) else f"{measured} ({theory:.3g})"


def hollow(label: str) -> Line2D:
    """The legend's mark for a dot at a fixed step."""
    return Line2D(
        [], [], color="0.3", marker="o", ms=5, mfc="white", ls="", label=label
    )


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
