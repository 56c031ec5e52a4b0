"""Colors, markers and dashes that distinguish lines, and the entries of legends."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# the colors of Okabe and Ito without yellow, which is too light for a line
_BLUE, _RED, _GREEN, _PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_ORANGE, _SKY, _BLACK = "#E69F00", "#56B4E9", "#000000"
COLORS = (_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY, _BLACK)
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# the looks of a line of theoretical values, and of the marker of one such value
THEORY_LINE = {"lw": 1.2, "ls": ":"}
THEORY = {"color": COLORS[6], "marker": "D", "mfc": "none", "ls": ""}
NOTE_COLOR = "#A33B00"


class Style(NamedTuple):
    """The color, the marker and the dashes of a line."""

    color: str
    marker: str
    dashes: Any


def styles(labels: Sequence[str], *, ordered: bool = False) -> dict[str, Style]:
    """{label: the style of its line}; no two lines have the same color.

    Args:
        labels: the labels of the lines.
        ordered: whether the labels are values of a number: if they are many, the colors
            go from light to dark.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    count = len(labels)
    if count > len(COLORS) and ordered:
        shades = colormaps["viridis_r"]
        colors = [to_hex(shades(0.1 + 0.9 * i / (count - 1))) for i in range(count)]
    else:
        times = math.ceil(count / len(COLORS))
        colors = [_darker(color, i / times) for i in range(times) for color in COLORS]
    return {
        label: Style(
            colors[i],
            # a darker repetition of a color has another marker and other dashes
            _MARKERS[(i + i // len(_MARKERS)) % len(_MARKERS)],
            _DASHES[(i + i // len(_DASHES)) % len(_DASHES)],
        )
        for i, label in enumerate(labels)
    }


def _darker(color: str, share: float) -> str:
    """The color moved by a share towards black; black is moved towards gray."""
    from matplotlib.colors import to_hex, to_rgb

    end = 0.0 if color != _BLACK else 0.75
    return to_hex([(1 - share) * part + share * end for part in to_rgb(color)])


def mark(label: str, **looks: Any) -> Any:
    """The legend entry of a line or a marker; gray if `looks` has no color."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **{"color": "0.3"} | looks)


def area(label: str, **looks: Any) -> Any:
    """The legend entry of an area."""
    from matplotlib.patches import Patch

    return Patch(label=label, **looks)


def interval(table: Any, alpha: float = 0.18) -> list[Any]:
    """The legend entry of the bands around means; none if a table has one seed."""
    band = area("95 % interval of the mean", color="0.3", alpha=alpha)
    return [band] if table["seeds"].max() > 1 else []


def handles(
    styles: Mapping[str, Style], *, dashes: bool = True, lines: bool = True
) -> list[Any]:
    """The legend entries of all labels except an empty one.

    Args:
        styles: {label: the style of its line}.
        dashes: whether entries show the dashes of the lines; else all are solid.
        lines: whether entries show lines; else they show markers alone.
    """
    line = "-" if lines else ""
    return [
        mark(
            label,
            color=style.color,
            marker=style.marker,
            ls=style.dashes if dashes and lines else line,
        )
        for label, style in styles.items()
        if label
    ]
