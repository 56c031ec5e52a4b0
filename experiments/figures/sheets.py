"""The sheet of a figure: title, panels, legend, notes at the foot, and its file."""

import io
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from experiments.figures import palette

STYLED = matplotlib.rc_context(
    {
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.labelsize": 11,
        "figure.titlesize": 13,
        "legend.fontsize": 10,
        "legend.frameon": False,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 6,
    }
)
_DPI = 150
_WIDTH = 6.0  # inches: 900 pixels, the width of a README
_NOTES_SHOWN = 3
# {color: the color that replaces it in an SVG on a dark page}; lines: `palette.on_dark`
_DARK = {
    "black": "#e6e6e6",
    "0.3": "#bdbdbd",
    "0.4": "#a6a6a6",
    "0.7": "#5c5c5c",
    "0.94": "#2e2e2e",
    "0.955": "#242424",
    "white": "#161616",
    palette.NOTE_COLOR: "#ffa366",
}


@STYLED
def save(figure: Figure, path: Path | str, note: str = "") -> Path:
    """Writes a figure in the format of the path's suffix, and returns the path.

    An .svg has no background, and light texts on a dark page; other formats have a
    white background.

    Args:
        figure: the figure to write.
        path: the path of the file.
        note: a text below the figure, which makes the sheet higher; "" for none.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"dpi": _DPI, "facecolor": "white"}
    if note:
        text = textwrap.fill(note, 90)
        figure.draw_without_rendering()  # the layout places the legend
        figure.set_layout_engine("none")
        for legend in figure.legends:  # else it moves to the foot of the larger sheet
            legend.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)
        figure.text(0.02, -0.01, text, color=palette.NOTE_COLOR, va="top")
        options["bbox_inches"] = "tight"
    if path.suffix == ".svg":
        path.write_text(svg(figure, **options), encoding="utf-8")
    else:
        figure.savefig(path, **options)
    return path


@STYLED
def svg(figure: Figure, **options: Any) -> str:
    """The text of a figure's .svg, without background, also for a dark page.

    Args:
        figure: the figure.
        **options: of `Figure.savefig`.
    """
    written = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "figure"}):  # the same file each time
        options |= {"format": "svg", "facecolor": "none", "metadata": {"Date": None}}
        figure.savefig(written, **options)
    head, root, body = written.getvalue().partition("<svg")
    tag, end, body = body.partition(">")
    return f"{head}{root}{tag}{end}{_dark_style(body)}{body}"


def _dark_style(body: str) -> str:
    """CSS with the colors of a dark page; SVG files do not name a black fill."""
    fixed = {to_hex(color): dark for color, dark in _DARK.items()}
    there = sorted(set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", body)) - {*fixed})
    lines = {c: palette.on_dark()[c] for c in there if c in palette.on_dark()}
    rules = [
        f'[style*="{kind}: {color}"]{{{kind}:{dark}!important}}'
        for color, dark in (fixed | lines).items()
        for kind in ("fill", "stroke")
    ]
    text = f":root,svg{{fill:{_DARK['black']}}}{''.join(rules)}"
    return f"\n<style>@media (prefers-color-scheme:dark){{{text}}}</style>"


def sheet(
    title: str,
    panels: Iterable[str],
    handles: Sequence[Artist] = (),
    notes: Sequence[str] = (),
    *,
    question: str = "",
    finding: str = "",
    height: float = 2.8,
    columns: int = 2,
    sharey: bool = True,
) -> tuple[Figure, list[Axes]]:
    """A figure with a title, empty panels, a legend and notes; and its panels.

    Args:
        title: the question that the figure answers; "" takes the finding, if there is
            one, or else `question`.
        panels: the titles of the panels.
        handles: the entries of the legend.
        notes: warnings at the foot; after the first three, only their number is shown.
        question: the title if there is neither a title nor a finding.
        finding: the result as a sentence, above the panel if there is a `title`.
        height: the height of a panel, in inches.
        columns: the largest number of panels in a row.
        sharey: whether panels have the same vertical axis.
    """
    panels = list(panels)
    if finding and title and panels == [""]:
        panels = [textwrap.fill(finding, 62)]
    title = title or finding or question
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


def _note_lines(notes: Sequence[str]) -> list[str]:
    shown = [_shortened(note) for note in notes[:_NOTES_SHOWN]]
    if len(notes) > _NOTES_SHOWN:
        shown.append(f"{len(notes) - _NOTES_SHOWN} more: see report.html.")
    return [line for note in shown for line in textwrap.wrap(note, 74)]


def _shortened(note: str) -> str:
    """The note; if it lists four names or more, "A; B; C; D: text", it keeps two."""
    names, colon, what = note.partition(": ")
    listed = names.split("; ")
    if len(listed) < 4:
        return note
    return f"{'; '.join(listed[:2])} and {len(listed) - 2} more{colon}{what}"


def empty(axis: Axes, lost: str) -> None:
    """Writes into a panel that all series are lost; ticks would look like numbers."""
    text = f"every series {'is ' * lost.startswith('not ')}{lost}"
    axis.set_yticks([])
    place = {"ha": "center", "va": "center", "transform": axis.transAxes}
    axis.text(0.5, 0.5, text, color=palette.NOTE_COLOR, **place)


def wrapped(label: str, width: int = 26) -> str:
    """A label in several lines, broken after commas.

    Example:
        >>> wrapped("n_softsync, workers=30, K=4", 14).splitlines()
        ['n_softsync,', 'workers=30,', 'K=4']
    """
    whole = re.sub("(?<!,) ", "\0", label)  # no break at these spaces
    lines = textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")
