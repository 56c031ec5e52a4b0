"""Titles that state the result of a figure; "" where intervals overlap."""

import pandas as pd

from experiments.results import analysis
from experiments.results.column_words import words


def over(table: pd.DataFrame, x: str, metric: str, *, less_is_better: bool) -> str:
    """A title: how a series changes with `x`, or which one is least at the last `x`.

    Args:
        table: has the columns `x`, `label`, mean, low, high, seeds and `lost`.
        x: a setting whose values are numbers.
        metric: the metric in words.
        less_is_better: whether a smaller number of the metric is better.

    Example:
        >>> columns = ["delay", "label", "mean", "low", "high", "seeds", "lost"]
        >>> rows = [[d, "", 1 + d, 0.9 + d, 1.1 + d, 3, False] for d in (0, 4)]
        >>> table = pd.DataFrame(rows, columns=columns)
        >>> over(table, "delay", "loss", less_is_better=True)
        'Loss rises from 1 to 5 over delay 0 to 4'
    """
    table = table[table[x].notna()].sort_values(x)
    end = table[x].max()
    if table["label"].nunique() > 1:
        if not less_is_better:
            return ""
        last = table[table[x] == end].assign(name=table["label"])
        return least(last, metric, f" at {analysis.label({x: end})}")
    if len(table) < 2 or table["seeds"].min() < 2 or table["lost"].any():
        return ""
    first, last = table.iloc[0], table.iloc[-1]
    rises = first["mean"] < last["mean"]
    low, high = (first, last) if rises else (last, first)
    # a mean beyond an end may be the end's, where their intervals overlap
    inside = (table["high"] >= low["low"]) & (table["low"] <= high["high"])
    if not inside.all() or low["high"] >= high["low"]:
        return ""
    verb = "rises" if rises else "falls"
    means, ends = (f"{first[c]:.3g} to {last[c]:.3g}" for c in ("mean", x))
    return f"{metric.capitalize()} {verb} from {means} over {words(x)} {ends}"


def least(rows: pd.DataFrame, metric: str, place: str = "") -> str:
    """A title that names the least row; "" if an interval overlaps.

    Args:
        rows: has the columns `name`, mean, low, high, seeds and `lost`.
        metric: the metric in words.
        place: words for the place where the row is least.

    Example:
        >>> columns = ["name", "mean", "low", "high", "seeds", "lost"]
        >>> rows = [["a", 1.0, 0.9, 1.1, 3, False], ["b", 2.0, 1.9, 2.1, 3, False]]
        >>> least(pd.DataFrame(rows, columns=columns), "test error", " at the end")
        'a has the least test error at the end, 1'
    """
    live = rows[~rows["lost"]].sort_values("mean")
    if len(live) < 2 or live["seeds"].min() < 2:
        return ""
    first, others = live.iloc[0], live.iloc[1:]
    if first["high"] >= others["low"].min():
        return ""
    return f"{first['name']} has the least {metric}{place}, {first['mean']:.3g}"
