"""How long each arm takes to a target, over the number of workers."""

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
def draw(curves: Sequence[Curve], workers: Mapping[str, int], target: str) -> Figure:
    """Simulated seconds to the target, mean and range over seeds; a panel for each law.

    A cross on the upper frame is an arm that did not get there under every seed.

    Args:
        curves: of the metric "seconds_to_target", from `tuning.curves`.
        workers: P of each arm.
        target: what it is, in words.
    """
    tuned = [curve for curve in curves if curve.retuned]
    panels = arrange(tuned, workers)
    order = list(dict.fromkeys(label for own in panels.values() for label in own))
    styles = {label: look.style(i) for i, label in enumerate(order)}
    handles = [
        Line2D([], [], color=s.colour, marker=s.marker, ls=s.dashes, label=label)
        for label, s in styles.items()
    ]
    if any(not math.isfinite(curve.points[0].mean) for curve in tuned):
        handles.append(
            Line2D([], [], color="0.3", marker="x", ls="", label="not reached")
        )
    handles.append(patches.Patch(color="0.3", alpha=0.18, label="range of seeds"))
    figure, axes = look.sheet(
        f"How long to a {target}?",
        panels if len(panels) > 1 else [""],
        handles,
        tuning.edge_warnings(curves),
    )
    counts = sorted(set(workers.values()))
    means = [curve.points[0].mean for curve in tuned]
    for axis, own in zip(axes, panels.values(), strict=True):
        for label, line in own.items():
            _plot(axis, line, styles[label], order.index(label), len(order))
        axis.set_xscale("log")
        axis.set_yscale("log")
        look.log_ticks(axis.yaxis, means)
        axis.xaxis.set_major_locator(FixedLocator(counts))
        axis.xaxis.set_major_formatter(FixedFormatter([f"{c}" for c in counts]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlim(counts[0] / 1.5, counts[-1] * 1.5)
        axis.set_xlabel("workers")
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("time to the target\n(simulated s)")
    return figure


def arrange(
    curves: Sequence[Curve], workers: Mapping[str, int]
) -> dict[str, dict[str, dict[int, Curve]]]:
    """By law, by protocol and by number of workers, ascending.

    Where a protocol meets the same number of workers twice, what else its arms change
    in the cluster tells them apart.
    """
    laws = names.variants(curve.series for curve in curves)
    short = names.short(list(dict.fromkeys(curve.series.arm for curve in curves)))
    protocols = {arm: name.protocol for arm, name in short.items()}
    if len({(protocols[arm], workers[arm]) for arm in short}) < len(short):
        protocols = {
            arm: " ".join(
                part
                for part in arms.split(str(name))
                if not part.startswith("workers=")
            )
            for arm, name in short.items()
        }
    panels = {}
    for curve in sorted(curves, key=lambda curve: workers[curve.series.arm]):
        arm = curve.series.arm
        own = panels.setdefault(laws[curve.series], {})
        own.setdefault(protocols[arm], {})[workers[arm]] = curve
    return {
        law: {label: panels[law][label] for label in dict.fromkeys(protocols.values())}
        for law in dict.fromkeys(laws.values())
    }


def _plot(
    axis: Axes, line: Mapping[int, Curve], style: look.Style, index: int, count: int
) -> None:
    points = {workers: curve.points[0] for workers, curve in line.items()}
    there = {w: p for w, p in points.items() if math.isfinite(p.mean)}
    spread = np.asarray([p.spread for p in points.values()])
    spread[~np.isfinite(spread)] = np.nan
    if len(points) > 1:
        axis.fill_between(
            list(points), *spread.T, color=style.colour, alpha=0.15, linewidth=0
        )
    else:
        axis.vlines(
            list(points), *spread.T, color=style.colour, alpha=0.15, linewidth=6
        )
    axis.plot(
        list(points),
        [p.mean if w in there else math.nan for w, p in points.items()],
        color=style.colour,
        marker=style.marker,
        linestyle=style.dashes,
    )
    beside = _APART ** (index - (count - 1) / 2)
    absent = [w for w in points if w not in there]
    axis.scatter(
        [w * beside for w in absent],
        [0.98] * len(absent),
        marker="x",
        color=style.colour,
        transform=axis.get_xaxis_transform(),
        clip_on=False,
    )
