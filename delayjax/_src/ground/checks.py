"""Checks of arguments. An error names the argument, its value and the remedy."""

import operator
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np


def as_array(name: str, values: Any) -> Any:
    """`values` as a NumPy array; a JAX array is returned as it is."""
    try:
        return values if isinstance(values, jax.Array) else np.asarray(values)
    except ValueError:
        raise TypeError(
            f"`{name}` must have rows of one length, got {values!r}."
        ) from None


def as_reals(name: str, values: Any) -> np.ndarray:
    """`values` as a float64 array of any shape."""
    array = np.asarray(as_array(name, values))
    # NumPy would read None as NaN, and text; bfloat16 is a type of its own there
    if not any(jnp.issubdtype(array.dtype, x) for x in (jnp.integer, jnp.floating)):
        raise TypeError(f"`{name}` must hold real numbers, got {values!r}.")
    return array.astype(np.float64)


def is_concrete(value: Any) -> bool:
    """Whether the value is known, i.e. not traced."""
    return not isinstance(value, jax.core.Tracer)


def known(value: Any) -> Any:
    """A concrete scalar as a Python number, and a concrete JAX array as a NumPy array.

    In `jit` JAX would trace a computation with a JAX array. A NumPy scalar has a width:
    10 * np.int8(20) is -56. A traced scalar of less than 32 bits is widened.
    """
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return value
    if not is_concrete(value):
        kind = jnp.int32 if jnp.issubdtype(value.dtype, jnp.integer) else jnp.float32
        return value.astype(kind) if value.dtype.itemsize < 4 else value
    return value.item() if value.ndim == 0 else np.asarray(value)


def check_bound(name: str, value: Any, *, at_least: int = 0) -> int:
    """`value` as a static integer, at least `at_least`."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        bound = operator.index(known(value))
    except (TypeError, jax.errors.TracerIntegerConversionError):
        raise TypeError(f"`{name}` must be a static integer, got {value!r}.") from None
    if bound < at_least:
        rule = f"at least {at_least}" if at_least else "non-negative"
        raise ValueError(f"`{name}` must be {rule}, got {bound}.")
    return bound


def check_count(name: str, value: Any, *, at_least: int = 1) -> Any:
    """`value` as an integer, at least `at_least`; a traced one is not checked."""
    value = known(value)
    is_known = is_concrete(value)
    return check_bound(name, value, at_least=at_least) if is_known else value


def check_number(
    name: str,
    value: Any,
    *,
    below: float = np.inf,
    most: float = np.inf,
    positive: bool = False,
) -> Any:
    """`known(value)`, checked to lie in [0, below) or [0, most], or to be positive."""
    sign = "positive" if positive else "non-negative"
    rule = f"finite and {sign}" if below == np.inf else f"in [0, {below})"
    rule = rule if most == np.inf else f"in {'[('[positive]}0, {most}]"

    def is_within(x):
        return 0.0 <= x < below and x <= most and not (positive and x == 0.0)

    return _checked(name, value, is_within, rule)


def check_scalar(name: str, value: Any, **rule: Any) -> Any:
    """`value` by the rule of `check_number`, as it is if it has 32 bits or more.

    A bfloat16 leaf is multiplied by jnp.float32(0.9) in float32, by 0.9 in bfloat16.
    """
    number = check_number(name, value, **rule)
    return value if getattr(value, "nbytes", 0) >= 4 else number


def check_between(name: str, value: Any, low: float, high: float) -> Any:
    """`known(value)`, checked to lie in the open interval (low, high)."""
    return _checked(name, value, lambda x: low < x < high, f"in ({low}, {high})")


def _checked(name: str, value: Any, is_within: Any, rule: str) -> Any:
    """`known(value)`, checked if it is concrete; in a grid it may be traced."""
    given, value = value, known(value)
    if not is_concrete(value):
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        is_valid = bool(is_within(value))
    except (TypeError, ValueError):  # text, None, an array
        raise TypeError(f"`{name}` must be a number, got {given!r}.") from None
    if not is_valid:
        raise ValueError(f"`{name}` must be {rule}, got {value}.")
    return value


def check_field(owner: Any, name: str, check: Any, **rule: Any) -> None:
    """Replaces a field of a frozen dataclass by the result of its check."""
    object.__setattr__(owner, name, check(name, getattr(owner, name), **rule))


def check_held(name: str, value: Any, has: Any, needs: Any = None) -> None:
    """Checks that a state was made with the number that the transformation has."""
    needs = value if needs is None else needs
    if has != needs:
        wanted = "" if needs == value else f" where it needs {needs}"
        raise ValueError(
            f"`{name}` is {value}, but the state has {has}{wanted}: make the state with"
            " `init` of this transformation."
        )


def as_scalar(name: str, answer: Any, *kinds: Any) -> jax.Array:
    """The result of a user's function as a scalar array, of these dtypes or real."""
    names = {jnp.integer: "an integer", jnp.bool_: "a bool"}
    rule = " or ".join(names[kind] for kind in kinds) or "a real number"
    try:
        array = jnp.asarray(answer)
    except (TypeError, ValueError):  # text, None, a function
        raise TypeError(f"`{name}` must be {rule}, got {answer!r}.") from None
    wanted = kinds or (jnp.integer, jnp.floating)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in wanted):
        raise TypeError(f"`{name}` must be {rule}, got {array.dtype}.")
    if array.ndim != 0:
        raise ValueError(f"`{name}` must be a scalar, got shape {array.shape}.")
    return array


def as_steps(value: Any) -> Any:
    """A number of steps as int32, or as float32 where it is a float.

    Then no later sum or clip overflows. An integer outside of int32 becomes the nearest
    number in int32. A known value is returned as a NumPy array.
    """
    value = np.asarray(value) if is_concrete(value) else value  # JAX's int32 would wrap
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        raise TypeError(
            f"`age` or `delay` must be a real number of steps, got {value}."
        )
    if not jnp.issubdtype(value.dtype, jnp.integer):
        return value.astype(jnp.float32)
    ends, kind = jnp.iinfo(jnp.int32), jnp.iinfo(value.dtype)
    return value.clip(max(ends.min, kind.min), min(ends.max, kind.max)).astype(np.int32)


def check_function(name: str, value: Any, more: str = "") -> None:
    """Checks that an argument can be called. `more` is added to the error."""
    if not callable(value):
        raise TypeError(f"`{name}` must be a function{more}, got {value!r}.")


def check_choice(name: str, value: Any, *choices: str) -> None:
    """Checks that an argument is one of these texts."""
    if value not in choices:
        *first, last = (f'"{choice}"' for choice in choices)
        rule = f"{', '.join(first)} or {last}"
        raise ValueError(f"`{name}` must be {rule}, got {value!r}.")


def check_key(name: str, key: Any) -> None:
    """Checks that a value is one key of JAX's."""
    kinds = jax.dtypes.prng_key, jnp.uint32  # typed, and the older kind
    dtype = getattr(key, "dtype", None)
    if dtype is None or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        raise TypeError(
            f"`{name}` must be a key, got {key!r}: write jax.random.key(0)."
        )


def check_integer(name: str, value: Any, least: int, most: int) -> int:
    """`value` as an integer in least .. most."""
    number = check_bound(name, value, at_least=least)
    if number > most:
        raise ValueError(f"`{name}` must lie in {least} .. {most}, got {number}.")
    return number


def check_exchanges(period: int, fragments: int, delay: int) -> tuple[int, int, int]:
    """H, F and d as integers: an exchange starts every H / F steps and takes d < H / F.

    So one is in flight at a time.
    """
    period = check_bound("period", period, at_least=1)
    fragments = check_bound("fragments", fragments, at_least=1)
    delay = check_bound("delay", delay)
    apart = period // fragments
    if period % fragments:
        raise ValueError(
            f"`period` must be a multiple of the number of fragments, {fragments}, got"
            f" {period}: one is exchanged every period / {fragments} steps. Take"
            f" period={fragments * max(apart, 1)}."
        )
    if delay >= apart:
        raise ValueError(
            f"`delay` must be less than period / fragments, {apart}, got {delay}: one"
            " exchange is in flight at a time. Lengthen `period`, or take fewer"
            " `fragments`."
        )
    return period, fragments, delay


def as_seconds(
    name: str, values: Any, *, remedy: str, positive: bool = False
) -> np.ndarray:
    """Finite, non-negative seconds as float64, of any shape."""
    seconds = as_reals(name, values)
    sound = np.isfinite(seconds) & ((seconds > 0) if positive else (seconds >= 0))
    if not sound.all():
        sign = "positive" if positive else "non-negative"
        bad = seconds[~sound][0]
        raise ValueError(f"`{name}` must be finite and {sign}, got {bad}: {remedy}.")
    return seconds
