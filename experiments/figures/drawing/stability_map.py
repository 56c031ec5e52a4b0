"""The final training loss over step size and staleness, and the computed limit."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import patches, patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.figures import palette, scales, sheets, tables
from experiments.results.column_words import loss_unit, with_unit, words
from experiments.results.runs import Run

# without its darkest part, which looks like black
_COLORS = ListedColormap(matplotlib.colormaps["viridis_r"](np.linspace(0, 0.85, 256)))
BOUNDED = _COLORS(1.0)  # the color of a high loss
_FLOOR = 1e-8  # a float32 loss of order one resolves no smaller excess
_SETTLED = 1e-4  # the largest excess that may still be on its way down


class Cells(NamedTuple):
    """What a map shows: D values of the other axis by R steps."""

    rates: np.ndarray  # steps, ascending [R]
    delays: np.ndarray  # the other axis, ascending [D]
    excess: np.ndarray  # loss over the optimum; nan if lost or not run [D, R]
    lost: np.ndarray  # whether a seed ended higher or diverged, bool [D, R]
    optimum_loss: float | None  # None is unknown, and the excess then over 0
    limits: np.ndarray  # the computed steps; nan where there is none [D]


@sheets.STYLED
def draw(run: Run, *, x, axis, metric, limit, only, title) -> Figure:
    """Draws `figures.stability_map`."""
    maps = by_panel(run, x=x, axis=axis, metric=metric, limit=limit, only=only)
    figure, axes = sheets.sheet(
        title or f"At which {words(axis)} does training diverge?",
        list(maps),
        _handles(list(maps.values())),
        height=3.3,
    )
    for plot_axis, shown in zip(axes, maps.values(), strict=True):
        mesh = plot(plot_axis, shown, with_unit(axis), with_unit(x))
        bar = plot_axis.figure.colorbar(mesh, ax=plot_axis)
        bar.set_label(quantity(shown, metric, loss_unit(run)))
    return figure


def by_panel(
    run: Run,
    *,
    x: str,
    axis: str,
    metric: str = "train_loss",
    limit: Any = None,
    only: Mapping[str, Any] | None = None,
) -> dict[str, Cells]:
    """The map of each series, by its name."""
    chosen = tables.choose(run, metric, only, x, axis)
    frame = chosen.best
    for name in (x, axis):
        tables.require(frame, name)
    series = tables.series_of(frame, [axis], x)
    table = tables.points(frame, metric, [*series, x, axis])
    named = tables.name(table, series, spread=False)
    optimum = run.facts.get("optimum_loss")
    rows = table.to_dict("records")
    return {
        label: cells(
            [row for row in rows if named.label(row) == label], x, axis, limit, optimum
        )
        for label in named.styles
    }


def cells(
    rows: Sequence[Mapping[str, Any]],
    x: str,
    axis: str,
    limit: Any = None,
    optimum_loss: float | None = None,
) -> Cells:
    """The cells of one series; the excess is at least 1e-8."""
    rates = np.asarray(sorted({row[axis] for row in rows}), float)
    taus = np.asarray(sorted({row[x] for row in rows}), float)
    loss, limits = (
        np.full((len(taus), len(rates)), math.nan),
        np.full(len(taus), math.nan),
    )
    lost = np.zeros(loss.shape, bool)
    for row in rows:
        i, j = np.searchsorted(taus, row[x]), np.searchsorted(rates, row[axis])
        lost[i, j] = row["lost"]
        loss[i, j] = math.nan if row["lost"] else row["mean"]
        limits[i] = tables.limit_of(limit, row, x)
    excess = np.maximum(loss - (optimum_loss or 0.0), _FLOOR)
    return Cells(rates, taus, excess, lost, optimum_loss, limits)


def bounded(shown: Cells) -> np.ndarray:
    """The cells past the limit that are neither lost nor settled, bool [D, R].

    Where gradients are bounded, as with a logistic loss, descent past the limit
    may cycle at a high loss instead. Without the optimum no loss tells, and none is.
    """
    if shown.optimum_loss is None:
        return np.zeros(shown.excess.shape, bool)
    past = shown.rates > shown.limits[:, None]
    return past & (shown.excess > _SETTLED)


def limit_handle() -> Line2D:
    """The line of the limit."""
    return Line2D([], [], color=palette.COLORS[1], label="computed limit")


def quantity(shown: Cells, metric: str, unit: str) -> str:
    """What the colors of a map show, in words."""
    excess = "" if shown.optimum_loss is None else "excess "
    return f"$\\log_{{10}}$ of {excess}{with_unit(metric, unit)}"


def plot(axis: Axes, shown: Cells, x_label: str, y_label: str) -> QuadMesh:
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
        np.ma.masked_array(np.ones(colors.shape), ~shown.lost),
        cmap=ListedColormap(["black"]),
        vmin=0.0,
        vmax=1.0,
    )
    if np.isfinite(shown.limits).any():
        # a step for each row: what lies between two whole delays was not run
        axis.plot(
            np.repeat(shown.limits, 2),
            np.repeat(edges[1], 2)[1:-1],
            color=palette.COLORS[1],
            linewidth=2.2,
            path_effects=[patheffects.withStroke(linewidth=4, foreground="white")],
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(edges[0][0], edges[0][-1])
    axis.set_ylim(edges[1][0], edges[1][-1])
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    scales.delay_ticks(axis.yaxis, shown.delays.tolist(), lambda tau: 2.0 * tau + 1.0)
    return mesh


def _handles(maps: Sequence[Cells]) -> list[Artist]:
    lost = patches.Patch(color="black", label="diverged, or ended above where it began")
    if not any(np.isfinite(shown.limits).any() for shown in maps):
        return [lost]
    found = [limit_handle(), lost]
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
