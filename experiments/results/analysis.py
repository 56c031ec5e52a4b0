"""Evaluates the tables of a run: best values, means and their intervals."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import special


class AbsentError(ValueError):
    """A setting, a value of it, or a metric is named that the tables do not have."""


def check_settings(
    argument: str, frame: pd.DataFrame, values: Mapping[str, Any]
) -> None:
    """Checks that the rows have these settings, and each of these values.

    Args:
        argument: the name of the argument, for the error.
        frame: results.
        values: {setting: a value, or a tuple of values}.

    Raises:
        AbsentError: naming the argument.

    Example:
        >>> frame = pd.DataFrame({"delay": [0, 4], "seed": [0, 0]})
        >>> check_settings("where", frame, {"delay": (0, 5)})
        Traceback (most recent call last):
        experiments.results.analysis.AbsentError: `where` has delay=5, which no row \
has: choose of [0, 4].
    """
    names = settings(frame)
    for name, value in values.items():
        if name not in names:
            raise AbsentError(
                f"`{argument}` names {name!r}, which is no setting: choose of"
                f" {', '.join(names)}."
            )
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if where(frame, **{name: one}).empty:
                known = frame[name].unique().tolist()
                raise AbsentError(
                    f"`{argument}` has {name}={one!r}, which no row has: choose of"
                    f" {known}."
                )


def require(frame: pd.DataFrame, name: str) -> str:
    """The name of a column that is there, and not empty.

    Raises:
        AbsentError: if it is not.
    """
    if name not in frame or frame[name].isna().all():
        there = [column for column in frame if not frame[column].isna().all()]
        raise AbsentError(f"the run has no {name!r}; it has {', '.join(there)}.")
    return name


def derived(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with errors and the generalization gap beside accuracies and losses.

    A column that is there stays.
    """
    new = {}
    for part in ("train", "test"):
        if f"{part}_accuracy" in frame:
            new[f"{part}_error"] = 1.0 - frame[f"{part}_accuracy"]
    if {"test_loss", "train_loss"} <= {*frame}:
        new["gap"] = frame["test_loss"] - frame["train_loss"]
    return frame.assign(**{k: v for k, v in new.items() if k not in frame})


def settings(frame: pd.DataFrame) -> list[str]:
    """The columns of settings: the labels and axes, left of the seed."""
    columns = list(frame)
    return columns[: columns.index("seed")] if "seed" in columns else columns


_FACTS = ("seconds", "updates", "examples", "dropped", "dropped_in_row", "diverged")
_FACTS += ("ended_higher",)
_FACTS += ("staleness_mean", "staleness_p99", "staleness_max")


def is_fact(column: str, frame: pd.DataFrame) -> bool:
    """Whether a column is valid even if the model diverges."""
    return column in _FACTS or column in settings(frame)


def distinguishing(frame: pd.DataFrame) -> list[str]:
    """The columns that distinguish the rows of settings, to name each row.

    Columns of one value are left out; so are columns, from the right, whose values
    follow from those of other columns.

    Example:
        >>> rows = [("adam", 1, 8), ("adam", 2, 4), ("adam", 4, 2)]
        >>> columns = ["optimizer", "workers", "batch_size"]
        >>> distinguishing(pd.DataFrame(rows, columns=columns))
        ['workers']
    """
    columns = [name for name in frame if frame[name].nunique(dropna=False) > 1]
    distinct = len(frame[columns].drop_duplicates())
    for name in reversed(columns):
        rest = [other for other in columns if other != name]
        enough = rest and len(frame[rest].drop_duplicates()) == distinct
        if enough and not frame[rest].isna().all(axis=1).any():
            columns = rest
    return columns


def label(values: Mapping[Hashable, Any]) -> str:
    """The name of a series from its settings; an absent one (None, nan) is left out.

    Example:
        >>> label({"protocol": "k_sync", "K": 4.0, "bound": None, "clipped": True})
        'k_sync, K=4, clipped'
        >>> label({"law": "none"}), label({"law": None})
        ('no law', 'plain')
        >>> label({"transfer_seconds": 0.1})
        'transfer 0.1 s'
    """
    parts = []
    for name, value in values.items():
        name = "step" if name == "learning_rate" else str(name).replace("_", " ")
        if isinstance(value, (bool, np.bool_)):
            parts.append(name if value else f"not {name}")
        elif isinstance(value, str):
            parts.append(f"no {name}" if value == "none" else value.removesuffix("()"))
        elif pd.isna(value):
            continue
        elif name.endswith(" seconds"):
            parts.append(f"{name.removesuffix(' seconds')} {value:g} s")
        else:
            parts.append(f"{name}={value:g}")
    return ", ".join(parts) or "plain"


def best(
    frame: pd.DataFrame,
    axes: Sequence[str],
    *,
    by: str = "train_loss",
    tuning: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """The rows at the best value of some axes: one value for all seeds of a series.

    The best value has the smallest mean of `by` over the seeds that choose. A value
    with a seed that ended higher than it began counts only if every value has such a
    seed. A diverged cell is the worst, and so is a seed without a row.

    Args:
        frame: results, one row per cell and seed.
        axes: that are tuned; all other settings distinguish series.
        by: the metric that decides.
        tuning: results of other seeds, which choose; with None the rows of `frame`
            choose, and the best of many values looks better than it is.

    Returns:
        Rows of `frame`, unchanged, series by series.

    Example:
        >>> rows = [(0.1, 0, 3.0), (0.1, 1, 2.0), (0.3, 0, 2.0), (0.3, 1, 2.0)]
        >>> frame = pd.DataFrame(rows, columns=["learning_rate", "seed", "train_loss"])
        >>> best(frame, ["learning_rate"]).values.tolist()
        [[0.3, 0.0, 2.0], [0.3, 1.0, 2.0]]
        >>> other = frame.assign(seed=7, train_loss=[1.0, 1.0, 2.0, 2.0])
        >>> best(frame, ["learning_rate"], tuning=other).values.tolist()
        [[0.1, 0.0, 3.0], [0.1, 1.0, 2.0]]
    """
    axes = [*axes]
    series = [name for name in settings(frame) if name not in axes]
    cells = frame[[*series, *axes]].drop_duplicates()
    judged = frame if tuning is None else tuning.merge(cells, on=[*cells])
    score = judged[by]
    if "diverged" in judged:
        score = score.where(judged["diverged"] == 0, np.inf)
    scored = judged.assign(**{by: score.fillna(np.inf), "ended_higher": lost(judged)})
    cell = numbered(scored, [*series, *axes])
    first = np.unique(cell, return_index=True)[1]
    of_series = numbered(scored, series)
    seeds = scored.groupby(of_series)["seed"].nunique().to_numpy()
    of_series, cells = of_series[first], scored.groupby(cell)
    whole = cells["seed"].nunique() == seeds[of_series]
    mean = cells[by].mean().where(whole, np.inf).to_numpy()
    higher = cells["ended_higher"].any().to_numpy()
    ranked = np.lexsort((mean, higher, np.isposinf(mean), of_series))
    chosen = ranked[np.unique(of_series[ranked], return_index=True)[1]]
    return scored.iloc[first[chosen]][[*series, *axes]].merge(frame)[[*frame]]


def numbered(frame: pd.DataFrame, by: Sequence[str]) -> np.ndarray:
    """The number of each row's group: 0, 1, ... in the order of the table."""
    if not by:
        return np.zeros(len(frame), int)
    return frame.groupby(list(by), dropna=False, sort=False).ngroup().to_numpy()


def lost(frame: pd.DataFrame) -> pd.Series:
    """Whether each row's training ended higher than it began, or diverged.

    Example:
        >>> fates = {"diverged": [0, 0, 1], "ended_higher": [0, 1, 1]}
        >>> lost(pd.DataFrame(fates)).tolist()
        [False, True, True]
    """
    fates = [name for name in ("diverged", "ended_higher") if name in frame]
    return (frame[fates] > 0).any(axis=1)


def grouped(frame: pd.DataFrame, by: Sequence[str]) -> Any:
    """Pairs (key, rows) in the order of the table; one pair if `by` is empty."""
    if not by:
        return [((), frame)]
    return frame.groupby(list(by), dropna=False, sort=False)


def spread(frame: pd.DataFrame, metric: str, series: Sequence[str]) -> pd.DataFrame:
    """Mean over seeds of a metric for each series, with a 95 % t interval.

        mean +- h                                  if a number is negative
        mean exp(-h / mean), mean exp(h / mean)    if none is

    where h = t_{n - 1} s / sqrt(n), with s the standard deviation over the n seeds that
    have a number. The second interval is that of log(mean), whose standard error is the
    error of the mean over the mean: a loss, an error or a time cannot be negative, and
    neither can the ends of its interval. If h is small compared with the mean, both are
    equal. With few seeds the t interval has the stated coverage, which a bootstrap
    interval does not have.

    Args:
        frame: results, one row per series and seed.
        metric: the column.
        series: the columns that distinguish series.

    Returns:
        One row per series: `mean`, `low`, `high` and `seeds`. With one seed there is no
        interval: `low` and `high` are its number.

    Example:
        >>> frame = pd.DataFrame({"seed": [0, 1, 2], "loss": [0.1, 0.2, 0.9]})
        >>> spread(frame, "loss", []).round(2).values.tolist()
        [[0.4, 0.03, 5.99, 3.0]]
        >>> spread(frame - 0.4, "loss", []).round(2).values.tolist()
        [[0.0, -1.08, 1.08, 3.0]]
    """
    rows = []
    for key, group in grouped(frame, series):
        values = group.groupby("seed")[metric].mean().dropna().to_numpy(float)
        finite = np.isfinite(values)
        mean = values.mean() if len(values) else np.nan
        half = half_interval(values)
        low, high = mean - half, mean + half
        if half and values.min() >= 0:  # then the mean is positive
            low, high = mean * np.exp(-half / mean), mean * np.exp(half / mean)
        estimate = {"mean": mean, "low": low, "high": high}
        row = dict(zip(series, key, strict=True))
        rows.append(row | estimate | {"seeds": int(finite.sum())})
    return pd.DataFrame(rows)


def half_interval(values: np.ndarray) -> float:
    """Half of the 95 % t interval of a mean; 0 for one value, or if one is not finite.

    Example:
        >>> round(half_interval(np.array([1.0, 2.0, 3.0])), 3)
        2.484
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return 0.0
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(special.stdtrit(len(values) - 1, 0.975) * error)  # t's quantile


def where(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """The rows whose columns have these values, or one value of a tuple.

    Numbers are compared in float32, integers and truth values exactly. None means that
    a row lacks the setting. An empty tuple has no value: no row is left.

    Raises:
        KeyError: if there is no such column.

    Example:
        >>> frame = pd.DataFrame({"delay": [0, 1, 2], "law": ["a", "b", "b"]})
        >>> where(frame, delay=(0, 2), law="b").delay.tolist()
        [2]
        >>> where(frame.assign(power=[None, 1, 2]), power=(None, 1)).delay.tolist()
        [0, 1]
    """
    for name, value in values.items():
        several = isinstance(value, (tuple, list, np.ndarray))
        among = value if several else (value,)
        column, equal = frame[name], np.zeros(len(frame), bool)
        for one in among:
            equal |= _equal(column, one)
        frame = frame[equal]
    return frame


def _equal(column: pd.Series, value: Any) -> np.ndarray:
    if value is None:
        return column.isna().to_numpy()
    are_flags = np.full(len(column), column.dtype == bool)
    if column.dtype == object:  # flags and None, or flags and text
        are_flags = np.array([isinstance(one, bool) for one in column], bool)
    if isinstance(value, (bool, np.bool_)):
        return are_flags & (column == value).to_numpy(bool)
    if not isinstance(value, (int, float, np.number)):
        return (column == value).to_numpy()
    if pd.api.types.is_integer_dtype(column) and float(value).is_integer():
        return (column == value).to_numpy()
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(float)
    return ~are_flags & np.isclose(numbers, float(value), rtol=1e-6, atol=0)


def time_to(
    curves: pd.DataFrame, metric: str, value: float, *, along: str = "seconds"
) -> pd.Series:
    """The time at which each cell and seed first falls to a value, by interpolation.

    Args:
        curves: the curves, one row per evaluation.
        metric: the column that must fall to `value`, as an error does.
        value: the value to reach.
        along: the clock: "seconds", "update" or "examples".

    Returns:
        float64, indexed by labels, axes and seed; inf if the value is not reached.
    """
    names = [*settings(curves), "seed"]
    rows = curves.sort_values(along, kind="stable")
    gap = rows[metric] - value
    cells = rows.groupby(names, dropna=False, sort=False).ngroup()
    before, earlier = gap.groupby(cells).shift(), rows[along].groupby(cells).shift()
    crossing = earlier + before / (before - gap) * (rows[along] - earlier)
    when = crossing.where(np.isfinite(before), rows[along])
    when = when.where((gap <= 0) & ~(before <= 0))
    in_order = curves[names].assign(when=when)
    first = in_order.groupby(names, dropna=False, sort=False)["when"].min()
    return first.fillna(np.inf).rename_axis(names)
