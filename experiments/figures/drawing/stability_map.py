"""The final training loss over step size and staleness, and the computed limit."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.figures import palette, tables
from experiments.figures.figure import Figure, Only, Theory
from experiments.results.column_words import loss_unit, with_unit, words
from experiments.results.runs import Run

_FLOOR = 1e-8  # a float32 loss of order one resolves no smaller excess
_SETTLED = 1e-4  # the largest excess that may still be on its way down
_LOST = "#0d0d0d"  # black, also on a dark page


class Cells(NamedTuple):
    """What a map shows: D values of the other axis by R steps."""

    rates: np.ndarray  # steps, ascending [R]
    delays: np.ndarray  # the other axis, ascending [D]
    excess: np.ndarray  # loss over the optimum; nan if lost or not run [D, R]
    lost: np.ndarray  # whether a seed ended higher or diverged, bool [D, R]
    optimum_loss: float | None  # None is unknown, and the excess then over 0
    limits: np.ndarray  # the computed steps; nan where there is none [D]


def stability_map(
    x: str,
    axis: str,
    *,
    metric: str = "train_loss",
    limit: Theory | None = None,
    only: Only | None = None,
    title: str = "",
    name: str = "stability_map",
) -> Figure:
    """The final loss over the step and another axis; cells that end higher are black.

    What else is varied has a panel for each value.

    Args:
        x: the other axis, upwards.
        axis: the step.
        metric: whose logarithm is shown; the excess over the task's `optimum_loss`
            where that is known.
        limit: the largest stable step: a function of settings, or {x: limit}.
        only: as in `over`.
        title: as in `over`.
        name: of the file.
    """

    def draw(run: Run) -> Any:
        from experiments.figures import sheets

        maps = by_panel(run, x, axis, metric=metric, limit=limit, only=only)
        shown = list(maps.values())
        question = f"At which {words(axis)} does training diverge?"
        finding = _finding(shown[0], x, axis) if len(maps) == 1 else ""
        figure, axes = sheets.sheet(
            *(title, list(maps), _handles(shown)),
            **dict(height=3.3, question=question, finding=finding),
        )
        for panel, cells in zip(axes, shown, strict=True):
            bar = panel.figure.colorbar(plot(panel, cells, axis, x), ax=panel)
            bar.set_label(quantity(cells, metric, loss_unit(run)))
        return figure

    caption = (
        f"Map of the final {words(metric)} over {words(axis)} and {words(x)}. Cells"
        " that end above where they began, or diverge, are black; where it is known, a"
        " line is the computed limit."
    )
    return Figure(name, caption, draw)


def by_panel(
    run: Run,
    x: str,
    axis: str,
    *,
    metric: str = "train_loss",
    limit: Theory | None = None,
    only: Mapping[str, Any] | None = None,
) -> dict[str, Cells]:
    """The map of each series, by its name; an excess is at least 1e-8."""
    chosen = tables.choose(run, metric, only, x, axis)
    for column in (x, axis):
        tables.require(chosen.best, column)
    series = tables.series_of(chosen.best, [axis], x)
    table = tables.points(chosen.best, metric, [*series, x, axis])
    named = tables.name(table, series, spread=False)
    optimum = run.facts.get("optimum_loss")
    maps = {}
    for label, _, rows in named.lines(named.tell(table)):
        grid = rows.pivot(index=x, columns=axis, values=["mean", "lost"])
        lost = (grid["lost"] == True).to_numpy(bool)  # noqa: E712, not run is not lost
        loss = np.where(lost, np.nan, grid["mean"].to_numpy(float))
        said = rows.drop_duplicates(x).sort_values(x).to_dict("records")
        maps[label] = Cells(
            grid["mean"].columns.to_numpy(float),
            grid.index.to_numpy(float),
            np.maximum(loss - (optimum or 0.0), _FLOOR),
            lost,
            optimum,
            np.asarray([tables.formula(limit, row, x) for row in said]),
        )
    return maps


def bounded(shown: Cells) -> np.ndarray:
    """The cells past the limit that are neither lost nor settled, bool [D, R].

    Where gradients are bounded, as with a logistic loss, descent past the limit
    may cycle at a high loss instead. Without the optimum no loss tells, and none is.
    """
    if shown.optimum_loss is None:
        return np.zeros(shown.excess.shape, bool)
    past = shown.rates > shown.limits[:, None]
    return past & (shown.excess > _SETTLED)


def limit_handle() -> Any:
    """The line of the limit."""
    return palette.mark("computed limit", color=palette.COLORS[1])


def shades() -> Any:
    """The colors of losses, without the darkest, which look like black."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["viridis_r"](np.linspace(0, 0.85, 256)))


def quantity(shown: Cells, metric: str, unit: str) -> str:
    """What the colors of a map show, in words."""
    excess = "" if shown.optimum_loss is None else "excess "
    return f"$\\log_{{10}}$ of {excess}{with_unit(metric, unit)}"


def plot(axis: Any, shown: Cells, step: str, x: str) -> Any:
    """Draws a map and returns its colored cells.

    The vertical axis is log(2 tau + 1), in which the limit is almost straight. Cells
    end at geometric midpoints, so that each is centered on its own values.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patheffects import withStroke

    from experiments.figures import scales

    colors = np.ma.masked_invalid(np.log10(shown.excess))
    edges = _midpoints(shown.rates), _midpoints(2.0 * shown.delays + 1.0)
    low, high = (colors.min(), colors.max()) if colors.count() else (-1.0, 0.0)
    looks = {"rasterized": True}  # else an .svg has thousands of paths
    mesh = axis.pcolormesh(*edges, colors, cmap=shades(), vmin=low, vmax=high, **looks)
    black = np.ma.masked_array(np.ones(colors.shape), ~shown.lost)
    axis.pcolormesh(*edges, black, cmap=ListedColormap([_LOST]), **looks)
    if np.isfinite(shown.limits).any():
        # a step for each row: what lies between two whole delays was not run
        axis.plot(
            np.repeat(shown.limits, 2),
            np.repeat(edges[1], 2)[1:-1],
            color=palette.COLORS[1],
            linewidth=2.2,
            path_effects=[withStroke(linewidth=4, foreground="#fefefe")],
        )
    axis.set(xscale="log", yscale="log", xlabel=with_unit(step), ylabel=with_unit(x))
    axis.set(xlim=edges[0][[0, -1]], ylim=edges[1][[0, -1]])
    scales.delay_ticks(axis.yaxis, shown.delays.tolist(), lambda tau: 2.0 * tau + 1.0)
    return mesh


def _finding(shown: Cells, x: str, axis: str) -> str:
    """The largest step below all that are lost, at the first and the last `x`."""
    ends = []
    for lost in (shown.lost[0], shown.lost[-1]):
        stable = shown.rates[: int(np.argmax(lost))]
        if not lost.any() or not len(stable):
            return ""
        ends.append(stable[-1])
    first, last = shown.delays[[0, -1]]
    if first == last:
        return ""
    return (
        f"The largest {words(axis)} that trains: {ends[0]:.3g} at {words(x)} {first:g},"
        f" {ends[1]:.3g} at {last:g}"
    )


def _handles(maps: Sequence[Cells]) -> list[Any]:
    lost = palette.area("diverged, or ended above where it began", color=_LOST)
    if not any(np.isfinite(shown.limits).any() for shown in maps):
        return [lost]
    handles = [limit_handle(), lost]
    if any(bounded(shown).any() for shown in maps):
        handles.append(palette.area("bounded, but never settles", color=shades()(1.0)))
    return handles


def _midpoints(centers: np.ndarray) -> np.ndarray:
    """Edges of cells, at geometric midpoints of their centers."""
    logs = np.log(centers)
    if len(logs) == 1:
        return np.exp(np.asarray([logs[0] - 0.5, logs[0] + 0.5]))
    inner = (logs[1:] + logs[:-1]) / 2
    first, last = 2 * logs[0] - inner[0], 2 * logs[-1] - inner[-1]
    return np.exp(np.concatenate([[first], inner, [last]]))
