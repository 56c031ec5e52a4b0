"""The stored tables of the comparison: each series at its optimum, with its losses.

The table of a study at a stage is experiments/comparison/stored/STUDY_STAGE.csv.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.comparison.clusters import NO_DELAY
from experiments.comparison.rules import AGAIN, BASELINE, NO_MOMENTUM
from experiments.host import disk
from experiments.results.runs import Run
from experiments.results.selection import Selection

FOLDER = Path(__file__).with_name("stored")
BEST_PLAIN = "best plain"
"""The better row, on each cluster, of plain delay with momentum and without it."""

NESTED = (BASELINE.name, NO_MOMENTUM.name)
SHARE_OF_COST = 0.1
"""The smallest gain that matters, as a share of the cost of lateness."""

TWICE = 2.0
"""Two equal rows may differ by two bands, or by two tolerances of their searches."""

NUMBERS = ("learning_rate", "decay", "rule_number")
_OF_SEARCH = ("found", "score", "trainings", "tolerance")
_LOSSES = ("train_loss", "test_loss")
_KEYS = ["optimizer", "rule", "cluster"]
_COLUMNS = (*_KEYS, *NUMBERS, *_OF_SEARCH, *_LOSSES, "about")


def write(run: Run, path: Path, about: str, tolerances: Mapping[str, float]) -> None:
    """Writes a row for each series of a run: its optimum, and the losses of all seeds.

    Rows of the same rule and optimizer in the file are replaced; other rows stay.

    Args:
        run: the tables of a run of `configs/rules.py`.
        path: the file.
        about: the versions and the date of the run.
        tolerances: {optimizer: the tolerance of its searches}.
    """
    optima = pd.DataFrame(run.selection.optima).set_index(_KEYS)
    rows = []
    for key, group in run.results.groupby(_KEYS, sort=False):
        optimum, group = optima.loc[key], group.sort_values("seed")
        numbers = [name for name in NUMBERS if pd.notna(optimum.get(name))]
        diverged = group["diverged"].to_numpy() > 0
        losses = {
            name: " ".join(
                f"{value:.6g}"
                for value in np.where(diverged, math.inf, group[name].to_numpy())
            )
            for name in _LOSSES
        }
        rows.append(
            dict(zip(_KEYS, key, strict=True))
            | {name: f"{optimum[name]:.6g}" for name in numbers}
            | {"found": int(optimum["found"]), "score": f"{optimum['score']:.6g}"}
            | {"trainings": int(optimum["trainings"])}
            | {"tolerance": tolerances[key[0]], **losses, "about": about}
        )
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    if path.exists():
        stored = pd.read_csv(path, dtype=str)
        series = pd.MultiIndex.from_frame(stored[_KEYS[:2]])
        new = series.isin(pd.MultiIndex.from_frame(table[_KEYS[:2]]))
        table = pd.concat([stored[~new], table])
    disk.replace(path, table.to_csv(index=False))


def file(study: str, stage: str) -> Path:
    """The file of a study at a stage."""
    return FOLDER / f"{study}_{stage}.csv"


def read(path: Path, *, relative: bool = False) -> Run:
    """A stored table as the tables of a run, with the rows of `BEST_PLAIN` added.

    Args:
        path: the file.
        relative: whether losses become their logarithms, as `Search.relative` says.

    Raises:
        ValueError: if the file does not exist.
    """
    if not path.exists():
        raise ValueError(
            f"{path} is missing: run configs/rules.py with this study and stage, then"
            " python -m experiments.comparison.page with the folder of the run."
        )
    table = pd.read_csv(path)
    table = pd.concat([table, _best_plain(table)], ignore_index=True)
    numbers = [name for name in NUMBERS if table[name].notna().any()]
    rows = []
    for row in table.to_dict("records"):
        losses = [np.array(str(row[name]).split(), float) for name in _LOSSES]
        if relative:
            losses = [np.log(of_seeds) for of_seeds in losses]
        for seed, pair in enumerate(zip(*losses, strict=True)):
            keys = {name: row[name] for name in [*_KEYS, *numbers]}
            rows.append({**keys, "seed": seed, **dict(zip(_LOSSES, pair, strict=True))})
    optima = table[[*_KEYS, *numbers, *_OF_SEARCH]]
    optima = optima.assign(found=optima["found"].astype(bool))
    selection = Selection(tuple(numbers), "train_loss", optima=optima)
    return Run(pd.DataFrame(rows), pd.DataFrame(), selection)


def _best_plain(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `BEST_PLAIN`; the seeds of the searches choose them."""
    nested = table[table["rule"].isin(NESTED)]
    best = nested.loc[nested.groupby(["optimizer", "cluster"])["score"].idxmin()]
    return best.assign(rule=BEST_PLAIN)


def gains(
    run: Run, *, by: Sequence[str] = ("optimizer",), of: str = "train_loss"
) -> pd.DataFrame:
    """The gains of all rows over `BEST_PLAIN`: means over the late clusters.

    Args:
        run: a stored table.
        by: settings that get separate rows.
        of: the column of the loss.
    """
    late = [name for name in run.results["cluster"].unique() if name != NO_DELAY]
    by_loss = dataclasses.replace(run, selection=run.selection._replace(by=of))
    return by_loss.gains(BEST_PLAIN, by=by, cluster=late)


@functools.lru_cache(maxsize=4)  # a page needs the gains of each table several times
def pooled(run: Run) -> pd.DataFrame:
    """The `gains` of a run; nobody may change the run or this table."""
    return gains(run)


def costs(run: Run) -> dict[str, float]:
    """{optimizer: the cost of lateness: the mean loss that it adds to `BEST_PLAIN`}."""
    rows = run.results[run.results["rule"] == BEST_PLAIN]
    means = rows.groupby(["optimizer", "cluster"])["train_loss"].mean()
    late = means.drop(NO_DELAY, level="cluster").groupby("optimizer").mean()
    return (late - means.xs(NO_DELAY, level="cluster")).to_dict()


def bands(run: Run) -> dict[str, float]:
    """{optimizer: its band: how far apart two searches of plain delay are}."""
    table = pooled(run).set_index(["rule", "optimizer"])["gain"]
    apart = (table[AGAIN.name] - table[BASELINE.name]).abs()
    return apart.to_dict()


def inexact(run: Run) -> dict[str, float]:
    """{optimizer: the error of its searches: two bands, or two tolerances if more}."""
    tolerances = run.selection.optima.groupby("optimizer")["tolerance"].max()
    return {
        name: TWICE * max(band, tolerances[name]) for name, band in bands(run).items()
    }


def thresholds(run: Run) -> dict[str, float]:
    """{optimizer: the gain, in nats, that must be possible for a row to go on}.

    It is 10 % of the cost of lateness for the optimizer: a smaller gain would not
    change the choice of a reader. It is `inexact` if the search is less exact.
    """
    least = inexact(run)
    return {
        name: max(SHARE_OF_COST * cost, least[name])
        for name, cost in costs(run).items()
    }


def going_on(run: Run) -> dict[str, set[str]]:
    """{rule: the optimizers with which the later stages run it}.

    A row stops if its 95 % interval lies below the threshold. A row without an optimum
    goes on; so do plain delay, its second search and plain delay without momentum.
    """
    least = thresholds(run)
    names: dict[str, set[str]] = {name: set(least) for name in (*NESTED, AGAIN.name)}
    for row in pooled(run).to_dict("records"):
        if not row["found"] or not row["high"] < least[row["optimizer"]]:
            names.setdefault(row["rule"], set()).add(row["optimizer"])
    return names
