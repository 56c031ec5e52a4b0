"""The reference: which public names a page has, and how their docstrings are rendered.

A page of docs/reference holds a block "```{public} delayjax.ring". It is replaced by
all public names of that module, under the files that define them; files that the block
names come first. Public modules are lists of imports from `delayjax._src`.

Docstrings are Google style in plain text: text that reStructuredText would take for
markup is translated here, before napoleon reads the sections.
"""

import ast
import functools
import importlib
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PLACE = re.compile(r"^```\{public\} ([\w.]+)\n((?:\w+\n)*)```$", re.MULTILINE)
_CODE = re.compile(r"``(.+?)``|`([^`]+)`", re.DOTALL)
_KINDS = ["function", "class"]  # in this order on a page
_ALL = re.MULTILINE | re.DOTALL
_RULE = re.compile(r"\s*\|(-+\|)+$")
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


class Group(NamedTuple):
    """Public names that one file defines."""

    home: str  # the file's module
    title: str
    text: str  # the rest of the file's docstring
    names: list[str]


def groups(module: str, first: list[str] | None = None) -> list[Group]:
    """The names that a module's page lists, by the files that define them.

    What the root hands out too stands on the root's page alone.
    """
    at_root = public("delayjax") if module != "delayjax" else {}
    found: dict[str, list[str]] = {}
    for name, home in public(module).items():
        if name not in at_root:
            found.setdefault(home, []).append(name)
    order = [
        home for name in first or () for home in found if home.endswith(f".{name}")
    ]
    titled = []
    for home in [*order, *(home for home in found if home not in order)]:
        title, _, text = inspect.getdoc(importlib.import_module(home)).partition("\n\n")
        places = [_defined(node) for node in _tree(home).body]
        names = sorted(
            found[home],
            key=lambda name: (_KINDS.index(_kind(module, name)), places.index(name)),
        )
        titled.append(Group(home, " ".join(title.split()).rstrip("."), text, names))
    return titled


@functools.cache
def public(module: str) -> dict[str, str]:
    """{public name: the file that defines it}, without submodules."""
    return {
        alias.name: node.module
        for node in _tree(module).body
        if isinstance(node, ast.ImportFrom) and node.module.startswith("delayjax._src")
        for alias in node.names
    }


def listing(module: str, first: list[str] | None = None) -> str:
    """The Markdown that a page's block is replaced by."""
    of_module = groups(module, first)
    parts = [f"```{{eval-rst}}\n.. module:: {module}\n```"]
    if len(of_module) > 1:
        parts.append("\n".join(map(_line(module), of_module)))
    for _, title, text, names in of_module:
        if len(of_module) > 1:
            parts.append(f"## {title}")
        rst = translate(text.splitlines())
        for name in names:
            kind = _kind(module, name)
            rst += ["", f".. auto{kind}:: {module}.{name}"]
            rst += ["   :members:"] if kind == "class" else []
        parts.append("\n".join(["```{eval-rst}", *rst, "```"]))
    return "\n\n".join(parts)


def _line(module: str) -> Callable[[Group], str]:
    """What a page's first list says of a group."""

    def line(group: Group) -> str:
        links = (f"{{py:obj}}`{name} <{module}.{name}>`" for name in group.names)
        return f"- {group.title}: {', '.join(links)}"

    return line


def expand(page: str) -> str:
    """A page with the listings that it asks for."""
    return PLACE.sub(lambda place: listing(place[1], place[2].split()), page)


def translate(lines: list[str]) -> list[str]:
    """A docstring's plain text as reStructuredText: Google's sections stay as they are.

    Indented blocks become equations, Markdown tables become tables, single
    backticks become code, and what else reStructuredText would take for markup is
    escaped.
    """
    out: list[str] = []
    for kind, block in _blocks(lines):
        if kind == "literal":
            margin = " " * (_indent(block[0]) - 4)
            out += [f"{margin}.. equation::", "", *block, ""]
        elif kind == "table":
            out += ["", *_table(block), ""]
        elif kind == "text":
            out += _inline("\n".join(block)).split("\n")
        else:
            out += block
    return out


def _blocks(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(kind, lines): "literal", "table", "doctest", "text" or "blank"."""
    lines = [line.rstrip() for line in lines]
    at, margin, after_blank = 0, 0, False
    while at < len(lines):
        start, line = at, lines[at]
        if not line:
            at += 1
            after_blank = True
            yield "blank", [""]
            continue
        if line.lstrip().startswith(">>>"):
            while at < len(lines) and lines[at]:
                at += 1
            kind, margin = "doctest", _indent(line)
        elif _is_table(lines[at : at + 2]):
            while at < len(lines) and lines[at]:
                at += 1
            kind = "table"
        elif after_blank and start and _indent(line) > margin:
            while at < len(lines) and (not lines[at] or _indent(lines[at]) > margin):
                at += 1
            kind = "literal"
        else:
            at += 1
            while at < len(lines) and lines[at] and not _begins(lines[at:]):
                at += 1
            kind = "text"
            margin = _indent(lines[at - 1])
        after_blank = False
        yield kind, lines[start:at]


def _begins(lines: list[str]) -> bool:
    return lines[0].lstrip().startswith(">>>") or _is_table(lines[:2])


def _is_table(lines: list[str]) -> bool:
    return len(lines) == 2 and _RULE.match(lines[1]) is not None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _inline(text: str) -> str:
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
    text = text.replace("*", "\\*").replace("\0", "*")
    return _ARXIV.sub(r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", text)


def _table(lines: list[str]) -> list[str]:
    """A Markdown table, whose rows may be several lines long, as a `list-table`."""
    margin = " " * _indent(lines[0])
    text = "\n".join(line.strip() for line in lines)
    rows = [
        [cell.strip() for cell in row.replace("\n", " ").strip("|").split("|")]
        for row in re.split(r"\n(?=\|)", text)
    ]
    out = [f"{margin}.. list-table::", f"{margin}   :header-rows: 1", ""]
    for row in (rows[0], *rows[2:]):
        for i, cell in enumerate(row):
            mark = "*" if i == 0 else " "
            out.append(f"{margin}   {mark} - {_inline(cell)}".rstrip())
    return out


@functools.cache
def everything() -> frozenset[str]:
    """The full names of all that the pages list."""
    return frozenset(
        f"{module}.{name}"
        for module in pages()
        for group in groups(module)
        for name in group.names
    )


def pages() -> dict[str, Path]:
    """{module: the page that lists its names}."""
    folder = Path(__file__).parents[1] / "reference"
    return {
        place[1]: page
        for page in sorted(folder.glob("*.md"))
        for place in PLACE.finditer(page.read_text())
    }


def value(full: str) -> Any:
    """What a public name stands for."""
    module, _, name = full.rpartition(".")
    return getattr(importlib.import_module(module), name)


def is_documented(cls: type, name: str) -> bool:
    """Whether the reference has an entry for this member of a class."""
    methods = (types.FunctionType, property, functools.cached_property)
    return isinstance(vars(cls)[name], methods) and bool(getattr(cls, name).__doc__)


def _kind(module: str, name: str) -> str:
    return "class" if inspect.isclass(value(f"{module}.{name}")) else "function"


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _defined(node: ast.stmt) -> str | None:
    return node.name if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else None


def fields(cls: type) -> list[str]:
    """The fields of a class and the comments beside them, as a list."""
    source = textwrap.dedent(inspect.getsource(cls)).splitlines()
    found = []
    for node in ast.parse("\n".join(source)).body[0].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            _, _, comment = source[node.end_lineno - 1].partition("  # ")
            if _is_public(node.target.id):
                meaning = f": {_inline(comment)}" if comment else ""
                found.append(f"* ``{node.target.id}``{meaning}")
    return ["", ".. rubric:: Fields", "", *found, ""] if found else []


def process_docstring(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Sphinx's hook `autodoc-process-docstring`: `lines` is changed in place."""
    del app, name, options
    documented = any(line.startswith(("Args:", "Attributes:")) for line in lines)
    lines[:] = [*translate(lines), ""]
    if what == "class" and not documented:
        lines += fields(obj)


def skip_member(
    app: Any, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Sphinx's hook `autodoc-skip-member`: fields stand in the class's own text."""
    del app, what, name, skip, options
    alias = (inspect.getdoc(obj) or "").startswith("Alias for field number")
    return True if alias else None


def read_source(app: Any, name: str, text: list[str]) -> None:
    """Sphinx's hook `source-read`."""
    del app
    if name.startswith("reference/"):
        text[0] = expand(text[0])
    # the empty line after a doctest's last output is for the test alone
    text[0] = re.sub(r"(^```python\n>>>.*?)\n\n```$", r"\1\n```", text[0], flags=_ALL)


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.connect("source-read", read_source)
    app.connect("autodoc-process-docstring", process_docstring, priority=400)
    app.connect("autodoc-skip-member", skip_member)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
