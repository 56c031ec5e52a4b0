"""How late: delays as functions of the step.

Any function of the step is a delay, so every `optax.Schedule` is one (its floats are
floored). Random delays are stateless: the same key and step give the same delay. They
are *lookback* delays: the update at step t uses the gradient of step t - tau(t), so a
gradient may be used twice or never.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from delayjax._src import base, collectives

_MOST = 2**31 - 1  # of int32: `uniform` adds one


def uniform(
    key: jax.Array,
    low: ArrayLike,
    high: ArrayLike,
    *,
    axis_name: base.AxisName | None = None,
) -> base.Schedule:
    """Every delay from `low` to `high`, both included, equally likely.

        P(delay(t) = k) = 1 / (high - low + 1),  k = low, ..., high

    Args:
        key: a PRNG key; the draw of step t uses `fold_in(key, t)`.
        low: the smallest delay, in steps. May be traced.
        high: the largest delay, in steps. May be traced.
        axis_name: the axis, or several, over which workers draw apart; without it one
            key gives every worker the same draw.

    Raises:
        ValueError: if a bound is negative or `low` exceeds `high`.

    Example:
        >>> delay = uniform(jax.random.key(0), 2, 4)
        >>> sorted({int(delay(step)) for step in range(50)})
        [2, 3, 4]
    """
    _check_draw(key, axis_name)
    _check_integer("low", low)
    _check_integer("high", high)
    known = base.is_concrete(low) and base.is_concrete(high)
    if known and np.asarray(low) > np.asarray(high):
        raise ValueError(f"`low` must not exceed `high`, got {low} and {high}.")
    return lambda step: jax.random.randint(
        _draw_key(key, step, axis_name), (), low, jnp.asarray(high) + 1, jnp.int32
    )


def geometric(
    key: jax.Array, mean: ArrayLike, *, axis_name: base.AxisName | None = None
) -> base.Schedule:
    """The staleness law of many workers with memoryless service times.

        P(delay(t) = k) = (1 - q) q^k,  q = mean / (1 + mean),  k = 0, 1, 2, ...

    With q = 1 - 1/P this is the staleness of plain asynchronous SGD on P equal workers
    with exponential times, mean P - 1.

    Args:
        key: a PRNG key; the draw of step t uses `fold_in(key, t)`.
        mean: the mean delay, in steps. May be traced.
        axis_name: the axis, or several, over which workers draw apart.

    Raises:
        ValueError: if `mean` is negative or not finite.

    Example:
        >>> delay = geometric(jax.random.key(0), 4.0)
        >>> draws = jax.vmap(delay)(jnp.arange(10_000))
        >>> bool(abs(draws.mean() - 4.0) < 0.2)
        True

    References:
        Mitliagkas, Zhang, Hadjis and Re, Asynchrony begets momentum, 2016,
        arXiv:1605.09774.
    """
    _check_draw(key, axis_name)
    base.check_number("mean", mean)

    def delay(step):
        success = 1.0 / (1.0 + jnp.asarray(mean, jnp.float32))
        draw = jax.random.geometric(_draw_key(key, step, axis_name), success)
        return draw.astype(jnp.int32) - 1  # jax counts trials, from 1

    return delay


def poisson(
    key: jax.Array, mean: ArrayLike, *, axis_name: base.AxisName | None = None
) -> base.Schedule:
    """Delays with the spread of many independent arrivals.

        P(delay(t) = k) = mean^k exp(-mean) / k!,  k = 0, 1, 2, ...

    Args:
        key: a PRNG key; the draw of step t uses `fold_in(key, t)`.
        mean: the mean delay, in steps. May be traced.
        axis_name: the axis, or several, over which workers draw apart.

    Raises:
        ValueError: if `mean` is negative or not finite.

    Example:
        >>> draws = jax.vmap(poisson(jax.random.key(0), 4.0))(jnp.arange(10_000))
        >>> bool(abs(draws.var() - 4.0) < 0.2)
        True
    """
    _check_draw(key, axis_name)
    base.check_number("mean", mean)

    def delay(step):
        rate = jnp.asarray(mean, jnp.float32)
        if axis_name is not None:  # jax's sampler loops with its rate in the carry
            rate = base.vary(rate, axis_name=axis_name)
        draw_key = _draw_key(key, step, axis_name)
        return jax.random.poisson(draw_key, rate, (), jnp.int32)

    return delay


def from_trace(staleness: ArrayLike) -> base.Schedule:
    """Staleness that was simulated or logged: delay(t) = staleness[t mod T].

    Args:
        staleness: int [T] or [T, 1], in steps; from its end it starts anew.

    Raises:
        TypeError: if it does not hold integers.
        ValueError: if it is empty, has a negative entry, or has several gradients an
            update, which a single delayed gradient cannot follow.

    Example:
        >>> delay = from_trace([0, 2, 1])
        >>> [int(delay(step)) for step in range(5)]
        [0, 2, 1, 0, 2]
    """
    trace = _integers("staleness", staleness)
    if trace.ndim == 2 and trace.shape[1] > 1:
        raise ValueError(
            f"`staleness` has {trace.shape[1]} gradients an update, shape"
            f" {trace.shape}: a delay is one number an update. Train along such a trace"
            " gradient by gradient instead."
        )
    if trace.ndim not in (1, 2) or trace.size == 0:
        raise ValueError(
            f"`staleness` must have shape [T] or [T, 1] with T > 0, got {trace.shape}."
        )
    _check_range("staleness", trace)
    row = jnp.asarray(trace, jnp.int32).reshape(-1)
    return lambda step: row[step % row.size]


def per_worker(
    delays: ArrayLike, *, axis_name: base.AxisName = "workers"
) -> base.Schedule:
    """A delay for each worker from a table: delay(t) = delays[t mod T, worker].

    Args:
        delays: int [P] for constant delays, or [T, P] with a row for each step, in
            steps. After its last row the table starts again. May be traced.
        axis_name: the axis of P workers, or several axes that number them together.

    Raises:
        TypeError: if `delays` does not hold integers.
        ValueError: if `delays` has another shape or a negative entry, or (when the
            delay is asked for) P is not the number of workers.

    Example:
        >>> delay = per_worker([[0, 3], [1, 2]])
        >>> jax.vmap(lambda _: delay(1), axis_name="workers")(jnp.arange(2))
        Array([1, 2], dtype=int32)
    """
    base.as_names(axis_name)
    given = _integers("delays", delays)
    if given.ndim not in (1, 2) or given.size == 0:
        raise ValueError(
            "`delays` must have shape [P], or [T, P] with a row for each step, got"
            f" {given.shape}."
        )
    _check_range("delays", given)
    table = jnp.atleast_2d(jnp.asarray(given, jnp.int32))

    def delay(step):
        row, worker = collectives.row_of("delays", table, step, axis_name)
        return row[worker]

    return delay


def _draw_key(key: jax.Array, step: Any, axis_name: base.AxisName | None) -> jax.Array:
    key = jax.random.fold_in(key, step)
    if axis_name is not None:
        key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
    return key


def _check_draw(key: Any, axis_name: Any) -> None:
    base.check_key("key", key)
    if axis_name is not None:
        base.as_names(axis_name)


def _check_integer(name: str, value: Any) -> None:
    array = _integers(name, value)
    if array.ndim != 0:
        raise TypeError(f"`{name}` must be one integer, got {value!r}.")
    _check_range(name, array)


def _integers(name: str, values: Any) -> Any:
    """An array of them, as it is where it is traced.

    Raises:
        TypeError: if `values` holds something else.
    """
    array = base.as_array(name, values)
    # an empty list is of no dtype
    if array.size and not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"`{name}` must be an integer number of steps, got {values!r}.")
    return array


def _check_range(name: str, array: Any) -> None:
    if not base.is_concrete(array):
        return
    known = np.asarray(array)
    if known.min() < 0:
        raise ValueError(f"`{name}` must be non-negative, got {known}.")
    if known.max() >= _MOST:
        raise ValueError(f"`{name}` must be below 2^31 - 1, got {known.max()}.")
