"""How each arm ended, by law: the error table as a dot plot."""

import math
from collections.abc import Sequence

from matplotlib import patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments import tuning
from experiments.figures import look, names
from experiments.tuning import Curve

_BAND = "0.955"  # the color behind every other arm


@look.STYLED
def draw(curves: Sequence[Curve], unit: str = "nats") -> Figure:
    """The metric of each arm (rows) by law (colors): mean and range over seeds.

    An accuracy is shown as an error. Left is the step size that is best for the first
    arm, right each one's own best; a cross on the frame has no value.

    Args:
        curves: of one metric, from `tuning.curves`; of arms alone.
        unit: of the loss.
    """
    laws = names.variants(curve.series for curve in curves)
    order = list(dict.fromkeys(laws.values()))
    styles = {law: look.style(i) for i, law in enumerate(order)}
    short = names.short(list(dict.fromkeys(curve.series.arm for curve in curves)))
    shown = look.error(curves[0].metric, unit)
    panels = {"best step of each": [c for c in curves if c.retuned]}
    if any(len(curve.steps_tried) > 1 for curve in curves) and len(short) > 1:
        fixed = [curve for curve in curves if not curve.retuned]
        panels = {"best step of the first arm": fixed} | panels
    handles = [
        Line2D([], [], color=own.color, marker=own.marker, ls="", label=law)
        for law, own in styles.items()
    ]
    lost = any(
        not math.isfinite(curve.points[0].mean)
        for own in panels.values()
        for curve in own
    )
    if lost:
        label = "not reached" if shown.label.startswith("time") else "diverged"
        handles.append(Line2D([], [], color="0.3", marker="x", ls="", label=label))
    labels = names.rows(list(short))
    row = max(0.17 * max(label.count("\n") + 1 for label in labels), 0.13 * len(order))
    figure, axes = look.sheet(
        "How does each arm end?",
        panels,
        [*handles, patches.Patch(color="0.3", alpha=0.4, label="range of seeds")],
        tuning.edge_warnings(curves),
        height=0.9 + len(labels) * (0.1 + row),
    )
    rows = {arm: i for i, arm in enumerate(short)}
    means = []
    for axis, own in zip(axes, panels.values(), strict=True):
        for i in range(1, len(rows), 2):
            axis.axhspan(i - 0.5, i + 0.5, color=_BAND, zorder=0)
        for curve in own:
            place = (order.index(laws[curve.series]) + 1) / (len(order) + 1) - 0.5
            at = rows[curve.series.arm] + 0.8 * place
            _plot(axis, curve, at, styles[laws[curve.series]], shown)
            means.append(float(shown.of(curve.points[0].mean)))
        axis.set_xlabel(shown.label)
        axis.margins(x=0.08 if lost else 0.05)  # crosses stand beside all values
        axis.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(labels)), labels)
    axes[0].set_ylim(len(labels) - 0.5, -0.5)
    _scales(axes, means)
    return figure


def _plot(
    axis: Axes, curve: Curve, at: float, style: look.Style, shown: look.Error
) -> None:
    (point,) = curve.points
    if not math.isfinite(point.mean):
        axis.plot(
            0.97,
            at,
            color=style.color,
            marker="x",
            transform=axis.get_yaxis_transform(),
        )
        return
    low, high = sorted(map(float, shown.of(point.spread)))
    axis.plot([low, high], [at, at], color=style.color, alpha=0.4, lw=4, zorder=2)
    axis.plot(
        float(shown.of(point.mean)),
        at,
        color=style.color,
        marker=style.marker,
        zorder=3,
    )


def _scales(axes: Sequence[Axes], means: Sequence[float]) -> None:
    finite = [mean for mean in means if math.isfinite(mean)]
    for axis in axes[1:]:
        axis.sharex(axes[0])
        axis.autoscale_view(scaley=False)  # anew, for what both hold
    for axis in axes:
        if finite and 0 < 10 * min(finite) < max(finite):
            axis.set_xscale("log")
            look.log_ticks(axis.xaxis, finite)
