"""Writes report.html of a run: one self-contained page that answers its question."""

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import delayjax as dj
from experiments import figures, page
from experiments.figures import Drawn
from experiments.host.folder import TABLES
from experiments.page import Picture, Statement, Table, Verdict, shown
from experiments.results import analysis, claims, effects, runs
from experiments.results.column_words import loss_unit, with_unit, words
from experiments.results.runs import Run
from experiments.statements import Verdicts
from experiments.training.experiment import Experiment

_log = logging.getLogger("experiments")
_EFFECTS = (
    "Effects, with 95 % intervals over seeds: a ratio has the interval of its logarithm"
)
_SPREAD = "of the logarithm where no number is negative"
_METRICS = ("train_loss", "test_loss", "test_error", "seconds", "updates")


def write(
    run: Run,
    experiment: Experiment | None = None,
    verdicts: Verdicts = Verdicts(),  # noqa: B008 (immutable)
    *,
    format: str = "svg",
) -> Path:
    """Draws the figures of a run and writes its report.html.

    Args:
        run: the recorded run.
        experiment: the experiment that was run, with its effects and figures; without
            it the report has the common figures.
        verdicts: the verdicts of the run on the statements about it.
        format: the format of the figures, "svg" or "png".

    Returns:
        The path of the report, whose figures are inside of the file. A part that fails
        is left out: the report and a line of the log name it and say why.
    """
    path = run.folder / "report.html"
    text = page.render("report.html", **contents(run, experiment, verdicts, format))
    path.write_text(text, encoding="utf-8")
    return path


def contents(
    run: Run, experiment: Experiment | None, verdicts: Verdicts, format: str
) -> dict[str, Any]:
    """The data of the report, {name in the template: value}; draws the figures.

    No value is HTML.
    """
    changed = run.info.get("changed", {})
    published = [judged.claim for judged in verdicts.published]
    wanted = experiment.figures if experiment else ()
    drawn = figures.save(run, wanted or figures.default(run), format)
    table = final_table(run)
    begun_with = run.info.get("published")
    return {
        "question": run.question,
        "answers": _answers(run, experiment),
        "changed": [(key, *values) for key, values in changed.items()],
        "published": _published(verdicts.published),
        "edited": begun_with not in (None, "", claims.digest(published)),
        "figures": [_figure(figure) for figure in drawn],
        "tables": [_own_table(run, each) for each in experiment.tables]
        if experiment
        else [],
        "results": _results(run, table),
        "missed": run.not_found(),
        "clusters": [_cluster(*item) for item in run.traces.items()],
        "records": _records(verdicts.records),
        "folder": shlex.quote(str(run.folder)),
        "arguments": shlex.join(run.info.get("argv", ["", ""])[1:])
        if run.info.get("source")
        else "",
        "axes": _distinct(run),
        "facts": _facts(run),
        "config": run.info.get("config", {}),
    }


def _failed(what: str, why: str | Exception) -> str:
    """A text about a part that fails, also logged: the training is not affected."""
    if isinstance(why, Exception):
        why = f"{type(why).__name__}: {why}"
    text = f"{what}: {why}"
    _log.warning("report: %s", " ".join(text.split()))
    return text


def _answers(run: Run, experiment: Experiment | None) -> list[dict[str, Any]]:
    """The text of each answer with the table of its effects, or why it fails."""
    asked = experiment.effects if experiment else ()
    answers = []
    for answer in run.answers or effects.answers(run, asked):
        if isinstance(answer, str):
            if not run.answers:  # `run` has logged its own
                _failed("`answer` fails", answer)
            answers.append({"text": f"`answer` fails: {answer}", "table": None})
            continue
        rows = answer.shown.to_numpy().tolist()
        table = Table(_EFFECTS, [*answer.shown], rows)
        answers.append({"text": answer.text, "table": table})
    return answers


def final_table(run: Run) -> pd.DataFrame:
    """A table with a row for each series, at its best tuned values.

    Its columns are the settings, the best tuned values, metrics with intervals, and the
    shares of all trainings that diverged and that ended higher than they began. A
    training that diverged counts in both shares.
    """
    names = [*_METRICS, *extra_metrics(run)]
    metrics = [n for n in names if n in run.results and run.results[n].notna().any()]
    table = runs.by_series(run, metrics)
    shares = [
        dict(zip(run.series, key, strict=True))
        | {
            "of all its trainings, diverged": f"{group['diverged'].mean():.0%}",
            "of all its trainings, ended higher": f"{analysis.lost(group).mean():.0%}",
        }
        for key, group in analysis.grouped(run.results, run.series)
    ]
    keys = dict(on=run.series) if run.series else dict(how="cross")
    table = table.merge(pd.DataFrame(shares), **keys)
    return table.rename(columns={axis: f"best {words(axis)}" for axis in run.tuned})


def _distinct(run: Run) -> list[str]:
    """The settings whose values distinguish the series."""
    return analysis.distinguishing(run.results[run.series])


def extra_metrics(run: Run) -> list[str]:
    """The metrics that the experiment measures beside the common metrics."""
    columns = list(run.curves)
    after = columns[columns.index("seed") + 1 :] if "seed" in columns else []
    known = ("update", "examples", "seconds", "train_accuracy", "test_accuracy")
    known += ("train_error", "test_error", "gap", "train_loss", "test_loss", "run")
    return [name for name in after if name not in known]


def _published(judged: Sequence[claims.Judged]) -> list[Statement]:
    """The statements of the sources with the run's verdicts; failures are logged."""
    for statement in judged:
        if statement.measured is None and statement.claim.measure is not None:
            _failed(f"{statement.claim.text!r} cannot be measured", statement.reason)
    return [Statement.of(statement) for statement in judged]


def _records(compared: Sequence[claims.Compared]) -> list[list[str]]:
    """Rows with a recorded number, the number of this run, and a verdict."""
    for item in compared:
        if item.measured is None:
            _failed(f"{item.record.text!r} cannot be measured", item.reason)
    return [
        [
            item.record.text,
            f"{item.record.value:.4g} ± {item.record.tolerance:.2g}",
            item.shown,
            Verdict("met" if item.met else "missed"),
        ]
        for item in compared
    ]


def _figure(drawn: Drawn) -> Picture | str:
    """The picture of a figure, or the reason why it is not drawn."""
    if drawn.path is None:
        return _failed(f"{drawn.name} is not drawn", drawn.reason)
    path = drawn.path
    picture = Picture.of(drawn.caption, path.read_bytes(), path.suffix)
    text = f"figures/{path.name}: {drawn.caption}"  # for files that no page can show
    return picture if picture.source else Picture(text, "")


def _own_table(run: Run, table: Any) -> Table | str:
    """A table of the experiment, also written to a file; or the reason why it fails."""
    try:
        if table.name in TABLES:
            raise ValueError(
                f"{table.name}.csv is a file of each run: choose another name."
            )
        frame = table.make(run)
        frame.to_csv(run.folder / f"{table.name}.csv", index=False)
        rows = frame.to_numpy(dtype=object).tolist()
        return Table(table.caption, [words(column) for column in frame], rows)
    except Exception as error:  # the user's code fails, or a column is missing
        name = getattr(table, "name", type(table).__name__)
        return _failed(f"{name} is not shown", error)


def _results(run: Run, table: pd.DataFrame) -> Table:
    seeds = run.results["seed"].nunique()
    measured = [c for c in table if c not in (*run.settings, "diverged")]
    columns = [*_distinct(run), *measured]
    rows = [
        [_cell(row[c], row["diverged"]) for c in columns]
        for row in table.to_dict("records")
    ]
    interval = f"; in brackets the 95 % interval of {seeds} seeds, {_SPREAD}"
    interval *= seeds > 1
    caption = f"Each series{_how_chosen(run)}: means{interval}"
    return Table(caption, [with_unit(name, loss_unit(run)) for name in columns], rows)


def _how_chosen(run: Run) -> str:
    """The part of a caption that says how, and on which seeds, values were tuned."""
    if not run.tuned:
        return ""
    what = f" at its best {' and '.join(map(words, run.tuned))}"
    by = f"the least {words(run.selection.column)}"
    seeds = ", ".join(map(str, run.selection.seeds))
    listed = "on these seeds, which makes it look better than it is"
    if seeds:
        listed = f"on the seeds {seeds}, which are not reported"
    if run.selection.optima is None:
        return f"{what}, chosen by {by} {listed}"
    trainings = run.selection.optima["trainings"].sum()
    searched = f"{what}: {by}, searched in {trainings:,} trainings on other seeds"
    rest = run.results[~run.selection.are_searched(run.results)]
    # without tuning seeds a series that is not searched is chosen by its own seeds
    if seeds or len(run.selection.best(rest, run.curves)) < len(rest):
        return f"{searched}; what is not searched is chosen {listed}"
    return searched


def _cell(value: Any, diverged: bool) -> Any:
    """The text of a metric, or the value of a setting; None if the series lacks it."""
    if isinstance(value, tuple):
        return runs.interval_text(value, diverged)
    return None if pd.isna(value) else value


def _cluster(name: str, trace: dj.cluster.Trace) -> list[Any]:
    """The row of a cluster in the table of clusters, under the first seed."""
    summary = trace.summary()
    staleness = f"{shown(summary.mean)}, {summary.p99:g}, {summary.max}"
    idle = (
        "unknown"
        if pd.isna(summary.idle_share)
        else f"{max(summary.idle_share, 0):.1%}"
    )
    share = summary.dropped / max(summary.dropped + len(trace.worker), 1)
    dropped = f"{summary.dropped:,} ({share:.1%})" if summary.dropped else "0"
    seconds = 1 / summary.updates_per_second
    return [name, trace.num_workers, staleness, seconds, idle, dropped]


def _facts(run: Run) -> dict[str, Any]:
    """The time, devices, versions, seeds and task facts of a run, by their names."""
    info, seconds = run.info, run.info.get("wall_seconds", 0.0)
    facts = {
        "wall time": f"{seconds:.0f} s"
        + f" ({seconds / 60:.1f} min)" * (seconds >= 60),
        "started": info.get("started", "unknown"),
        "devices": info.get("devices", "unknown"),
        "git commit": info.get("git", "unknown"),
        "seeds": info.get("seeds", ()),
    }
    if info.get("tuning_seeds"):
        facts["tuning seeds"] = info["tuning_seeds"]
    tasks = {f"task: {name}": value for name, value in run.facts.items()}
    return facts | info.get("versions", {}) | tasks
