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
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

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
# Okabe and Ito's colours, without the yellow, which is too light for a line
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
)
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_NOTE_COLOUR = "#A33B00"
_NOTES_SHOWN = 3
_PANEL_SERIES = 5  # more of them are spread over panels
_LIMIT = r"$2\,\sin(\pi/(2(2\tau+1)))\,/\,\lambda$"
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
    """Which curves share a panel, and how each series is named and drawn."""

    panels: dict[str, list[Curve]]  # by title
    labels: dict[Series, str]
    styles: dict[Series, _Style]  # equal where labels are


def draw(workdir: Path | str) -> list[Path]:
    """Draws the figures that the config of a run asks for.

    Args:
        workdir: a run's folder, with config.json, metrics.jsonl and results.csv.

    Returns:
        The files, figures/NAME.png. A figure of what the run does not record is left
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
        *_series_handles(arranged, dashes=False),
        Line2D([], [], color="0.3", label="re-tuned step"),
        Line2D([], [], color="0.3", linestyle="--", label="fixed step"),
        *_diverged_handles(curves),
        _spread_handle(),
    ]
    figure, axes = _sheet(
        "How much does a late gradient cost?",
        arranged.panels,
        handles,
        results.edge_warnings(curves),
    )
    for axis, shown in zip(axes, arranged.panels.values(), strict=True):
        for curve in shown:
            style = arranged.styles[curve.series]
            _plot(axis, curve, style._replace(dashes="-" if curve.retuned else "--"))
        low_is_bad = curves[0].metric.endswith("accuracy")
        _mark_diverged(axis, shown, arranged, bottom=low_is_bad)
    _delay_axes(axes, curves)
    _metric_axes(axes, curves, unit)
    return figure


@_STYLED
def gap_over_delay(curves: Sequence[Curve], unit: str = "nats") -> Figure:
    """Test minus training loss against staleness: fixed step left, re-tuned right.

    Args:
        curves: of the metric "gap", from `results.curves`.
        unit: of the loss.
    """
    arranged = _arrange(curves)
    panels = {
        f"{title}, {name}" if title else name: [
            curve for curve in shown if curve.retuned == retuned
        ]
        for title, shown in arranged.panels.items()
        for retuned, name in ((False, "fixed step"), (True, "re-tuned step"))
    }
    figure, axes = _sheet(
        "Does a late gradient change the train/test gap?",
        panels,
        [*_series_handles(arranged), *_diverged_handles(curves), _spread_handle()],
        results.edge_warnings(curves),
    )
    for axis, shown in zip(axes, panels.values(), strict=True):
        for curve in shown:
            _plot(axis, curve, arranged.styles[curve.series])
        _mark_diverged(axis, shown, arranged)
    _delay_axes(axes, curves)
    _metric_axes(axes, curves, unit)
    return figure


@_STYLED
def best_step(curves: Sequence[Curve]) -> Figure:
    """The re-tuned step size against staleness; rings mark the grid's edge.

    Args:
        curves: from `results.curves`.
    """
    tuned = [curve for curve in curves if curve.retuned]
    arranged = _arrange(tuned)
    handles = [*_series_handles(arranged), *_diverged_handles(tuned)]
    ring = {"color": _NOTE_COLOUR, "marker": "o", "markersize": 12, "linestyle": ""}
    ring["markerfacecolor"] = "none"
    if any(p.on_edge and not p.diverged for curve in tuned for p in curve.points):
        handles.append(Line2D([], [], label="on the grid's edge", **ring))
    figure, axes = _sheet(
        "Which step size is best for a late gradient?",
        arranged.panels,
        handles,
        results.edge_warnings(curves),
    )
    for axis, shown in zip(axes, arranged.panels.values(), strict=True):
        for curve in shown:
            style = arranged.styles[curve.series]
            live = [point for point in curve.points if not point.diverged]
            edge = [point for point in live if point.on_edge]
            for points, look in (
                (live, {"color": style.colour, "marker": style.marker}),
                (edge, ring),
            ):
                axis.plot(
                    [point.delay for point in points],
                    [point.learning_rate for point in points],
                    **{"linestyle": style.dashes} | look,
                )
        _mark_diverged(axis, shown, arranged, bottom=True)
        axis.set_yscale("log")
        if axis.get_subplotspec().is_first_col():
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
    titles = [results.label(series, table) for series in table]
    handles = [patches.Patch(color="black", label="diverged")]
    if sharpness is not None:
        handles.insert(0, _limit_handle(f", $\\lambda$ = {sharpness:.3g} measured"))
    figure, axes = _sheet(
        "At which step size does training diverge?",
        titles if len(titles) > 1 else [""],
        handles,
        height=3.3,
    )
    for axis, delays in zip(axes, table.values(), strict=True):
        mesh = _draw_map(axis, delays, sharpness, optimum_loss)
        bar = axis.figure.colorbar(mesh, ax=axis)
        bar.set_label(_map_quantity(optimum_loss, unit))
    return figure


@_STYLED
def loss_curves(metrics: Sequence[Mapping[str, Any]], unit: str = "nats") -> Figure:
    """The median training loss of the cells that have not diverged, over the run.

    Args:
        metrics: the rows of metrics.jsonl.
        unit: of the loss.
    """
    programs: dict[str, list[Mapping[str, Any]]] = {}
    for row in metrics:
        programs.setdefault(row["program"], []).append(row)
    parts = [name.split("-") for name in programs]
    # the optimizer, and what else tells the programs apart
    told = [i for i, words in enumerate(zip(*parts, strict=True)) if len({*words}) > 1]
    handles = []
    for index, (words, own) in enumerate(zip(parts, programs.values(), strict=True)):
        style = _style(index)
        names = [words[0], *(words[i] for i in told if i > 0)]
        handles.append(
            Line2D(
                [row["step"] for row in own],
                # a chunk in which no cell was live has no loss
                [math.nan if (y := row["train_loss"]) is None else y for row in own],
                color=style.colour,
                linestyle=style.dashes,
                label=f"{', '.join(names)} ({own[-1]['diverged']} cells not finite)",
            )
        )
    figure, (axis,) = _sheet("How did training go?", [""], handles)
    for line in handles:
        axis.plot(*line.get_data(), color=line.get_color(), ls=line.get_linestyle())
    _log_if_wide(axis, [y for line in handles for y in line.get_ydata()])
    axis.set_xlabel("step (updates)")
    axis.set_ylabel(f"{_quantity('train_loss', unit)}\nmedian of live cells")
    return figure


@_STYLED
def hero(edge_dir: Path | str, language_dir: Path | str) -> Figure:
    """Both answers to the README's question, from two runs.

    Args:
        edge_dir: a run of configs/stability_edge.py.
        language_dir: a run of configs/char_lm.py, with delay 0 among its delays.

    Raises:
        FileNotFoundError: if a record is missing.
        ValueError: if the records cannot answer.
    """
    edge, language = _load(edge_dir), _load(language_dir)
    table = results.table(edge.rows)
    sharpness = _sharpness(edge)
    if sharpness is None or len(table) != 1:
        raise ValueError(
            f"{edge_dir} must be a run of plain SGD alone, without momentum or a"
            " schedule, on a task whose facts hold `sharpness`:"
            " configs/stability_edge.py makes one."
        )
    curves = [curve for curve in language.curves("test_loss") if curve.retuned]
    if any(curve.points[0].delay or curve.points[0].diverged for curve in curves):
        raise ValueError(
            f"{language_dir} must hold a delay of 0 at which some step size does not"
            " diverge: the excess is counted from there."
        )
    arranged = _arrange(curves)
    figure, (left, right) = _sheet(
        "How late may a gradient be?",
        (
            f"{_task(edge)}: where\ndescent diverges",
            f"{_task(language)}: what lateness\ncosts at the best step",
        ),
        notes=results.edge_warnings(curves),
        height=3.3,
        sharey=False,
    )
    optimum = edge.facts.get("optimum_loss")
    (delays,) = table.values()
    mesh = _draw_map(left, delays, sharpness, optimum)
    bar = left.figure.colorbar(mesh, ax=left)
    bar.set_label(_map_quantity(optimum, edge.unit))
    # the corner of the largest step and delay is black if any cell is
    left.text(
        *(0.96, 0.96, "diverged"),
        color="white",
        ha="right",
        va="top",
        transform=left.transAxes,
        bbox={"facecolor": "black", "edgecolor": "none", "pad": 1.5},
    )
    for curve in curves:
        _plot(right, curve, arranged.styles[curve.series], less=curve.points[0].mean)
    _mark_diverged(right, curves, arranged)
    _delay_axes([right], curves)
    right.set_ylabel(f"excess test loss{_in(language.unit)}")
    for axis, handles in (
        (left, [_limit_handle("")]),
        (right, _series_handles(arranged)),
    ):
        # between the axes and their title
        axis.set_title(axis.get_title(), pad=22)
        axis.legend(
            handles=handles,
            loc="lower center",
            bbox_to_anchor=(0.5, 0.98),
            ncols=len(handles),
            borderpad=0,
            columnspacing=1.0,
            handlelength=1.6,
            handletextpad=0.4,
        )
    return figure


def limit(delay: np.ndarray, sharpness: float) -> np.ndarray:
    """The step size at which delayed gradient descent stops converging.

        2 sin(pi / (2 (2 tau + 1))) / lambda

    Args:
        delay: tau, in updates.
        sharpness: lambda, the largest eigenvalue of the Hessian.

    Example:
        >>> limit(np.asarray([0, 1]), 2.0)
        array([1. , 0.5])
    """
    return 2.0 * np.sin(np.pi / (2.0 * (2.0 * np.asarray(delay) + 1.0))) / sharpness


def _load(workdir: Path | str) -> _Run:
    workdir = Path(workdir)
    record = results.read_config(workdir)
    unknown = set(record["config"]["figures"]) - set(results.FIGURES)
    if unknown:
        raise ValueError(
            f"config.figures must be among {', '.join(results.FIGURES)}, got"
            f" {', '.join(sorted(unknown))}."
        )
    return _Run(
        record["config"],
        record["facts"],
        results.read(workdir / "results.csv"),
        results.read_metrics(workdir / "metrics.jsonl"),
    )


def _lacking(run: _Run, name: str) -> str:
    """Why a figure cannot be drawn; empty if it can."""
    needs = {"over_delay": run.config["metric"], "gap_over_delay": "gap"}
    if name in needs and not results.recorded(run.rows, needs[name]):
        return (
            f"{name} is not drawn: the task records no {results.METRICS[needs[name]]};"
            " name another in config.metric, or leave the figure out of config.figures."
        )
    if name == "loss_curves" and not run.metrics:
        return "loss_curves is not drawn: there is no row in metrics.jsonl."
    return ""


def _figure(run: _Run, name: str) -> Figure:
    match name:
        case "over_delay":
            return over_delay(run.curves(run.config["metric"]), run.unit)
        case "gap_over_delay":
            return gap_over_delay(run.curves("gap"), run.unit)
        case "best_step":
            return best_step(run.curves("train_loss"))
        case "stability_map":
            optimum = run.facts.get("optimum_loss")
            return stability_map(run.rows, _sharpness(run), optimum, run.unit)
        case "loss_curves":
            return loss_curves(run.metrics, run.unit)
    raise ValueError(f"unknown figure {name!r}.")


def _sharpness(run: _Run) -> float | None:
    """The Hessian's largest eigenvalue, where the limit holds: for plain SGD alone."""
    opt = run.config["opt"]
    plain = all(
        series == series.plain and series[:2] == ("sgd", "constant")
        for series in results.table(run.rows)
    )
    constant = opt["decay"] == "constant" and opt["warmup_steps"] <= 1
    if plain and constant and not opt["sgd"]["momentum"]:
        return run.facts.get("sharpness")
    return None


def _arrange(curves: Sequence[Curve]) -> _Arrangement:
    """One panel; if that is too full one an optimizer, or one a compensation too."""
    among = list(dict.fromkeys(curve.series for curve in curves))

    def by_strength(series):
        rest = results.label(
            series._replace(compensation="none"), among, optimizer=False
        )
        return f"strength {series.strength:g}" if rest == "plain" else rest

    choices = (
        (lambda s: "", lambda s: results.label(s, among)),
        (lambda s: s.optimizer, lambda s: results.label(s, among, optimizer=False)),
        (lambda s: f"{s.optimizer}, {s.compensation}", by_strength),
    )
    for choice in choices:
        title, name = choice
        titles = [title(series) for series in among]
        if max(map(titles.count, titles)) <= _PANEL_SERIES:
            break
    labels = {series: name(series) for series in among}
    order = list(dict.fromkeys(labels.values()))
    panels = {}
    for curve in curves:
        panels.setdefault(title(curve.series), []).append(curve)
    styles = {series: _style(order.index(text)) for series, text in labels.items()}
    return _Arrangement(panels, labels, styles)


def _style(index: int) -> _Style:
    i = index % len(_COLOURS)
    # the second time round the same colours come with other markers and dashes
    j = (index + index // len(_COLOURS)) % len(_COLOURS)
    return _Style(_COLOURS[i], _MARKERS[j], _DASHES[j])


def _sheet(
    title: str,
    panels: Iterable[str],
    handles: Sequence[Artist] = (),
    notes: Sequence[str] = (),
    *,
    height: float = 2.8,
    sharey: bool = True,
) -> tuple[Figure, list[Axes]]:
    """An empty figure: title, a panel for each name, legend below, notes at the foot.

    Args:
        title: the question that the figure answers.
        panels: the titles of the panels, at most two in a row.
        handles: the legend's.
        notes: warnings; what does not fit is counted.
        height: of a panel, in inches.
        sharey: whether panels have the same vertical axis.
    """
    panels = list(panels)
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    notes = list(notes)
    if len(notes) > _NOTES_SHOWN:
        rest = len(notes) - _NOTES_SHOWN
        notes[_NOTES_SHOWN:] = [f"{rest} more: see report.html."]
    lines = [line for note in notes for line in textwrap.wrap(note, 74)]
    widest = max((len(handle.get_label()) for handle in handles), default=0)
    legend_columns = 3 if widest <= 16 else 2 if widest <= 30 else 1
    foot = 0.18 * len(lines) + 0.1
    top = height * rows + 0.35 + 0.2 * math.ceil(len(handles) / legend_columns)
    figure = Figure(
        figsize=(_WIDTH, top + foot if lines else top), dpi=_DPI, layout="constrained"
    )
    body = figure
    if lines:
        body, below = figure.subfigures(2, 1, height_ratios=(top, foot))
        below.text(0.02, 0.95, "\n".join(lines), color=_NOTE_COLOUR, va="top")
    body.suptitle(title, fontweight="bold")
    axes = list(body.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for extra in axes[len(panels) :]:
        extra.remove()
    for axis, name in zip(axes, panels, strict=False):
        axis.set_title(name)
    if handles:
        body.legend(handles=handles, loc="outside lower center", ncols=legend_columns)
    return figure, axes[: len(panels)]


def _plot(axis: Axes, curve: Curve, style: _Style, *, less: float = 0.0) -> None:
    """A curve with the spread of its seeds; a gap where one diverged."""
    delays = [point.delay for point in curve.points]
    spread = np.asarray([point.spread for point in curve.points]) - less
    axis.fill_between(delays, *spread.T, color=style.colour, alpha=0.18, linewidth=0)
    axis.plot(
        delays,
        [point.mean - less for point in curve.points],
        color=style.colour,
        marker=style.marker,
        linestyle=style.dashes,
        # on top and smaller, so that it shows where both coincide
        **({} if curve.retuned else {"mfc": "white", "markersize": 4, "zorder": 3}),
    )


def _mark_diverged(
    axis: Axes,
    curves: Sequence[Curve],
    arranged: _Arrangement,
    *,
    bottom: bool = False,
) -> None:
    """A cross on the frame, above or below, for each diverged point."""
    order = list(dict.fromkeys(curve.series for curve in curves))
    if _diverged_handles(curves):
        axis.margins(y=0.1 + 0.05 * len(order))
    for curve in curves:
        offset = 0.035 + 0.05 * order.index(curve.series)
        delays = [point.delay for point in curve.points if point.diverged]
        axis.scatter(
            delays,
            [offset if bottom else 1.0 - offset] * len(delays),
            s=36,
            marker="X" if curve.retuned else "x",
            color=arranged.styles[curve.series].colour,
            transform=axis.get_xaxis_transform(),
            zorder=4,
        )


def _series_handles(arranged: _Arrangement, *, dashes: bool = True) -> list[Line2D]:
    """One for each name; without dashes where these say something else."""
    looks = {
        label: arranged.styles[series] for series, label in arranged.labels.items()
    }
    return [
        Line2D(
            [],
            [],
            color=style.colour,
            marker=style.marker,
            linestyle=style.dashes if dashes else "-",
            label=label,
        )
        for label, style in looks.items()
    ]


def _diverged_handles(curves: Sequence[Curve]) -> list[Line2D]:
    if not any(point.diverged for curve in curves for point in curve.points):
        return []
    return [Line2D([], [], color="0.3", marker="x", linestyle="", label="diverged")]


def _spread_handle() -> patches.Patch:
    return patches.Patch(color="0.3", alpha=0.18, label="range of seeds")


def _task(run: _Run) -> str:
    names = {"breast_cancer": "Breast cancer", "char_lm": "Characters"}
    return names.get(run.config["task"]["name"], run.config["task"]["name"])


def _limit_handle(more: str) -> Line2D:
    return Line2D(
        [],
        [],
        color=_COLOURS[1],
        label=f"{_LIMIT}{more}",
    )


def _delay_axes(axes: Sequence[Axes], curves: Sequence[Curve]) -> None:
    """Staleness in octaves from 0 on: 0 stands as far from 1 as 1 from 2."""
    delays = sorted({point.delay for curve in curves for point in curve.points})
    positive = [delay for delay in delays if delay > 0]
    for axis in axes:
        axis.set_xlabel("staleness (updates)")
        if positive:
            # half of the linear range, in octaves: base / (base - 1) makes it one
            axis.set_xscale("symlog", base=2, linthresh=positive[0], linscale=0.5)
            left = delays[0] / 1.2 if delays[0] else -0.2 * positive[0]
            axis.set_xlim(left, 1.15 * delays[-1])
        _delay_ticks(axis.xaxis, delays, lambda delay: delay)


def _delay_ticks(axis: Any, delays: Sequence[float], position: Any) -> None:
    """Ticks at the delays that were run, as many as there is room for."""
    shown: list[float] = []
    powers = [d for d in delays if d == 0 or math.log2(d).is_integer()]
    for delay in powers if len(delays) > 8 and len(powers) > 3 else delays:
        octaves = [math.log2(2 * value + 1) for value in (*shown[-1:], delay)]
        if not shown or octaves[1] - octaves[0] > 0.5:
            shown.append(delay)
    axis.set_major_locator(FixedLocator([position(delay) for delay in shown]))
    axis.set_minor_locator(NullLocator())
    axis.set_ticklabels([f"{delay:g}" for delay in shown])


def _metric_axes(axes: Sequence[Axes], curves: Sequence[Curve], unit: str) -> None:
    metric = curves[0].metric
    for axis in axes:
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel(_quantity(metric, unit))
        if metric.endswith("_loss"):
            means = [point.mean for curve in curves for point in curve.points]
            _log_if_wide(axis, means)


def _log_if_wide(axis: Axes, values: Iterable[float]) -> None:
    finite = [value for value in values if math.isfinite(value)]
    if finite and 0 < 10 * min(finite) < max(finite):
        axis.set_yscale("log")


def _quantity(metric: str, unit: str) -> str:
    if metric.endswith("accuracy"):
        return f"{results.METRICS[metric]} (share)"
    return results.METRICS[metric] + _in(unit)


def _in(unit: str) -> str:
    return f" ({unit})" if unit else ""


def _map_quantity(optimum_loss: float | None, unit: str) -> str:
    kind = "training loss" if optimum_loss is None else "excess training loss"
    return f"$\\log_{{10}}$ of {kind}{_in(unit)}"


def _draw_map(
    axis: Axes,
    delays: Mapping[float, Mapping[float, Sequence[Row]]],
    sharpness: float | None,
    optimum_loss: float | None,
) -> QuadMesh:
    """Draws a map and returns its coloured cells.

    The vertical axis is log(2 tau + 1), in which the limit is almost straight. Cells
    end at geometric midpoints, so that each is centred on its own values.
    """
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
    colours = np.ma.masked_invalid(np.log10(excess))
    edges = _midpoints(rates), _midpoints(2.0 * taus + 1.0)
    light = ListedColormap(matplotlib.colormaps["viridis_r"](np.linspace(0, 0.85, 256)))
    some = bool(colours.count())
    mesh = axis.pcolormesh(
        *edges,
        colours,
        cmap=light,
        vmin=colours.min() if some else -1.0,
        vmax=colours.max() if some else 0.0,
    )
    axis.pcolormesh(
        *edges,
        np.ma.masked_array(np.ones(loss.shape), ~diverged),
        cmap=ListedColormap(["black"]),
        vmin=0.0,
        vmax=1.0,
    )
    if sharpness is not None:
        # a step for each row: what lies between two whole delays was not run
        axis.plot(
            np.repeat(limit(taus, sharpness), 2),
            np.repeat(edges[1], 2)[1:-1],
            color=_COLOURS[1],
            linewidth=2.2,
            path_effects=[patheffects.withStroke(linewidth=4, foreground="white")],
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(edges[0][0], edges[0][-1])
    axis.set_ylim(edges[1][0], edges[1][-1])
    axis.set_xlabel("step size")
    axis.set_ylabel("staleness (updates)")
    _delay_ticks(axis.yaxis, taus.tolist(), lambda delay: 2.0 * delay + 1.0)
    return mesh


def _midpoints(centres: np.ndarray) -> np.ndarray:
    """Edges of cells, at geometric midpoints of their centres."""
    logs = np.log(centres)
    if len(logs) == 1:
        return np.exp(np.asarray([logs[0] - 0.5, logs[0] + 0.5]))
    inner = (logs[1:] + logs[:-1]) / 2
    first, last = 2 * logs[0] - inner[0], 2 * logs[-1] - inner[-1]
    return np.exp(np.concatenate([[first], inner, [last]]))


def main(argv: list[str]) -> None:
    """Draws the figures of a run again, or the README's picture of two."""
    options = flags.FLAGS
    if len(argv) > 1:
        raise app.UsageError(f"unknown argument {argv[1]!r}.")
    if (options.workdir is None) == (options.hero is None):
        raise app.UsageError(
            "give either --workdir=DIR or --hero=EDGE_DIR,CHAR_LM_DIR."
        )
    try:
        if options.hero is not None:
            if len(options.hero) != 2 or not options.out:
                raise ValueError("--hero needs two folders and --out=FILE.png.")
            print(save(hero(*options.hero), options.out))
            return
        for sentence in warnings(options.workdir):
            print(f"warning: {sentence}")
        for path in draw(options.workdir):
            print(path)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    # here, and not on import: experiments.main has a --workdir of its own
    flags.DEFINE_string("workdir", None, "A run, all of whose figures are drawn again.")
    flags.DEFINE_list(
        "hero", None, "Runs of stability_edge and char_lm, to draw together."
    )
    flags.DEFINE_string("out", None, "Where the picture of --hero goes.")
    app.run(main)
