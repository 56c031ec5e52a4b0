"""How fast the error of each series dies out, over a number such as workers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patches
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from experiments.figures import palette, scales, sheets, tables
from experiments.figures.drawing import over
from experiments.results import analysis
from experiments.results.column_words import with_unit
from experiments.results.runs import Run

_LEAST = 1e-30  # of the first loss: float32 resolves what is above, and below 1 / it
_BURN_IN = 1 / 3  # of the time, until the slowest mode is alone and workers are apart
_FEWEST = 3  # evaluations of a slope
_ALONG = 100  # numbers along a line of theory
_GROWS = {"color": "0.93", "zorder": 0}
_STAR = {"marker": "*", "ms": 17, "mfc": "white", "mew": 1.4, "ls": "", "zorder": 2.5}


@sheets.STYLED
def draw(run: Run, *, x, theory, metric, only, title) -> Figure:
    """Draws `figures.decay_rate`."""
    table = numbers(run, x, metric, only)
    series = over.series_in(table, x)
    named = tables.name(table, series, spread=False)
    lines = {label: named.rows(table, "", label) for label in named.styles}
    lines = {label: line.sort_values(x) for label, line in lines.items()}
    expected = {label: along(line, x, theory) for label, line in lines.items()}
    best = {label: fastest(*rates) for label, rates in expected.items()}
    shown = [table["low"], *(rates for _, rates in expected.values())]
    grows = any((np.asarray(rates) < 0).any() for rates in shown)
    figure, (axis,) = sheets.sheet(
        title or "How fast does the error die out?",
        [""],
        _handles(named.styles, theory is not None, any(best.values()), grows),
        height=3.4,
    )
    for label, line in lines.items():
        style = named.styles[label]
        axis.plot(*expected[label], color=style.color, zorder=2)
        live = line[~line["lost"]]
        own = {"color": style.color, "zorder": 3}
        axis.vlines(live[x], live["low"], live["high"], alpha=0.4, lw=4, **own)
        axis.plot(live[x], live["mean"], marker=style.marker, ls="", **own)
        if best[label]:
            axis.plot(*best[label], color=style.color, **_STAR)
    low, high = axis.get_ylim()
    axis.set_ylim(low if grows else 0.0, high)
    if grows:
        axis.axhspan(low, 0.0, **_GROWS)
    scales.x_axis([axis], scales.positions(table[x]), with_unit(x))
    axis.set_ylabel("rate of decay (1 / simulated s)")
    return figure


def numbers(
    run: Run, x: str, metric: str, only: Mapping[str, Any] | None
) -> pd.DataFrame:
    """The rate of each series at each `x`: mean, low, high, seeds and `lost`.

    Raises:
        ValueError: if the run has no simulated time.
    """
    if "seconds" not in run.curves:
        raise ValueError("the curves of the run have no 'seconds'.")
    chosen = tables.choose(run, metric, only)
    tables.require(chosen.run.results, x)
    curves, optimum = chosen.run.curves, run.facts.get("optimum_loss", 0.0)
    keys = [*chosen.run.settings, "seed"]
    rows = []
    for key, path in analysis.grouped(curves, keys):
        path = path.sort_values("seconds")
        rate = measure(path["seconds"], path[metric] - optimum)
        rows.append(dict(zip(keys, key, strict=True)) | {"rate": rate})
    frame = pd.DataFrame(rows)
    series = tables.series_of(frame, [], x)
    return tables.points(frame, "rate", [*series, x])


def along(line: pd.DataFrame, x: str, theory: Any) -> tuple[np.ndarray, np.ndarray]:
    """The rates of theory at many whole numbers from the first `x` to the last."""
    if theory is None:
        return np.empty(0), np.empty(0)
    row = line.iloc[0].to_dict()
    at = np.geomspace(line[x].iloc[0], line[x].iloc[-1], _ALONG)
    at = np.unique(np.rint(at)).astype(int)
    rates = [tables.formula(theory, row | {x: number}) for number in at.tolist()]
    return at, np.asarray(rates, float)


def fastest(at: Sequence[float], rates: np.ndarray) -> tuple[float, float] | None:
    """Where a line is highest; None where that is one of its ends."""
    if not len(at) or np.isnan(rates).all():
        return None
    best = int(np.nanargmax(rates))
    inside = 0 < best < len(at) - 1
    return (float(at[best]), float(rates[best])) if inside else None


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


def _handles(
    styles: Mapping[str, palette.Style], known: bool, starred: bool, grows: bool
) -> list[Artist]:
    found: list[Artist] = palette.handles(styles, lines=False)
    found.append(patches.Patch(**over.INTERVAL | {"alpha": 0.4}))
    if known:
        found.append(Line2D([], [], color="0.3", label="theory, mean over runs"))
    if starred:
        found.append(Line2D([], [], color="0.3", label="fastest in theory", **_STAR))
    if grows:
        found.append(patches.Patch(label="the error grows", **_GROWS))
    return found
