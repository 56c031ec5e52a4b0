"""The index from a paper to the functions that have its method.

Which functions cite a paper is read from their docstrings: each arXiv number in one of
them is a key of docs/papers.bib. The index stands for the block "```{papers}" of the
page docs/reference/papers.md.
"""

import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import reference

BIB = Path(__file__).parents[1] / "papers.bib"
NUMBER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_SECTION = re.compile(r"^References:\n((?:(?: {4}.*)?\n?)+)", re.MULTILINE)
_ENTRY = (
    "```{{eval-rst}}\n.. bibliography::\n   :list: bullet\n   :filter: key == '{}'\n```"
)


def years() -> dict[str, int]:
    """{arXiv number: the year of the paper}, of the entries of docs/papers.bib."""
    entries = re.findall(r"@\w+\{(.*),[^@]*?\n  year = \{(\d+)\}", BIB.read_text())
    return {number: int(year) for number, year in entries}


def docstrings() -> Iterator[tuple[str, str]]:
    """(full name, docstring) of each function, class and method of the reference."""
    for full in sorted(reference.everything()):
        value = reference.value(full)
        yield full, inspect.getdoc(value) or ""
        for name in reference.members(full):
            yield f"{full}.{name}", inspect.getdoc(getattr(value, name)) or ""


@functools.cache
def cited() -> dict[str, list[str]]:
    """{arXiv number: the names whose docstrings have it}."""
    numbers: dict[str, list[str]] = {}
    for full, text in docstrings():
        for number in sorted(set(NUMBER.findall(text))):
            numbers.setdefault(number, []).append(full)
    return numbers


@functools.cache
def listing() -> str:
    """The Markdown that the block of the page is replaced by."""
    parts, year = [], None
    for number, names in sorted(
        cited().items(), key=lambda one: (-years()[one[0]], one)
    ):
        if years()[number] != year:
            parts.append(f"## {(year := years()[number])}")
        parts += [_ENTRY.format(number), f"In {_links(names)}"]
    others = [
        f"- {' '.join(section[1].split()).rstrip('.')}: {_links([full])}"
        for full, text in docstrings()
        if (section := _SECTION.search(text)) and not NUMBER.search(section[1])
    ]
    return "\n\n".join([*parts, "## Without an arXiv number", *sorted(others)])


def _links(names: list[str]) -> str:
    return ", ".join(f"`{name.replace('delayjax.', 'dj.', 1)}`" for name in names)
