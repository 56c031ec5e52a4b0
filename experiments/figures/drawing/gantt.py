"""What the workers did in the first seconds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import patches
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import delayjax as dj
from experiments.figures import palette, sheets
from experiments.results.runs import Run

_PANELS = 4
_WORKERS = 16
_TASKS, _MOST_TASKS = 6, 24  # of a typical and of the fastest worker
_LABELS = 6  # of workers, for which there is room
_BAR = 0.7  # height, in rows
_STRIP = (-1.8, -0.8)  # of the updates, in rows
_UPDATE = palette.COLORS[6]
_EDGE = {"edgecolor": "white", "linewidth": 0.5}
_USED = {"facecolor": palette.COLORS[5]} | _EDGE
_DROPPED = {"facecolor": palette.COLORS[1], "hatch": "////"} | _EDGE
_MARK = {
    "color": palette.COLORS[0],
    "marker": "|",
    "linestyle": "",
    "markersize": 6,
}


class Bars(NamedTuple):
    """The gradients that reached the server from the workers shown, flat."""

    row: np.ndarray  # of its worker, from above, int64
    begun: np.ndarray  # seconds, float64; nan in a log
    end: np.ndarray  # when it arrived; in a log when it was applied
    used: np.ndarray  # whether it was, bool


def draw(run: Run, *, only: Sequence[str] | None = None, title: str = "") -> Figure:
    """Draws `figures.gantt`."""
    chosen = {name: run.traces[name] for name in only or run.traces}
    return of_traces(chosen, title)


@sheets.STYLED
def of_traces(traces: Mapping[str, dj.cluster.Trace], title: str = "") -> Figure:
    """Workers over the first seconds: bars of computing, and updates as ticks above.

    A simulation knows when each gradient that reached the server was begun; a log does
    not, and marks then show the updates that a worker contributed to.

    Args:
        traces: by name; the first four are shown, and at most 16 workers of each.
        title: the question or the finding.
    """
    if not traces:
        raise ValueError("the run has no traces.")
    shown = dict(list(traces.items())[:_PANELS])
    workers = {arm: workers_shown(trace) for arm, trace in shown.items()}
    parts = {arm: bars(trace, workers[arm]) for arm, trace in shown.items()}
    end = max(window(own) for own in parts.values())
    logged = any(np.isnan(own.begun).any() for own in parts.values())
    most = max(map(len, workers.values()))
    title = title or "What do the workers do?"
    if len(shown) < len(traces):
        title += f"\n(the first {len(shown)} of {len(traces)} arms)"
    figure, axes = sheets.sheet(
        title,
        ["" if len(traces) == 1 else arm for arm in shown],
        _handles(shown.values(), parts.values(), logged=logged),
        height=0.75 + max(0.11 * most, 0.2 * min(most, _LABELS)),
        columns=1,
        sharey=False,
    )
    for axis, arm in zip(axes, shown, strict=True):
        _plot(axis, shown[arm], parts[arm], end)
        rows = range(0, len(workers[arm]), math.ceil(len(workers[arm]) / _LABELS))
        axis.set_yticks(rows, [f"{workers[arm][row]}" for row in rows])
        axis.set_ylim(len(workers[arm]) - 0.4, -2.0)
        axis.set_xlim(0.0, end)
        some = len(workers[arm]) < shown[arm].num_workers
        of_all = f"\n({len(workers[arm])} of {shown[arm].num_workers})" * some
        axis.set_ylabel("worker" + of_all)
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set_xlabel("time (s)" if logged else "simulated time (s)")
    return figure


def workers_shown(trace: dj.cluster.Trace) -> np.ndarray:
    """All workers of a small cluster, or some in equal distances, int64."""
    count = min(trace.num_workers, _WORKERS)
    return np.linspace(0, trace.num_workers - 1, count).round().astype(int)


def bars(trace: dj.cluster.Trace, workers: np.ndarray) -> Bars:
    """What these workers sent."""
    dropped = trace.dropped
    worker = np.concatenate([trace.worker, dropped.worker])
    arrived = np.where(
        np.isnan(trace.arrived), trace.seconds[trace.update], trace.arrived
    )
    mine = np.isin(worker, workers)
    return Bars(
        row=np.searchsorted(workers, worker[mine]),
        begun=np.concatenate([trace.begun, dropped.begun])[mine],
        end=np.concatenate([arrived, dropped.arrived])[mine],
        used=(np.arange(len(worker)) < len(trace.worker))[mine],
    )


def window(parts: Bars) -> float:
    """Seconds in which a typical worker sends a few gradients, and none very many."""
    if not len(parts.row):
        return 1.0
    took = []
    for row in np.unique(parts.row):
        ends = np.sort(parts.end[parts.row == row])[:_TASKS]
        took.append(ends[-1] / len(ends))
    few = min(_TASKS * np.median(took), _MOST_TASKS * min(took))
    return float(min(few, parts.end.max()) or 1.0)


def works_in_vain(trace: dj.cluster.Trace) -> bool:
    """Whether workers computed what never reached the server: it was canceled."""
    parts = bars(trace, np.arange(trace.num_workers))
    busy = trace.busy_seconds.sum()
    if not trace.num_updates or np.isnan(busy):
        return False
    end = trace.seconds[-1]
    seen = np.maximum(np.minimum(parts.end, end) - parts.begun, 0.0).sum()
    last = np.zeros(trace.num_workers)
    np.maximum.at(last, parts.row, np.minimum(parts.end, end))
    return busy > seen + (end - last).sum() + 1e-6 * busy


def _plot(axis: Axes, trace: dj.cluster.Trace, parts: Bars, end: float) -> None:
    begun = np.where(np.isnan(parts.begun), parts.end, parts.begun)
    parts = Bars(*(field[begun < end] for field in parts))
    known = ~np.isnan(parts.begun)
    for own, looks in ((known & parts.used, _USED), (known & ~parts.used, _DROPPED)):
        axis.barh(
            parts.row[own],
            parts.end[own] - parts.begun[own],
            left=parts.begun[own],
            height=_BAR,
            **looks,
        )
    axis.plot(parts.end[~known], parts.row[~known], **_MARK)
    axis.vlines(
        trace.seconds[trace.seconds <= end], *_STRIP, color=_UPDATE, linewidth=0.8
    )


def _handles(
    traces: Iterable[dj.cluster.Trace], parts: Iterable[Bars], *, logged: bool
) -> list[Artist]:
    handles: list[Artist] = [
        Line2D([], [], color=_UPDATE, ls="", marker="|", ms=9, label="update")
    ]
    if logged:
        handles.append(Line2D([], [], label="update with its gradient", **_MARK))
        return handles
    handles.append(patches.Patch(label="computing", **_USED))
    if not all(own.used.all() for own in parts):
        handles.append(patches.Patch(label="computing, then dropped", **_DROPPED))
    vain = any(works_in_vain(trace) for trace in traces)
    label = "idle, or canceled" if vain else "idle"
    handles.append(patches.Patch(facecolor="white", edgecolor="0.7", label=label))
    return handles
