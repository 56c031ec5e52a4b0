"""The final training loss over step size and staleness, and the computed limit."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib import patches, patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments import tuning
from experiments.figures import look
from experiments.results import Row
from experiments.tuning import Limit, Series

# without its darkest part, which looks like black
_COLORS = ListedColormap(matplotlib.colormaps["viridis_r"](np.linspace(0, 0.85, 256)))
BOUNDED = _COLORS(1.0)  # the color of a high loss
_FLOOR = 1e-8  # a float32 loss of order one resolves no smaller excess
_SETTLED = 1e-4  # the largest excess that may still be on its way down


Limits = Mapping[Series, Mapping[float, Limit]]


class Cells(NamedTuple):
    """What a map shows: D delays by R step sizes."""

    rates: np.ndarray  # step sizes, ascending [R]
    delays: np.ndarray  # updates, ascending [D]
    excess: np.ndarray  # loss over the optimum; nan if diverged or not run [D, R]
    diverged: np.ndarray  # whether a seed did, bool [D, R]
    optimum_loss: float | None  # None is unknown, and the excess then over 0
    limits: np.ndarray  # the computed step sizes; nan where there is none [D]


@look.STYLED
def draw(
    rows: Iterable[Row],
    limits: Limits | None = None,
    optimum_loss: float | None = None,
    unit: str = "nats",
) -> Figure:
    """The final training loss over step size and staleness; diverged cells are black.

    Args:
        rows: the rows of one run; a panel for each series. Seeds are averaged, and a
            cell is black where one of them diverged.
        limits: of each series with a computed limit, by delay; draws it.
        optimum_loss: the least training loss there is; colors then show the excess.
        unit: of the loss.
    """
    table = tuning.table(rows)
    titles = [tuning.label(series, table) for series in table]
    maps = [
        cells(delays, optimum_loss, (limits or {}).get(series))
        for series, delays in table.items()
    ]
    figure, axes = look.sheet(
        "At which step size does training diverge?",
        titles if len(titles) > 1 else [""],
        _handles(maps, (limits or {}).values()),
        height=3.3,
    )
    for axis, shown in zip(axes, maps, strict=True):
        mesh = plot(axis, shown)
        bar = axis.figure.colorbar(mesh, ax=axis)
        bar.set_label(quantity(shown, unit))
    return figure


def cells(
    delays: Mapping[float, Mapping[float, Sequence[Row]]],
    optimum_loss: float | None = None,
    limits: Mapping[float, Limit] | None = None,
) -> Cells:
    """The cells of one series of `tuning.table`; the excess is at least 1e-8."""
    rates = np.asarray(sorted({rate for steps in delays.values() for rate in steps}))
    taus = np.asarray(sorted(delays))
    loss = np.full((len(taus), len(rates)), math.nan)
    diverged = np.zeros(loss.shape, bool)
    for i, tau in enumerate(taus):
        for j, rate in enumerate(rates):
            cell = delays[tau].get(rate, ())
            diverged[i, j] = any(row.diverged for row in cell)
            if cell and not diverged[i, j]:
                loss[i, j] = np.mean([row.train_loss for row in cell])
    excess = np.maximum(loss - (optimum_loss or 0.0), _FLOOR)
    steps = [limits[tau].step if limits else math.nan for tau in taus.tolist()]
    return Cells(rates, taus, excess, diverged, optimum_loss, np.asarray(steps))


def bounded(shown: Cells) -> np.ndarray:
    """The cells past the limit that neither diverged nor settled, bool [D, R].

    Where gradients are bounded, as those of a logistic loss, descent past the limit
    may cycle at a high loss instead. Without the optimum no loss tells, and none is.
    """
    if shown.optimum_loss is None:
        return np.zeros(shown.excess.shape, bool)
    past = shown.rates > shown.limits[:, None]
    return past & (shown.excess > _SETTLED)


def limit_handle(more: str = "") -> Line2D:
    """The line of the limit, and what more is to be said of it."""
    return Line2D([], [], color=look.COLORS[1], label=f"computed limit{more}")


def quantity(shown: Cells, unit: str) -> str:
    """What the colors of a map show, in words."""
    kind = "training loss" if shown.optimum_loss is None else "excess training loss"
    return f"$\\log_{{10}}$ of {kind}{look.in_unit(unit)}"


def plot(axis: Axes, shown: Cells) -> QuadMesh:
    """Draws a map and returns its colored cells.

    The vertical axis is log(2 tau + 1), in which the limit is almost straight. Cells
    end at geometric midpoints, so that each is centered on its own values.
    """
    colors = np.ma.masked_invalid(np.log10(shown.excess))
    edges = _midpoints(shown.rates), _midpoints(2.0 * shown.delays + 1.0)
    some = bool(colors.count())
    mesh = axis.pcolormesh(
        *edges,
        colors,
        cmap=_COLORS,
        vmin=colors.min() if some else -1.0,
        vmax=colors.max() if some else 0.0,
    )
    axis.pcolormesh(
        *edges,
        np.ma.masked_array(np.ones(colors.shape), ~shown.diverged),
        cmap=ListedColormap(["black"]),
        vmin=0.0,
        vmax=1.0,
    )
    if np.isfinite(shown.limits).any():
        # a step for each row: what lies between two whole delays was not run
        axis.plot(
            np.repeat(shown.limits, 2),
            np.repeat(edges[1], 2)[1:-1],
            color=look.COLORS[1],
            linewidth=2.2,
            path_effects=[patheffects.withStroke(linewidth=4, foreground="white")],
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(edges[0][0], edges[0][-1])
    axis.set_ylim(edges[1][0], edges[1][-1])
    axis.set_xlabel("step size")
    axis.set_ylabel("staleness (updates)")
    look.delay_ticks(axis.yaxis, shown.delays.tolist(), lambda tau: 2.0 * tau + 1.0)
    return mesh


def _handles(
    maps: Sequence[Cells], limits: Iterable[Mapping[float, Limit]]
) -> list[Artist]:
    diverged = patches.Patch(color="black", label="diverged: ends above where it began")
    curvatures = {limit.sharpness for own in limits for limit in own.values()}
    if not curvatures:
        return [diverged]
    # they differ between optimizers
    each = f", $\\lambda$ = {min(curvatures):.3g}" if len(curvatures) == 1 else ""
    found = [limit_handle(each), diverged]
    if any(bounded(shown).any() for shown in maps):
        label = "bounded, but never settles"
        found.append(patches.Patch(color=BOUNDED, label=label))
    return found


def _midpoints(centers: np.ndarray) -> np.ndarray:
    """Edges of cells, at geometric midpoints of their centers."""
    logs = np.log(centers)
    if len(logs) == 1:
        return np.exp(np.asarray([logs[0] - 0.5, logs[0] + 0.5]))
    inner = (logs[1:] + logs[:-1]) / 2
    first, last = 2 * logs[0] - inner[0], 2 * logs[-1] - inner[-1]
    return np.exp(np.concatenate([[first], inner, [last]]))
