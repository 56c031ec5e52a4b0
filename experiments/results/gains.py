"""The gain of one way to train over another, paired by seed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.results import analysis
from experiments.results.selection import Selection


def gains(
    results: pd.DataFrame,
    curves: pd.DataFrame,
    selection: Selection,
    *,
    over: str,
    by: str | Sequence[str] = (),
    logarithm: bool = False,
    **where: Any,
) -> pd.DataFrame:
    """The gain of each other value: the tuned metric of `over` minus its tuned metric.

    Each value is taken at its best values of the tuned axes. A gain is a mean over all
    settings that both have, with the 95 % t interval over paired seeds. A training that
    diverged counts as infinitely bad; if both diverge under a seed, the gain is nan.
    With one seed the interval is nan.

    Args:
        results: the results of a run.
        curves: the curves of the run.
        selection: the tuned axes, and the metric that decides.
        over: a value of a label, such as a rule's name.
        by: settings that get separate rows; a name, or several.
        logarithm: whether to compare logarithms; then 0.01 is one percent.
        **where: {label or axis: value or values}: the rows that count.

    Returns:
        One row for each other value of the label: `gain`, `low`, `high`, the number of
        `settings` in the mean, and whether all of these optima are `found`.
    """
    names = [name for name in analysis.settings(results) if name not in selection.axes]
    labels = [name for name in names if len(analysis.where(results, **{name: over}))]
    if not labels:
        known = {name: [*results[name].unique()] for name in names}
        raise ValueError(
            f"`over` must be a value of a label, got {over!r}: the values are {known}."
        )
    label = labels[0]
    by = [by] if isinstance(by, str) else [*by]
    counted = analysis.where(results, **where)
    if counted.empty:
        raise ValueError(f"No row has {where}: give values that `results` has.")
    rows = selection.best(counted, curves)
    rows = selection.judged(rows, curves)
    values = rows[selection.column]
    if "diverged" in rows:
        values = values.where(rows["diverged"] == 0, np.inf)
    values = np.log(values) if logarithm else values
    others = [name for name in names if name not in (label, *by)]
    keys = [*by, *others, "seed"]
    rows = rows.assign(value=values, found=selection.are_found(rows))
    rows = rows[[label, *keys, "value", "found"]]
    base = analysis.where(rows, **{label: over})
    others_than = rows.drop(base.index)
    base = base.drop(columns=label)
    table = []
    for name, group in others_than.groupby(label, sort=False, dropna=False):
        pairs = group.merge(base, on=keys, suffixes=("", "_base"))
        if pairs.empty:
            raise ValueError(
                f"{over!r} and {name!r} have no settings in common: name those that"
                f" differ in `by`, or compare others. Settings: {', '.join(others)}."
            )
        pairs = pairs.assign(gain=pairs["value_base"] - pairs["value"])
        for key, of_row in analysis.grouped(pairs, by):
            of_seeds = of_row.groupby("seed")["gain"].mean()
            # one seed has no interval
            several = len(of_seeds) > 1
            half = analysis.half_interval(of_seeds.to_numpy()) if several else np.nan
            mean = np.nan if of_row["gain"].isna().any() else of_seeds.mean()
            table.append(
                {label: name, **dict(zip(by, key, strict=True))}
                | {"gain": mean, "low": mean - half, "high": mean + half}
                | {"settings": len(of_row[others].drop_duplicates()) if others else 1}
                | {"found": bool((of_row["found"] & of_row["found_base"]).all())}
            )
    return pd.DataFrame(table)
