"""The answer to a question: effects with intervals, compared with a relevant size."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from experiments.host.failures import in_one_line
from experiments.results import analysis
from experiments.results.column_words import with_unit, words
from experiments.results.estimates import jackknife
from experiments.results.formulas import formulas
from experiments.results.metrics import Metric, TimeTo, column, with_column
from experiments.results.runs import Run
from experiments.results.sizes import Size, percent, points

HIGHER, LOWER, WITHIN = "higher", "lower", "within"
UNDECIDED, NO_OPTIMUM = "undecided", "no optimum"
LOST, NO_BASE, NO_RATIO = "lost", "nothing to compare with", "no ratio"
"""The readings of an effect's interval."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effect:
    """A comparison that answers a question, and the smallest effect that matters.

    Each series is compared with the series that has the settings `against` and equals
    it in all other settings; each is taken at its best value of the tuned axes. The
    effect of a ratio is

        log(metric here / metric there)

    and of a difference metric here - metric there, a mean over seeds with the t
    interval of the jackknife (see `estimates.estimate`). The interval decides: if all
    of it is beyond the size on one side, the effect is "higher" or "lower"; if all of
    it is inside, "within"; else the seeds leave it "undecided". So the absence of an
    effect is distinguished from too few seeds. If a search minimized the metric, the
    interval is longer by the tolerance of the search on both sides (`Run.slack`).

    Attributes:
        metric: a column of the results, or one of `metrics`. A `TimeTo` whose value
            is never reached is infinite.
        against: {label or axis: value}; or a function of settings, such as a theory,
            that returns the number to compare with (None: no comparison).
        size: the smallest effect that matters, from `percent`, `points` or `amount`.
        where: {label or axis: value or values}: the rows to compare.
        mean_over: settings over whose values the effect is a mean; for a ratio the
            mean of its logarithm. Only values that both series have count.
        kept: {label or axis: value}: all series are taken at the best values of this
            series, instead of each at its best.
        name: the name of the metric in the answer; by default the words for the
            column.

    Example:
        >>> rows = [(0, 0, 0.10), (0, 1, 0.12), (8, 0, 0.20), (8, 1, 0.22)]
        >>> columns = ["delay", "seed", "test_error"]
        >>> run = Run(pd.DataFrame(rows, columns=columns), pd.DataFrame())
        >>> from experiments.results.sizes import amount
        >>> one = Effect(metric="test_error", against={"delay": 0}, size=points(1))
        >>> print(one.answer(run))
        Test error, compared with delay=0 (0.11): more than 1 point higher at delay=8 \
(+10 to +10 points).

        With the step kept that is best without delay:

        >>> rows = [(r, d, s, 1 + abs(r - best) + s) for r in (1, 2)
        ...         for d, best in ((0, 1), (8, 2)) for s in (0, 1)]
        >>> columns = ["learning_rate", "delay", "seed", "train_loss"]
        >>> run = Run(pd.DataFrame(rows, columns=columns), pd.DataFrame(),
        ...               run.selection._replace(axes=("learning_rate",)))
        >>> one = Effect(metric="train_loss", against={"delay": 0}, size=amount(0.5),
        ...              kept={"delay": 0})
        >>> print(one.answer(run))
        Training loss, each with the step size that is best at delay=0, compared with \
delay=0 (1.5): more than 0.5 higher at delay=8 (+1 to +1).

        A mean over settings, each compared with itself:

        >>> rows = [("plain", 1, 0, 2.0), ("plain", 9, 0, 5.0), ("rule", 9, 0, 3.0)]
        >>> columns = ["rule", "workers", "seed", "train_loss"]
        >>> run = Run(pd.DataFrame(rows, columns=columns), pd.DataFrame())
        >>> one = Effect(metric="train_loss", against={"rule": "plain"},
        ...              size=amount(1), mean_over=("workers",))
        >>> one.table(run)[["rule", "effect"]].values.tolist()
        [['rule', -2.0]]
    """

    metric: Metric
    against: Mapping[str, Any] | Callable[..., float | None]
    size: Size
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mean_over: Sequence[str] = ()
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str = ""

    def __post_init__(self):
        if not isinstance(self.size, Size):
            raise TypeError(
                "`size` must be percent(..), points(..) or amount(..), got"
                f" {self.size!r}."
            )
        if not (callable(self.against) or isinstance(self.against, Mapping)):
            raise TypeError(
                "`against` must be settings, as {'delay': 0}, or a function of them,"
                f" got {self.against!r}."
            )

    def table(self, run: Run) -> pd.DataFrame:
        """One row per comparison: settings, `here`, `there`, `effect`, `low`, `high`.

        Effects of a ratio are ratios. `reading` is the reading of the interval.

        Raises:
            ValueError: if no row has the settings `where` or `against`.
        """
        run = run.where(**self.where)
        measured = run.results
        names = [c for c in analysis.settings(measured) if c not in run.selection.axes]
        # a number for each series, the same with and without a seed
        number = analysis.numbered(measured, names)
        series = measured[names].assign(series=number).drop_duplicates("series")
        pairs = self._pairs(series, names)
        if pairs.empty:
            raise ValueError(f"no row can be compared with {self._base()}.")
        results = measured.assign(series=number)
        numbered = dataclasses.replace(run, results=results)
        names = [*pd.Index(names).drop([*self.mean_over])]
        groups = analysis.numbered(pairs, names)
        rows = pairs.assign(group=groups).drop_duplicates("group")

        def mean(values: ArrayLike) -> np.ndarray:
            return np.bincount(groups, np.asarray(values, float)) / np.bincount(groups)

        def sides(part: Run) -> tuple[pd.DataFrame, pd.DataFrame]:
            means = self._means(part)
            this = means.reindex(pairs["series"])
            if callable(self.against):
                return this, pd.DataFrame({"value": pairs["theory"], "never": False})
            return this, means.reindex(pairs["base"])

        def effects(part: Run) -> np.ndarray:
            this, other = (side["value"].to_numpy(float) for side in sides(part))
            with np.errstate(divide="ignore", invalid="ignore"):
                if self.size.ratio:  # nan if a number is negative
                    return mean(np.log(np.where(other < 0, np.nan, this / other)))
                return mean(this - other)

        here, there = (
            np.where(mean(side["never"]) > 0, np.inf, mean(side["value"]))
            for side in sides(numbered)
        )
        estimates = jackknife(effects, numbered, _seeds(results, pairs, groups))
        if not self.kept:  # each series is at its searched optimum
            slack = run.slack(self.metric, relative=self.size.ratio)
            estimates = [estimate._replace(slack=slack) for estimate in estimates]
        low, high = np.array([estimate.interval() for estimate in estimates]).T
        value = np.array([estimate.value for estimate in estimates])
        shown = np.exp if self.size.ratio else np.asarray
        table = rows[names].assign(here=here, there=there)
        table = table.assign(effect=shown(value), low=shown(low), high=shown(high))
        readings = list(map(self._reading, here, there, low, high))
        optimum = mean(self._are_found(run, measured, number, pairs)) == 1
        table["reading"] = np.where(optimum, readings, NO_OPTIMUM)
        return table.reset_index(drop=True)

    def check(self, run: Run) -> None:
        """Checks that tables have all settings, values and metrics that are named.

        Raises:
            AbsentError: naming the argument.
            KeyError: if a metric that is made needs what is not there.
        """
        against = {} if callable(self.against) else self.against
        over = dict.fromkeys(self.mean_over, ())
        for argument, settings in {
            "where": self.where,
            "against": against,
            "kept": self.kept,
            "mean_over": over,
        }.items():
            analysis.check_settings(argument, run.results, settings)
        if isinstance(self.metric, str):
            analysis.require(run.results, self.metric)
        self.table(run)

    def answer(self, run: Run) -> "Answer":
        """The effects as a sentence and a table."""
        table = self.table(run)
        return Answer(self._sentence(run, table), self._shown(table), table)

    def _pairs(self, series: pd.DataFrame, names: list[str]) -> pd.DataFrame:
        """Each series with the series that it is compared with."""
        if callable(self.against):
            pairs = series.assign(theory=formulas(self.against, series[names]))
            return pairs[pairs["theory"].notna()]
        unknown = [name for name in self.against if name not in names]
        if unknown:
            raise ValueError(f"`against` names {unknown}, which no series has.")
        base = analysis.where(series, **self.against)
        # a base without a setting is compared with the series of all its values
        keys = [n for n in names if n not in self.against and base[n].notna().any()]
        others = series[~series["series"].isin(base["series"])]
        base = base[[*keys, "series"]].rename(columns={"series": "base"})
        return others.merge(base, on=keys) if keys else others.merge(base, how="cross")

    def _means(self, run: Run) -> pd.DataFrame:
        """The metric of each series: `value`, a mean over the seeds, and `never`.

        The value is nan if a seed is lost. `never` says whether a seed never reaches
        the value of a `TimeTo`: such a seed counts with the end of its curve.
        """
        selection = run.selection.judged_by(self.metric)
        best = selection.best(run.results, run.curves)
        if self.kept:
            best = selection.kept(run.results, analysis.where(best, **self.kept))
        best = with_column(self.metric, best, run.curves)
        values, never = best[self._column], pd.Series(False, best.index)
        if isinstance(self.metric, TimeTo):
            never = np.isinf(values)
            values = values.clip(upper=self.metric.ends(best, run.curves).to_numpy())
        elif not analysis.is_fact(self._column, best):
            values = values.where(~analysis.lost(best))
        measured = pd.DataFrame({"value": values, "never": never})
        by_series = measured.groupby(best["series"])
        return by_series.agg({"value": lambda x: x.mean(skipna=False), "never": "any"})

    def _are_found(self, run, rows, number, pairs) -> np.ndarray:
        """Whether the optimum of both series of a pair is found, if it is searched."""
        each = run.selection.are_found(rows).groupby(number).all()
        both = pairs["series"].map(each)
        if "base" in pairs:
            both &= pairs["base"].map(each)
        return both.to_numpy(bool)

    def _reading(self, here: float, there: float, low: float, high: float) -> str:
        """The reading of an interval; a time that is never reached is inf."""
        if np.isnan(there):
            return NO_BASE
        if np.isnan(here):
            return LOST
        if self.size.ratio and min(here, there) < 0:
            return NO_RATIO
        edge, late, late_base = self.size.edge, np.isinf(here), np.isinf(there)
        # a seed that never reaches the value needs longer than its curve: then only one
        # end of the interval is certain
        if low > edge and not late_base:
            return HIGHER
        if high < -edge and not late:
            return LOWER
        inside = -edge < low and high < edge and not (late or late_base)
        return WITHIN if inside else UNDECIDED

    @property
    def _column(self) -> str:
        return column(self.metric)

    def _base(self) -> str:
        if callable(self.against):
            return "theory"
        return analysis.label(self.against)

    def _labels(self, table: pd.DataFrame) -> list[str]:
        names = [c for c in table.columns[: table.columns.get_loc("here")]]
        varied = analysis.distinguishing(table[names]) or [
            n for n in names if not callable(self.against) and n in self.against
        ]
        return [analysis.label(row) for row in table[varied].to_dict("records")]

    def _sentence(self, run: Run, table: pd.DataFrame) -> str:
        name = self.name or words(self._column)
        axes = [axis for axis in run.selection.axes if axis in run.results]
        shown = {*self.where, getattr(self.metric, "axis", None)}
        free = [axis for axis in axes if axis not in shown]
        tuned = " and ".join(map(words, free))
        fact = isinstance(self.metric, str) and analysis.is_fact(
            self._column, run.results
        )
        by = run.selection.column
        least = f" (least {words(by)})" if by != self._column else ""
        each = f", each with its best {tuned}{least}" if free and not fact else ""
        over = " and ".join(f"every {words(name)}" for name in self.mean_over)
        if free and self.kept:
            best_at = analysis.label(self.kept)
            each = f", each with the {tuned} that is best at {best_at}"
        there = table["there"].unique()
        base = f" ({there[0]:.3g})" if len(there) == 1 else ""
        base = base.replace("(inf)", "(not in time)")
        parts = []
        for reading, said in self._said().items():
            rows = table[table["reading"] == reading]
            if len(rows):
                # commas separate the series
                labels = [label.replace(", ", " ") for label in self._labels(table)]
                parts.append(f"{said} {_listed(labels, rows, self)}")
        each += f", a mean over {over}" * bool(over)
        head = f"{name[:1].upper()}{name[1:]}{each}, compared with {self._base()}{base}"
        return f"{head}: {'; '.join(parts)}."

    def _said(self) -> dict[str, str]:
        return {
            HIGHER: f"more than {self.size.text} higher at",
            LOWER: f"more than {self.size.text} lower at",
            WITHIN: f"at most {self.size.text} apart at",
            UNDECIDED: "not decided by these seeds at",
            LOST: "higher at the end than at the beginning at",
            NO_BASE: "nothing to compare with at",
            NO_RATIO: "a number below zero, which has no ratio, at",
            NO_OPTIMUM: "no verdict, as no optimum is found, at",
        }

    def _shown(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table as a page shows it."""
        kind = "ratio" if self.size.ratio else "difference"
        return pd.DataFrame(
            {
                "series": self._labels(table),
                with_unit(self._column): [_number(value) for value in table["here"]],
                "compared with": [_number(value) for value in table["there"]],
                f"{kind} (95 % interval)": [
                    self.size.interval(row) for row in table.to_dict("records")
                ],
                f"verdict (size {self.size.text})": table["reading"],
            }
        )


class Answer(NamedTuple):
    """The answer of a run to a question.

    Attributes:
        text: the answer in a sentence.
        shown: the effects as text.
        table: the effects as numbers.
    """

    text: str
    shown: pd.DataFrame
    table: pd.DataFrame

    def __str__(self):
        return self.text


def _seeds(
    results: pd.DataFrame, pairs: pd.DataFrame, groups: np.ndarray
) -> list[list[set[int]]]:
    """The seeds of each series that an effect compares, for all effects."""
    of_series = results.groupby("series")["seed"].agg(set)
    seeds: list[list[set[int]]] = [[] for _ in range(max(groups) + 1)]
    for side in {"series", "base"} & {*pairs}:
        for group, series in zip(groups, pairs[side], strict=True):
            seeds[group].append(of_series[series])
    return seeds


_NAMED = 8  # series with an interval each, in a sentence


def _listed(labels: Sequence[str], rows: pd.DataFrame, effect: Effect) -> str:
    """Settings with their intervals; for many, the settings and the largest effect."""
    records = rows.to_dict("records")
    names = [labels[i] for i in rows.index]
    if rows["effect"].isna().all():
        return ", ".join(names)
    if len(records) <= _NAMED:
        parts = [
            f"{name} ({effect.size.interval(row)})"
            for name, row in zip(names, records, strict=True)
        ]
        return ", ".join(parts)
    size = np.log(rows["effect"]) if effect.size.ratio else rows["effect"]
    most = int(np.nan_to_num(np.abs(size.to_numpy()), nan=-1.0).argmax())
    interval = effect.size.interval(records[most])
    return f"{', '.join(names)} (largest at {names[most]}: {interval})"


def _number(value: float) -> str:
    return "never" if np.isinf(value) else "lost" if np.isnan(value) else f"{value:.4g}"


def usual(run: Run) -> list[Effect]:
    """The comparison of a run whose experiment has no `answer`.

    Each series is compared with the first one, in the metric by which it is tuned. An
    effect of 10 % matters, or of 1 point if the metric is an error.
    """
    names = [c for c in analysis.settings(run.results) if c not in run.selection.axes]
    varied = analysis.distinguishing(run.results[names])
    if not varied:
        return []
    first = run.results[varied[0]].dropna().iloc[0]
    metric = run.selection.by
    size = points(1) if str(metric).endswith("error") else percent(10)
    return [Effect(metric=metric, against={varied[0]: first}, size=size)]


def answers(run: Run, effects: Sequence[Effect]) -> list[Answer | str]:
    """The answer of each effect, or in one line why it cannot be measured."""
    made: list[Answer | str] = []
    for effect in effects or usual(run):
        try:
            answer = effect.answer(run)
            if not isinstance(answer, Answer):
                raise TypeError(f"it returned {answer!r}, and no `Answer`")
            made.append(answer)
        except Exception as error:  # a changed flag removed settings, or a theory fails
            made.append(_failed(effect, error))
    return made


def _failed(effect: Any, error: Exception) -> str:
    """Why an effect, or an object of the user's own, has no answer."""
    if not isinstance(effect, Effect):
        return f"{type(effect).__name__} has no answer: {in_one_line(error)}"
    name = getattr(effect.metric, "name", effect.metric)
    return (
        f"{words(str(name))} cannot be compared with {effect._base()}:"
        f" {in_one_line(error)}"
    )
