"""A verdict on each row of a stored table: its gain, and how certain the gain is."""

import dataclasses
import math

import numpy as np
import pandas as pd
from scipy import stats

from experiments.comparison import tables
from experiments.comparison.clusters import NO_DELAY
from experiments.results.estimates import holm
from experiments.results.runs import Run

GAINS, LOSES, NOTHING_SEEN = "gains", "loses", "no gain seen"
DIVERGES, NO_OPTIMUM = "diverges", "no optimum"
"""The verdicts of a row."""

LEVEL = 0.05
_KEYS = ["optimizer", "rule"]


def verdicts(run: Run) -> pd.DataFrame:
    """A table with the gain of each rule with each optimizer over `BEST_PLAIN`.

    Gains are differences of the training loss, or of its logarithm, paired by seed, and
    means over the late clusters.

    Args:
        run: a stored table, see `tables.read`.

    Returns:
        `gain`, `low` and `high`: the gain and its 95 % interval; a gain up to `high`
        may be unseen. `p`: of the t test over seeds, with Holm's correction for all
        rows that have an optimum. `median`: of the gains on single clusters.
        `constant`, `random`: mean gains on the clusters where all delays are equal, and
        on the others. `test`: the gain in test loss. `share`: the gain over the cost of
        lateness. `verdict`: a gain counts if p is below 0.05 and the gain is at least
        `tables.inexact`; a row that diverges under one seed has the verdict `DIVERGES`.
    """
    late = [name for name in run.results["cluster"].unique() if name != NO_DELAY]
    constant = [name for name in late if name.startswith("constant")]
    rows = tables.pooled(run).set_index(_KEYS)
    rows = rows.drop(tables.BEST_PLAIN, level="rule", errors="ignore")
    each = tables.gains(run, by=["optimizer", "cluster"])
    columns = {"median": each.groupby(_KEYS)["gain"].median()}
    for name, clusters in {
        "constant": constant,
        "random": [name for name in late if name not in constant],
    }.items():
        part = each[each["cluster"].isin(clusters)]
        columns[name] = part.groupby(_KEYS)["gain"].mean()
    columns["test"] = tables.gains(run, of="test_loss").set_index(_KEYS)["gain"]
    rows = rows.assign(**columns)
    seeds = run.results["seed"].nunique()
    rows["p"] = np.nan
    rows.loc[rows["found"], "p"] = holm(_p_values(rows[rows["found"]], seeds))
    costs, inexact = tables.costs(run), tables.inexact(run)
    optimizers = rows.index.get_level_values("optimizer")
    rows["share"] = rows["gain"] / optimizers.map(costs).to_numpy()
    rows["verdict"] = [
        _verdict(row, least)
        for row, least in zip(
            rows.to_dict("records"), optimizers.map(inexact), strict=True
        )
    ]
    return rows.reset_index().sort_values(
        ["optimizer", "gain"], ascending=[True, False], ignore_index=True
    )


def _p_values(rows: pd.DataFrame, seeds: int) -> np.ndarray:
    """Two-sided p-values: half an interval is t_{0.975} times the standard error."""
    half = (rows["high"] - rows["low"]).to_numpy() / 2
    quantile = stats.t.ppf(0.975, seeds - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = rows["gain"].to_numpy() * quantile / half
    return np.nan_to_num(2 * stats.t.sf(np.abs(t), seeds - 1), nan=1.0)


def _verdict(row: dict[str, float], least: float) -> str:
    if not row["found"]:
        return NO_OPTIMUM
    # a row that diverges under a seed has a gain of minus infinity
    if row["gain"] == -math.inf:
        return DIVERGES
    sure = row["p"] < LEVEL and abs(row["gain"]) >= least
    return NOTHING_SEEN if not sure else GAINS if row["gain"] > 0 else LOSES


def order_agrees(run: Run, *, least: dict[str, float]) -> float:
    """Kendall's tau between the gains of rows in two halves of the seeds.

    Args:
        run: a stored table.
        least: {optimizer: nats}: a pair of rows counts only if their gains over all
            seeds differ by more.

    Returns:
        (pairs in the same order - pairs in opposite orders) / pairs; nan without pairs.
    """
    even = run.results["seed"] % 2 == 0
    halves = [
        tables.gains(dataclasses.replace(run, results=run.results[mask])).set_index(
            _KEYS
        )["gain"]
        for mask in (even, ~even)
    ]
    whole = tables.pooled(run).set_index(_KEYS)["gain"]
    signs = []
    for optimizer, gains in whole.groupby(level="optimizer"):
        keys = list(gains[np.isfinite(gains)].index)
        for i, one in enumerate(keys):
            for other in keys[:i]:
                if abs(gains[one] - gains[other]) > least[str(optimizer)]:
                    first, second = (half[one] - half[other] for half in halves)
                    signs.append(np.sign(first * second))
    return float(np.mean(signs)) if signs else math.nan
