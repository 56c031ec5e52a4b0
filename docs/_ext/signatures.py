"""Signatures with types as a reader would write them.

Types are written as in the source: `law: Law`, and not the union that `Law` stands
for. Private modules are left out (`extras.Law` is `Law`), choices are
spelled out (`'mean' | 'mean_square'`), and public classes have their full name, of
which Sphinx makes a link. The page docs/reference/types.md has what else the names
stand for: its block "```{types}" is replaced by the docstrings of these types.
"""

import ast
import functools
import importlib
import inspect
import itertools
import math
import pkgutil
import textwrap
import typing
from pathlib import Path
from typing import Any

import reference

# An Optax wrapper takes `MultiSteps` as well, which no reader needs to know of.
_SHORT = {"Transformation": "optax.GradientTransformation"}


def of(value: Any) -> tuple[str, str | None]:
    """The arguments and the result of a function or a class, as text."""
    if not inspect.isclass(value):
        node = _definition(value)
        return _arguments(node, vars(inspect.getmodule(value))), _result(value, node)
    for cls in _ours(value):
        for node in _definition(cls).body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return _arguments(node, vars(inspect.getmodule(cls))), None
    return f"({', '.join(_fields(value))})", None


def _arguments(node: ast.FunctionDef, scope: dict[str, Any]) -> str:
    arguments = node.args
    if arguments.args and arguments.args[0].arg == "self":
        del arguments.args[0]
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg) and argument.annotation:
            argument.annotation = ast.Name(written(argument.annotation, scope))
    arguments.kw_defaults = [
        default and _default(default, scope) for default in arguments.kw_defaults
    ]
    return f"({ast.unparse(arguments)})"


def _default(node: ast.expr, scope: dict[str, Any]) -> ast.expr:
    """As written, but the value of a constant that no reader can look up."""
    value = _looked_up(ast.unparse(node), scope)
    return ast.Constant(value) if isinstance(value, int) else node


def _result(value: Any, node: ast.FunctionDef) -> str | None:
    return node.returns and written(node.returns, vars(inspect.getmodule(value)))


def _fields(cls: type) -> list[str]:
    """The fields that a NamedTuple or a dataclass is made from."""
    types = {
        node.target.id: written(node.annotation, vars(inspect.getmodule(base)))
        for base in _ours(cls)
        for node in _definition(base).body
        if isinstance(node, ast.AnnAssign)
    }
    fields = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in fields:
            fields.append("*")
        default = parameter.default
        optional = "" if default is parameter.empty else f" = {_simple(default)}"
        fields.append(f"{name}: {types[name]}{optional}")
    return fields


def _simple(value: Any) -> str:
    if value == math.inf:
        return "math.inf"
    return repr(value) if isinstance(value, (int, float, str, type(None))) else "..."


def _ours(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith("delayjax")]


def _definition(value: Any) -> ast.FunctionDef | ast.ClassDef:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def written(annotation: ast.expr, scope: dict[str, Any]) -> str:
    """A type of the source in short: what its names mean is looked up in `scope`."""
    return ast.unparse(_Short(scope).visit(annotation))


class _Short(ast.NodeTransformer):
    """Replaces each name of a type by its public name."""

    def __init__(self, scope: dict[str, Any]):
        self.scope = scope

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """A type in quotes is a type."""
        if isinstance(node.value, str):
            return self.visit(ast.parse(node.value, mode="eval").body)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """`Literal` is the choices themselves."""
        if ast.unparse(node.value) == "Literal":
            choices = node.slice.elts if isinstance(node.slice, ast.Tuple) else None
            return _choices([each.value for each in choices or [node.slice]])
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """As `visit_Attribute`."""
        return self.visit_Attribute(node)

    def visit_Attribute(self, node: ast.Attribute | ast.Name) -> ast.expr:
        """A name of ours without its private module."""
        text = ast.unparse(node)
        module, _, name = text.rpartition(".")
        value = _looked_up(text, self.scope)
        if name in _SHORT:
            return ast.Name(_SHORT[name])
        if typing.get_origin(value) is typing.Literal:
            return _choices(typing.get_args(value))
        if inspect.isclass(value) and value in _public():
            return ast.Name(_public()[value])
        is_ours = getattr(self.scope.get(module), "__name__", "").startswith(
            "delayjax."
        )
        return ast.Name(name if is_ours else text)


def _looked_up(text: str, scope: dict[str, Any]) -> Any:
    first, *rest = text.split(".")
    return functools.reduce(
        lambda value, part: getattr(value, part, None), rest, scope.get(first)
    )


def _choices(values: Any) -> ast.expr:
    return ast.Name(" | ".join(map(repr, values)))


@functools.cache
def _public() -> dict[type, str]:
    """{public class: its full name}."""
    return {
        value: full
        for full in reference.everything()
        if inspect.isclass(value := reference.value(full))
    }


class Type(typing.NamedTuple):
    """A type of signatures that has no entry of its own elsewhere."""

    name: str
    value: str  # what an alias stands for; "" for a class
    text: list[str]  # its docstring and its fields, as reStructuredText


def named_types() -> list[Type]:
    """The types of ours that signatures name, by name."""
    shown = {
        node.id
        for text in _shown()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name)
    }
    return _private_types(shown)


def _shown() -> list[str]:
    """A function's signature, as Python, for each function and class of the pages."""
    found = []
    for full in reference.everything():
        value = reference.value(full)
        parts = [value]
        if inspect.isclass(value):
            parts += [
                part
                for name, part in vars(value).items()
                if inspect.isfunction(part) and not name.startswith("_")
            ]
        for arguments, result in map(of, parts):
            found.append(f"def shown{arguments} -> {result}: ...")
    return found


def _private_types(names: set[str]) -> list[Type]:
    """Those of the names that are types which modules of the library define."""
    package = importlib.import_module("delayjax._src")
    found = []
    for info in pkgutil.walk_packages(package.__path__, "delayjax._src."):
        module = importlib.import_module(info.name)
        scope, body = vars(module), ast.parse(Path(module.__file__).read_text()).body
        for node, after in itertools.pairwise([*body, None]):
            name = (
                ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else None
            )
            name = node.name if isinstance(node, ast.ClassDef) else name
            if name not in names:
                continue
            if isinstance(node, ast.ClassDef):
                cls = scope[name]
                text = reference.translate((inspect.getdoc(cls) or "").splitlines())
                found.append(Type(name, "", text + reference.fields(cls)))
            elif _is_text(after):
                lines = inspect.cleandoc(after.value.value).splitlines()
                text = reference.translate(lines)
                found.append(Type(name, written(node.value, scope), text))
    return sorted(found)


def _is_text(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def listing() -> str:
    """The Markdown that the block of the page of types is replaced by."""
    out = ["```{eval-rst}"]
    for name, value, text in named_types():
        out += [f".. {'type' if value else 'class'}:: {name}"]
        out += [f"   :canonical: {value}"] if value else []
        out += ["", *(f"   {line}" for line in text), ""]
    return "\n".join([*out, "```"])


def read_source(app: Any, name: str, text: list[str]) -> None:
    """Sphinx's hook `source-read`."""
    del app
    if name == "reference/types":
        text[0] = text[0].replace("```{types}\n```", listing())


def process_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, *shown: str | None
) -> tuple[str, str | None] | None:
    """Sphinx's hook `autodoc-process-signature`."""
    del app, name, options, shown
    return of(obj) if what in ("function", "method", "class") else None


def missing_reference(app: Any, env: Any, node: Any, shown: Any) -> Any:
    """Sphinx's hook of this name: a property's private type is on the page of types."""
    private, _, name = node["reftarget"].rpartition(".")
    if not private.startswith("delayjax._src"):
        return None
    python, page = env.get_domain("py"), node["refdoc"]
    return python.resolve_xref(env, page, app.builder, "class", name, node, shown)


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry."""
    app.connect("missing-reference", missing_reference)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("source-read", read_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
