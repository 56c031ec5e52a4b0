"""Colors, markers and dashes: how lines are told apart, and what the legend shows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# Okabe and Ito's colors, without the yellow, which is too light for a line
_BLUE, _RED, _GREEN, _PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_ORANGE, _SKY, _BLACK = "#E69F00", "#56B4E9", "#000000"
COLORS = (_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY, _BLACK)
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# how a value that theory gives is marked, and a line of such values
THEORY_LINE = {"lw": 1.2, "ls": ":"}
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
            # the second time round, colors come with other markers and dashes
            _MARKERS[(i + i // len(_MARKERS)) % len(_MARKERS)],
            _DASHES[(i + i // len(_DASHES)) % len(_DASHES)],
        )
        for i, label in enumerate(labels)
    }


def _darker(color: str, share: float) -> str:
    """Towards black; black itself towards gray."""
    from matplotlib.colors import to_hex, to_rgb

    end = 0.0 if color != _BLACK else 0.75
    return to_hex([(1 - share) * part + share * end for part in to_rgb(color)])


def mark(label: str, **looks: Any) -> Any:
    """The legend's, of a line or a marker; gray where it has no color."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **{"color": "0.3"} | looks)


def area(label: str, **looks: Any) -> Any:
    """The legend's, of an area."""
    from matplotlib.patches import Patch

    return Patch(label=label, **looks)


def interval(table: Any, alpha: float = 0.18) -> list[Any]:
    """The legend's, of bands around means, where a table has several seeds."""
    band = area("95 % interval of the mean", color="0.3", alpha=alpha)
    return [band] if table["seeds"].max() > 1 else []


def handles(
    styles: Mapping[str, Style], *, dashes: bool = True, lines: bool = True
) -> list[Any]:
    """The legend's, for each label but an empty one.

    Args:
        styles: by label.
        dashes: whether these tell lines apart too.
        lines: whether there are lines.
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
