"""One self-contained report.html of a run."""

import base64
import json
import math
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict

from experiments import expected, figures, results, tuning
from experiments.figures.run import Run, load
from experiments.report import arms, page
from experiments.results import Row
from experiments.tuning import Point

# for those who cannot see the figures; {metric} is config.metric
_TEXTS = {
    "over_delay": "Line chart of {metric} against staleness, at a fixed step size and"
    " at the one re-tuned for each delay. The table of results has its numbers.",
    "gap_over_delay": "Line charts of test loss minus training loss against staleness,"
    " at a fixed step size and at the one re-tuned for each delay.",
    "best_step": "Line chart of the best step size against staleness. The table of"
    " results has its numbers.",
    "stability_map": "Map of the final training loss over step size and staleness."
    " Diverged cells are black; where it is known, a line is the computed limit.",
    "noise_floor": "Chart of the final training loss against staleness at each step"
    " size: the mean and the range of the seeds, and lines of what theory says. Cells"
    " that diverged are crosses. results.csv has the numbers.",
    "loss_curves": "Line chart of the median training loss over the updates.",
    "over_seconds": "Line chart of {metric} of each arm at its best step size against"
    " simulated seconds: the median and the range of the seeds. An accuracy is shown as"
    " an error.",
    "over_updates": "Line chart of {metric} of each arm at its best step size against"
    " the number of updates: the median and the range of the seeds. An accuracy is"
    " shown as an error.",
    "over_examples": "Line chart of {metric} of each arm at its best step size against"
    " the number of examples in its gradients: the median and the range of the seeds."
    " An accuracy is shown as an error.",
    "arms": "Dot plot of {metric} at the end, arms as rows and laws as colors, at the"
    " step size that is best for the first arm and at each one's own best: the mean and"
    " the range of the seeds. An accuracy is shown as an error. A table below has the"
    " numbers.",
    "staleness": "Histograms of the staleness of each arm's gradients, with their mean"
    " and the mean that theory gives, under the first seed. The table of arms has the"
    " numbers.",
    "update_times": "Chart of the time between updates of each arm: where nine of ten"
    " lie, their mean and the mean that theory gives, under the first seed. The table"
    " of arms has the numbers.",
    "gantt": "Chart of what the workers do in the first seconds, under the first seed:"
    " bars of computing, idle gaps, dropped gradients, and updates as ticks.",
    "over_option": "Line chart of what each arm reached at its best step size against a"
    " number in which the arms differ: the mean and the range of the seeds. A table"
    " below has the numbers.",
    "decay_rate": "Chart of the rate at which the error of each arm dies out against"
    " its number of workers: the mean and the range of the seeds, and lines of what"
    " theory says, with its fastest number of workers starred.",
}


def write(workdir: Path | str) -> Path:
    """Writes report.html from the records of a run and the figures drawn from them.

    Args:
        workdir: a run's folder, with config.json, results.csv and figures/.

    Returns:
        The file. It loads nothing: its figures are inside.

    Raises:
        FileNotFoundError: if a record is missing.
        ValueError: if a record cannot be read.
    """
    workdir = Path(workdir)
    record, run = results.read_config(workdir), load(workdir)
    question, *rest = _paragraphs(record["docstring"]) or [str(workdir)]
    body = "\n".join(
        [
            f"<header>\n<h1>{page.text(question)}</h1>",
            *map(_paragraph, rest),
            "</header>",
            page.section(
                "Command", f"<pre><code>{page.text(_command(record))}</code></pre>"
            ),
            _warnings(figures.warnings(workdir)),
            page.section("Figures", *_figures(workdir, record["config"])),
            page.section("Results", *arms.tables(run), _results(run)),
            _expected(record, run.rows),
            page.section("What ran", _provenance(record), _config(record["config"])),
        ]
    )
    path = workdir / "report.html"
    path.write_text(page.document(question, body), encoding="utf-8")
    return path


def _paragraphs(docstring: str) -> list[str]:
    """A question of several lines is one line; indented paragraphs keep theirs."""
    parts = [part for part in docstring.strip().split("\n\n") if part.strip()]
    return [part if part.startswith(" ") else " ".join(part.split()) for part in parts]


def _paragraph(words: str) -> str:
    if words.startswith(" "):
        return f"<pre><code>{page.text(textwrap.dedent(words))}</code></pre>"
    return f"<p>{page.text(words)}</p>"


def _command(record: Mapping[str, Any]) -> str:
    return shlex.join(["python", "-m", "experiments.main", *record["argv"][1:]])


def _warnings(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "\n".join(f"<li>{page.text(sentence)}</li>" for sentence in sentences)
    return page.section("Warnings", f'<ul class="warnings">\n{items}\n</ul>')


def _figures(workdir: Path, config: Mapping[str, Any]) -> list[str]:
    parts = []
    for name in config["figures"]:
        path = workdir / "figures" / f"{name}.png"
        if not path.is_file():
            parts.append(f"<p>{page.text(name)} was not drawn.</p>")
            continue
        data = base64.b64encode(path.read_bytes()).decode()
        said = page.text(
            _TEXTS[name].format(metric=results.METRICS.get(config["metric"]))
        )
        parts.append(
            f'<figure>\n<img src="data:image/png;base64,{data}" alt="{said}">\n'
            f"<figcaption>{said}</figcaption>\n</figure>"
        )
    return parts


def _results(run: Run) -> str:
    table, select_by = tuning.table(run.rows), run.config["select_by"]
    names = [
        name
        for name in ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
        if results.recorded(run.rows, name)
    ]
    tuned = {
        name: {
            (curve.series, point.delay): point
            for curve in run.curves(name)
            if curve.retuned
            for point in curve.points
        }
        for name in names
    }
    lines = []
    for series, delays in table.items():
        for delay, steps in delays.items():
            points = [tuned[name][series, delay] for name in names]
            edge = f" ({points[0].edge} tried)" if points[0].edge else ""
            cells = [row for cell in steps.values() for row in cell]
            share = sum(row.diverged for row in cells) / len(cells)
            lines.append(
                [
                    tuning.label(series, table),
                    *([] if run.arms else [f"{delay:g}"]),
                    f"{points[0].learning_rate:.4g}{edge}",
                    *map(_mean, points),
                    f"{share:.0%}",
                ]
            )
    each = "arm" if run.arms else "delay"
    return page.table(
        f"At the best step size of each {each}, mean and standard deviation over"
        f" {len({row.seed for row in run.rows})} seeds, chosen by"
        f" {results.METRICS[select_by]}; the share of all cells of that {each}, at any"
        " step size, that diverged",
        [
            *(["series"] if run.arms else ["series", "delay (updates)"]),
            "best step size",
            *(results.METRICS[name] for name in names),
            "diverged",
        ],
        lines,
    )


def _mean(point: Point) -> str:
    if point.diverged:
        return f"{point.diverged} of {len(point.values)} diverged"
    if math.isnan(point.deviation):
        return f"{point.mean:.4g}"
    return f"{point.mean:.4g}\u00a0\u00b1\u00a0{point.deviation:.2g}"


def _expected(record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    if not record["expected"]:
        return ""
    lines = []
    for query, wanted in record["expected"].items():
        bounds = isinstance(wanted, (list, tuple))
        shown = f"{wanted[0]:.4g} to {wanted[1]:.4g}" if bounds else f"{wanted:.4g}"
        try:
            value = expected.measure(
                rows, query, select_by=record["config"]["select_by"]
            )
        except ValueError as error:
            lines.append([query, shown, "unknown", str(error)])
            continue
        measured = "none" if math.isnan(value) else f"{value:.4g}"
        lines.append([query, shown, measured, _verdict(wanted, value, bounds)])
    return page.section(
        "Expected and measured",
        page.table(
            "What the config wrote down beforehand, and this run",
            ["quantity", "expected", "measured", "verdict"],
            lines,
        ),
    )


def _verdict(wanted: Any, value: float, bounds: bool) -> str:
    if math.isnan(value):
        return "diverged"
    if bounds:
        return "within" if wanted[0] <= value <= wanted[1] else "outside"
    if wanted == 0:
        return f"differs by {value:+.2g}"
    return f"differs by {value / wanted - 1:+.1%}"


def _provenance(record: Mapping[str, Any]) -> str:
    seconds = record["wall_seconds"]
    wall = "unknown" if seconds is None else f"{seconds:.0f} s"
    if seconds is not None and seconds >= 60:
        wall += f" ({seconds / 60:.1f} min)"
    config = record["config"]
    seeds = [f"replicates {', '.join(map(str, config['seeds']))}"]
    seeds += [
        f"{name} {config[name]}"
        for name in ("params_seed", "data_seed", "delay_seed", "cluster_seed")
        if name in config  # delayjax 0.1.0 had no clusters
    ]
    return page.table(
        "Run",
        ["what", "value"],
        [
            ("arguments", shlex.join(record["argv"])),
            ("started", record["started"]),
            ("wall time", wall),
            ("devices", record["devices"]),
            ("random seeds", "; ".join(seeds)),
            ("git commit", record["git"]),
            *record["versions"].items(),
            *((f"fact: {name}", value) for name, value in record["facts"].items()),
        ],
    )


def _config(config: Mapping[str, Any]) -> str:
    return page.table(
        "Config",
        ["key", "value"],
        [
            (key, json.dumps(value))
            for key, value in flatten_dict(config, sep=".").items()
            if not key.startswith("expected")
        ],
    )
