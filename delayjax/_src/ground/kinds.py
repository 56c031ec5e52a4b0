"""Kinds of arguments: the types of a signature say which values are refused."""

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, cast

import jax
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import checks

T = TypeVar("T", bound=Callable[..., Any])
_Rule = Callable[[str, Any], Any]  # (name, value) -> the value, or an error


class _Within(functools.partial):
    """A check of `checks` with its options, which a signature shows."""

    def __repr__(self):
        return ", ".join(f"{name}={value!r}" for name, value in self.keywords.items())


NonNegativeInt = Annotated[int, checks.check_bound]
"""A static integer of at least 0."""

PositiveInt = Annotated[int, _Within(checks.check_bound, at_least=1)]
"""A static integer of at least 1."""

Several = Annotated[int, _Within(checks.check_bound, at_least=2)]
"""A static integer of at least 2."""

PowerOfTwo = Annotated[int, checks.check_power_of_two]
"""A static power of two: 1, 2, 4, ..."""

Count = Annotated[ArrayLike, checks.check_count]
"""An integer of at least 1, which may be traced."""

NonNegative = Annotated[ArrayLike, checks.check_scalar]
"""A finite number of at least 0, which may be traced."""

Positive = Annotated[ArrayLike, _Within(checks.check_scalar, interval="(0, inf)")]
"""A finite number above 0, which may be traced."""

Share = Annotated[ArrayLike, _Within(checks.check_scalar, interval="[0, 1)")]
"""A number in [0, 1), which may be traced."""

OpenShare = Annotated[ArrayLike, _Within(checks.check_scalar, interval="(0, 1)")]
"""A number in (0, 1), which may be traced."""

Fraction = Annotated[ArrayLike, _Within(checks.check_scalar, interval="(0, 1]")]
"""A number in (0, 1], which may be traced."""

ClosedShare = Annotated[ArrayLike, _Within(checks.check_scalar, interval="[0, 1]")]
"""A number in [0, 1], which may be traced."""

Correlation = Annotated[ArrayLike, _Within(checks.check_number, interval="(-1, 1)")]
"""A number in (-1, 1), which may be traced."""

NonNegativeFloat = Annotated[float, checks.check_number]
"""A finite number of at least 0."""

PositiveFloat = Annotated[float, _Within(checks.check_number, interval="(0, inf)")]
"""A finite number above 0."""

ShareFloat = Annotated[float, _Within(checks.check_number, interval="[0, 1)")]
"""A number in [0, 1)."""

OpenShareFloat = Annotated[float, _Within(checks.check_number, interval="(0, 1)")]
"""A number in (0, 1)."""

PositiveOrInf = Annotated[ArrayLike, _Within(checks.check_number, interval="(0, inf]")]
"""A number above 0, which may be traced, or infinity."""

PositiveOrInfFloat = Annotated[float, _Within(checks.check_number, interval="(0, inf]")]
"""A number above 0, or infinity."""

Probability = Annotated[float, _Within(checks.check_number, interval="[0, 1]")]
"""A number in [0, 1]."""

PositiveProbability = Annotated[float, _Within(checks.check_number, interval="(0, 1]")]
"""A number in (0, 1]."""

Rate = Annotated[optax.ScalarOrSchedule, checks.check_rate]
"""A finite number of at least 0, which may be traced, or a schedule."""

PositiveRate = Annotated[
    optax.ScalarOrSchedule, _Within(checks.check_rate, interval="(0, inf)")
]
"""A finite number above 0, which may be traced, or a schedule."""

FractionRate = Annotated[
    optax.ScalarOrSchedule, _Within(checks.check_rate, interval="(0, 1]")
]
"""A number in (0, 1], which may be traced, or a schedule."""

ProbabilityRate = Annotated[
    optax.ScalarOrSchedule, _Within(checks.check_rate, interval="[0, 1]")
]
"""A number in [0, 1], which may be traced, or a schedule."""

Key = Annotated[jax.Array, checks.check_key]
"""A key of `jax.random`."""


def checked(made: T) -> T:
    """Checks the arguments of a function, or of a class's methods, by their types.

    It knows the types of this module, `Literal`, `Callable`, JAX's `Mesh` and classes
    of delayjax, each with or without None. Arguments of other types, and default
    values, are not checked. In a class it skips properties, class methods, and methods
    that another decorator has wrapped.
    """
    if inspect.isclass(made):
        for name, value in list(vars(made).items()):
            is_wrapped = hasattr(value, "__wrapped__")  # `remembered` has checked it
            is_public = name == "__init__" or name[0] != "_"
            if inspect.isfunction(value) and is_public and not is_wrapped:
                setattr(made, name, checked(value))
        return cast(T, made)
    function: Any = made
    hints = function.__annotations__.items()
    rules = {name: rule for name, hint in hints if (rule := _rule(hint))}
    parameters = inspect.signature(function).parameters.values()
    names = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]

    def check(name, value):
        return rules[name](name, value) if name in rules else value

    @functools.wraps(function)
    def checking(*args, **kwargs):
        given = map(check, names, args)
        named = {name: check(name, value) for name, value in kwargs.items()}
        return function(*given, *args[len(names) :], **named)

    return cast(T, checking) if rules.keys() - {"return"} else made


def _rule(hint: Any) -> _Rule | None:
    """The check of an argument of this type, or None."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if is_union else (hint,)
    kinds = [kind for kind in members if kind is not types.NoneType]
    rule = _rule_of(kinds[0]) if len(kinds) == 1 else None
    if rule is None or len(members) == 1:
        return rule
    return lambda name, value: None if value is None else rule(name, value)


def _rule_of(kind: Any) -> _Rule | None:
    if typing.get_origin(kind) is Annotated:
        return kind.__metadata__[0]
    if typing.get_origin(kind) is typing.Literal:
        return functools.partial(checks.check_choice, choices=typing.get_args(kind))
    if typing.get_origin(kind) is collections.abc.Callable:
        return checks.check_function
    is_ours = inspect.isclass(kind) and kind.__module__.startswith("delayjax.")
    if is_ours or kind is jax.sharding.Mesh:
        return functools.partial(checks.check_instance, kind=kind)
    return None
