"""The site's first picture: both answers to its question, from two runs.

python -m docs.how_late runs/stability_edge runs/char_lm docs/how_late.png
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

import delayjax as dj
from experiments import statements
from experiments.figures import palette, scales, sheets, tables
from experiments.figures.drawing import over
from experiments.results.column_words import loss_unit, with_unit
from experiments.results.runs import Run

SHADES = ListedColormap(colormaps["viridis_r"](np.linspace(0, 0.85, 256)))
"""Of losses: all shades but the darkest, which look like black."""
LEAST = 1e-8  # a float32 loss of order one resolves no smaller excess
SETTLED = 1e-4  # the largest excess that may still be on its way down


class Cells(NamedTuple):
    """The final training loss of D delays and R steps."""

    rates: np.ndarray  # steps, ascending [R]
    delays: np.ndarray  # updates, ascending [D]
    excess: np.ndarray  # loss over the optimum; nan if lost or not run [D, R]
    lost: np.ndarray  # whether a seed ended higher or diverged, bool [D, R]
    limits: np.ndarray  # the largest stable steps, computed [D]

    @property
    def bounded(self) -> np.ndarray:
        """Cells past the limit that are neither lost nor settled, bool [D, R].

        Where gradients are bounded, as with a logistic loss, descent past the limit may
        cycle at a high loss instead.
        """
        return (self.rates > self.limits[:, None]) & (self.excess > SETTLED)


@sheets.STYLED
def draw(edge: Run, language: Run, limit: Callable[[float], float]) -> Figure:
    """Both answers to the front page's question, from two runs.

    Args:
        edge: a run of configs/stability_edge.py.
        language: a run of configs/char_lm.py, with delay 0 among its delays.
        limit: delay -> the largest stable step of the first.

    Raises:
        ValueError: if the records cannot answer.
    """
    cells = cells_of(edge, limit)
    chosen = tables.choose(language, "test_loss", None, "delay")
    table = over.numbers(chosen, "delay", fixed=False)
    named = tables.name(table, over.series_in(table, "delay"), spread=False)
    table = excess(table, named)
    figure, (left, right) = sheets.sheet(
        "How late may a gradient be?",
        (
            "Breast cancer: where\ndescent diverges",
            "Characters: what lateness\ncosts at the best step",
        ),
        notes=tables.edge_notes(chosen, named.label),
        height=3.3,
        sharey=False,
    )
    _draw_edge(left, cells, loss_unit(edge))
    marks = []
    for label, style in named.styles.items():
        line = table[table["label"] == label]
        over.plot_line(right, line, style)
        marks.append((line["at"][line["lost"]].tolist(), style))
    scales.gutter(right, marks, tables.fate(language))
    scales.x_axis([right], table["delay"], with_unit("delay"))
    right.set_ylabel(f"excess {with_unit('test_loss', loss_unit(language))}")
    _legend(right, palette.handles(named.styles))
    return figure


def excess(table: Any, named: tables.Named) -> Any:
    """A table over delays, less its mean without delay; with columns `label`, `at`.

    Raises:
        ValueError: if a series has no value without delay.
    """
    table = table.assign(label=[named.label(row) for row in table.to_dict("records")])
    table = table.assign(at=table["delay"].astype(float)).sort_values("at")
    base = table[(table["delay"] == 0) & ~table["lost"]].set_index("label")["mean"]
    if set(base.index) != set(table["label"]):
        raise ValueError(
            "the second run must hold a delay of 0 at which some step size does not"
            " diverge: the excess is counted from there."
        )
    less = table["label"].map(base)
    return table.assign(
        **{name: table[name] - less for name in ("mean", "low", "high")}
    )


def cells_of(run: Run, limit: Callable[[float], float]) -> Cells:
    """The cells of a run of configs/stability_edge.py.

    Raises:
        ValueError: if it has more settings than the step and the delay, or a loss of
            unknown optimum.
    """
    settings = {*run.settings}
    if settings != {"learning_rate", "delay"} or "optimum_loss" not in run.facts:
        raise ValueError(
            f"{run.folder} must be a run over steps and delays whose task knows its"
            " `optimum_loss`: configs/stability_edge.py makes one."
        )
    table = tables.points(run.results, "train_loss", run.settings)
    grid = table.pivot(index="delay", columns="learning_rate", values=["mean", "lost"])
    lost = grid["lost"].eq(True).to_numpy(bool)  # not run is not lost
    loss = np.where(lost, np.nan, grid["mean"].to_numpy(float))
    return Cells(
        rates=grid["mean"].columns.to_numpy(float),
        delays=grid.index.to_numpy(float),
        excess=np.maximum(loss - run.facts["optimum_loss"], LEAST),
        lost=lost,
        limits=np.asarray([limit(delay) for delay in grid.index]),
    )


def _draw_edge(axis: Axes, cells: Cells, unit: str) -> None:
    """The map of the losses, beside the limit.

    The vertical axis is log(2 tau + 1), in which the limit is almost straight. Cells
    end at geometric midpoints, so that each is centered on its own values. The corner
    of the largest step and delay names its dark cells.
    """
    edges = _midpoints(cells.rates), _midpoints(2.0 * cells.delays + 1.0)
    colors = np.ma.masked_invalid(np.log10(cells.excess))
    looks = {"rasterized": True}  # else an .svg has thousands of paths
    mesh = axis.pcolormesh(*edges, colors, cmap=SHADES, **looks)
    black = np.ma.masked_array(np.ones(colors.shape), ~cells.lost)
    axis.pcolormesh(*edges, black, cmap=ListedColormap(["#0d0d0d"]), **looks)
    # a step for each row: what lies between two whole delays was not run
    axis.plot(
        np.repeat(cells.limits, 2),
        np.repeat(edges[1], 2)[1:-1],
        color=palette.COLORS[1],
        linewidth=2.2,
        path_effects=[withStroke(linewidth=4, foreground="#fefefe")],
    )
    axis.set(xscale="log", yscale="log", xlabel=with_unit("learning_rate"))
    axis.set(xlim=edges[0][[0, -1]], ylim=edges[1][[0, -1]], ylabel=with_unit("delay"))
    scales.delay_ticks(axis.yaxis, cells.delays.tolist(), lambda tau: 2.0 * tau + 1.0)
    bar = axis.figure.colorbar(mesh, ax=axis)
    bar.set_label(f"$\\log_{{10}}$ of excess {with_unit('train_loss', unit)}")
    _name(axis, 0.96, "diverged", facecolor="black", edgecolor="none")
    if cells.bounded.any():  # framed: a name, and no cell of the map
        looks = {"facecolor": SHADES(1.0), "edgecolor": "white"}
        _name(axis, 0.84, "bounded,\nunsettled", **looks)
    _legend(axis, [palette.mark("computed limit", color=palette.COLORS[1])])


def _midpoints(centers: np.ndarray) -> np.ndarray:
    """Edges of cells, at geometric midpoints of their centers."""
    logs = np.log(centers)
    inner = (logs[1:] + logs[:-1]) / 2
    first, last = 2 * logs[0] - inner[0], 2 * logs[-1] - inner[-1]
    return np.exp(np.concatenate([[first], inner, [last]]))


def _name(axis: Axes, top: float, name: str, **box: Any) -> None:
    axis.text(
        *(0.96, top, name),
        color="white",
        ha="right",
        va="top",
        transform=axis.transAxes,
        bbox={"pad": 1.5} | box,
    )


def _legend(axis: Axes, handles: Sequence[Artist]) -> None:
    """A legend between the axes and their title."""
    axis.set_title(axis.get_title(), pad=22)
    axis.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.98),
        ncols=len(handles),
        borderpad=0,
        columnspacing=0.8,
        handlelength=1.4,
        handletextpad=0.4,
    )


def main(edge: str, language: str, out: str) -> None:
    """Draws the picture of two folders of runs."""
    first = Run.read(edge)
    experiment, _ = statements.of_run(first.info)
    sharpness = experiment.task.facts["sharpness"]

    def limit(delay: float) -> float:
        return dj.stability.Dynamics(int(delay)).step_limit() / sharpness

    print(sheets.save(draw(first, Run.read(language), limit), out))


if __name__ == "__main__":
    main(*sys.argv[1:])
