"""Docstrings as reStructuredText: plain text, and Google's sections for napoleon.

Indented blocks become equations, Markdown tables become tables, single backticks become
code, arXiv numbers are cited, and what else reStructuredText would take for markup is
escaped.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

_CODE = re.compile(r"``(.+?)``|`([^`]+)`", re.DOTALL)
_RULE = re.compile(r"\s*\|(-+\|)+$")
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_CITED = r"`arXiv:\1 <https://arxiv.org/abs/\1>`__ :footcite:p:`\1`"
_FIELD = re.compile(r"^    ([a-z]\w*): .*?(?:  # (.*))?$", re.MULTILINE)


def translate(lines: list[str]) -> list[str]:
    """A docstring's lines, or a part of them, for Sphinx."""
    out: list[str] = []
    for kind, block in _blocks([line.rstrip() for line in lines]):
        margin = " " * _indent(block[0])
        if kind == "literal":
            out += [f"{margin[4:]}.. equation::", "", *block, ""]
        elif kind == "table":
            out += _table(block, margin)
        else:
            out += block if kind == "doctest" else inline("\n".join(block)).split("\n")
    return out


def _blocks(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(kind, lines): "literal", "table", "doctest" or "text"."""
    at, margin = 0, 0
    while at < len(lines):
        start, kind = at, _kind(lines[at:])
        after_blank = start > 0 and not lines[start - 1]
        at += 1
        if kind == "text" and after_blank and _indent(lines[start]) > margin:
            kind = "literal"
            while at < len(lines) and (not lines[at] or _indent(lines[at]) > margin):
                at += 1
        elif lines[start]:
            while at < len(lines) and lines[at] and _kind(lines[at:]) in (kind, "text"):
                at += 1
            margin = margin if kind == "table" else _indent(lines[at - 1])
            margin = _indent(lines[start]) if kind == "doctest" else margin
        yield kind, lines[start:at]


def _kind(lines: list[str]) -> str:
    if lines[0].lstrip().startswith(">>>"):
        return "doctest"
    return "table" if len(lines) > 1 and _RULE.match(lines[1]) else "text"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def inline(text: str) -> str:
    """Code in double backticks, links for papers, no other markup."""
    out, end = [], 0
    for code in _CODE.finditer(text):
        out.append(_escaped(text[end : code.start()]))
        out.append(f"``{code[1] or code[2]}``")
        end = code.end()
        if text[end : end + 1].isalnum():  # "`update`s"
            out.append("\\ ")
    return "".join([*out, _escaped(text[end:])])


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("|", "\\|")
    text = re.sub(r"(?<=\w)_(?!\w)", r"\\_", text)
    # "P." where a line begins would be an item of a list
    text = re.sub(r"(?m)^(\s*(?:\w+: \w|[A-Z]))\.(?=\s|$)", r"\1\\.", text)
    # a star is emphasis where it surrounds words, and a product elsewhere
    text = re.sub(r"(?<!\w)\*(\w[^*\n]*)\*(?!\w)", "\0\\1\0", text)
    return _ARXIV.sub(_CITED, text.replace("*", "\\*").replace("\0", "*"))


def _table(lines: list[str], margin: str) -> list[str]:
    """A Markdown table, whose rows may be several lines long, as a `list-table`."""
    head, _, *rows = re.split(r"\n(?=\|)", "\n".join(line.strip() for line in lines))
    out = ["", f"{margin}.. list-table::", f"{margin}   :header-rows: 1", ""]
    for row in (head, *rows):
        for i, cell in enumerate(row.replace("\n", " ").strip("|").split("|")):
            mark = " " if i else "*"
            out.append(f"{margin}   {mark} - {inline(cell.strip())}".rstrip())
    return [*out, ""]


def fields(cls: type) -> list[str]:
    """The fields of a class and the comments beside them, as a list."""
    body = inspect.getsource(cls).split("    def ")[0].rpartition('"""')[2]
    listed = [
        f"* ``{name}``" + (f": {inline(comment)}" if comment else "")
        for name, comment in _FIELD.findall(body)
    ]
    return ["", ".. rubric:: Fields", "", *listed, ""] if listed else []


def process_docstring(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Sphinx's hook `autodoc-process-docstring`: `lines` is changed in place."""
    documented = any(line.startswith(("Args:", "Attributes:")) for line in lines)
    lines[:] = [*translate(lines), ""]
    if what == "class" and not documented:
        lines += fields(obj)


def skip_member(
    app: Any, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Sphinx's hook `autodoc-skip-member`: fields stand in the class's own text."""
    alias = (inspect.getdoc(obj) or "").startswith("Alias for field number")
    return True if alias else None
