"""The site's first picture: both answers to its question, from two runs.

python -m docs.how_late runs/stability_edge runs/char_lm docs/how_late.png
"""

import sys
from collections.abc import Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import delayjax as dj
from experiments import statements
from experiments.figures import palette, scales, sheets, tables
from experiments.figures.drawing import over, stability_map
from experiments.results.column_words import loss_unit, with_unit
from experiments.results.runs import Run


@sheets.STYLED
def draw(edge: Run, language: Run, limit: Any) -> Figure:
    """Both answers to the front page's question, from two runs.

    Args:
        edge: a run of configs/stability_edge.py.
        language: a run of configs/char_lm.py, with delay 0 among its delays.
        limit: the largest stable step of the first, as in `figures.stability_map`.

    Raises:
        ValueError: if the records cannot answer.
    """
    maps = stability_map.by_panel(edge, "delay", "learning_rate", limit=limit)
    if len(maps) != 1:
        raise ValueError(
            f"{edge.folder} must be a run of one optimizer under one law of delays:"
            " configs/stability_edge.py makes one."
        )
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
    (shown,) = maps.values()
    _draw_edge(left, shown, loss_unit(edge))
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


def _draw_edge(axis: Axes, shown: stability_map.Cells, unit: str) -> None:
    """The map; the corner of the largest step and delay names its dark cells."""
    mesh = stability_map.plot(axis, shown, "learning_rate", "delay")
    bar = axis.figure.colorbar(mesh, ax=axis)
    bar.set_label(stability_map.quantity(shown, "train_loss", unit))
    _name(axis, 0.96, "diverged", facecolor="black", edgecolor="none")
    if stability_map.bounded(shown).any():
        # framed: a name, and no cell of the map
        color = stability_map.shades()(1.0)
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
