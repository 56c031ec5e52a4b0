"""What the workers did in the first seconds."""

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
_TASKS, _MOST_TASKS = 6, 24  # of a typical and of the fastest worker
_LABELS = 6  # of workers, for which there is room
_BAR = 0.7  # height, in rows
_STRIP = (-1.8, -0.8)  # of the updates, in rows
_UPDATE = palette.COLORS[6]
_EDGE = {"edgecolor": "white", "linewidth": 0.5}
_USED = {"facecolor": palette.COLORS[5]} | _EDGE
_DROPPED = {"facecolor": palette.COLORS[1], "hatch": "////"} | _EDGE
_MARK = {"color": palette.COLORS[0], "marker": "|", "ls": "", "ms": 6}


def gantt(*, only: Sequence[str] | None = None) -> Figure:
    """What the workers of each arm did in the first seconds, under the first seed.

    Args:
        only: names of the arms shown; by default the first four.
    """

    def draw(run: Run) -> Any:
        return of_traces({arm: run.traces[arm] for arm in only or run.traces})

    caption = (
        "What the workers do in the first seconds: bars of computing, idle gaps,"
        " dropped gradients, and updates as ticks."
    )
    return Figure("gantt", caption, draw)


class Bars(NamedTuple):
    """The gradients that reached the server from the workers shown, flat."""

    row: np.ndarray  # of its worker, from above, int64
    begun: np.ndarray  # seconds, float64; nan in a log
    end: np.ndarray  # when it arrived; in a log when it was applied
    used: np.ndarray  # whether it was, bool


def of_traces(traces: Mapping[str, dj.cluster.Trace]) -> Any:
    """Workers over the first seconds: bars of computing, and updates as ticks above.

    A simulation knows when each gradient that reached the server was begun; a log does
    not, and marks then show the updates that a worker contributed to.

    Args:
        traces: by name; the first four are shown, and at most 16 workers of each.
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
    """All workers of a small cluster, or some in equal distances, int64."""
    count = min(trace.num_workers, _WORKERS)
    return np.linspace(0, trace.num_workers - 1, count).round().astype(int)


def bars(trace: dj.cluster.Trace, workers: np.ndarray) -> Bars:
    """What these workers sent."""
    dropped = trace.dropped
    worker = np.concatenate([trace.worker, dropped.worker])
    unknown = np.isnan(trace.arrived)
    arrived = np.where(unknown, trace.seconds[trace.update], trace.arrived)
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
