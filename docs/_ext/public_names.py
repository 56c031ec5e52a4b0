"""Which public name a page means by `dj.delayed`, `simulate` or `replay(trace, ...)`.

A name that stands alone is looked for in the modules that its page is about.
"""

import functools
import inspect
import re

import reference

# `name`, `name(...)` and `argument=name(...)`
_NAME = re.compile(
    r"(?:\w+=)?(dj\.|delayjax\.)?([A-Za-z]\w*(?:\.\w+)*)(\(.*\))?", re.DOTALL
)

# The modules whose names a page writes alone, in the order in which they are asked.
ABOUT = {
    "averaging": ["averaging", "workers", "cluster"],
    "clusters": ["cluster", "cluster.protocols"],
    "stability": ["stability", "cluster"],
    "workers": ["workers", "exchange"],
}
# Pages of the runner, whose `local_sgd(period)` or `figures.over` are its own.
RUNNER = ["experiments", "howto/own_parts", "trainers/tunix"]
# What pages call an object of a class.
OBJECTS = {
    "recorded": "cluster.Recorded",
    "server": "cluster.Server",
    "trace": "cluster.Trace",
}
# Too common to mean one function outside of the page of its module.
COMMON = ["groups", "init", "push", "read", "run", "simulate"]


def target(code: str, page: str) -> str | None:
    """The full public name that `code` means on `page`, or none."""
    found = _NAME.fullmatch(code)
    if found is None:
        return None
    root, name, called = found.groups()
    if root:
        return _one([f"delayjax.{name}"])
    if "." in name:
        first, _, rest = name.partition(".")
        if first in OBJECTS:
            return _one([f"delayjax.{OBJECTS[first]}.{rest}"])
        return _one([full for full in _names() if full.endswith(f".{name}")])
    if page in RUNNER or (not called and name in _arguments()):
        return None
    homes = [f"{module}.{name}" for module in _about(page)]
    known = [full for full in homes if full in _names()]
    if known or name in COMMON:
        return known[0] if known else None
    return _one(_alone().get(name, []))


def _one(candidates: list[str]) -> str | None:
    known = [full for full in candidates if full in _names()]
    return known[0] if len(known) == 1 else None


def _about(page: str) -> list[str]:
    for module, path in reference.pages().items():
        if page == f"reference/{path.stem}":
            return [module]
    return [f"delayjax.{module}" for module in ABOUT.get(page, [])]


@functools.cache
def _names() -> frozenset[str]:
    """All public names, with public modules and the methods of public classes."""
    members = {
        f"{full}.{name}"
        for full in reference.everything()
        if inspect.isclass(cls := reference.value(full))
        for name in vars(cls)
        if not name.startswith("_") and reference.is_documented(cls, name)
    }
    return reference.everything() | members | set(reference.pages())


@functools.cache
def _alone() -> dict[str, list[str]]:
    """{the last part of a name: the functions and classes that end in it}."""
    found: dict[str, list[str]] = {}
    for full in sorted(reference.everything()):
        found.setdefault(full.rpartition(".")[2], []).append(full)
    return found


@functools.cache
def _arguments() -> frozenset[str]:
    """The arguments of public functions: alone, such a name means the argument."""
    return frozenset(
        argument
        for full in reference.everything()
        if inspect.isfunction(value := reference.value(full))
        for argument in inspect.signature(value).parameters
    )
