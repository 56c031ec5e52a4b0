"""How each arm ended, over a number in which arms differ: workers, a period."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from experiments import arms, tuning
from experiments.figures import look, names
from experiments.tuning import Curve

_APART = 1.12  # a factor between the crosses of two arms


@look.STYLED
def draw(
    curves: Sequence[Curve],
    options: Mapping[str, Mapping[str, float]],
    *,
    option: str,
    label: str = "",
    panels: str = "",
    target: str = "",
    unit: str = "nats",
) -> Figure:
    """A metric of each arm at its best step, mean and range over seeds.

    An accuracy is shown as an error. A cross on the upper frame is an arm that
    diverged, or did not get to the target, under some seed.

    Args:
        curves: of one metric, from `tuning.curves`.
        options: of each arm, the numbers in which arms differ, by name.
        option: the one along the axis.
        label: how it is called there; its name by default.
        panels: another one, of which each value has a panel; by default each law.
        target: what it is, in words, where the metric is the time to it.
        unit: of the loss.
    """
    tuned = [curve for curve in curves if curve.retuned]
    lines = arrange(tuned, options, option, panels)
    order = list(dict.fromkeys(label for own in lines.values() for label in own))
    styles = {label: look.style(i) for i, label in enumerate(order)}
    shown = look.error(tuned[0].metric, unit)
    handles = [
        Line2D([], [], color=s.color, marker=s.marker, ls=s.dashes, label=label)
        for label, s in styles.items()
    ]
    if any(not math.isfinite(curve.points[0].mean) for curve in tuned):
        lost = "not reached" if target else "diverged"
        handles.append(Line2D([], [], color="0.3", marker="x", ls="", label=lost))
    handles.append(patches.Patch(color="0.3", alpha=0.18, label="range of seeds"))
    figure, axes = look.sheet(
        f"How long to a {target}?" if target else "How does each arm end?",
        lines if len(lines) > 1 else [""],
        handles,
        tuning.edge_warnings(curves),
    )
    ticks = sorted({options[curve.series.arm][option] for curve in tuned})
    means = [float(shown.of(curve.points[0].mean)) for curve in tuned]
    means = [mean for mean in means if math.isfinite(mean)]
    for axis, own in zip(axes, lines.values(), strict=True):
        for name, line in own.items():
            place = order.index(name) - (len(order) - 1) / 2
            _plot(axis, line, styles[name], _APART**place, shown)
        axis.set_xscale("log")
        if means and 0 < 3 * min(means) < max(means):
            axis.set_yscale("log")
            look.log_ticks(axis.yaxis, means)
        axis.xaxis.set_major_locator(FixedLocator(ticks))
        axis.xaxis.set_major_formatter(FixedFormatter([f"{x:g}" for x in ticks]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlim(ticks[0] / 1.5, ticks[-1] * 1.5)
        axis.set_xlabel(label or option)
        if axis.get_subplotspec().is_first_col():
            time = "time to the target\n(simulated s)"
            axis.set_ylabel(time if target else shown.label)
    return figure


def arrange(
    curves: Sequence[Curve],
    options: Mapping[str, Mapping[str, float]],
    option: str,
    panels: str = "",
) -> dict[str, dict[str, dict[float, Curve]]]:
    """By panel, by line and by the option, ascending.

    A line is of arms that differ in nothing else than the option, and what else tells
    arms apart is its label.
    """
    laws = names.variants(curve.series for curve in curves)
    short = names.short(list(dict.fromkeys(curve.series.arm for curve in curves)))
    several = len(set(laws.values())) > 1
    found: dict[str, dict[str, dict[float, Curve]]] = {}
    for curve in curves:
        arm, law = curve.series.arm, laws[curve.series]
        label, title = arms.without(str(short[arm]), option), law
        if panels:
            title = f"{panels} = {options[arm][panels]:g}"
            label = arms.without(label, panels) + (f", {law}" if several else "")
        line = found.setdefault(title, {}).setdefault(label, {})
        line[options[arm][option]] = curve
    return {
        title: {label: dict(sorted(line.items())) for label, line in lines.items()}
        for title, lines in found.items()
    }


def _plot(
    axis: Axes,
    line: Mapping[float, Curve],
    style: look.Style,
    beside: float,
    shown: look.Error,
) -> None:
    points = {x: curve.points[0] for x, curve in line.items()}
    means = np.asarray([shown.of(p.mean) for p in points.values()])
    spread = np.sort([shown.of(p.spread) for p in points.values()])
    means[~np.isfinite(means)] = spread[~np.isfinite(spread)] = np.nan
    if len(points) > 1:
        axis.fill_between(
            list(points), *spread.T, color=style.color, alpha=0.15, linewidth=0
        )
    else:
        axis.vlines(list(points), *spread.T, color=style.color, alpha=0.15, linewidth=6)
    axis.plot(
        list(points),
        means,
        color=style.color,
        marker=style.marker,
        linestyle=style.dashes,
    )
    absent = [x for x, p in points.items() if not math.isfinite(p.mean)]
    axis.scatter(
        [x * beside for x in absent],
        [0.98] * len(absent),
        marker="x",
        color=style.color,
        transform=axis.get_xaxis_transform(),
        clip_on=False,
    )
