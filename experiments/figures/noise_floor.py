"""Where gradient noise leaves the loss, over step size and staleness."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import patches
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import delayjax as dj
from experiments import tuning
from experiments.figures import lines, look
from experiments.results import Row
from experiments.tuning import Curve, Point

_BELOW, _APART = 0.035, 0.05  # rows of crosses under the upper frame, shares of it


@look.STYLED
def draw(curves: Sequence[Curve], config: Mapping[str, Any]) -> Figure:
    """The final training loss over staleness, and over its theory near the limit.

    Left, for each step size, what was measured and, as a line, theory; a cross is a
    cell that diverged under some seed. Right, their ratio over how large the step is,
    as a share of the largest that converges at its staleness.

    Args:
        curves: one for each step size, from `arrange`.
        config: the run's.
    """
    styles = [look.style(i) for i in range(len(curves))]
    figure, (floors, ratios) = look.sheet(
        "Where does gradient noise leave the loss?",
        ["measured, and theory", "measured / theory"],
        _handles(curves, styles),
        height=3.4,
        sharey=False,
    )
    floors.set_yscale("log")
    ratios.axhline(1.0, color="0.3", linewidth=1.2)
    for i, (curve, style) in enumerate(zip(curves, styles, strict=True)):
        step = curve.points[0].learning_rate
        whole = np.arange(curve.points[0].delay, curve.points[-1].delay + 1)
        theory = np.asarray([expected(step, delay, config) for delay in whole])
        theory[~np.isfinite(theory)] = np.nan
        floors.plot(whole, theory, color=style.color, zorder=2)
        delays = [point.delay for point in curve.points]
        measured = np.asarray([(p.mean, *p.spread) for p in curve.points])
        _plot(floors, delays, measured, style)
        of_theory = [theory[whole == delay] for delay in delays]
        shares = [step / limit(delay, config) for delay in delays]
        _plot(ratios, shares, measured / of_theory, style)
        diverged = [point.delay for point in curve.points if point.diverged]
        floors.scatter(
            diverged,
            [1.0 - _BELOW - _APART * i] * len(diverged),
            s=36,
            marker="x",
            color=style.color,
            transform=floors.get_xaxis_transform(),
        )
    means = [point.mean for curve in curves for point in curve.points]
    means = [mean for mean in means if math.isfinite(mean)]
    if lines.diverged_handles(curves):
        floors.margins(y=0.1 + _APART * len(curves))
    if means:
        floors.set_ylim(bottom=0.6 * min(means))
    look.log_ticks(floors.yaxis, means)
    floors.set_ylabel("training loss at the end")
    lines.delay_axes([floors], curves)
    ratios.set_xlim(0.0, 1.0)
    ratios.set_xlabel("step size / its limit")
    return figure


def arrange(rows: Iterable[Row], config: Mapping[str, Any]) -> list[Curve]:
    """The training loss over staleness at each step size, ascending.

    Of the rows of which theory is: SGD of a constant step size, at a fixed staleness,
    with nothing against it. None where there are none, or the task is no quadratic with
    noise.

    Args:
        rows: of one run.
        config: the run's.
    """
    if config["task"]["name"] != "quadratic" or not config["task"]["noise"]:
        return []
    opt = config["opt"]
    steady = opt["decay"] == "constant" and opt["warmup_steps"] <= 1
    alone = config["mesh"]["workers"] == 1  # no mean over workers, which may come late
    if not (steady and alone) or config["delay"]["drop_above"] is not None:
        return []
    deepest = config["delay"]["max_delay"]
    found = []
    for series, delays in tuning.table(rows).items():
        if series != series.plain or series[:2] != ("sgd", "constant"):
            continue
        for step in sorted({step for cells in delays.values() for step in cells}):
            points = tuple(
                Point(
                    delay,
                    step,
                    values=tuple(row.value("train_loss") for row in cells[step]),
                    diverged=sum(row.diverged for row in cells[step]),
                    edge="",
                )
                for delay, cells in delays.items()
                if step in cells and (deepest is None or delay <= deepest)
            )
            found.append(Curve(series, "train_loss", False, (step,), points))
    return found


def expected(step: float, delay: float, config: Mapping[str, Any]) -> float:
    """The mean loss that noise keeps up, inf where training does not converge.

        1/2 sum_i lambda_i Var x_i

    Args:
        step: eta, the step size.
        delay: in updates.
        config: the run's: its momentum, and the curvatures and noise of its task.
    """
    noise, sgd = config["task"]["noise"], config["opt"]["sgd"]
    curvatures, number = np.unique(config["task"]["eigenvalues"], return_counts=True)
    return 0.5 * math.fsum(
        n
        * curvature
        * dj.stability.Dynamics(
            int(delay), momentum=sgd["momentum"], nesterov=sgd["nesterov"]
        ).stationary_variance(step * curvature, noise=step * noise)
        for curvature, n in zip(curvatures.tolist(), number.tolist(), strict=True)
        if curvature > 0
    )


def limit(delay: float, config: Mapping[str, Any]) -> float:
    """The step size at which training no longer converges."""
    sgd = config["opt"]["sgd"]
    stiffest = max(config["task"]["eigenvalues"])
    product = dj.stability.Dynamics(
        int(delay), momentum=sgd["momentum"], nesterov=sgd["nesterov"]
    ).step_limit()
    return product / stiffest


def _plot(
    axis: Axes, at: Sequence[float], measured: np.ndarray, style: look.Style
) -> None:
    """Means and ranges [n, 3]."""
    mean, low, high = measured.T
    axis.vlines(at, low, high, color=style.color, alpha=0.4, lw=3)
    axis.plot(at, mean, color=style.color, marker=style.marker, ls="", zorder=3)


def _handles(curves: Sequence[Curve], styles: Sequence[look.Style]) -> list[Artist]:
    return [
        *(
            Line2D(
                [],
                [],
                color=style.color,
                marker=style.marker,
                ls="",
                label=f"step {curve.points[0].learning_rate:g}",
            )
            for curve, style in zip(curves, styles, strict=True)
        ),
        Line2D([], [], color="0.3", label="theory"),
        patches.Patch(color="0.3", alpha=0.4, label="range of seeds"),
        *lines.diverged_handles(curves),
    ]
