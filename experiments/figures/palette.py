"""Colors, markers and dashes that distinguish lines, and the entries of legends."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# the colors of Okabe and Ito without yellow; orange and sky are darker on a white page
_BLUE, _RED, _GREEN, _PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_ORANGE, _SKY, _BLACK = "#B8860B", "#3399D6", "#000000"
COLORS = (_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY, _BLACK)
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# the looks of a line of theoretical values, and of the marker of one such value
THEORY_LINE = {"lw": 1.2, "ls": ":"}
THEORY = {"color": COLORS[6], "marker": "D", "mfc": "none", "ls": ""}
NOTE_COLOR = "#A33B00"
_ON_DARK = {_BLUE: "#3a97d4", _ORANGE: "#E69F00", _SKY: "#56B4E9", _BLACK: "#e6e6e6"}
_REPETITIONS = 8  # of the colors, which have a color on a dark page
# of `_viridis`: the last color that is seen on a white page, the first on a dark page
_LAST_ON_WHITE, _FIRST_ON_DARK = 148, 102


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
            go from light to dark; on a dark page, from dark to light.
    """
    count = len(labels)
    if count > len(COLORS) and ordered:
        steps = [i / (count - 1) for i in range(count)]
        colors = [_viridis()[round(_LAST_ON_WHITE * (1 - step))] for step in steps]
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


def by_color(
    styles: Mapping[str, Style], groups: Mapping[str, Any]
) -> Mapping[str, Style]:
    """The styles, with one color, and other dashes and markers, in each group.

    They are unchanged if no group has several lines, or one has more than there are
    dashes.

    Args:
        styles: {label: the style of its line}, each with its color.
        groups: {label: its group}.
    """
    members: dict[Any, list[str]] = {}
    for label in styles:
        members.setdefault(groups[label], []).append(label)
    if not 1 < max(map(len, members.values()), default=0) <= len(_DASHES):
        return styles
    colors = [style.color for style in styles.values()]
    return {
        label: Style(color, _MARKERS[place], _DASHES[place])
        for labels, color in zip(members.values(), colors, strict=False)
        for place, label in enumerate(labels)
    }


@functools.cache
def on_dark() -> dict[str, str]:
    """{color of a line, as #rrggbb: the color that replaces it on a dark page}.

    Darker repetitions of a color become lighter ones. Other colors are seen on both
    pages.
    """
    replaced = {}
    for i, color in enumerate(_viridis()[: _LAST_ON_WHITE + 1]):
        # the dark colors become the light ones
        place = 255 - (255 - _FIRST_ON_DARK) * i / _LAST_ON_WHITE
        replaced[color] = _viridis()[round(place)]
    shares = {i / times for times in range(1, _REPETITIONS + 1) for i in range(times)}
    for color, share in itertools.product(COLORS, shares):
        light = _lighter(_ON_DARK.get(color, color), share)
        replaced[_darker(color, share)] = light
    return replaced


@functools.cache
def _viridis() -> list[str]:
    """The 256 colors of viridis, from dark to light."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](i)) for i in range(256)]


def _darker(color: str, share: float) -> str:
    """The color moved by a share towards black; black is moved towards gray."""
    return _moved(color, share, 0.0 if color != _BLACK else 0.75)


def _lighter(color: str, share: float) -> str:
    """The color moved by a share towards white; the lightest is moved towards gray."""
    return _moved(color, share, 1.0 if color != _ON_DARK[_BLACK] else 0.3)


def _moved(color: str, share: float, end: float) -> str:
    """The color moved by a share towards the gray `end`, of 0 (black) to 1 (white)."""
    from matplotlib.colors import to_hex, to_rgb

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
