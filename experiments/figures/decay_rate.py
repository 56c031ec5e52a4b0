"""How fast the error of each arm dies out, over its number of workers."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib import patches
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

import delayjax as dj
from experiments import arms, tuning
from experiments.figures import look, names
from experiments.results import Evaluation
from experiments.theory import Decay, decay
from experiments.tuning import Series

_LEAST = 1e-30  # of the first loss: float32 resolves what is above, and below 1 / it
_BURN_IN = 1 / 3  # of the time, until the slowest mode is alone and workers are apart
_FEWEST = 3  # evaluations of a slope
_ALONG = 100  # numbers of workers along a line of theory
_GROWS = {"color": "0.93", "zorder": 0}
_STAR = {"marker": "*", "ms": 17, "mfc": "white", "mew": 1.4, "ls": "", "zorder": 2.5}


class Line(NamedTuple):
    """Arms that differ in their number of workers alone, at one step size."""

    workers: np.ndarray  # ascending, int64 [n]
    rates: np.ndarray  # measured, 1/seconds; nan where it cannot be, [n, seeds]
    theory: Decay | None  # None where it does not hold


@look.STYLED
def draw(lines: Mapping[str, Line]) -> Figure:
    """Rates over workers: the mean and range of the seeds, and theory as a line.

    A star is where theory is fastest. Below zero the error grows.

    Args:
        lines: by label, from `arrange`.
    """
    styles = {label: look.style(i) for i, label in enumerate(lines)}
    expected = {
        label: _expected(line.theory, line.workers)
        for label, line in lines.items()
        if line.theory is not None
    }
    best = {label: _best(line) for label, line in lines.items()}
    shown = [
        *(line.rates for line in lines.values()),
        *(y for _, y in expected.values()),
    ]
    grows = any((rates < 0).any() for rates in shown)
    figure, (axis,) = look.sheet(
        "How fast does the error die out?",
        [""],
        _handles(styles, bool(expected), any(best.values()), grows),
        height=3.4,
    )
    for label, line in lines.items():
        color = styles[label].color
        if label in expected:
            axis.plot(*expected[label], color=color, zorder=2)
        _plot(axis, line, color, styles[label].marker)
        if fastest := best[label]:
            axis.plot(fastest.workers, fastest.rate, color=color, **_STAR)
    every = sorted({workers for line in lines.values() for workers in line.workers})
    axis.set_xscale("log")
    look.delay_ticks(axis.xaxis, every, lambda workers: workers)
    axis.set_xlim(every[0] / 1.15, every[-1] * 1.15)
    low, high = axis.get_ylim()
    axis.set_ylim(low if grows else 0.0, high)
    if grows:
        axis.axhspan(low, 0.0, **_GROWS)
    axis.set_xlabel("workers")
    axis.set_ylabel("rate of decay (1 / simulated s)")
    return figure


def arrange(
    evaluations: Iterable[Evaluation], config: Mapping[str, Any]
) -> dict[str, Line]:
    """Lines by what tells them apart.

    Args:
        evaluations: of arms, on a quadratic without noise.
        config: the run's.
    """
    # by series and step size, then seed, then update
    paths: dict[tuple[Series, float], dict[int, dict[int, Evaluation]]] = {}
    for evaluation in evaluations:
        cell = tuning.series(evaluation), evaluation.learning_rate
        path = paths.setdefault(cell, {}).setdefault(evaluation.seed, {})
        path.setdefault(evaluation.step, evaluation)
    laws = names.variants(series for series, _ in paths)
    short = names.short(list(dict.fromkeys(series.arm for series, _ in paths)))
    found: dict[tuple[str, ...], dict[int, tuple[list[float], Decay | None]]] = {}
    for (series, step), seeds in paths.items():
        arm = arms.without(str(short[series.arm]), "workers")
        parts = *arms.split(arm), laws[series], f"step={step:g}"
        workers = int(arms.options(series.arm, config)["workers"])
        rates = [_measure(path.values()) for path in seeds.values()]
        line = found.setdefault(parts, {})
        line[workers] = rates, decay(series, step, config)
    shared = set.intersection(*map(set, found)) if len(found) > 1 else set()
    made = {}
    for parts, line in found.items():
        label = " ".join(part for part in parts if part not in shared) or parts[0]
        ordered = [line[workers] for workers in sorted(line)]
        rates = np.asarray([rates for rates, _ in ordered])
        made[label] = Line(np.asarray(sorted(line)), rates, ordered[0][1])
    return made


def measure(seconds: ArrayLike, loss: ArrayLike) -> float:
    """The rate at which an error dies out whose loss is the sum of its squares.

    Half the slope of the logarithm of the loss, by least squares over the last two
    thirds of the time until float32 has no digits left for it.

    Args:
        seconds: ascending [n].
        loss: less the least one that there is [n].

    Returns:
        1/seconds; below 0 where the error grows, nan with fewer than three points.

    Example:
        >>> seconds = np.arange(10.0)
        >>> round(measure(seconds, np.exp(-seconds)), 6)
        0.5
    """
    seconds, share = np.asarray(seconds), np.asarray(loss) / np.asarray(loss)[0]
    outside = np.flatnonzero(~((share > _LEAST) & (share < 1 / _LEAST)))
    end = outside[0] if outside.size else len(share)
    late = np.flatnonzero(seconds[:end] >= _BURN_IN * seconds[end - 1])
    if late.size < _FEWEST:
        return math.nan
    return -float(np.polyfit(seconds[late], np.log(share[late]), 1)[0]) / 2


def _measure(path: Iterable[Evaluation]) -> float:
    moments = [(moment.seconds, moment.train_loss) for moment in path]
    return measure(*zip(*moments, strict=True))


def _rate(theory: Decay, workers: int) -> float:
    """Of the slower end of the spectrum; none between is slower."""
    modes = np.asarray([theory.slowest, theory.stiffest])
    return float(dj.stability.workers_decay_rate(modes, workers, theory.seconds).min())


def _best(line: Line) -> Any:
    """Of the numbers of workers along a line; None where theory knows none."""
    own = line.theory
    if own is None:
        return None
    condition = own.stiffest / own.slowest
    mean_limit = dj.stability.DelayEquation(own.seconds).gain_limit(workers=math.inf)
    if condition > 1 and math.isinf(mean_limit):
        return None
    best = dj.stability.optimal_workers(own.stiffest, own.seconds, condition=condition)
    return best if line.workers[0] <= best.workers <= line.workers[-1] else None


def _expected(theory: Decay, workers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rates at many numbers of workers from the first to the last of these."""
    along = np.geomspace(workers[0], workers[-1], _ALONG)
    along = np.unique(np.rint(along)).astype(int)
    return along, np.asarray([_rate(theory, count) for count in along.tolist()])


def _plot(axis: Axes, line: Line, color: str, marker: str) -> None:
    there = np.isfinite(line.rates).all(axis=1)
    workers, rates = line.workers[there], line.rates[there]
    axis.vlines(
        workers, rates.min(axis=1), rates.max(axis=1), color=color, alpha=0.4, lw=4
    )
    axis.plot(workers, rates.mean(axis=1), color=color, marker=marker, ls="", zorder=3)


def _handles(
    styles: Mapping[str, look.Style], known: bool, starred: bool, grows: bool
) -> list[Artist]:
    found: list[Artist] = [
        Line2D([], [], color=own.color, marker=own.marker, ls="", label=label)
        for label, own in styles.items()
    ]
    found.append(patches.Patch(color="0.3", alpha=0.4, label="range of seeds"))
    if known:
        found.append(Line2D([], [], color="0.3", label="theory, mean over runs"))
    if starred:
        found.append(Line2D([], [], color="0.3", label="fastest in theory", **_STAR))
    if grows:
        found.append(patches.Patch(label="the error grows", **_GROWS))
    return found
