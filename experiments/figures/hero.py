"""The site's first picture: both answers to its question, from two runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import tuning
from experiments.figures import lines, look, stability_map
from experiments.figures.run import Run, load
from experiments.tuning import Curve


@look.STYLED
def draw(edge_dir: Path | str, language_dir: Path | str) -> Figure:
    """Both answers to the front page's question, from two runs.

    Args:
        edge_dir: a run of configs/stability_edge.py.
        language_dir: a run of configs/char_lm.py, with delay 0 among its delays.

    Raises:
        FileNotFoundError: if a record is missing.
        ValueError: if the records cannot answer.
    """
    edge, language = load(edge_dir), load(language_dir)
    if len(edge.limits) != 1 or len(tuning.table(edge.rows)) != 1:
        raise ValueError(
            f"{edge_dir} must be a run of one optimizer under one law of delays, with"
            " config.advise: configs/stability_edge.py makes one."
        )
    curves = [curve for curve in language.curves("test_loss") if curve.retuned]
    if any(curve.points[0].delay or curve.points[0].diverged for curve in curves):
        raise ValueError(
            f"{language_dir} must hold a delay of 0 at which some step size does not"
            " diverge: the excess is counted from there."
        )
    figure, (left, right) = look.sheet(
        "How late may a gradient be?",
        (
            f"{_task(edge)}: where\ndescent diverges",
            f"{_task(language)}: what lateness\ncosts at the best step",
        ),
        notes=tuning.edge_warnings(curves),
        height=3.3,
        sharey=False,
    )
    _draw_edge(left, edge)
    _draw_cost(right, curves, language.unit)
    return figure


def _task(run: Run) -> str:
    names = {"breast_cancer": "Breast cancer", "char_lm": "Characters"}
    return names.get(run.config["task"]["name"], run.config["task"]["name"])


def _draw_edge(axis: Axes, edge: Run) -> None:
    """The map; the corner of the largest step and delay names its dark cells."""
    ((series, delays),) = tuning.table(edge.rows).items()
    optimum_loss = edge.facts.get("optimum_loss")
    shown = stability_map.cells(delays, optimum_loss, edge.limits[series])
    bar = axis.figure.colorbar(stability_map.plot(axis, shown), ax=axis)
    bar.set_label(stability_map.quantity(shown, edge.unit))
    _name(axis, 0.96, "diverged", facecolor="black", edgecolor="none")
    if stability_map.bounded(shown).any():
        # framed: a name, and no cell of the map
        color = stability_map.BOUNDED
        _name(axis, 0.84, "bounded,\nunsettled", facecolor=color, edgecolor="white")
    _legend(axis, [stability_map.limit_handle()])


def _name(axis: Axes, top: float, name: str, **box: Any) -> None:
    axis.text(
        *(0.96, top, name),
        color="white",
        ha="right",
        va="top",
        transform=axis.transAxes,
        bbox={"pad": 1.5} | box,
    )


def _draw_cost(axis: Axes, curves: Sequence[Curve], unit: str) -> None:
    """The excess over a delay of 0, each at its best step size."""
    arranged = lines.arrange(curves)
    for curve in curves:
        style = arranged.styles[curve.series]
        lines.plot(axis, curve, style, less=curve.points[0].mean)
    lines.mark_diverged(axis, curves, arranged)
    lines.delay_axes([axis], curves)
    axis.set_ylabel(f"excess test loss{look.in_unit(unit)}")
    _legend(axis, lines.series_handles(arranged))


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
