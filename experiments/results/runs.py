"""A run: its tables, its question and answers, and the records of its folder."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pandas as pd

import delayjax as dj
from experiments.host.folder import RunFolder
from experiments.results import analysis, tables
from experiments.results.analysis import AbsentError
from experiments.results.gains import gains
from experiments.results.metrics import Metric, TimeTo, same_metric
from experiments.results.selection import Selection


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run:
    """The tables of a run, or of several together, and the records of its folder.

    A row of `results` is a cell and a seed after the last update; a row of `curves` is
    a cell and a seed at an evaluation. Both have a column for each label, each axis and
    the seed. `selection` has the tuned axes and the tables of the tuning seeds. A run
    prints as its question, the answer, and a short table: each series at the best value
    of the tuned axes, and the metric that selects it, with a 95 % interval over seeds.

    Attributes:
        results, curves, selection: the tables.
        question: the question of the experiment.
        answers: the answers of the experiment's effects, see `effects.answers`.
        folder: the folder of the run, or of the first of several; None if the tables
            are of no folder.
        info: run.json, or run.json of the first of several.

    Example:
        >>> rows = [("a", 0.1, 0, 1.0), ("a", 0.1, 1, 1.2), ("a", 0.3, 0, 2.0)]
        >>> rows += [("b", 0.1, 0, 3.0), ("b", 0.3, 0, 0.5), ("b", 0.3, 1, 0.5)]
        >>> columns = ["law", "learning_rate", "seed", "train_loss"]
        >>> print(Run(pd.DataFrame(rows, columns=columns), pd.DataFrame(),
        ...           Selection(("learning_rate",))))
        2 series, 2 seeds; each at its best learning_rate
        law  learning_rate train_loss (95 % interval)
          a            0.1      1.1 (0.347 to 3.49)
          b            0.3                       0.5
    """

    results: pd.DataFrame
    curves: pd.DataFrame
    selection: Selection = Selection()  # noqa: RUF009 (immutable)
    question: str = ""
    answers: Sequence[Any] = ()
    folder: Path | None = None
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def settings(self) -> list[str]:
        """The columns of settings."""
        return analysis.settings(self.results)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The reported seeds."""
        return tuple(map(int, sorted(self.results["seed"].unique())))

    @property
    def best(self) -> pd.DataFrame:
        """The results of each series at its best value of the tuned axes."""
        return self.selection.best(self.results, self.curves)

    @property
    def tuning(self) -> Self:
        """The tables of the seeds that choose: tuning seeds, or the reported seeds."""
        results, curves = self.selection.results, self.selection.curves
        if results is None:
            return self
        return dataclasses.replace(self, results=results, curves=curves)

    @property
    def tuned(self) -> list[str]:
        """The axes whose best values are shown: of several values, or searched."""
        optima = self.selection.optima
        return [
            axis
            for axis in self.selection.axes
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
        optima = self.selection.optima
        if optima is None or optima["found"].all():
            return ""
        names = [name for name in self.settings if name in optima]
        names = [name for name in names if name not in self.selection.axes]
        bad = optima[~optima["found"].astype(bool)]
        distinct = analysis.distinguishing(optima[names])
        shown = [analysis.label(row) for row in bad[distinct].to_dict("records")]
        more = f" and {len(shown) - 3} more" * (len(shown) > 3)
        return f"No optimum is found of {'; '.join(shown[:3])}{more}."

    def slack(self, metric: Metric | None, *, relative: bool) -> float:
        """The tolerance of the search, if it minimized this metric; else 0.

        An optimum may be worse than the best point by the tolerance, so that a
        difference or a ratio of two optima may be wrong by it in both directions.

        Args:
            metric: the metric of the compared numbers.
            relative: whether logarithms are compared. It is 0 if the search compared
                differences, and the reverse.
        """
        search = self.info.get("search")
        if not search or not same_metric(metric, self.selection.by):
            return 0.0
        return search["tolerance"] if relative == search["relative"] else 0.0

    def gains(self, over: str, **options: Any) -> pd.DataFrame:
        """The gain over a value of a label for each other value; see `gains.gains`."""
        return gains(self.results, self.curves, self.selection, over=over, **options)

    def __repr__(self):
        return _shown(self)

    @classmethod
    def read(cls, *folders: str | os.PathLike[str]) -> Self:
        """Reads a run, or several as one.

        The first run decides which axes are tuned. The tables of several runs get a
        column `run` with the names of the folders. It is a setting, unless the runs are
        shards of one run, with the same config and no common cell.

        Raises:
            ValueError: if a folder holds no finished run.
        """
        paths = [Path(folder).expanduser() for folder in folders]
        if len({path.resolve() for path in paths}) != max(1, len(paths)):
            raise ValueError(
                f"`folders` must name one folder or several, each once, got {folders}:"
                " a run read twice would count its seeds twice."
            )
        runs = []
        for path in paths:
            folder = RunFolder(path)
            info = folder.info
            tuning = bool(info.get("tuning_seeds"))
            read = tables.read(folder, _selection(info), tuning)
            question = info.get("question", path.name)
            runs.append(cls(*read, question, folder=path, info=info))
        return runs[0] if len(runs) == 1 else _together(runs)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the tasks that are the same in all programs."""
        every = [program["facts"] for program in self.info.get("programs", ())]
        first = every[0] if every else {}
        return {k: v for k, v in first.items() if all(f.get(k) == v for f in every)}

    @cached_property
    def traces(self) -> dict[str, dj.cluster.Trace]:
        """The trace of each cluster under the first seed, by its name."""
        saved = self.info.get("traces", ())
        names = self.trace_labels
        return {
            name: dj.cluster.load_trace(self.folder / record["file"])
            for name, record in zip(names, saved, strict=True)
        }

    @property
    def trace_labels(self) -> dict[str, dict[str, Any]]:
        """The labels of each trace, of its arm and its cluster, by its name."""
        every = pd.DataFrame(
            [record["labels"] for record in self.info.get("traces", ())]
        )
        varied = analysis.distinguishing(every)
        rows = every.to_dict("records")
        return {analysis.label({k: row[k] for k in varied}): row for row in rows}


def _together(runs: Sequence[Run]) -> Run:
    """Several runs as one, as `Run.read` describes it."""
    names = [run.folder.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]

    def joined(parts):
        parts = [part.assign(run=n) for part, n in zip(parts, names, strict=True)]
        return pd.concat(parts, ignore_index=True)

    results = joined([run.results for run in runs])
    setting_columns = dict.fromkeys(name for run in runs for name in run.settings)
    what = [[run.info.get(key) for key in ("question", "config")] for run in runs]
    differ = any(item != what[0] for item in what)
    if differ or results.duplicated([*setting_columns, "seed"]).any():
        setting_columns = {"run": None, **setting_columns}

    def ordered(table):
        others = [name for name in table if name not in setting_columns]
        return table[[*setting_columns, *others]]

    selection = runs[0].selection
    if any(run.selection.optima is not None for run in runs):
        # of None the table is empty
        optima = [pd.DataFrame(run.selection.optima) for run in runs]
        selection = selection._replace(optima=joined(optima))
    if any(run.selection.results is not None for run in runs):
        # if a run has no tuning seeds, its reported seeds choose
        choose = [run.tuning for run in runs]
        selection = selection._replace(
            results=ordered(joined([run.results for run in choose])),
            curves=ordered(joined([run.curves for run in choose])),
        )
    curves = joined([run.curves for run in runs])
    # differences have the error of the least exact search
    searches = [run.info["search"] for run in runs if run.info.get("search")]
    info = dict(runs[0].info)
    if searches:
        info["search"] = max(searches, key=lambda search: search["tolerance"])
    return dataclasses.replace(
        runs[0],
        results=ordered(results),
        curves=ordered(curves),
        selection=selection,
        info=info,
    )


_ROWS_SHOWN = 30


def _shown(run: Run) -> str:
    """The series of a run as text."""
    if run.results.empty or "seed" not in run.results:
        return f"{len(run.results)} results"
    metric, table = run.selection.column, by_series(run, [run.selection.column])
    columns = analysis.distinguishing(run.results[run.series])
    rows = table[[*columns, *run.tuned]]
    values = list(map(interval_text, table[metric], table["diverged"]))
    rows = rows.assign(**{f"{metric} (95 % interval)": values})
    said = f"{len(rows)} series, {run.results['seed'].nunique()} seeds"
    if run.tuned:
        said += f"; each at its best {' and '.join(run.tuned)}"
    head = [run.question, *map(str, run.answers), said]
    left = len(rows) - _ROWS_SHOWN
    more = f"\n{left} more series: see `best`" if left > 0 else ""
    lines = rows[:_ROWS_SHOWN].to_string(index=False)
    return "\n".join(filter(None, [*head, lines + more, run.not_found()]))


def by_series(run: Run, metrics: Sequence[str]) -> pd.DataFrame:
    """A row for each series: its settings, best values of tuned axes, and metrics.

    A metric is (mean, low, high), as `analysis.spread` has it. `diverged` says whether
    a seed diverged at the best values.
    """
    best = run.best
    if run.selection.column not in best:
        judged = run.selection.judged(best, run.curves)
        times = judged[run.selection.column].to_numpy()
        best = best.assign(**{run.selection.column: times})
    rows = []
    for key, group in analysis.grouped(best, run.series):
        row = dict(zip(run.series, key, strict=True))
        row |= {axis: group[axis].iloc[0] for axis in run.tuned}
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


def _selection(info: Mapping[str, Any]) -> Selection:
    """The tuned axes, from run.json."""
    by = info.get("tuned_by", "train_loss")
    by = by if isinstance(by, str) else TimeTo(by["metric"], by["value"], by["along"])
    return Selection(tuple(info.get("tuned", ())), by)
