"""Figures of a run, drawn from its records; nothing trains here.

python -m experiments.figures --workdir=runs/default
python -m experiments.figures --hero=runs/edge,runs/char_lm --out=docs/how_late.png
"""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from absl import app, flags
from matplotlib import patches, patheffects
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from experiments import results
from experiments.results import Curve, Row, Series

_STYLED = matplotlib.rc_context(
    {
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.labelsize": 11,
        "figure.titlesize": 13,
        "legend.fontsize": 10,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 6,
    }
)
_DPI = 150
_WIDTH = 6.0  # inches: 900 pixels, what a README shows
# Okabe and Ito's, without the yellow, which is too light for a line
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
)
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_NOTE_COLOUR = "#A33B00"
_NOTES_SHOWN = 3
_PANEL_SERIES = 5  # more are split into panels
_FLOOR = 1e-8  # a float32 loss of order one resolves no smaller excess
_TUNED = ("over_delay", "gap_over_delay", "best_step")


class _Run(NamedTuple):
    """The records of a run."""

    config: dict[str, Any]
    facts: dict[str, Any]
    rows: list[Row]
    metrics: list[dict[str, Any]]

    @property
    def unit(self) -> str:
        return results.loss_unit(self.config["task"]["name"])

    def curves(self, metric: str) -> list[Curve]:
        return results.curves(self.rows, metric, select_by=self.config["select_by"])


class _Style(NamedTuple):
    colour: str
    marker: str
    dashes: Any


class _Arrangement(NamedTuple):
    """Which series share a panel, and how each is named and drawn there."""

    panels: dict[str, list[Series]]  # by title
    labels: dict[Series, str]
    styles: dict[str, _Style]  # by label


def draw(workdir: Path | str) -> list[Path]:
    """Draws the figures that the config of a run asks for.

    Args:
        workdir: a run's folder, with config.json, metrics.jsonl and results.csv.

    Returns:
        The files, figures/NAME.png. A figure of what the task does not record is left
        out, and `warnings` says so.

    Raises:
        FileNotFoundError: if a record is missing.
        ValueError: if a figure is unknown or a record cannot be read.
    """
    run = _load(workdir)
    return [
        save(_figure(run, name), Path(workdir) / "figures" / f"{name}.png")
        for name in run.config["figures"]
        if not _lacking(run, name)
    ]


def warnings(workdir: Path | str) -> list[str]:
    """What makes the figures of a run unfair, or leaves one out, in sentences."""
    run = _load(workdir)
    names = run.config["figures"]
    sentences = []
    if set(names) & set(_TUNED):
        sentences += results.edge_warnings(run.curves("train_loss"))
    return sentences + [text for name in names if (text := _lacking(run, name))]


@_STYLED
def save(figure: Figure, path: Path | str) -> Path:
    """Writes a figure as PNG and returns its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, facecolor="white")
    return path


@_STYLED
def over_delay(curves: Sequence[Curve], unit: str = "nats") -> Figure:
    """A metric against staleness: the fixed step dashed, the re-tuned one solid.

    Args:
        curves: of one metric, from `results.curves`.
        unit: of the loss.
    """
    arranged = _arrange(curves)
    handles = [
        *_series_handles(arranged),
        Line2D([], [], color="0.3", label="re-tuned step"),
        Line2D([], [], color="0.3", linestyle="--", label="fixed step"),
        *_diverged_handles(curves),
    ]
    columns = min(len(arranged.panels), 2)
    figure, axes = _sheet(
        "How much does a late gradient cost?",
        math.ceil(len(arranged.panels) / columns),
        columns,
        handles,
        results.edge_warnings(curves),
    )
    for axis, (title, members) in zip(axes, arranged.panels.items(), strict=False):
        axis.set_title(title)
        shown = [curve for curve in curves if curve.series in members]
        for curve in shown:
            _plot(axis, curve, arranged, "-" if curve.retuned else "--")
        _mark_diverged(axis, shown, arranged)
    for axis in axes[len(arranged.panels) :]:
        axis.remove()
    axes = axes[: len(arranged.panels)]
    _delay_axes(axes, curves)
    _metric_axes(axes, curves, unit, columns)
    return figure


@_STYLED
def gap_over_delay(curves: Sequence[Curve], unit: str = "nats") -> Figure:
    """Test minus training loss against staleness: fixed step left, re-tuned right.

    Args:
        curves: of the metric "gap", from `results.curves`.
        unit: of the loss.
    """
    arranged = _arrange(curves)
    figure, axes = _sheet(
        "Does a late gradient change the train/test gap?",
        len(arranged.panels),
        2,
        [*_series_handles(arranged), *_diverged_handles(curves)],
        results.edge_warnings(curves),
    )
    for row, (title, members) in enumerate(arranged.panels.items()):
        for column, name in enumerate(("fixed step", "re-tuned step")):
            axis = axes[2 * row + column]
            axis.set_title(f"{title}, {name}" if title else name)
            shown = [
                curve
                for curve in curves
                if curve.series in members and curve.retuned == bool(column)
            ]
            for curve in shown:
                style = arranged.styles[arranged.labels[curve.series]]
                _plot(axis, curve, arranged, style.dashes)
            _mark_diverged(axis, shown, arranged)
    _delay_axes(axes, curves)
    _metric_axes(axes, curves, unit, columns=2)
    return figure


@_STYLED
def best_step(curves: Sequence[Curve]) -> Figure:
    """The re-tuned step size against staleness; rings mark the edge of the grid.

    Args:
        curves: from `results.curves`.
    """
    tuned = [curve for curve in curves if curve.retuned]
    arranged = _arrange(tuned)
    handles = [*_series_handles(arranged), *_diverged_handles(tuned)]
    if any(point.on_edge for curve in tuned for point in curve.points):
        ring = {"marker": "o", "markersize": 12, "markerfacecolor": "none"}
        handles.append(
            Line2D([], [], color=_NOTE_COLOUR, linestyle="", label="grid's edge", **ring)
        )
    columns = min(len(arranged.panels), 2)
    figure, axes = _sheet(
        "How much smaller must the step be?",
        math.ceil(len(arranged.panels) / columns),
        columns,
        handles,
        results.edge_warnings(curves),
    )
    for axis, (title, members) in zip(axes, arranged.panels.items(), strict=False):
        axis.set_title(title)
        shown = [curve for curve in tuned if curve.series in members]
        for curve in shown:
            style = arranged.styles[arranged.labels[curve.series]]
            live = [point for point in curve.points if not point.diverged]
            axis.plot(
                [point.delay for point in live],
                [point.learning_rate for point in live],
                color=style.colour,
                marker=style.marker,
                linestyle=style.dashes,
            )
            edge = [point for point in live if point.on_edge]
            axis.scatter(
                [point.delay for point in edge],
                [point.learning_rate for point in edge],
                s=140,
                facecolors="none",
                edgecolors=_NOTE_COLOUR,
                zorder=3,
            )
        _mark_diverged(axis, shown, arranged)
        axis.set_yscale("log")
    for axis in axes[len(arranged.panels) :]:
        axis.remove()
    axes = axes[: len(arranged.panels)]
    for axis in axes[::columns]:
        axis.set_ylabel("best step size")
    _delay_axes(axes, curves)
    return figure


@_STYLED
def stability_map(
    rows: Iterable[Row],
    sharpness: float | None = None,
    optimum_loss: float | None = None,
    unit: str = "nats",
) -> Figure:
    """The final training loss over step size and staleness; diverged cells are black.

    Args:
        rows: the rows of one run; a panel for each series. Seeds are averaged, and a
            cell is black where one of them diverged.
        sharpness: the largest eigenvalue of the Hessian; draws the computed limit.
        optimum_loss: the least training loss there is; colours then show the excess.
        unit: of the loss.
    """
    table = results.table(rows)
    handles = [patches.Patch(color="black", label="diverged")]
    if sharpness is not None:
        handles.insert(0, _limit_handle(sharpness))
    columns = min(len(table), 2)
    figure, axes = _sheet(
        "At which step size does training diverge?",
        math.ceil(len(table) / columns),
        columns,
        handles,
        (),
        height=3.4,
    )
    for axis, (series, delays) in zip(axes, table.items(), strict=False):
        mesh = _map(axis, delays, sharpness, optimum_loss)
        if len(table) > 1:
            axis.set_title(results.label(series, table))
        bar = axis.figure.colorbar(mesh, ax=axis, extend=_extend(mesh))
        bar.set_label(_map_label(optimum_loss, unit))
    for axis in axes[len(table) :]:
        axis.remove()
    return figure


@_STYLED
def loss_curves(metrics: Sequence[Mapping[str, Any]], unit: str = "nats") -> Figure:
    """The median training loss of the cells that have not diverged, over the run.

    Args:
        metrics: the rows of metrics.jsonl.
        unit: of the loss.
    """
    programs = {}
    for row in metrics:
        programs.setdefault(row["program"], []).append(row)
    parts = [name.split("-") for name in programs]
    differ = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
    figure, (axis,) = _sheet("How did training go?", 1, 1, [None] * len(programs), ())
    low, high = math.inf, 0.0
    for index, (name, own) in enumerate(programs.items()):
        losses = [
            math.nan if row["train_loss"] is None else row["train_loss"] for row in own
        ]
        label = ", ".join(
            part
            for position, part in enumerate(name.split("-"))
            if position == 0 or differ[position]
        )
        style = _style(index)
        axis.plot(
            [row["step"] for row in own],
            losses,
            color=style.colour,
            linestyle=style.dashes,
            label=f"{label}: {own[-1]['diverged']} cells diverged",
        )
        low = min(low, *losses) if not all(map(math.isnan, losses)) else low
        high = max(high, *losses)
    if 0 < 10 * low < high:
        axis.set_yscale("log")
    axis.set_xlabel("step (updates)")
    axis.set_ylabel(f"{_quantity('train_loss', unit)},\nmedian of live cells")
    axis.figure.legend(loc="outside lower center", ncols=2)
    return figure
