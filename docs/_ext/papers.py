"""The index from a paper to the functions that have its method.

Which functions cite a paper is read from their docstrings: each arXiv number in one of
them. papers.toml has the titles. The page docs/reference/papers.md has the block
"```{papers}", which is replaced by the index.
"""

import functools
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reference

_NUMBER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_SECTION = re.compile(r"^References:\n((?:(?: {4}.*)?\n?)+)", re.MULTILINE)


def titles() -> dict[str, dict[str, Any]]:
    """{arXiv number: title, authors and year}."""
    return tomllib.loads((Path(__file__).parent / "papers.toml").read_text())


def docstrings() -> Iterator[tuple[str, str]]:
    """(full name, docstring) of each function, class and method of the reference."""
    for full in sorted(reference.everything()):
        value = reference.value(full)
        yield full, inspect.getdoc(value) or ""
        if inspect.isclass(value):
            for name in vars(value):
                if not name.startswith("_") and reference.is_documented(value, name):
                    yield f"{full}.{name}", inspect.getdoc(getattr(value, name))


@functools.cache
def cited() -> dict[str, list[str]]:
    """{arXiv number: the names whose docstrings have it}."""
    found: dict[str, list[str]] = {}
    for full, text in docstrings():
        for number in sorted(set(_NUMBER.findall(text))):
            found.setdefault(number, []).append(full)
    return found


def without_number() -> list[tuple[str, str]]:
    """(name, what it cites) where no reference of a docstring has an arXiv number."""
    sections = [(full, _SECTION.search(text)) for full, text in docstrings()]
    return [
        (full, " ".join(section[1].split()))
        for full, section in sections
        if section and not _NUMBER.search(section[1])
    ]


def listing() -> str:
    """The Markdown that the block of the page is replaced by."""
    of_year: dict[int, list[str]] = {}
    known = titles()
    for number, names in cited().items():
        paper = known[number]
        line = (
            f"- {paper['title']}. {paper['authors']},"
            f" [arXiv:{number}](https://arxiv.org/abs/{number}): {_links(names)}"
        )
        of_year.setdefault(paper["year"], []).append(line)
    parts = [
        part
        for year in sorted(of_year, reverse=True)
        for part in (f"## {year}", "\n".join(sorted(of_year[year])))
    ]
    others = [
        f"- {text.rstrip('.')}: {_links([full])}" for full, text in without_number()
    ]
    return "\n\n".join(
        [*parts, "## Without an arXiv number", "\n".join(sorted(others))]
    )


def _links(names: list[str]) -> str:
    return ", ".join(f"`{name.replace('delayjax.', 'dj.', 1)}`" for name in names)


def read_source(app: Any, name: str, text: list[str]) -> None:
    """Sphinx's hook `source-read`."""
    del app
    if name == "reference/papers":
        text[0] = text[0].replace("```{papers}\n```", listing())


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.connect("source-read", read_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
