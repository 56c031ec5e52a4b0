"""The notation of an arm: a protocol, and what it changes in the cluster."""

import ast
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

LOGGED = "trace"
"""The arm that follows config.trace, a file."""


class Call(NamedTuple):
    """NAME(ARGUMENTS): what is to be made, by name, from literals and further calls."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Arm(NamedTuple):
    """A protocol on a cluster."""

    name: str  # as written, with single spaces between its parts
    protocol: Call
    changes: dict[str, Any]  # keys of config.cluster, or batch_size, and their values


def parse(text: str) -> Arm:
    """Reads an arm.

        NAME(ARGUMENTS) KEY=VALUE KEY=VALUE ...

    Args:
        text: the protocol with Python literals (and `inf`) as arguments, then what is
            to differ from the config, in any order.

    Raises:
        ValueError: if it has another form.

    Example:
        >>> arm = parse("n_softsync(15) workers=30 service=lognormal(1.0, 0.05)")
        >>> arm.protocol
        Call(name='n_softsync', arguments=(15,), options={})
        >>> arm.changes
        {'workers': 30, 'service': 'lognormal(1.0, 0.05)'}
    """
    protocol, *rest = split(text) or [""]
    changes = {}
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier() or key in changes:
            raise ValueError(
                f"{text!r}: {part!r} must be KEY=VALUE, each KEY once, with spaces only"
                " between them and inside of brackets."
            )
        changes[key] = _literal_or_text(value)
    try:
        return Arm(" ".join((protocol, *rest)), parse_call(protocol), changes)
    except ValueError as error:
        raise ValueError(
            f"{text!r}: {error} An arm is PROTOCOL(ARGUMENTS) KEY=VALUE ..., such as"
            " 'n_softsync(15) workers=30'."
        ) from None


def names(config: ConfigDict) -> list[str]:
    """The arms of a config, in their order; none where it trains under a delay.

    Raises:
        ValueError: if one cannot be read.
    """
    if config.trace:
        return [LOGGED]
    try:
        return [parse(text).name for text in config.cluster.arms]
    except ValueError as error:
        raise ValueError(f"config.cluster.arms: {error}") from None


def parse_call(text: str) -> Call:
    """Reads NAME(ARGUMENTS).

    Args:
        text: arguments are Python literals, `inf`, further calls, or tuples of these.

    Raises:
        ValueError: if it has another form.

    Example:
        >>> parse_call("ssp(bound=inf)")
        Call(name='ssp', arguments=(), options={'bound': inf})
    """
    try:
        call = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        call = None
    if not isinstance(call, Call):
        raise ValueError(f"{text!r} must be NAME(ARGUMENTS), with numbers in it.")
    return call


def split(text: str, separator: str = " ") -> list[str]:
    """The parts of a text between separators that stand outside of brackets.

    Example:
        >>> split("pareto(2.0, 1.0),seed=3", ",")
        ['pareto(2.0, 1.0)', 'seed=3']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]


def find(wanted: str, names: list[str]) -> str:
    """The arm that is meant.

    Args:
        wanted: its name, a beginning that no other name has, or its number, from 0.
        names: the arms of a run, in their order.

    Raises:
        ValueError: if it is none or several of them.

    Example:
        >>> find("k_async", ["hardsync()", "k_async(1)"]), find("0", ["hardsync()"])
        ('k_async(1)', 'hardsync()')
    """
    if wanted in names:
        return wanted
    if wanted.isdecimal() and int(wanted) < len(names):
        return names[int(wanted)]
    matches = [name for name in names if name.startswith(wanted)]
    if len(matches) != 1:
        raise ValueError(
            f"arm={wanted} names {'several' if matches else 'none'} of the run's arms:"
            f" {'; '.join(matches or names) or 'it has none'}."
        )
    return matches[0]


def options(name: str, config: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an arm by name: of its protocol, its cluster and its task.

    Args:
        name: the arm's.
        config: what it does not change is as there.

    Example:
        >>> config = {"cluster": {"workers": 8}, "task": {"batch_size": 32}}
        >>> options("wagma(period=11) workers=16", config)
        {'batch_size': 32, 'workers': 16, 'period': 11}
    """
    found = {**config["task"], **config["cluster"]}
    if name != LOGGED:
        arm = parse(name)
        found |= arm.protocol.options | arm.changes
    return {
        key: value
        for key, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def without(name: str, option: str) -> str:
    """An arm's name without one of its options or changes.

    Example:
        >>> without("wagma(4, period=11) workers=16", "period")
        'wagma(4) workers=16'
        >>> without("wagma(4, period=11) workers=16", "workers")
        'wagma(4, period=11)'
    """

    def kept(parts):
        return [part for part in parts if not part.strip().startswith(f"{option}=")]

    protocol, *changes = split(name)
    called, _, arguments = protocol.partition("(")
    arguments = ",".join(kept(split(arguments.removesuffix(")"), ","))).strip()
    return " ".join([f"{called}({arguments})", *kept(changes)])


def slug(name: str) -> str:
    """An arm's name as a file may have it.

    Example:
        >>> slug("n_softsync(15) workers=30")
        'n_softsync_15_workers=30'
    """
    return re.sub(r"[^\w.=]+", "_", name).strip("_")


def trace_file(name: str, seed: int) -> str:
    """Where a run's folder has the trace of an arm.

    Example:
        >>> trace_file("n_softsync(15)", seed=0)
        'traces/n_softsync_15-seed0.npz'
    """
    return f"traces/{slug(name)}-seed{seed}.npz"


def _value(node: ast.expr) -> Any:
    """The value of a literal, `inf`, or a call of these."""
    match node:
        case ast.Call(func=ast.Name(name)):
            options = {word.arg or "**": word.value for word in node.keywords}
            return Call(
                name,
                tuple(map(_value, node.args)),
                {key: _value(value) for key, value in options.items()},
            )
        case ast.Name("inf"):
            return math.inf
        case ast.Tuple(items) | ast.List(items):
            return tuple(map(_value, items))
    return ast.literal_eval(node)


def _literal_or_text(text: str) -> Any:
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        return text
    return text if isinstance(value, Call) else value
