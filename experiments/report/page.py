"""The blocks of a page: sections, tables, and text that is harmless."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

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
    return html.escape(str(value))


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
    body = "\n".join(
        f'<tr><th scope="row">{text(first)}</th>'
        + "".join(f"<td>{text(value)}</td>" for value in others)
        + "</tr>"
        for first, *others in rows
    )
    # a wide table scrolls alone, by keyboard too
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}">'
        f"\n<table>\n<caption>{text(caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )
