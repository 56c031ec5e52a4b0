"""How stale the gradients of each arm were."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib import patches
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import delayjax as dj
from experiments import arms
from experiments.figures import look, names
from experiments.figures.run import Run

_HEIGHT = 0.8  # of the highest bar, in rows
_LABEL_WIDTH = 28  # characters
_WIDE = 100.0  # updates; staleness beyond it takes a logarithmic axis
_OCTAVE = 0.25  # the narrowest bin of that axis
_MEAN, _FORMULA = look.COLOURS[1], look.COLOURS[6]


def _ssp(workers: int, bound: float) -> float | None:
    if bound == 0:  # all read the same version and are applied one after another
        return (workers - 1) / 2
    return workers - 1.0 if bound == math.inf else None


def _psp(
    workers: int, sample: int, bound: float, *, poll_seconds: float = math.inf
) -> float | None:
    if sample == 0 or bound == math.inf:  # nobody waits
        return workers - 1.0
    if sample >= workers - 1 and poll_seconds == math.inf:  # for all others
        return _ssp(workers, bound)
    return None


def _groups(workers: int, num_groups: int, *, data: str = "dynamic") -> float | None:
    if data != "dynamic" or workers % num_groups:  # groups end, or weigh differently
        return None
    return num_groups - 1.0


# Long-run means, for any service times that end and any speeds, where a worker reads as
# soon as it is started: an update ages every gradient in flight by one. (P - 1) / K
# without waiting, P / K - 1 where a worker waits for its update (docs/clusters.md).
# Arguments are named as the protocols'.
_MEANS = {
    "hardsync": lambda workers: 0.0,
    "n_softsync": lambda workers, n: (workers - 1) / (workers // n),
    "k_sync": lambda workers, k: 0.0,
    "k_batch_sync": lambda workers, k: 0.0,
    "k_async": lambda workers, k: workers / k - 1,
    "k_batch_async": lambda workers, k: (workers - 1) / k,
    "ssp": _ssp,
    "psp": _psp,
    "round_robin": lambda workers: workers - 1.0,
    "groups": _groups,
    "rennala": lambda workers, batch: 0.0,
    "mindflayer": lambda workers, trials, allotted_seconds: 0.0,
    "gradient_coding": lambda workers, num_clusters, load, *, dynamic=False: 0.0,
    "event_triggered": lambda workers, probability: probability * (workers - 1),
}


def formula(arm: str, workers: int) -> float | None:
    """The mean staleness that theory gives an arm; None if it gives none.

    Args:
        arm: its name.
        workers: P. All of them must go on for ever, and none may queue to read.

    Example:
        >>> formula("k_async(2)", workers=8), formula("ringmaster(16)", workers=8)
        (3.0, None)
    """
    call = arms.parse(arm).protocol
    if call.name not in _MEANS:
        return None
    return _MEANS[call.name](workers, *call.arguments, **call.options)


def formulas(run: Run) -> dict[str, float | None]:
    """The mean staleness that theory gives each arm of a run; see `formula`."""
    return {
        arm: formula(arm, trace.num_workers) if _holds(run, arm) else None
        for arm, trace in run.traces.items()
    }


def _holds(run: Run, arm: str) -> bool:
    """Whether all workers go on for ever, and none queues to read."""
    if arm == arms.LOGGED:
        return False
    cluster = run.config["cluster"] | arms.parse(arm).changes
    return "infinite_bernoulli" not in cluster["service"] and not cluster["serial"]


@look.STYLED
def draw(
    traces: Mapping[str, dj.cluster.Trace],
    theory: Mapping[str, float | None] | None = None,
) -> Figure:
    """A histogram of staleness for each arm, its mean and, where known, the formula's.

    Args:
        traces: by arm.
        theory: the mean that it gives an arm, by arm; None where it gives none.
    """
    theory = dict.fromkeys(traces) | dict(theory or {})
    short = names.short(list(traces))
    labels = [names.wrapped(str(name), _LABEL_WIDTH) for name in short.values()]
    known = any(value is not None for value in theory.values())
    handles = [
        patches.Patch(color=look.COLOURS[5], label="share of its gradients"),
        Line2D([], [], color=_MEAN, lw=2.2, label="mean"),
    ]
    if known:
        handles.append(
            Line2D(
                [], [], color=_FORMULA, marker="D", mfc="none", ls="", label="theory"
            )
        )
    lines = max(label.count("\n") + 1 for label in labels)
    figure, (axis,) = look.sheet(
        "How stale are gradients?",
        [""],
        handles,
        height=1.0 + len(labels) * max(0.34, 0.2 * lines),
    )
    last = max(_percentile(trace) for trace in traces.values())
    wide = last > _WIDE
    edges = bins(last, wide=wide)
    for row, (arm, trace) in enumerate(traces.items()):
        _plot(axis, row, trace, edges, wide=wide)
        mean, expected = trace.summary().mean, theory[arm]
        axis.plot([mean, mean], [row, row - _HEIGHT], color=_MEAN, lw=2.2)
        if expected is not None:
            axis.plot(expected, row, color=_FORMULA, marker="D", mfc="none")
        value = "none" if math.isnan(mean) else f"{mean:.3g}"
        _beside(axis, row, value + ("" if expected is None else f" ({expected:.3g})"))
    _beside(axis, -0.9, "mean (theory)" if known else "mean")
    axis.set_yticks([row - _HEIGHT / 2 for row in range(len(labels))], labels)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(labels) - 0.8, -1.0)
    if wide:
        axis.set_xscale("function", functions=(_octaves, lambda y: 2.0**y - 1.0))
        powers = [4.0**i for i in range(math.floor(math.log(last, 4.0)) + 1)]
        look.delay_ticks(axis.xaxis, [0.0, *powers], lambda tau: tau)
    axis.set_xlim(edges[0], edges[-1])
    cut = any(trace.max_staleness > edges[-1] for trace in traces.values())
    axis.set_xlabel("staleness (updates)" + ", at most 1 % beyond" * cut)
    return figure


def bins(last: float, *, wide: bool) -> np.ndarray:
    """Edges of bins of whole numbers, from 0 to `last` or beyond.

    Args:
        last: what the last bin must hold.
        wide: whether large numbers share bins of a quarter of an octave.
    """
    edges = [-0.5]
    while edges[-1] < last:
        edge = edges[-1] + 1.0
        if wide:
            reached = 2.0 ** (_octaves(edges[-1]) + _OCTAVE) - 1.0
            edge = max(edge, math.ceil(reached - 0.5) + 0.5)
        edges.append(edge)
    return np.asarray(edges)


def _octaves(staleness: np.ndarray | float) -> np.ndarray | float:
    return np.log2(1.0 + np.asarray(staleness))


def _percentile(trace: dj.cluster.Trace) -> float:
    """What 99 of 100 gradients do not exceed."""
    p99 = trace.summary().p99
    return 1.0 if math.isnan(p99) else max(1.0, p99)


def _plot(
    axis: Axes, row: int, trace: dj.cluster.Trace, edges: np.ndarray, *, wide: bool
) -> None:
    """Bars upwards from a row; their areas are shares, the highest is as all others."""
    counts, _ = np.histogram(trace.update - trace.read_version, edges)
    density = counts / np.diff(_octaves(edges) if wide else edges)
    heights = density / max(density.max(), 1e-30)
    axis.stairs(
        row - _HEIGHT * heights, edges, baseline=row, fill=True, color=look.COLOURS[5]
    )
    axis.axhline(row, color="0.7", lw=0.8, zorder=0)


def _beside(axis: Axes, row: float, text: str) -> None:
    """A text in a column of its own, right of the axis."""
    axis.text(
        *(1.02, row - _HEIGHT / 2, text),
        va="center",
        transform=axis.get_yaxis_transform(),
    )
