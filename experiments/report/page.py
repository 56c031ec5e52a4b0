"""The blocks of a page: sections, tables, and text that is harmless."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_CSS = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #ffffff; --line: #d0d0d0;
  --soft: #f3f4f6; --note: #8f3200; --met: #00664a; --missed: #a32900; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --page: #161616;
  --line: #444444; --soft: #242628; --note: #ffa366; --met: #5fd3ac;
  --missed: #ff9a70; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--page);
  color: var(--text); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { line-height: 1.2; text-wrap: balance; }
h2 { margin-top: 2.5rem; }
h3 { margin-top: 2rem; }
.answer { padding: 0.75rem 1rem; border-left: 0.3rem solid var(--met);
  background: var(--soft); font-size: 1.1rem; }
pre { padding: 0.75rem; background: var(--soft); white-space: pre-wrap;
  overflow-wrap: anywhere; user-select: all; }
figure { margin: 1.5rem 0; }
figcaption { font-size: 0.9rem; }
img { display: block; max-width: 100%; height: auto; }
table { width: 100%; margin: 1.5rem 0; border-collapse: collapse;
  font-variant-numeric: tabular-nums; }
caption { padding-bottom: 0.5rem; text-align: left; font-weight: bold; }
th, td { padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--line);
  text-align: left; vertical-align: top; overflow-wrap: anywhere; }
tbody th { font-weight: normal; }
table.wide td, table.wide th, thead th { overflow-wrap: break-word; }
thead th { background: var(--soft); }
.note { color: var(--note); }
.met { color: var(--met); font-weight: bold; }
.missed { color: var(--missed); font-weight: bold; }
span.met, span.missed, span.note { white-space: nowrap; }
@media (max-width: 40rem) {
  table.wide, table.wide tbody, table.wide tr, table.wide td, table.wide th,
  table.wide caption { display: block; }
  table.wide thead { position: absolute; left: -999rem; }
  table.wide tr { padding: 0.5rem 0; border-bottom: 1px solid var(--line); }
  table.wide tbody th, table.wide td { padding: 0.1rem 0.3rem; border: 0; }
  table.wide td::before, table.wide tbody th::before { content: attr(data-name) ": ";
    font-weight: bold; }
  table.wide td:empty { display: none; }
}
"""
_WIDE = 4  # columns, from which on a narrow page stacks a row's cells


class Markup(str):
    """Text that is HTML already."""


def document(title: str, body: str) -> str:
    """A whole document.

    Args:
        title: in plain text.
        body: in HTML.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def text(value: Any) -> str:
    """A value as a page shows it, whatever is in it."""
    return value if isinstance(value, Markup) else html.escape(str(value))


def section(title: str, *parts: str) -> str:
    """A heading and what stands below it, in HTML."""
    name = title.lower().replace(" ", "-")
    return "\n".join(
        [
            f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>',
            *parts,
            "</section>",
        ]
    )


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table whose first column names its rows."""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in header)
    lines = []
    for first, *others in rows:
        cells = "".join(
            f'<td data-name="{text(name)}">{text(value)}</td>'
            for name, value in zip(header[1:], others, strict=True)
        )
        named = f'<th scope="row" data-name="{text(header[0])}">{text(first)}</th>'
        lines.append(f"<tr>{named}{cells}</tr>")
    kind = ' class="wide"' if len(header) >= _WIDE else ""
    body = "\n".join(lines)
    return (
        f"<table{kind}>\n<caption>{text(caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )


_KINDS = {"met": "met", "reproduced": "met"}
_KINDS |= {"missed": "missed", "not reproduced": "missed"}


def mark(verdict: str) -> Markup:
    """A verdict in its color."""
    kind = _KINDS.get(verdict, "note")
    return Markup(f'<span class="{kind}">{text(verdict)}</span>')


def commands(found: Mapping[str, str]) -> list[str]:
    """Commands, each of which one click selects, by what they do."""
    return [
        f"<p>{text(what)}:</p>\n<pre><code>{text(command)}</code></pre>"
        for what, command in found.items()
    ]
