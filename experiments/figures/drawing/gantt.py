"""The figure of the workers' tasks in the first seconds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import delayjax as dj
from experiments.figures import palette
from experiments.figures.figure import Figure
from experiments.results.runs import Run

_PANELS = 4
_WORKERS = 16
_TASKS, _MOST_TASKS = 6, 24  # tasks of a typical worker; most tasks of any worker
_LABELS = 6  # the most workers that get a label
_BAR = 0.7  # the height of a bar, in rows
_STRIP = (-1.8, -0.8)  # the place of the updates' ticks, in rows
_UPDATE = palette.COLORS[6]
_EDGE = {"edgecolor": "white", "linewidth": 0.5}
_USED = {"facecolor": palette.COLORS[5]} | _EDGE
_DROPPED = {"facecolor": palette.COLORS[1], "hatch": "////"} | _EDGE
_MARK = {"color": palette.COLORS[0], "marker": "|", "ls": "", "ms": 6}


def gantt(*, only: Sequence[str] | None = None) -> Figure:
    """A figure of each cluster's workers in the first seconds, under the first seed.

    Args:
        only: the names of the clusters to show; by default the first four.
    """

    def draw(run: Run) -> Any:
        return of_traces({name: run.traces[name] for name in only or run.traces})

    caption = (
        "What the workers do in the first seconds: bars of computing, idle gaps,"
        " dropped gradients, and updates as ticks."
    )
    return Figure("gantt", caption, draw)


class Bars(NamedTuple):
    """The gradients that the shown workers sent to the server; arrays [gradients]."""

    row: np.ndarray  # the row of its worker, from the top, int64
    begun: np.ndarray  # when its task began, seconds, float64; nan in a log
    end: np.ndarray  # when it arrived; in a log when it was applied
    used: np.ndarray  # whether it was applied, bool


def of_traces(traces: Mapping[str, dj.cluster.Trace]) -> Any:
    """A figure of workers in the first seconds: bars of computing, ticks of updates.

    A simulation knows when the task of each gradient began. A log does not: then marks
    show the updates to which a worker contributed.

    Args:
        traces: {name: trace}; shows the first four, and at most 16 workers of each.
    """
    from experiments.figures import sheets

    if not traces:
        raise ValueError("the run has no traces.")
    shown = dict(list(traces.items())[:_PANELS])
    workers = {arm: workers_shown(trace) for arm, trace in shown.items()}
    parts = {arm: bars(trace, workers[arm]) for arm, trace in shown.items()}
    end = max(window(part) for part in parts.values())
    logged = any(np.isnan(part.begun).any() for part in parts.values())
    most = max(map(len, workers.values()))
    title = "What do the workers do?"
    if len(shown) < len(traces):
        title += f"\n(the first {len(shown)} of {len(traces)} arms)"
    figure, axes = sheets.sheet(
        title,
        ["" if len(traces) == 1 else arm for arm in shown],
        _handles(parts.values(), logged=logged),
        height=0.75 + max(0.11 * most, 0.2 * min(most, _LABELS)),
        columns=1,
        sharey=False,
    )
    for axis, (arm, trace) in zip(axes, shown.items(), strict=True):
        _plot(axis, trace, parts[arm], end)
        numbers = workers[arm]
        rows = range(0, len(numbers), math.ceil(len(numbers) / _LABELS))
        axis.set_yticks(rows, [f"{numbers[row]}" for row in rows])
        axis.set(xlim=(0.0, end), ylim=(len(numbers) - 0.4, -2.0))
        some = f"\n({len(numbers)} of {trace.num_workers})"
        axis.set_ylabel("worker" + some * (len(numbers) < trace.num_workers))
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set_xlabel("time (s)" if logged else "simulated time (s)")
    return figure


def workers_shown(trace: dj.cluster.Trace) -> np.ndarray:
    """The numbers of the workers to show, int64: all, or 16 at equal distances."""
    count = min(trace.num_workers, _WORKERS)
    return np.linspace(0, trace.num_workers - 1, count).round().astype(int)


def bars(trace: dj.cluster.Trace, workers: np.ndarray) -> Bars:
    """The gradients that these workers sent."""
    dropped = trace.dropped
    worker = np.concatenate([trace.worker, dropped.worker])
    unknown = np.isnan(trace.arrived)
    arrived = np.where(unknown, trace.seconds[trace.update], trace.arrived)
    kept = np.isin(worker, workers)
    return Bars(
        row=np.searchsorted(workers, worker[kept]),
        begun=np.concatenate([trace.begun, dropped.begun])[kept],
        end=np.concatenate([arrived, dropped.arrived])[kept],
        used=(np.arange(len(worker)) < len(trace.worker))[kept],
    )


def window(parts: Bars) -> float:
    """The seconds to show: six tasks of a typical worker, at most 24 of any worker."""
    if not len(parts.row):
        return 1.0
    took = []
    for row in np.unique(parts.row):
        ends = np.sort(parts.end[parts.row == row])[:_TASKS]
        took.append(ends[-1] / len(ends))
    few = min(_TASKS * np.median(took), _MOST_TASKS * min(took))
    return float(min(few, parts.end.max()) or 1.0)


def _plot(axis: Any, trace: dj.cluster.Trace, parts: Bars, end: float) -> None:
    known = ~np.isnan(parts.begun)
    shown = np.where(known, parts.begun, parts.end) < end
    for which, looks in ((parts.used, _USED), (~parts.used, _DROPPED)):
        row, begun, until, _ = (field[known & shown & which] for field in parts)
        axis.barh(row, until - begun, left=begun, height=_BAR, **looks)
    axis.plot(parts.end[~known & shown], parts.row[~known & shown], **_MARK)
    ticks = trace.seconds[trace.seconds <= end]
    axis.vlines(ticks, *_STRIP, color=_UPDATE, linewidth=0.8)


def _handles(parts: Iterable[Bars], *, logged: bool) -> list[Any]:
    handles = [palette.mark("update", color=_UPDATE, ls="", marker="|", ms=9)]
    if logged:
        return [*handles, palette.mark("update with its gradient", **_MARK)]
    handles.append(palette.area("computing", **_USED))
    if not all(part.used.all() for part in parts):
        handles.append(palette.area("computing, then dropped", **_DROPPED))
    gap = palette.area("idle, or canceled", facecolor="white", edgecolor="0.7")
    return [*handles, gap]
