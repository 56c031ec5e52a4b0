"""Colors, markers and dashes: how lines are told apart, and what the legend shows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.artist import Artist
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D

# Okabe and Ito's colors, without the yellow, which is too light for a line
_BLUE, _RED, _GREEN, _PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_ORANGE, _SKY, _BLACK = "#E69F00", "#56B4E9", "#000000"
COLORS = (_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY, _BLACK)
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# how a value that theory gives is marked
THEORY = {"color": COLORS[6], "marker": "D", "mfc": "none", "ls": ""}
NOTE_COLOR = "#A33B00"


class Style(NamedTuple):
    """How one of several lines is told from the others."""

    color: str
    marker: str
    dashes: Any


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


def hollow(label: str) -> Line2D:
    """The legend's mark for a dot at a fixed step."""
    return Line2D(
        [], [], color="0.3", marker="o", ms=5, mfc="white", ls="", label=label
    )
