"""Results and curves of a run, as tables and as files."""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.results import analysis
from experiments.results.choice import Choice
from experiments.results.folder import TABLES, replace
from experiments.results.gains import gains


class Found(NamedTuple):
    """What a run found, as tables.

    A row of `results` is a cell and a seed after the last update; a row of `curves` is
    one at an evaluation. Both have a column for each label, each axis and the seed.
    `choice` says what is tuned, and has the tables of the tuning seeds.
    """

    results: pd.DataFrame
    curves: pd.DataFrame
    choice: Choice = Choice()

    @property
    def best(self) -> pd.DataFrame:
        """The results of each series at its best value of the tuned axes."""
        return self.choice.best(self.results, self.curves)

    def not_found(self) -> str:
        """Which searched series have no optimum, in a sentence; "" where all have."""
        optima = self.choice.optima
        if optima is None or optima["found"].all():
            return ""
        names = [n for n in analysis.settings(self.results) if n in optima]
        names = [name for name in names if name not in self.choice.axes]
        bad = optima[~optima["found"].astype(bool)]
        told = analysis.told_by(optima[names])
        shown = [analysis.label(row) for row in bad[told].to_dict("records")]
        more = f" and {len(shown) - 3} more" * (len(shown) > 3)
        return f"No optimum is found of {'; '.join(shown[:3])}{more}."

    def gains(self, over: str, **options: Any) -> pd.DataFrame:
        """What each other value of a label gains over one; see `gains.gains`."""
        return gains(self.results, self.curves, self.choice, over=over, **options)


def of(
    settings: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    curves: Sequence[Mapping[str, Any]],
    *,
    choice: Choice,
    tuning_seeds: Sequence[int] = (),
) -> Found:
    """Rows as tables: settings on the left of the seed, what was measured right.

    The rows of the tuning seeds are in the tables of `choice` alone.

    Args:
        settings: the columns that say what was trained.
        results: a row a seed and cell.
        curves: a row a seed, cell and evaluation.
        choice: what is tuned, and by what.
        tuning_seeds: that choose.
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
        choice = choice._replace(results=chosen[0], curves=chosen[1])
    return Found(*reported, choice)


def curve_rows(
    metrics: Iterable[Mapping[str, Any]],
    seeds: Sequence[int],
    cells: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The rows of a program for curves.csv, one a seed, cell and evaluation.

    Args:
        metrics: the program's rows of metrics.jsonl.
        seeds: of the program.
        cells: its settings.
    """
    found = []
    for row in metrics:
        for s, seed in enumerate(seeds if "evaluation" in row else ()):
            for c, setting in enumerate(cells):
                values = {
                    name: math.nan if table[s][c] is None else table[s][c]
                    for name, table in row["evaluation"].items()
                }
                when = {"seconds": row["seconds"][s]} if "seconds" in row else {}
                found.append(
                    dict(setting)
                    | {"seed": seed, "update": row["step"]}
                    | {"examples": row["examples"][s], **when}
                    | values
                )
    return found


def with_lost(folder: Path, found: Found) -> Found:
    """The tables, with evaluations that only the folder's own curves.csv has.

    Their lines of metrics.jsonl can no longer be read.
    """
    found = found._replace(curves=_with_lost(folder / "curves.csv", found.curves))
    choice = found.choice
    if choice.curves is None:
        return found
    curves = _with_lost(folder / _TUNING / "curves.csv", choice.curves)
    return found._replace(choice=choice._replace(curves=curves))


def _with_lost(file: Path, curves: pd.DataFrame) -> pd.DataFrame:
    if not file.exists():
        return curves
    before = _read(file)
    text = io.StringIO(curves.to_csv(index=False))
    now = pd.read_csv(text, keep_default_na=False, na_values=[""])
    keys = [*analysis.settings(now), "seed", "update"]
    if not {*keys} <= {*before}:
        return curves
    there = set(now[keys].astype(str).itertuples(index=False, name=None))
    rows = before[keys].astype(str).itertuples(index=False, name=None)
    lost = before[[row not in there for row in rows]]
    if lost.empty:
        return curves
    return pd.concat([now, lost], ignore_index=True).sort_values(
        "update", kind="stable", ignore_index=True
    )


def write(folder: Path, found: Found) -> None:
    """Writes results.csv and curves.csv, each whole or not at all.

    Those of the tuning seeds are in the folder tuning/; optima.csv has the optima.
    """
    if found.choice.optima is not None:
        text = found.choice.optima.to_csv(index=False)
        replace(folder / "optima.csv", text)
    if found.choice.results is not None:
        (folder / _TUNING).mkdir(exist_ok=True)
        _write(folder / _TUNING, found.choice)
    _write(folder, found)


def read(folder: Path, choice: Choice, *, tuning: bool) -> Found:
    """The tables of a finished run.

    Args:
        folder: the run's.
        choice: what is tuned, and by what.
        tuning: whether seeds of their own choose.

    Raises:
        ValueError: if the folder holds no finished run.
    """
    results, curves = (_read(folder / f"{name}.csv") for name in TABLES)
    if tuning:
        chosen = (_read(folder / _TUNING / f"{name}.csv") for name in TABLES)
        choice = choice._replace(**dict(zip(TABLES, chosen, strict=True)))
    if (folder / "optima.csv").exists():
        choice = choice._replace(optima=_read(folder / "optima.csv"))
    return Found(results, curves, choice)


_TUNING = "tuning"
"""The folder with the tables of the tuning seeds."""


def _write(folder: Path, tables: Found | Choice) -> None:
    for name in TABLES:
        table = getattr(tables, name)
        replace(folder / f"{name}.csv", table.to_csv(index=False))


def _read(file: Path) -> pd.DataFrame:
    """A label may be "None" or "NA"; an empty place is nan."""
    if not file.exists():
        raise ValueError(f"{file.parent} holds no finished run: there is no {file}.")
    try:
        return pd.read_csv(file, keep_default_na=False, na_values=[""])
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{file} cannot be read: {error}.") from error
