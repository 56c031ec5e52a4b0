"""Signatures with types as a reader would write them.

Types are written as in the source: `law: Law`, and not the union that `Law` stands
for. Private modules are left out (`extras.Law` is `Law`), choices are
spelled out (`'mean' | 'mean_square'`), and public classes have their full name, of
which Sphinx makes a link. The page docs/reference/types.md has what else the names
stand for: its block "```{types}" is replaced by the docstrings of these types.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import math
import pkgutil
import re
import textwrap
import typing
from pathlib import Path
from typing import Any

import docstrings
import reference

_NAME = re.compile(r"Literal\[[^]]*\]|'[^']*'|[A-Za-z_][\w.]*")
# An Optax wrapper takes `MultiSteps` as well, which no reader needs to know of.
_SHORT = {"Transformation": "optax.GradientTransformation"}


def text_of(value: Any) -> tuple[str, str | None]:
    """The arguments and the result of a function or a class, as text."""
    has_init = "__init__" in vars(value) and not dataclasses.is_dataclass(value)
    made = value.__init__ if has_init else value
    if inspect.isclass(made):
        return f"({', '.join(_fields(value))})", None
    node, scope = _definition(made), vars(inspect.getmodule(made))
    arguments, result = node.args, node.returns and written(node.returns, scope)
    arguments.args = [each for each in arguments.args if each.arg != "self"]
    for each in ast.walk(arguments):
        if isinstance(each, ast.arg) and each.annotation:
            each.annotation = ast.Name(written(each.annotation, scope))
    for i, default in enumerate(arguments.kw_defaults):
        constant = _looked_up(ast.unparse(default), scope) if default else None
        if isinstance(constant, int):  # which no reader can look up
            arguments.kw_defaults[i] = ast.Constant(constant)
    return f"({ast.unparse(arguments)})", result if made is value else None


def _fields(cls: type) -> list[str]:
    """The fields that a NamedTuple or a dataclass is made from."""
    types = {
        node.target.id: written(node.annotation, vars(inspect.getmodule(base)))
        for base in cls.__mro__
        if base.__module__.startswith("delayjax")
        for node in _definition(base).body
        if isinstance(node, ast.AnnAssign)
    }
    fields = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in fields:
            fields.append("*")
        default, shown = parameter.default, ""
        if default is not parameter.empty:
            is_plain = isinstance(default, (int, float, str, type(None)))
            shown = f" = {repr(default) if is_plain else '...'}"
            shown = " = math.inf" if default == math.inf else shown
        fields.append(f"{name}: {types[name]}{shown}")
    return fields


def _definition(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def written(annotation: ast.expr, scope: dict[str, Any]) -> str:
    """A type of the source in short: what its names mean is looked up in `scope`."""
    return _NAME.sub(lambda name: _public(name[0], scope), ast.unparse(annotation))


def _public(text: str, scope: dict[str, Any]) -> str:
    if text.startswith("Literal["):
        return text[8:-1].replace(",", " |")
    if text[0] == "'":  # a type in quotes is a type
        return written(ast.parse(text[1:-1], mode="eval"), scope)
    module, _, name = text.rpartition(".")
    value = _looked_up(text, scope)
    if typing.get_origin(value) is typing.Literal:
        return " | ".join(map(repr, typing.get_args(value)))
    if inspect.isclass(value) and value in _classes():
        return _classes()[value]
    home = getattr(scope.get(module), "__name__", "")
    return _SHORT.get(name, name if home.startswith("delayjax.") else text)


def _looked_up(text: str, scope: dict[str, Any]) -> Any:
    first, *rest = text.split(".")
    return functools.reduce(
        lambda value, part: getattr(value, part, None), rest, scope.get(first)
    )


@functools.cache
def _classes() -> dict[type, str]:
    """{public class: its full name}."""
    values = {reference.value(full): full for full in reference.everything()}
    return {value: full for value, full in values.items() if inspect.isclass(value)}


def shown() -> str:
    """The signatures of all functions, classes and methods of the pages."""
    texts = []
    for full in reference.everything():
        value = reference.value(full)
        methods = [getattr(value, name) for name in reference.members(full)]
        texts += [
            str(text_of(each)) for each in [value, *filter(inspect.isfunction, methods)]
        ]
    return " ".join(texts)


@functools.cache
def types() -> dict[str, list[str]]:
    """{type that signatures name and no other page has: its entry, for Sphinx}."""
    names = set(re.findall(r"(?<![\w.])[A-Z]\w+", shown()))
    entries = {}
    package = importlib.import_module("delayjax._src")
    for info in pkgutil.walk_packages(package.__path__, "delayjax._src."):
        module = importlib.import_module(info.name)
        body = ast.parse(Path(module.__file__).read_text()).body
        for node, after in itertools.pairwise([*body, None]):
            match node, after:
                case ast.ClassDef(name=name), _ if name in names:
                    cls = getattr(module, name)
                    text = docstrings.translate(
                        (inspect.getdoc(cls) or "").splitlines()
                    )
                    lines = [f".. class:: {name}", "", *text, *docstrings.fields(cls)]
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value),
                    ast.Expr(value=ast.Constant(value=str(doc))),
                ) if name in names:
                    if ast.unparse(value).startswith("Annotated["):
                        value = value.slice.elts[0]  # without its check
                    lines = [f".. type:: {name}"]
                    lines += [f":canonical: {written(value, vars(module))}", ""]
                    lines += docstrings.translate(inspect.cleandoc(doc).splitlines())
                case _:
                    continue
            entries[name] = [lines[0], *(f"   {line}" for line in lines[1:])]
    return dict(sorted(entries.items()))
