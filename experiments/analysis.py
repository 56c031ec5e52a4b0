"""Questions to the tables of a run: which step is best, and how sure is a mean."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

MEASURED = (
    *("seed", "run", "updates", "update", "examples", "seconds", "seconds_to_target"),
    *("diverged", "diverged_update", "dropped", "staleness_mean", "staleness_p99"),
    *("staleness_max", "train_loss", "test_loss", "train_accuracy", "test_accuracy"),
    *("train_error", "test_error", "gap", "gradient_norm", "tuned_on"),
)
"""Columns that are measured; all others say what was trained."""


def derived(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with errors and the generalization gap beside accuracies and losses."""
    new = {}
    for part in ("train", "test"):
        if f"{part}_accuracy" in frame:
            new[f"{part}_error"] = 1.0 - frame[f"{part}_accuracy"]
    if {"test_loss", "train_loss"} <= {*frame}:
        new["gap"] = frame["test_loss"] - frame["train_loss"]
    return frame.assign(**new)


def settings(frame: pd.DataFrame, metrics: Sequence[str] = ()) -> list[str]:
    """The columns that say what was trained: labels and axes."""
    return [name for name in frame if name not in (*MEASURED, *metrics)]


def best(
    frame: pd.DataFrame,
    over: str | Sequence[str] = "learning_rate",
    *,
    by: str = "train_loss",
    series: Sequence[str] | None = None,
    largest: bool = False,
) -> pd.DataFrame:
    """The rows of the best value of some axes, for each series and seed.

    The value for a seed is chosen by the mean of `by` over the *other* seeds, so that
    no number is reported on the seed that it was chosen by. A diverged cell counts as
    worst. With one seed there are no others: its own decides, and `tuned_on` says
    "the same seed".

    Args:
        frame: results, a row a cell and seed.
        over: the axes that are tuned.
        by: the metric that decides.
        series: the columns that tell series apart; by default all labels and axes but
            `over`.
        largest: whether the largest `by` is best.

    Returns:
        One row a series and seed, with the column `tuned_on`.

    Example:
        >>> rows = [(0.1, 0, 3.0), (0.1, 1, 1.0), (0.3, 0, 2.0), (0.3, 1, 2.0)]
        >>> frame = pd.DataFrame(rows, columns=["learning_rate", "seed", "train_loss"])
        >>> best(frame)[["seed", "learning_rate", "train_loss"]].values.tolist()
        [[0.0, 0.1, 3.0], [1.0, 0.3, 2.0]]
    """
    axes = [over] if isinstance(over, str) else list(over)
    if series is None:
        series = [name for name in settings(frame) if name not in axes]
    score = frame[by] * (-1.0 if largest else 1.0)
    if "diverged" in frame:
        score = score.where(frame["diverged"] == 0, np.inf)
    scored = frame.assign(_score=score.fillna(np.inf))
    chosen = []
    groups = scored.groupby(list(series), dropna=False) if series else [((), scored)]
    for _, group in groups:
        seeds = group["seed"].unique()
        for seed in seeds:
            others = group[group["seed"] != seed] if len(seeds) > 1 else group
            means = others.groupby(axes, dropna=False)["_score"].mean()
            winner = means.idxmin()
            winner = winner if isinstance(winner, tuple) else (winner,)
            own = group[group["seed"] == seed]
            for axis, value in zip(axes, winner, strict=True):
                own = own[own[axis] == value]
            on = "the other seeds" if len(seeds) > 1 else "the same seed"
            chosen.append(own.assign(tuned_on=on))
    return pd.concat(chosen).drop(columns="_score")


def spread(
    frame: pd.DataFrame,
    metric: str,
    series: Sequence[str],
    *,
    level: float = 0.95,
    draws: int = 2000,
) -> pd.DataFrame:
    """Mean over seeds of a metric for each series, with a bootstrap interval.

    Seeds are drawn with replacement, the same draws for all series, so that
    differences between series are paired.

    Args:
        frame: results, a row a series and seed.
        metric: the column.
        series: the columns that tell series apart.
        level: of the interval.
        draws: of the bootstrap.

    Returns:
        One row a series: `mean`, `low`, `high` and `seeds`.
    """
    rng = np.random.default_rng(0)
    seeds = np.sort(frame["seed"].unique())
    drawn = rng.integers(len(seeds), size=(draws, len(seeds)))
    rows = []
    for key, group in frame.groupby(list(series), dropna=False, sort=False):
        values = group.groupby("seed")[metric].mean().reindex(seeds).to_numpy()
        means = np.nanmean(values[drawn], axis=1) if len(seeds) > 1 else values
        tail = 100 * (1 - level) / 2
        low, high = np.nanpercentile(means, [tail, 100 - tail])
        rows.append(
            dict(zip(series, key if isinstance(key, tuple) else (key,), strict=True))
            | {"mean": np.nanmean(values), "low": low, "high": high}
            | {"seeds": int(np.isfinite(values).sum())}
        )
    return pd.DataFrame(rows)


def where(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """The rows whose columns have these values; numbers count as equal in float32.

    Raises:
        KeyError: if there is no such column.
    """
    for name, value in values.items():
        column = frame[name]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            frame = frame[np.isclose(pd.to_numeric(column), value, rtol=1e-6, atol=0)]
        else:
            frame = frame[column == value]
    return frame


def time_to(
    curves: pd.DataFrame,
    metric: str,
    value: float,
    *,
    along: str = "seconds",
    largest: bool = False,
) -> pd.Series:
    """When each cell and seed first reaches a value of a metric, by interpolation.

    Args:
        curves: the curves, a row an evaluation.
        metric: the column that is to reach `value`.
        value: from above; from below with `largest`.
        along: "seconds", "update" or "examples".
        largest: whether more is better.

    Returns:
        float64, indexed by labels, axes and seed; inf where it is not reached.
    """
    names = [*settings(curves), "seed"]
    sign = -1.0 if largest else 1.0

    def reached(curve):
        gap = sign * (curve[metric].to_numpy() - value)
        when = curve[along].to_numpy()
        hits = np.flatnonzero(gap <= 0)
        if not len(hits):
            return np.inf
        at = hits[0]
        if at == 0 or not np.isfinite(gap[at - 1]):
            return float(when[at])
        share = gap[at - 1] / (gap[at - 1] - gap[at])
        return float(when[at - 1] + share * (when[at] - when[at - 1]))

    return pd.Series(
        {
            key: reached(curve.sort_values(along))
            for key, curve in curves.groupby(names, dropna=False, sort=False)
        }
    )
