"""The scales of a panel: ticks, logarithms, labels, and a strip for lost values."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib import transforms
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from experiments.figures import palette

_CHARACTERS = 25  # characters of tick labels for which one of two panels has room
_BELOW = 3.0  # a logarithmic axis begins at the least value divided by this, or higher


def delay_ticks(axis: Any, delays: Sequence[float], position: Any) -> None:
    """Sets ticks at the delays of the run, as many as the axis has room for."""
    shown: list[float] = []
    longest = max((len(f"{delay:g}") for delay in delays), default=0)
    least = min((delay for delay in delays if delay > 0), default=1.0)
    powers = [d for d in delays if d == 0 or math.log2(d).is_integer()]

    def octaves(delay):
        return math.log2(2 * delay / least + 1)

    span = octaves(max(delays, default=0.0)) - octaves(min(delays, default=0.0))
    apart = max(0.5, span * longest / _CHARACTERS)
    for delay in powers if len(delays) > 8 and len(powers) > 3 else delays:
        if not shown or octaves(delay) - octaves(shown[-1]) > apart:
            shown.append(delay)
    axis.set_ticks([*map(position, shown)], [f"{delay:g}" for delay in shown])
    axis.set_ticks([], minor=True)


def y_axis(axis: Axes, values: Sequence[float], label: str, wide: float) -> None:
    """Sets the vertical scale and label; only the first panel of a row has a label.

    Args:
        axis: the panel.
        values: the values that the panel shows.
        label: the label; it has two lines if it is longer than the panel is high.
        wide: the scale is logarithmic if the values span more than this factor.
    """
    if axis.get_subplotspec().is_first_col():
        axis.set_ylabel(textwrap.fill(label, 22 if len(label) > 24 else 24))
    log_if_wide(axis.yaxis, values, wide)


def log_if_wide(axis: Any, values: Iterable[float], factor: float = 10.0) -> bool:
    """Makes an axis logarithmic, and returns True, if values span more than a factor.

    An interval that reaches far below all values is cut off: on this scale it would
    take most of the panel.

    Args:
        axis: an `XAxis` or `YAxis`.
        values: the values that the axis shows.
        factor: the largest ratio of two values on a linear axis.
    """
    finite = [float(value) for value in values if math.isfinite(value)]
    if not finite or not 0 < factor * min(finite) < max(finite):
        return False
    panel, x = axis.axes, axis.axis_name == "x"
    (panel.set_xscale if x else panel.set_yscale)("log")
    log_ticks(axis, finite)
    low, high = panel.get_xlim() if x else panel.get_ylim()
    low = max(low, min(finite) / _BELOW)
    (panel.set_xlim if x else panel.set_ylim)(low, high)
    return True


def x_axis(axes: Sequence[Axes], values: Iterable[float], label: str) -> None:
    """Sets scale, ticks and label of x axes; values far apart get a scale of base 2."""
    values = sorted(set(values))
    positive = [value for value in values if value > 0]
    for axis in axes:
        axis.set_xlabel(label)
        if not positive or values[0] < 0 or positive[-1] < 6 * positive[0]:
            whole = all(float(value).is_integer() for value in values)
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=whole))
            continue
        if values[0] == 0:
            # with this `linscale` the first value is as far from 0 as from twice the
            # first value
            axis.set_xscale("symlog", base=2, linthresh=positive[0], linscale=0.5)
            left = -0.2 * positive[0]
        else:
            axis.set_xscale("log", base=2)
            left = positive[0] / 1.2
        axis.set_xlim(left, 1.15 * positive[-1])
        delay_ticks(axis.xaxis, values, lambda value: value)


def gutter(
    axis: Axes, marks: Sequence[tuple[Sequence[float], palette.Style]], what: str
) -> None:
    """Draws a strip above the scale, with a cross for each value that is off the scale.

    Args:
        axis: the panel; the strip has the same horizontal scale.
        marks: the places and the style of the crosses in each row of the strip.
        what: the label of the strip, such as "diverged".
    """
    marks = [(places, style) for places, style in marks if len(places)]
    if not marks:
        return
    # in inches: with a share of the panel, the layout of the sheet does not converge
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
    """Sets tick labels at 1, 2 and 5 times powers of ten; if many, at powers alone.

    Args:
        axis: an `XAxis` or `YAxis`, already logarithmic.
        values: the values that the axis spans.
    """
    positive = [value for value in values if 0 < value < math.inf]
    few = not positive or max(positive) < 200 * min(positive)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_locator(LogLocator(subs=range(2, 10)))
    axis.set_minor_formatter(NullFormatter())
