"""One self-contained report.html of a run."""

import base64
import html
import json
import math
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import expected, figures, results, tuning
from experiments.results import Row
from experiments.tuning import Point

_CSS = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #ffffff; --line: #c8c8c8;
  --soft: #f2f2f2; --note: #8f3200; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --page: #161616;
  --line: #4a4a4a; --soft: #242424; --note: #ffa366; } }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--page);
  color: var(--text); font: 1rem/1.5 system-ui, sans-serif; }
h1 { line-height: 1.2; }
h2 { margin-top: 2.5rem; }
pre { padding: 0.75rem; overflow-x: auto; background: var(--soft); }
figure { margin: 1.5rem 0; }
img { max-width: 100%; height: auto; background: #ffffff; }
.scroll { overflow-x: auto; margin: 1.5rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { padding-bottom: 0.5rem; text-align: left; font-weight: bold; }
th, td { padding: 0.25rem 0.75rem; border-bottom: 1px solid var(--line);
  text-align: left; vertical-align: top; }
thead th { background: var(--soft); }
.warnings { color: var(--note); }
"""
# for those who cannot see the figures; {metric} is the one over_delay shows
_TEXTS = {
    "over_delay": "Line chart of {metric} against staleness, at a fixed step size and"
    " at the one re-tuned for each delay. The table of results has its numbers.",
    "gap_over_delay": "Line charts of test loss minus training loss against staleness,"
    " at a fixed step size and at the one re-tuned for each delay.",
    "best_step": "Line chart of the best step size against staleness. The table of"
    " results has its numbers.",
    "stability_map": "Map of the final training loss over step size and staleness."
    " Diverged cells are black; where it is known, a line is the computed limit.",
    "loss_curves": "Line chart of the median training loss over the updates.",
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
    record = results.read_config(workdir)
    rows = results.read(workdir / "results.csv")
    question, *rest = _paragraphs(record["docstring"]) or [str(workdir)]
    body = "\n".join(
        [
            f"<header>\n<h1>{_text(question)}</h1>",
            *(_paragraph(text) for text in rest),
            "</header>",
            _section("Command", f"<pre><code>{_text(_command(record))}</code></pre>"),
            _warnings(figures.warnings(workdir)),
            _section("Figures", *_figures(workdir, record["config"])),
            _section("Results", _results(rows, record["config"]["select_by"])),
            _expected(record, rows),
            _section("What ran", _provenance(record), _config(record["config"])),
        ]
    )
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(question)}</title>\n<style>{_CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
    path = workdir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _text(value: Any) -> str:
    return html.escape(str(value))


def _paragraphs(docstring: str) -> list[str]:
    """A question of several lines is one line; indented paragraphs keep theirs."""
    parts = [part for part in docstring.strip().split("\n\n") if part.strip()]
    return [part if part.startswith(" ") else " ".join(part.split()) for part in parts]


def _paragraph(text: str) -> str:
    if text.startswith(" "):
        return f"<pre><code>{_text(textwrap.dedent(text))}</code></pre>"
    return f"<p>{_text(text)}</p>"


def _section(title: str, *parts: str) -> str:
    name = title.lower().replace(" ", "-")
    return "\n".join(
        [
            f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>',
            *parts,
            "</section>",
        ]
    )


def _table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table whose first column names its rows."""
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in header)
    body = "\n".join(
        f'<tr><th scope="row">{_text(first)}</th>'
        + "".join(f"<td>{_text(value)}</td>" for value in others)
        + "</tr>"
        for first, *others in rows
    )
    # a wide table scrolls alone, by keyboard too
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{_text(caption)}">'
        f"\n<table>\n<caption>{_text(caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _command(record: Mapping[str, Any]) -> str:
    return shlex.join(["python", "-m", "experiments.main", *record["argv"][1:]])


def _warnings(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "\n".join(f"<li>{_text(sentence)}</li>" for sentence in sentences)
    return _section("Warnings", f'<ul class="warnings">\n{items}\n</ul>')


def _figures(workdir: Path, config: Mapping[str, Any]) -> list[str]:
    parts = []
    for name in config["figures"]:
        path = workdir / "figures" / f"{name}.png"
        if not path.is_file():
            parts.append(f"<p>{_text(name)} was not drawn.</p>")
            continue
        data = base64.b64encode(path.read_bytes()).decode()
        text = _TEXTS[name].format(metric=results.METRICS.get(config["metric"]))
        parts.append(
            f'<figure>\n<img src="data:image/png;base64,{data}" alt="{_text(text)}">\n'
            f"<figcaption>{_text(text)}</figcaption>\n</figure>"
        )
    return parts


def _results(rows: Sequence[Row], select_by: str) -> str:
    table = tuning.table(rows)
    names = [
        name
        for name in ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
        if results.recorded(rows, name)
    ]
    tuned = {
        name: {
            (curve.series, point.delay): point
            for curve in tuning.curves(rows, name, select_by=select_by)
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
                    f"{delay:g}",
                    f"{points[0].learning_rate:.4g}{edge}",
                    *map(_mean, points),
                    f"{share:.0%}",
                ]
            )
    return _table(
        "At the best step size of each delay, mean and standard deviation over"
        f" {len({row.seed for row in rows})} seeds, chosen by"
        f" {results.METRICS[select_by]}; the share of all cells of that delay, at any"
        " step size, that diverged",
        [
            *("series", "delay (updates)", "best step size"),
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
    return _section(
        "Expected and measured",
        _table(
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
        f"{name} {config[name]}" for name in ("params_seed", "data_seed", "delay_seed")
    ]
    return _table(
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
    return _table(
        "Config",
        ["key", "value"],
        [line for line in _flat(config) if not line[0].startswith("expected")],
    )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)
