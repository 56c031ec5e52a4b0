"""What the numbers of a figure say, as its title; nothing where intervals overlap."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from experiments.figures.axis_labels import words
from experiments.results import analysis

_LESS_IS_BETTER = ("loss", "error", "seconds")


def over(
    table: pd.DataFrame, x: str, metric: str, label: Callable[[Mapping[str, Any]], str]
) -> str:
    """How one series changes with `x`, or which of several is least at the last `x`.

    Args:
        table: with columns `x`, mean, low, high, seeds, `kind` and `lost`.
        x: a setting.
        metric: in words.
        label: settings -> the name of the series.

    Example:
        >>> columns = ["delay", "mean", "low", "high", "seeds", "kind", "lost"]
        >>> rows = [[d, 1 + d, 0.9 + d, 1.1 + d, 3, "tuned", False] for d in (0, 4)]
        >>> over(pd.DataFrame(rows, columns=columns), "delay", "loss", lambda row: "")
        'Loss rises from 1 to 5 over delay 0 to 4'
    """
    table = table[(table["kind"] == "tuned") & table[x].notna()]
    numeric = pd.api.types.is_numeric_dtype(table[x])
    if table.empty:
        return ""
    series = pd.Series([label(row) for row in table.to_dict("records")], table.index)
    if series.nunique() == 1 and numeric:
        return _trend(table.sort_values(x), x, metric)
    last = table[table[x] == table[x].max()] if numeric else table
    if series.nunique() > 1 and not numeric:
        return ""
    names = series[last.index] if numeric else last[x].map(str)
    place = f" at {analysis.label({x: table[x].max()})}" if numeric else ""
    return least(last.assign(name=names), metric, place)


def _trend(table: pd.DataFrame, x: str, metric: str) -> str:
    first, last = (table.iloc[i] for i in (0, -1))
    inside = table["mean"].between(*sorted((first["mean"], last["mean"]))).all()
    apart = first["high"] < last["low"] or last["high"] < first["low"]
    whole = len(table) > 1 and table["seeds"].min() > 1 and not table["lost"].any()
    if not whole or not inside or not apart:
        return ""
    verb = "rises" if first["mean"] < last["mean"] else "falls"
    return (
        f"{metric.capitalize()} {verb} from {first['mean']:.3g} to {last['mean']:.3g}"
        f" over {words(x)} {first[x]:g} to {last[x]:g}"
    )


def least(rows: pd.DataFrame, metric: str, place: str = "") -> str:
    """Which row is least, where its interval is below those of all others.

    Args:
        rows: with columns `name`, mean, low, high, seeds and `lost`.
        metric: in words; less must be better.
        place: where it is least.

    Example:
        >>> columns = ["name", "mean", "low", "high", "seeds", "lost"]
        >>> rows = [["a", 1.0, 0.9, 1.1, 3, False], ["b", 2.0, 1.9, 2.1, 3, False]]
        >>> least(pd.DataFrame(rows, columns=columns), "test error")
        'a has the least test error, 1'
    """
    better = any(word in metric for word in _LESS_IS_BETTER) or " to " in metric
    live = rows[~rows["lost"]].sort_values("mean")
    if not better or len(live) < 2 or live["seeds"].min() < 2:
        return ""
    first = live.iloc[0]
    if not first["high"] < live["low"].iloc[1:].min() or not first["name"]:
        return ""
    return f"{first['name']} has the least {metric}{place}, {first['mean']:.3g}"


def beside_theory(table: pd.DataFrame, metric: str) -> str:
    """How far what was measured is from theory.

    Args:
        table: with a column `mean`, of measured / theory, and `lost`.
        metric: in words.

    Example:
        >>> beside_theory(pd.DataFrame({"mean": [0.98, 1.01], "lost": False}), "loss")
        'Loss is 0.98 to 1.01 times what theory says'
    """
    live = table["mean"][~table["lost"]].dropna()
    if live.empty:
        return ""
    ends = f"{live.min():.3g} to {live.max():.3g}"
    return f"{metric.capitalize()} is {ends} times what theory says"
