"""Results and curves of a run, as tables and as files."""

import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.host.folder import TABLES, TUNING, RunFolder, read_table
from experiments.results import analysis
from experiments.results.choice import Choice
from experiments.results.gains import gains


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Found:
    """The measurements of a run, as tables.

    A row of `results` is a cell and a seed after the last update; a row of `curves` is
    a cell and a seed at an evaluation. Both have a column for each label, each axis and
    the seed. `choice` has the tuned axes and the tables of the tuning seeds. It prints
    as the question, its answer, and a short table: each series at its best value of the
    tuned axes, and the metric that chose it, with its 95 % interval over the seeds.
    `answers` are the answers of the experiment's effects, see `effects.answers`.

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
    choice: Choice = Choice()  # noqa: RUF009 (immutable)
    question: str = ""
    answers: Sequence[Any] = ()

    @property
    def settings(self) -> list[str]:
        """The columns of settings."""
        return analysis.settings(self.results)

    @property
    def best(self) -> pd.DataFrame:
        """The results of each series at its best value of the tuned axes."""
        return self.choice.best(self.results, self.curves)

    def not_found(self) -> str:
        """Names the searched series without an optimum; "" if all have one."""
        optima = self.choice.optima
        if optima is None or optima["found"].all():
            return ""
        names = [name for name in self.settings if name in optima]
        names = [name for name in names if name not in self.choice.axes]
        bad = optima[~optima["found"].astype(bool)]
        distinct = analysis.distinguishing(optima[names])
        shown = [analysis.label(row) for row in bad[distinct].to_dict("records")]
        more = f" and {len(shown) - 3} more" * (len(shown) > 3)
        return f"No optimum is found of {'; '.join(shown[:3])}{more}."

    def gains(self, over: str, **options: Any) -> pd.DataFrame:
        """The gain over a value of a label for each other value; see `gains.gains`."""
        return gains(self.results, self.curves, self.choice, over=over, **options)

    def __repr__(self):
        return _shown(self)


_ROWS_SHOWN = 30


def _shown(found: Found) -> str:
    """The series of a run as text."""
    names, metric = found.settings, found.choice.column
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
        shown = group[[*analysis.distinguishing(best[others]), *axes]].iloc[0].to_dict()
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


def split(
    settings: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    curves: Sequence[Mapping[str, Any]],
    *,
    choice: Choice,
    tuning_seeds: Sequence[int] = (),
) -> Found:
    """Makes tables of rows: settings left of the seed, measurements right of it.

    The rows of the tuning seeds go only to the tables of `choice`.

    Args:
        settings: the columns of settings.
        results: one row per seed and cell.
        curves: one row per seed, cell and evaluation.
        choice: the tuned axes, and the metric that decides.
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
        choice = choice._replace(results=chosen[0], curves=chosen[1])
    return Found(*reported, choice)


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


def with_lost(
    folder: RunFolder, found: Found, evaluations: Sequence[Mapping[str, Any]]
) -> Found:
    """The tables, with the evaluations that only the folder's curves.csv has.

    The lines of these evaluations in metrics.jsonl can no longer be read.

    Args:
        folder: the folder of the run.
        found: the tables from the lines that can be read.
        evaluations: the settings and the update of each evaluation of a run from the
            start; other evaluations get no row.
    """
    asked = pd.DataFrame(evaluations)

    def filled(name, curves):
        if curves is None or not folder.has_table(name):
            return curves
        return _with_lost(folder.table(name), curves, asked)

    choice = found.choice
    choice = choice._replace(curves=filled(f"{TUNING}/curves", choice.curves))
    curves = filled("curves", found.curves)
    return dataclasses.replace(found, curves=curves, choice=choice)


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
    """The table as it would be read from its file."""
    return read_table(io.StringIO(table.to_csv(index=False)))


def write(folder: RunFolder, found: Found) -> None:
    """Writes results.csv and curves.csv, each whole or not at all.

    The tables of the tuning seeds go to the folder tuning/, the optima to optima.csv.
    """
    if found.choice.optima is not None:
        folder.write_table("optima", found.choice.optima)
    for place, tables in ((f"{TUNING}/", found.choice), ("", found)):
        for name in TABLES if tables.results is not None else ():
            folder.write_table(f"{place}{name}", getattr(tables, name))


def read(folder: RunFolder, choice: Choice, *, tuning: bool) -> Found:
    """The tables of a finished run.

    Args:
        folder: the folder of the run.
        choice: the tuned axes, and the metric that decides.
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
    tables = {name: folder.table(name) for name in TABLES}
    if tuning:
        chosen = {name: folder.table(f"{TUNING}/{name}") for name in TABLES}
        choice = choice._replace(**chosen)
    if folder.has_table("optima"):
        choice = choice._replace(optima=folder.table("optima"))
    return Found(**tables, choice=choice)
