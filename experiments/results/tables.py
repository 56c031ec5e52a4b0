"""Results and curves of a run, made of rows, and as files."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.host.folder import TABLES, TUNING, RunFolder
from experiments.results import analysis
from experiments.results.selection import Selection


def split(
    settings: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    curves: Sequence[Mapping[str, Any]],
    *,
    selection: Selection,
    tuning_seeds: Sequence[int] = (),
) -> tuple[pd.DataFrame, pd.DataFrame, Selection]:
    """The tables of results and curves, made of rows, and the selection.

    The columns of settings come first, then the seed, then the measurements. The rows
    of the tuning seeds are in the tables of the selection alone.

    Args:
        settings: the columns of settings.
        results: one row per seed and cell.
        curves: one row per seed, cell and evaluation.
        selection: the tuned axes, and the metric that decides.
        tuning_seeds: the seeds that choose.
    """
    reported, chosen = [], []
    for rows in (results, curves):
        table = analysis.derived(pd.DataFrame(rows))
        measured = [name for name in table if name not in settings]
        table = table.reindex(columns=[*settings, *measured])
        chooses = table["seed"].isin(tuning_seeds) if tuning_seeds else None
        if chooses is not None:
            chosen.append(table[chooses].reset_index(drop=True))
            table = table[~chooses].reset_index(drop=True)
        reported.append(table)
    if tuning_seeds:
        selection = selection._replace(results=chosen[0], curves=chosen[1])
    return *reported, selection


def curve_rows(
    metrics: Iterable[Mapping[str, Any]],
    seeds: Sequence[int],
    cells: Sequence[Mapping[str, Any]],
    evaluates: Callable[[int], bool],
) -> list[dict[str, Any]]:
    """The rows of a program for curves.csv, one per seed, cell and evaluation.

    Args:
        metrics: the program's rows of metrics.jsonl.
        seeds: the seeds of the program.
        cells: the settings of each cell.
        evaluates: whether a run from the start has an evaluation after an update; other
            evaluations, such as the end of a shorter run, get no row.
    """
    rows = []
    for row in metrics:
        shown = "evaluation" in row and evaluates(row["step"])
        for s, seed in enumerate(seeds if shown else ()):
            for c, setting in enumerate(cells):
                values = {
                    name: math.nan if table[s][c] is None else table[s][c]
                    for name, table in row["evaluation"].items()
                }
                when = {"seconds": row["seconds"][s]} if "seconds" in row else {}
                rows.append(
                    dict(setting)
                    | {"seed": seed, "update": row["step"]}
                    | {"examples": row["examples"][s], **when}
                    | values
                )
    return rows


def write(
    folder: RunFolder, results: pd.DataFrame, curves: pd.DataFrame, selection: Selection
) -> None:
    """Writes results.csv and curves.csv, each whole or not at all.

    The tables of the tuning seeds go to the folder tuning/, the optima to optima.csv.
    """
    files = {"results": results, "curves": curves, "optima": selection.optima}
    files |= {f"{TUNING}/{name}": getattr(selection, name) for name in TABLES}
    for name, table in files.items():
        if table is not None:
            folder.write_table(name, table)


def read(
    folder: RunFolder, selection: Selection, tuning: bool
) -> tuple[pd.DataFrame, pd.DataFrame, Selection]:
    """The tables of results and curves of a finished run, and the selection.

    Args:
        folder: the folder of the run.
        selection: the tuned axes, and the metric that decides.
        tuning: whether tuning seeds choose.

    Raises:
        ValueError: if the folder holds no finished run, or a table is not as the run
            wrote it.
    """
    for file in (folder.path / name for name in folder.changed_tables()):
        if file.exists():
            raise ValueError(
                f"{file} is not as its run wrote it: a line may be lost, or a number"
                " changed. The command of the run makes the tables anew."
            )
    results, curves = map(folder.table, TABLES)
    if tuning:
        chosen = {name: folder.table(f"{TUNING}/{name}") for name in TABLES}
        selection = selection._replace(**chosen)
    if (folder.path / "optima.csv").exists():
        selection = selection._replace(optima=folder.table("optima"))
    return results, curves, selection
