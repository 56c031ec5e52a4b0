"""Checks of arguments. An error names the argument, its rule and its value."""

import math
import operator
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np


def as_array(values: Any) -> Any:
    """`values` as a NumPy array; a JAX array is returned as it is."""
    return values if isinstance(values, jax.Array) else np.asarray(values)


def as_counts(
    name: str,
    values: Any,
    *,
    least: int = 0,
    most: int = 2**31 - 1,
    listed: bool = False,
) -> Any:
    """`values` as a NumPy array of integers in least .. most.

    A traced array is returned as it is, and its values are not checked.
    """
    counts = as_array(values)
    is_sound = counts.size == 0 or jnp.issubdtype(counts.dtype, jnp.integer)
    if is_sound and is_concrete(counts):
        counts = np.asarray(counts)
        is_sound = ((counts >= least) & (counts <= most)).all()
    if not is_sound or (listed and counts.ndim != 1):
        what = "a list of integers" if listed else "integers"
        raise ValueError(
            f"`{name}` must be {what} in {least} .. {most}, got {values!r}."
        )
    return counts


def as_reals(name: str, values: Any) -> np.ndarray:
    """`values` as a float64 array of any shape."""
    array = np.asarray(values)
    # NumPy would convert None to NaN, and text to numbers; it knows no bfloat16
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


def check_bound(
    name: str, value: Any, *, at_least: int = 0, at_most: float = math.inf
) -> int:
    """`value` as a static integer in at_least .. at_most."""
    number: Any = known(value)
    try:
        bound = operator.index(number)
    except (TypeError, jax.errors.TracerIntegerConversionError):
        bound = None
    if bound is None or isinstance(number, bool):
        raise TypeError(f"`{name}` must be a static integer, got {value!r}.")
    if not at_least <= bound <= at_most:
        rule = f"lie in {at_least} .. {at_most}"
        rule = f"be at least {at_least}" if at_most == math.inf else rule
        raise ValueError(f"`{name}` must {rule}, got {bound}.")
    return bound


def check_power_of_two(name: str, value: Any) -> int:
    """`value` as a static power of two."""
    number = check_bound(name, value, at_least=1)
    if number & (number - 1):
        raise ValueError(f"`{name}` must be a power of two, got {number}.")
    return number


def check_count(name: str, value: Any, *, at_least: int = 1) -> Any:
    """`value` as an integer, at least `at_least`; a traced value is not checked."""
    value = known(value)
    return check_bound(name, value, at_least=at_least) if is_concrete(value) else value


_WORDS = {"[0, inf)": "finite and non-negative", "(0, inf)": "finite and positive"}


def check_number(name: str, value: Any, interval: str = "[0, inf)") -> Any:
    """`known(value)`, checked to lie in an interval; in a grid it may be traced."""
    number: Any = known(value)
    if not is_concrete(number):
        return number
    try:
        if isinstance(number, bool):  # a flag in the place of a number
            raise TypeError
        _check_within(name, number, interval)
    except TypeError:  # text, None, an array
        raise TypeError(f"`{name}` must be a number, got {value!r}.") from None
    return number


def _check_within(name: str, number: Any, interval: str, remedy: str = "") -> None:
    low, high = map(float, interval[1:-1].split(","))
    try:
        is_within = bool(low <= number <= high)
    except ValueError:  # an array
        raise TypeError from None
    at_end = (number == low and interval[0] == "(") or (
        number == high and interval[-1] == ")"
    )
    if at_end or not is_within:
        rule = _WORDS.get(interval, f"in {interval}")
        raise ValueError(f"`{name}` must be {rule}, got {number}{remedy}.")


def check_scalar(name: str, value: Any, interval: str = "[0, inf)") -> Any:
    """`value`, checked by `check_number`; unchanged if it has 32 bits or more.

    With a bfloat16 leaf JAX multiplies jnp.float32(0.9) in float32, 0.9 in bfloat16.
    A known number must lie in the interval in float32 too, where 1 - 1e-9 is 1.
    """
    number = check_number(name, value, interval)
    if is_concrete(number):
        remedy = f", the float32 of {number}: give a number farther from it"
        with np.errstate(over="ignore"):
            _check_within(name, np.float32(number), interval, remedy)
    return value if getattr(value, "nbytes", 0) >= 4 else number


def check_rate(name: str, value: Any, interval: str = "[0, inf)") -> Any:
    """A number, checked by `check_scalar`, or a schedule, which is not checked."""
    return value if callable(value) else check_scalar(name, value, interval)


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
        raise TypeError(f"`age` must be a real number of steps, got {value}.")
    if not jnp.issubdtype(value.dtype, jnp.integer):
        return value.astype(jnp.float32)
    ends, kind = jnp.iinfo(jnp.int32), jnp.iinfo(value.dtype)
    return value.clip(max(ends.min, kind.min), min(ends.max, kind.max)).astype(np.int32)


def check_function(name: str, value: Any, remedy: str = "") -> Any:
    """`value`, if it can be called."""
    if not callable(value):
        raise TypeError(f"`{name}` must be a function, got {value!r}{remedy}.")
    return value


def check_instance(name: str, value: Any, kind: type) -> Any:
    """`value`, if it is of this class."""
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must be a {kind.__name__}, got {value!r}.")
    return value


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> Any:
    """`value`, if it is one of these texts."""
    if value not in choices:
        *first, last = (f'"{choice}"' for choice in choices)
        rule = f"{', '.join(first)} or {last}"
        raise ValueError(f"`{name}` must be {rule}, got {value!r}.")
    return value


def check_key(name: str, key: Any) -> Any:
    """`key`, if it has the dtype of a key of JAX."""
    kinds = jax.dtypes.prng_key, jnp.uint32  # typed keys, and the older raw keys
    dtype = getattr(key, "dtype", None)
    if dtype is None or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        raise TypeError(
            f"`{name}` must be a key, got {key!r}: write jax.random.key(0)."
        )
    return key


def check_exchanges(period: int, fragments: int, delay: int = 0) -> int:
    """H / F, the steps between two exchanges; only one exchange is in flight."""
    apart = period // fragments
    if period % fragments:
        raise ValueError(
            f"`period` must be a multiple of {fragments}, the number of fragments, got"
            f" {period}."
        )
    if delay >= apart:
        raise ValueError(
            f"`delay` must be less than period / fragments, {apart}, got {delay}."
        )
    return apart


def as_finite(
    name: str, values: Any, *, remedy: str = "", positive: bool = False
) -> np.ndarray:
    """Finite, non-negative numbers as float64, of any shape."""
    numbers = as_reals(name, values)
    sound = np.isfinite(numbers) & ((numbers > 0) if positive else (numbers >= 0))
    if not sound.all():
        sign = "positive" if positive else "non-negative"
        bad = f"{numbers[~sound][0]}{': ' * bool(remedy)}{remedy}"
        raise ValueError(f"`{name}` must be finite and {sign}, got {bad}.")
    return numbers
