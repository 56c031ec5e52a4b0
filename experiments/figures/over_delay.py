"""The figures over staleness: a metric, the train/test gap, the best step size."""

from collections.abc import Mapping, Sequence

from matplotlib import patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments import tuning
from experiments.figures import lines, look
from experiments.tuning import Curve, Limit, Series


@look.STYLED
def metric(curves: Sequence[Curve], unit: str = "nats") -> Figure:
    """A metric against staleness: the fixed step dashed, the re-tuned one solid.

    Args:
        curves: of one metric, from `tuning.curves`.
        unit: of the loss.
    """
    arranged = lines.arrange(curves)
    handles = [
        *lines.series_handles(arranged, dashes=False),
        Line2D([], [], color="0.3", label="re-tuned step"),
        Line2D([], [], color="0.3", linestyle="--", label="fixed step"),
        *lines.diverged_handles(curves),
        _spread_handle(),
    ]
    figure, axes = look.sheet(
        "How much does a late gradient cost?",
        arranged.panels,
        handles,
        tuning.edge_warnings(curves),
    )
    for axis, shown in zip(axes, arranged.panels.values(), strict=True):
        for curve in shown:
            style = arranged.styles[curve.series]
            lines.plot(
                axis, curve, style._replace(dashes="-" if curve.retuned else "--")
            )
        low_is_bad = curves[0].metric.endswith("accuracy")
        lines.mark_diverged(axis, shown, arranged, bottom=low_is_bad)
    lines.delay_axes(axes, curves)
    _metric_axes(axes, curves, unit)
    return figure


@look.STYLED
def gap(curves: Sequence[Curve], unit: str = "nats") -> Figure:
    """Test minus training loss against staleness: fixed step left, re-tuned right.

    Args:
        curves: of the metric "gap", from `tuning.curves`.
        unit: of the loss.
    """
    arranged = lines.arrange(curves)
    panels = {
        f"{title}, {name}" if title else name: [
            curve for curve in shown if curve.retuned == retuned
        ]
        for title, shown in arranged.panels.items()
        for retuned, name in ((False, "fixed step"), (True, "re-tuned step"))
    }
    figure, axes = look.sheet(
        "Does a late gradient change the train/test gap?",
        panels,
        [
            *lines.series_handles(arranged),
            *lines.diverged_handles(curves),
            _spread_handle(),
        ],
        tuning.edge_warnings(curves),
    )
    for axis, shown in zip(axes, panels.values(), strict=True):
        for curve in shown:
            lines.plot(axis, curve, arranged.styles[curve.series])
        lines.mark_diverged(axis, shown, arranged)
    lines.delay_axes(axes, curves)
    _metric_axes(axes, curves, unit)
    return figure


@look.STYLED
def best_step(
    curves: Sequence[Curve],
    limits: Mapping[Series, Mapping[float, Limit]] | None = None,
) -> Figure:
    """The re-tuned step size against staleness; rings mark the grid's edge.

    Args:
        curves: from `tuning.curves`.
        limits: of each series with a computed limit, by delay; dotted.
    """
    limits = limits or {}
    tuned = [curve for curve in curves if curve.retuned]
    arranged = lines.arrange(tuned)
    handles = [*lines.series_handles(arranged), *lines.diverged_handles(tuned)]
    ring = {"color": look.NOTE_COLOR, "marker": "o", "markersize": 12, "linestyle": ""}
    ring["markerfacecolor"] = "none"
    if any(p.on_edge and not p.diverged for curve in tuned for p in curve.points):
        handles.append(Line2D([], [], label="on the grid's edge", **ring))
    if any(curve.series in limits for curve in tuned):
        handles.append(Line2D([], [], color="0.3", ls=":", label="computed limit"))
    figure, axes = look.sheet(
        "Which step size is best for a late gradient?",
        arranged.panels,
        handles,
        tuning.edge_warnings(curves),
    )
    for axis, shown in zip(axes, arranged.panels.values(), strict=True):
        for curve in shown:
            style = arranged.styles[curve.series]
            if own := sorted(limits.get(curve.series, {}).values()):
                axis.plot(
                    [limit.delay for limit in own],
                    [limit.step for limit in own],
                    color=style.color,
                    linestyle=":",
                )
            live = [point for point in curve.points if not point.diverged]
            edge = [point for point in live if point.on_edge]
            for points, marks in (
                (live, {"color": style.color, "marker": style.marker}),
                (edge, ring),
            ):
                axis.plot(
                    [point.delay for point in points],
                    [point.learning_rate for point in points],
                    **{"linestyle": style.dashes} | marks,
                )
        lines.mark_diverged(axis, shown, arranged, bottom=True)
        axis.set_yscale("log")
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("best step size")
    lines.delay_axes(axes, curves)
    return figure


def _spread_handle() -> patches.Patch:
    return patches.Patch(color="0.3", alpha=0.18, label="range of seeds")


def _metric_axes(axes: Sequence[Axes], curves: Sequence[Curve], unit: str) -> None:
    column = curves[0].metric
    for axis in axes:
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel(look.quantity(column, unit))
        if column.endswith("_loss"):
            means = [point.mean for curve in curves for point in curve.points]
            look.log_if_wide(axis, means)
        if column.endswith("_accuracy"):  # the room that crosses take is no accuracy
            low, high = axis.get_ylim()
            ticks = axis.get_yticks()
            axis.set_yticks(ticks[(ticks >= max(low, 0)) & (ticks <= min(high, 1))])
