"""What one of several ways to train gains over another, seed by seed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.results import analysis
from experiments.results.choice import Choice


def gains(
    results: pd.DataFrame,
    curves: pd.DataFrame,
    choice: Choice,
    *,
    over: str,
    by: Sequence[str] = (),
    logarithm: bool = False,
    **where: Any,
) -> pd.DataFrame:
    """The metric that was tuned by, of `over` less of each other, at their best values.

    A gain is a mean over all settings that both have, with the t interval of 95 % over
    seeds, each of which is paired with itself.

    Args:
        results: of a run.
        curves: of the same.
        choice: what was tuned, and by which metric.
        over: a value of a label, such as a rule's name.
        by: settings with rows of their own.
        logarithm: whether logarithms are compared: then 0.01 is one percent.
        **where: {label or axis: value or values} that are counted.

    Returns:
        A row for each other value of the label: `gain`, `low`, `high`, over how many
        `settings` it is a mean, and whether all of these optima are `found`.
    """
    names = [name for name in analysis.settings(results) if name not in choice.axes]
    labels = [name for name in names if (results[name] == over).any()]
    if not labels:
        raise ValueError(f"`over` must be a value of a label, got {over!r}.")
    label = labels[0]
    rows = choice.best(analysis.where(results, **where), curves)
    rows = choice.judged(rows, curves)
    values = np.log(rows[choice.column]) if logarithm else rows[choice.column]
    others = [name for name in names if name not in (label, *by)]
    keys = [*by, *others, "seed"]
    rows = rows.assign(value=values, found=choice.are_found(rows))
    rows = rows[[label, *keys, "value", "found"]]
    base = rows[rows[label] == over].drop(columns=label)
    table = []
    for name, group in rows[rows[label] != over].groupby(label, sort=False):
        pairs = group.merge(base, on=keys, suffixes=("", "_base"))
        pairs = pairs.assign(gain=pairs["value_base"] - pairs["value"])
        for key, rows_of in analysis.grouped(pairs, by):
            of_seeds = rows_of.groupby("seed")["gain"].mean()
            half = analysis.half_interval(of_seeds.to_numpy())
            table.append(
                {label: name, **dict(zip(by, key, strict=True))}
                | {"gain": of_seeds.mean()}
                | {"low": of_seeds.mean() - half, "high": of_seeds.mean() + half}
                | {"settings": len(rows_of[others].drop_duplicates()) if others else 1}
                | {"found": bool((rows_of["found"] & rows_of["found_base"]).all())}
            )
    return pd.DataFrame(table)
