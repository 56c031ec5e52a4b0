"""The public names that docs/reference lists, and what a name in code means.

A name that stands alone is looked for in the modules that its page is about.
"""

import functools
import importlib
import inspect
import re
import types
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "reference"
# `name`, `name(...)` and `argument=name(...)`
_NAME = re.compile(
    r"(?:\w+=)?(dj\.|delayjax\.)?([A-Za-z]\w*(?:\.\w+)*)(\(.*\))?", re.DOTALL
)
# The modules whose names a page writes alone, in the order in which they are asked.
ABOUT = {
    "averaging": ["averaging", "workers", "cluster"],
    "clusters": ["cluster", "cluster.protocols"],
    "islands": ["averaging"],
    "stability": ["stability", "cluster"],
    "workers": ["workers", "exchange"],
}
# Pages of the runner, whose `local_sgd(period)` or `figures.over` are its own.
RUNNER = ["experiments", "howto/own_parts", "trainers/tunix"]
# What pages call an object of a class.
OBJECTS = {"recorded": "Recorded", "server": "Server", "trace": "Trace"}
# Too common to mean one function outside of the page of its module.
COMMON = ["groups", "init", "push", "read", "run", "simulate"]


@functools.cache
def pages() -> dict[str, Path]:
    """{module: the page that lists its names}."""
    texts = {page: page.read_text() for page in sorted(FOLDER.glob("*.md"))}
    return {
        module: page
        for page, text in texts.items()
        for module in re.findall(r"(?m)^\.\. module:: (\S+)$", text)
    }


def listed(module: str) -> list[str]:
    """The full names in the table of a module's page, in its order."""
    names = re.findall(r"(?m)^   ([A-Za-z]\w*)$", pages()[module].read_text())
    return [f"{module}.{name}" for name in names]


@functools.cache
def everything() -> frozenset[str]:
    """The full names of all that the pages list."""
    return frozenset(full for module in pages() for full in listed(module))


def value(full: str) -> Any:
    """What a public name stands for."""
    module, _, name = full.rpartition(".")
    return getattr(importlib.import_module(module), name)


def members(full: str) -> list[str]:
    """The methods and properties that the page of a class describes."""
    cls = value(full)
    kinds = (types.FunctionType, property, functools.cached_property)
    return [
        name
        for name, member in (vars(cls) if inspect.isclass(cls) else {}).items()
        if isinstance(member, kinds) and name[0] != "_" and getattr(cls, name).__doc__
    ]


def target(code: str, page: str) -> str | None:
    """The full public name that `code` means on `page`, or none."""
    name = _NAME.fullmatch(code)
    if name is None:
        return None
    root, short, called = name.groups()
    first, _, rest = short.partition(".")
    if root or first in OBJECTS:
        full = f"delayjax.{short if root else f'cluster.{OBJECTS[first]}.{rest}'}"
        return full if full in _names() else None
    if rest:
        return _one(short, _names())
    if page in RUNNER or (not called and short in _arguments()):
        return None
    here = [
        module for module, path in pages().items() if page == f"reference/{path.stem}"
    ]
    for module in here or [f"delayjax.{about}" for about in ABOUT.get(page, [])]:
        if f"{module}.{short}" in everything():
            return f"{module}.{short}"
    return None if short in COMMON else _one(short, everything())


def _one(name: str, names: frozenset[str]) -> str | None:
    known = [full for full in names if full.endswith(f".{name}")]
    return known[0] if len(known) == 1 else None


@functools.cache
def _names() -> frozenset[str]:
    """All public names, with public modules and the methods of public classes."""
    methods = (f"{full}.{name}" for full in everything() for name in members(full))
    return frozenset([*everything(), *pages(), *methods])


@functools.cache
def _arguments() -> frozenset[str]:
    """The arguments of public functions: alone, such a name means the argument."""
    functions = filter(inspect.isfunction, map(value, everything()))
    return frozenset(
        name for f in functions for name in inspect.signature(f).parameters
    )
