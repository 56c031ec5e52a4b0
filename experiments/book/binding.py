"""book.html: one page that needs no network, to read on a telephone or a desk."""

import base64
from collections.abc import Sequence
from pathlib import Path

from experiments.book.chapters import CHAPTERS
from experiments.book.entries import Entry
from experiments.report import page


def write(entries: Sequence[Entry], path: Path, about: str) -> Path:
    """Writes the page.

    Args:
        entries: of all configs.
        path: of the file.
        about: when, with what and at which size it was made.
    """
    known = {entry.config: entry for entry in entries}
    parts = [f"<header>\n<h1>delayjax: the book</h1>\n<p>{page.text(about)}</p>"]
    parts += [f"<p>{page.text(INTRODUCTION)}</p>", _counts(entries), "</header>"]
    for title, own in CHAPTERS.items():
        there = [known[name] for name in own if name in known]
        if there:
            parts.append(page.section(title, *map(_entry, there)))
    path.write_text(page.document("delayjax: the book", "\n".join(parts)), "utf-8")
    return path


INTRODUCTION = (
    "Each entry has a question, the answer of this run, what the sources say beside"
    " what this run measured, and the command. A statement is reproduced if the 95 %"
    " interval over the seeds lies within its bound, not reproduced if it lies outside,"
    " and else undecided. Models and data are small, and workers are simulated in time;"
    " the setting of each source stands beside its statement."
)


def _counts(entries: Sequence[Entry]) -> str:
    rows = [(own.system, own.verdict) for own in entries]
    names = dict.fromkeys(verdict for _, verdict in rows)
    table = [
        (page.mark(name), "; ".join(own for own, found in rows if found == name))
        for name in names
    ]
    return page.table("All systems", ["verdict", "systems"], table)


def _entry(entry: Entry) -> str:
    rows = [
        [
            own.claim.text,
            "; ".join(filter(None, [own.claim.source, own.claim.setting])),
            own.claim.said,
            own.claim.expected,
            own.shown,
            page.mark(own.verdict),
        ]
        for own in entry.judged
    ]
    header = ["statement", "source", "it says", "bound", "measured here", "verdict"]
    edited = "The statements were edited after the run began."
    tried = [
        f"<p>{page.text(own.claim.text)}: {page.text(own.claim.tried)}</p>"
        for own in entry.judged
        if own.claim.tried and own.claim.measure is not None
    ]
    return "\n".join(
        [
            f'<article id="{page.text(entry.config)}">',
            f"<h3>{page.text(entry.system)}</h3>",
            f"<p><em>{page.text(entry.question)}</em></p>",
            f'<p class="answer">{page.text(entry.answer)}</p>',
            page.table("What the sources say", header, rows) if rows else "",
            *tried,
            f'<p class="note">{edited}</p>' if entry.edited else "",
            _figure(entry),
            f"<pre><code>{page.text(entry.command)}</code></pre>",
            "</article>",
        ]
    )


def _figure(entry: Entry) -> str:
    if entry.figure is None:
        return ""
    data = base64.b64encode(entry.figure.read_bytes()).decode()
    name = page.text(f"{entry.system}: {entry.figure.stem.replace('_', ' ')}")
    kind = {".svg": "svg+xml"}.get(entry.figure.suffix, "png")
    source = f"data:image/{kind};base64,{data}"
    return f'<figure>\n<img src="{source}" alt="{name}">\n</figure>'
