"""Results and curves of a run, as tables and as files."""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from experiments.host.folder import TABLES, TUNING, RunFolder, read_table
from experiments.results import analysis
from experiments.results.choice import Choice
from experiments.results.gains import gains


class Found(NamedTuple):
    """What a run measured, as tables.

    A row of `results` is a cell and a seed after the last update; a row of `curves` is
    one at an evaluation. Both have a column for each label, each axis and the seed.
    `choice` says what is tuned, and has the tables of the tuning seeds. It is printed
    as the question, its answer, and a short table: each series at its best value of
    what is tuned, and the metric that chose it, with its 95 % interval over the seeds.
    `answers` are those of the experiment's effects, see `effects.answers`.

    Example:
        >>> rows = [("a", 0.1, 0, 1.0), ("a", 0.1, 1, 1.2), ("a", 0.3, 0, 2.0)]
        >>> rows += [("b", 0.1, 0, 3.0), ("b", 0.3, 0, 0.5), ("b", 0.3, 1, 0.5)]
        >>> columns = ["law", "learning_rate", "seed", "train_loss"]
        >>> print(Found(pd.DataFrame(rows, columns=columns), pd.DataFrame(),
        ...             Choice(("learning_rate",))))
        2 series, 2 seeds; each at its best learning_rate
        law  learning_rate train_loss (95 % interval)
          a            0.1      1.1 (0.3465 to 3.492)
          b            0.3                        0.5
    """

    results: pd.DataFrame
    curves: pd.DataFrame
    choice: Choice = Choice()
    question: str = ""
    answers: Sequence[Any] = ()

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
        distinct = analysis.told_by(optima[names])
        shown = [analysis.label(row) for row in bad[distinct].to_dict("records")]
        more = f" and {len(shown) - 3} more" * (len(shown) > 3)
        return f"No optimum is found of {'; '.join(shown[:3])}{more}."

    def gains(self, over: str, **options: Any) -> pd.DataFrame:
        """What each other value of a label gains over one; see `gains.gains`."""
        return gains(self.results, self.curves, self.choice, over=over, **options)

    def __repr__(self):
        return _shown(self)


_ROWS_SHOWN = 30


def _shown(found: Found) -> str:
    """The series of a run as text."""
    names, metric = analysis.settings(found.results), found.choice.column
    axes = [axis for axis in found.choice.axes if axis in names]
    if found.results.empty or "seed" not in found.results:
        return f"{len(found.results)} results"
    best = found.choice.judged(found.best, found.curves)
    others = [name for name in names if name not in axes]
    rows = []
    for _, group in analysis.grouped(best, others):
        (interval,) = analysis.spread(group, metric, []).to_dict("records")
        value = f"{interval['mean']:.4g}"
        if "diverged" in group and group["diverged"].any():
            value = "diverged"
        elif interval["high"] > interval["low"]:
            value += f" ({interval['low']:.4g} to {interval['high']:.4g})"
        shown = group[[*analysis.told_by(best[others]), *axes]].iloc[0].to_dict()
        rows.append(shown | {f"{metric} (95 % interval)": value})
    said = f"{len(rows)} series, {found.results['seed'].nunique()} seeds"
    if axes:
        said += f"; each at its best {' and '.join(axes)}"
    head = [found.question, *map(str, found.answers), said]
    table = pd.DataFrame(rows[:_ROWS_SHOWN]).to_string(index=False)
    left = len(rows) - _ROWS_SHOWN
    more = f"\n{left} more series: see `best`" if left > 0 else ""
    missed = found.not_found()
    return "\n".join(filter(None, [*head, table + more, missed]))


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
    evaluates: Callable[[int], bool],
) -> list[dict[str, Any]]:
    """The rows of a program for curves.csv, one a seed, cell and evaluation.

    Args:
        metrics: the program's rows of metrics.jsonl.
        seeds: of the program.
        cells: its settings.
        evaluates: whether a run from the start has an evaluation after an update; of
            others, such as the end of a shorter run, there is no row.
    """
    found = []
    for row in metrics:
        shown = "evaluation" in row and evaluates(row["step"])
        for s, seed in enumerate(seeds if shown else ()):
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


def with_lost(
    folder: RunFolder, found: Found, evaluations: Sequence[Mapping[str, Any]]
) -> Found:
    """The tables, with evaluations that only the folder's own curves.csv has.

    Their lines of metrics.jsonl can no longer be read.

    Args:
        folder: the run's.
        found: what the lines tell that can be read.
        evaluations: the settings and the update of each one that a run from the start
            has; of others no row is wanted.
    """
    asked = pd.DataFrame(evaluations)

    def filled(name, curves):
        if curves is None or not folder.has_table(name):
            return curves
        return _with_lost(folder.table(name), curves, asked)

    choice = found.choice
    choice = choice._replace(curves=filled(f"{TUNING}/curves", choice.curves))
    return found._replace(curves=filled("curves", found.curves), choice=choice)


def _with_lost(
    before: pd.DataFrame, curves: pd.DataFrame, asked: pd.DataFrame
) -> pd.DataFrame:
    now = _as_read(curves)
    cell = [*analysis.settings(now), "update"]
    if not {*cell, "seed"} <= {*before}:
        return curves

    def rows(table, *columns):
        return table[[*columns]].astype(str).itertuples(index=False, name=None)

    there = {*rows(now, *cell, "seed")}
    wanted = {*rows(_as_read(asked), *cell)}
    lost = before[
        [row not in there and row[:-1] in wanted for row in rows(before, *cell, "seed")]
    ]
    if lost.empty:
        return curves
    return pd.concat([now, lost], ignore_index=True).sort_values(
        "update", kind="stable", ignore_index=True
    )


def _as_read(table: pd.DataFrame) -> pd.DataFrame:
    """A table as its file would be read."""
    return read_table(io.StringIO(table.to_csv(index=False)))


def write(folder: RunFolder, found: Found) -> None:
    """Writes results.csv and curves.csv, each whole or not at all.

    Those of the tuning seeds are in the folder tuning/; optima.csv has the optima.
    """
    if found.choice.optima is not None:
        folder.write_table("optima", found.choice.optima)
    for place, tables in ((f"{TUNING}/", found.choice), ("", found)):
        for name in TABLES if tables.results is not None else ():
            folder.write_table(f"{place}{name}", getattr(tables, name))


def read(folder: RunFolder, choice: Choice, *, tuning: bool) -> Found:
    """The tables of a finished run.

    Args:
        folder: the run's.
        choice: what is tuned, and by what.
        tuning: whether seeds of their own choose.

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
    tables = {name: folder.table(name) for name in TABLES}
    if tuning:
        chosen = {name: folder.table(f"{TUNING}/{name}") for name in TABLES}
        choice = choice._replace(**chosen)
    if folder.has_table("optima"):
        choice = choice._replace(optima=folder.table("optima"))
    return Found(**tables, choice=choice)
