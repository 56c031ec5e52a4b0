"""Results and curves of a run, as tables and as files."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import pandas as pd

from experiments.host.folder import TABLES, TUNING, RunFolder
from experiments.results import analysis
from experiments.results.analysis import AbsentError
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
          a            0.1      1.1 (0.347 to 3.49)
          b            0.3                       0.5
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

    @property
    def tuning(self) -> Self:
        """The tables of the seeds that choose: tuning seeds, or the reported seeds."""
        results, curves = self.choice.results, self.choice.curves
        if results is None:
            return self
        return dataclasses.replace(self, results=results, curves=curves)

    @property
    def tuned(self) -> list[str]:
        """The axes whose best values are shown: of several values, or searched."""
        optima = self.choice.optima
        return [
            axis
            for axis in self.choice.axes
            if axis in self.settings
            and (
                self.results[axis].nunique() > 1
                or (optima is not None and axis in optima)
            )
        ]

    @property
    def series(self) -> list[str]:
        """The settings that name a series: those that are not tuned."""
        return [name for name in self.settings if name not in self.tuned]

    def where(self, **values: Any) -> Self:
        """The rows of some settings, as `analysis.where` has them.

        Raises:
            AbsentError: if no row has them.
            KeyError: if there is no such setting.
        """
        results = analysis.derived(analysis.where(self.results, **values))
        if results.empty:
            known = {name: self.results[name].unique().tolist() for name in values}
            raise AbsentError(f"no row has {values}: choose of the values {known}.")
        curves = self.curves
        if len(curves):
            curves = analysis.where(curves, **values)
        return dataclasses.replace(self, results=results, curves=curves)

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
    if found.results.empty or "seed" not in found.results:
        return f"{len(found.results)} results"
    metric, table = found.choice.column, by_series(found, [found.choice.column])
    columns = analysis.distinguishing(found.results[found.series])
    rows = table[[*columns, *found.tuned]]
    values = list(map(interval_text, table[metric], table["diverged"]))
    rows = rows.assign(**{f"{metric} (95 % interval)": values})
    said = f"{len(rows)} series, {found.results['seed'].nunique()} seeds"
    if found.tuned:
        said += f"; each at its best {' and '.join(found.tuned)}"
    head = [found.question, *map(str, found.answers), said]
    left = len(rows) - _ROWS_SHOWN
    more = f"\n{left} more series: see `best`" if left > 0 else ""
    lines = rows[:_ROWS_SHOWN].to_string(index=False)
    return "\n".join(filter(None, [*head, lines + more, found.not_found()]))


def by_series(found: Found, metrics: Sequence[str]) -> pd.DataFrame:
    """A row a series: its settings, its best values of what is tuned, its metrics.

    A metric is (mean, low, high), as `analysis.spread` has it. `diverged` says whether
    a seed diverged at the best values.
    """
    best = found.best
    if found.choice.column not in best:
        judged = found.choice.judged(best, found.curves)
        times = judged[found.choice.column].to_numpy()
        best = best.assign(**{found.choice.column: times})
    rows = []
    for key, group in analysis.grouped(best, found.series):
        row = dict(zip(found.series, key, strict=True))
        row |= {axis: group[axis].iloc[0] for axis in found.tuned}
        for metric in metrics:
            (spread,) = analysis.spread(group, metric, []).to_dict("records")
            row[metric] = spread["mean"], spread["low"], spread["high"]
        diverged = "diverged" in group and bool((group["diverged"] > 0).any())
        rows.append(row | {"diverged": diverged})
    return pd.DataFrame(rows)


def interval_text(values: tuple[float, float, float], diverged: bool) -> str:
    """A mean with its interval as text.

    Example:
        >>> interval_text((1.1, 0.347, 3.492), False)
        '1.1 (0.347 to 3.49)'
        >>> interval_text((9.0, 9.0, 9.0), True)
        'diverged'
    """
    mean, low, high = values
    if diverged:
        return "diverged"
    return f"{mean:.4g}" + f" ({low:.3g} to {high:.3g})" * (low < high)


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
    if (folder.path / "optima.csv").exists():
        choice = choice._replace(optima=folder.table("optima"))
    return Found(**tables, choice=choice)
