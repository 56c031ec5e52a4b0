"""One self-contained report.html of a run, which answers its question."""

import base64
import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import delayjax as dj
from experiments import figures
from experiments.figures import Drawn
from experiments.figures.axis_labels import loss_unit, with_unit, words
from experiments.report import page
from experiments.results import analysis, claims
from experiments.results.folder import TABLES
from experiments.results.runs import Run
from experiments.training.experiment import Experiment

_log = logging.getLogger("experiments")
_METRICS = ("train_loss", "test_loss", "test_error", "seconds", "updates")
_FATES = ("lost", "diverged")  # of a series in the final table, not shown
_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


def write(
    run: Run,
    experiment: Experiment | None = None,
    *,
    format: str = "svg",
) -> Path:
    """Draws the figures of a run and writes its report.html.

    Args:
        run: what was recorded.
        experiment: that was run, with its answer, claims and figures; None draws the
            common figures.
        format: of the figures, "svg" or "png".

    Returns:
        The file. It loads nothing: its figures are inside. A part that fails is left
        out: the report and a line of the log say which and why.
    """
    wanted = experiment.figures if experiment else ()
    drawn = figures.save(run, wanted or figures.default(run), format)
    changed = run.info.get("changed", {})
    question = run.info.get("question", run.folder.name)
    table = final_table(run)
    body = "\n".join(
        [
            f"<header>\n<h1>{page.text(question)}</h1>",
            f'<p class="answer">{page.text(headline(run, experiment, table))}</p>',
            _changed(changed),
            # what was seen with other values is not what this run saw
            "" if changed else _notes(run.info.get("notes", "")),
            "</header>",
            _published(run, experiment.published if experiment else ()),
            page.section("Figures", *map(_figure, drawn)) if drawn else "",
            _own_tables(run, experiment.tables if experiment else ()),
            _final(run, table),
            _clusters(run),
            _records(run, experiment),
            _commands(run),
            _provenance(run),
        ]
    )
    path = run.folder / "report.html"
    path.write_text(page.document(question, body), encoding="utf-8")
    return path


def _said(why: str) -> str:
    """What the report lacks and why, in the log too: the training is whole."""
    _log.warning("report: %s", " ".join(why.split()))
    return why


def headline(run: Run, experiment: Experiment | None, table: pd.DataFrame) -> str:
    """The answer, in a sentence or two made of this run's numbers."""
    if experiment is None or experiment.answer is None or run.info.get("changed"):
        return _best_row(run, table)
    try:
        return experiment.answer(run.found)
    except Exception as error:  # a function of the user's own
        why = _said(f"`answer` fails: {type(error).__name__}: {error}")
        return f"{_best_row(run, table)} ({why})"


def final_table(run: Run) -> pd.DataFrame:
    """A row a series at its best value of what is tuned, which is shown too.

    Settings, metrics with intervals, and the shares of all cells that diverged and that
    ended higher than they began; a diverged one counts there, too.
    """
    series = _series(run)
    rows = run.best
    shown = [
        name
        for name in (*_METRICS, *extra_metrics(run))
        if name in rows and rows[name].notna().any()
    ]
    table: list[dict[str, Any]] = []
    every = dict(_keyed(run.results, series))
    for key, group in _keyed(rows, series):
        row = dict(zip(series, key, strict=True))
        row |= {f"best {words(axis)}": group[axis].iloc[0] for axis in _tuned(run)}
        for metric in shown:
            (own,) = analysis.spread(group, metric, []).to_dict("records")
            row[metric] = own["mean"], own["low"], own["high"]
        row["diverged cells"] = f"{every[key]['diverged'].mean():.0%}"
        row["cells that ended higher"] = f"{analysis.lost(every[key]).mean():.0%}"
        fates = {"lost": analysis.lost(group).any()}
        fates["diverged"] = (group["diverged"] > 0).any()
        table.append(row | fates)
    return pd.DataFrame(table)


def _tuned(run: Run) -> list[str]:
    """The axes of which the table shows the best value: all that are searched."""
    optima = run.choice.optima
    return [
        axis
        for axis in run.choice.axes
        if axis in run.settings
        and (run.results[axis].nunique() > 1 or (optima is not None and axis in optima))
    ]


def _series(run: Run) -> list[str]:
    """The settings that are not tuned."""
    tuned = _tuned(run)
    return [name for name in run.settings if name not in tuned]


def _told(run: Run) -> list[str]:
    return analysis.told_by(run.results[_series(run)])


def extra_metrics(run: Run) -> list[str]:
    """Metrics that an experiment measures of its own."""
    columns = list(run.curves)
    after = columns[columns.index("seed") + 1 :] if "seed" in columns else []
    known = ("update", "examples", "seconds", "train_accuracy", "test_accuracy")
    known += ("train_error", "test_error", "gap", "train_loss", "test_loss", "run")
    return [name for name in after if name not in known]


def _keyed(frame: pd.DataFrame, by: Sequence[str]) -> list[tuple[Any, pd.DataFrame]]:
    """Groups by settings; an absent one (nan) equals another."""
    return [
        (tuple(None if pd.isna(part) else part for part in key), group)
        for key, group in analysis.grouped(frame, by)
    ]


def _best_row(run: Run, table: pd.DataFrame) -> str:
    metric = next(
        (m for m in ("test_error", "test_loss", "train_loss") if m in table), ""
    )
    live = table[~table["lost"]] if len(table) else table
    if not metric or live.empty:
        fate = "diverged" if table["diverged"].all() else "ended higher than it began"
        return f"Every one of the {len(table)} series {fate}."
    best = live.loc[[min(live.index, key=lambda i: live[metric][i][0])]]
    name = (
        analysis.label({c: best[c].iloc[0] for c in _told(run)}) if _told(run) else ""
    )
    value = _number(best[metric].iloc[0][0])
    where = f" at {name}" if name else ""
    return f"The lowest {words(metric)} is {value}{where}, of {len(table)} series."


def _changed(changed: Mapping[str, Any]) -> str:
    if not changed:
        return ""
    rows = [(key, _value(own), _value(now)) for key, (own, now) in changed.items()]
    caption = "Values that differ from the config file; its notes describe other values"
    return page.table(caption, ["value", "config file", "this run"], rows)


def _notes(notes: str) -> str:
    return "\n".join(
        f"<p>{page.text(part)}</p>" for part in notes.split("\n\n") if part
    )


def _published(run: Run, published: Sequence[claims.Published]) -> str:
    """What the sources say, each with what this run found."""
    if not published:
        return ""
    rows = []
    for own in claims.judge(published, run.found):
        if own.measured is None and own.claim.measure is not None:
            _said(f"{own.claim.text!r} cannot be measured: {own.reason}")
        said = [own.claim.source, own.claim.setting, f"said: {own.claim.said}"]
        rows.append(
            [
                own.claim.text,
                "; ".join(filter(None, said)),
                own.claim.expected,
                own.shown,
                page.mark(own.verdict),
            ]
        )
    caption = "What the sources say, and the 95 % interval of this run"
    if run.info.get("changed"):
        caption += "; this run has other values than the config file"
    header = ["statement", "source", "bound", "measured", "verdict"]
    notes = [
        f"<p>{page.text(own.text)}: {page.text(own.tried)}</p>"
        for own in published
        if own.tried and own.measure is not None
    ]
    stated = run.info.get("published")
    if stated and stated != claims.digest(published):
        edited = "These statements were edited after the run began."
        notes.append(f'<p class="note">{edited}</p>')
    return page.section("Published", page.table(caption, header, rows), *notes)


def _records(run: Run, experiment: Experiment | None) -> str:
    """The numbers that guard the results."""
    if experiment is None or run.info.get("changed"):
        return ""
    compared = claims.compare(experiment.records, run.found)
    for own in compared:
        if own.measured is None:
            _said(f"{own.record.text!r} cannot be measured: {own.reason}")
    rows = [
        [
            own.record.text,
            f"{own.record.value:.4g} ± {own.record.tolerance:.2g}",
            own.shown,
            page.mark("met" if own.met else "missed"),
        ]
        for own in compared
    ]
    if not rows:
        return ""
    caption = "Numbers of an earlier run: they show when results change"
    header = ["number", "record", "measured", "verdict"]
    return page.section("Records", page.table(caption, header, rows))


def _figure(drawn: Drawn) -> str:
    if drawn.path is None:
        why = _said(f"{drawn.name} is not drawn: {drawn.reason}")
        return f'<p class="note">{page.text(why)}</p>'
    said = page.text(drawn.caption)
    kind = _TYPES.get(drawn.path.suffix)
    if kind is None:  # no picture of a page
        return f"<p>figures/{page.text(drawn.path.name)}: {said}</p>"
    data = base64.b64encode(drawn.path.read_bytes()).decode()
    return (
        f'<figure>\n<img src="data:{kind};base64,{data}" alt="{said}">\n'
        f"<figcaption>{said}</figcaption>\n</figure>"
    )


def _own_tables(run: Run, tables: Sequence[Any]) -> str:
    """The experiment's own tables; each is a file beside the report too."""
    shown = []
    for own in tables:
        try:
            if own.name in TABLES:
                raise ValueError(f"{own.name}.csv is the run's: choose another name.")
            frame = own.of(run)
        except Exception as error:  # a table of the user's own, or of what is not there
            why = _said(f"{own.name} is not shown: {type(error).__name__}: {error}")
            shown.append(f'<p class="note">{page.text(why)}</p>')
            continue
        frame.to_csv(run.folder / f"{own.name}.csv", index=False)
        header = [words(column) for column in frame]
        rows = [[_value(value) for value in row] for row in frame.to_numpy()]
        shown.append(page.table(own.caption, header, rows))
    return page.section("Tables", *shown) if shown else ""


def _final(run: Run, table: pd.DataFrame) -> str:
    seeds = run.results["seed"].nunique()
    measured = [c for c in table if c not in (*run.settings, *_FATES)]
    columns = [*_told(run), *measured]
    header = [with_unit(name, loss_unit(run)) for name in columns]
    rows = [
        [_cell(row[c], row["diverged"]) for c in columns]
        for row in table.to_dict("records")
    ]
    chosen = _how_chosen(run)
    missed = run.found.not_found()
    interval = f"; in brackets the 95 % interval of {seeds} seeds" * (seeds > 1)
    caption = f"Each series{chosen}: means{interval}"
    note = f'<p class="note">{page.text(missed)}</p>' if missed else ""
    return page.section("Results", page.table(caption, header, rows), note)


def _how_chosen(run: Run) -> str:
    """On which seeds the best values were chosen."""
    tuned = _tuned(run)
    if not tuned:
        return ""
    what = f" at its best {' and '.join(map(words, tuned))}"
    by = f"the least {words(run.choice.column)}"
    if run.choice.optima is not None and not run.choice.seeds:
        trainings = run.choice.optima["trainings"].sum()
        return f"{what}: {by}, searched in {trainings:,} trainings on other seeds"
    if not run.choice.seeds:
        chosen = f"{what}, chosen on these seeds by {by}"
        return f"{chosen}, which makes it look better than it is"
    seeds = ", ".join(map(str, run.choice.seeds))
    return f"{what}, chosen by {by} on the seeds {seeds}, which are not reported"


def _cell(value: Any, diverged: bool) -> str:
    if not isinstance(value, tuple):
        return _value(value)
    if diverged:
        return "diverged"
    mean, low, high = value
    if low == high:
        return _number(mean)
    return f"{mean:.4g} ({low:.3g} to {high:.3g})"


def _clusters(run: Run) -> str:
    """What each arm's cluster did, under the first seed."""
    if not run.traces:
        return ""
    rows = [_cluster(name, trace) for name, trace in run.traces.items()]
    header = ["arm", "workers", "staleness (updates): mean, 99 % at most, all at most"]
    header += ["seconds an update", "idle", "dropped gradients"]
    caption = "What each arm's cluster did, under the first seed"
    return page.section("Clusters", page.table(caption, header, rows))


def _cluster(name: str, trace: dj.cluster.Trace) -> list[Any]:
    own = trace.summary()
    staleness = f"{_number(own.mean)}, {own.p99:g}, {own.max}"
    idle = "unknown" if pd.isna(own.idle_share) else f"{max(own.idle_share, 0):.1%}"
    share = own.dropped / max(own.dropped + len(trace.worker), 1)
    dropped = f"{own.dropped:,} ({share:.1%})" if own.dropped else "0"
    seconds = _number(1 / own.updates_per_second)
    return [name, trace.num_workers, staleness, seconds, idle, dropped]


def _commands(run: Run) -> str:
    folder = shlex.quote(str(run.folder))
    again = f"python -m experiments.draw {folder}"
    found = {}
    if run.info.get("source"):
        arguments = shlex.join(run.info.get("argv", [])[1:])
        found["This run"] = f"python -m experiments.main {arguments}"
    found["Its figures and this report again"] = again
    for x in _told(run)[:1]:
        options = f"--x={x} --y=train_loss --out=."
        found["A figure of several runs"] = f"{again} OTHER {options}"
    tables = f"import experiments; experiments.load({str(run.folder)!r}).results"
    found["Its tables, in Python"] = tables
    return page.section("Commands", *page.commands(found))


def _provenance(run: Run) -> str:
    programs, config = run.info.get("programs", ()), run.info.get("config", {})
    knobs = [(key, _value(value)) for key, value in config.items()]
    return page.section(
        "What ran",
        page.table("Run", ["what", "value"], list(_facts(run).items())),
        page.table(
            "Programs",
            ["program", "cells", "updates", "updates/s"],
            [_program(own, run.metrics) for own in programs],
        ),
        page.table("Config", ["key", "value"], knobs) if knobs else "",
    )


def _facts(run: Run) -> dict[str, str]:
    """When, where and of what a run was made."""
    info, seconds = run.info, run.info.get("wall_seconds", 0.0)
    found = {
        "wall time": f"{seconds:.0f} s"
        + f" ({seconds / 60:.1f} min)" * (seconds >= 60),
        "started": info.get("started", "unknown"),
        "devices": info.get("devices", "unknown"),
        "git commit": info.get("git", "unknown"),
        "seeds": _value(info.get("seeds", ())),
    }
    if info.get("tuning_seeds"):
        found["tuning seeds"] = _value(info["tuning_seeds"])
    tasks = {f"task: {name}": _value(value) for name, value in run.facts.items()}
    return found | info.get("versions", {}) | tasks


def _program(own: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> list[Any]:
    """A program, with the speed of its last chunk."""
    rows = [row for row in metrics if row["program"] == own["name"]]
    speeds = [row["updates_per_second"] for row in rows if "updates_per_second" in row]
    speed = _number(speeds[-1]) if speeds else ""
    return [own["name"], len(own["cells"]), f"{own['updates']:,}", speed]


def _number(value: float) -> str:
    return "none" if pd.isna(value) else f"{value:.4g}"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value, value))
    if isinstance(value, float):
        return _number(value)
    return "" if value is None else str(value)
