"""Delays as functions of the step, like an `optax.Schedule`.

Random delays have no state: the same key and step give the same delay, on all workers
if there is no `axis_name`. Step t uses the gradient of step t - tau(t) (*lookback*).
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from delayjax._src.ground import axes, checks, collectives, kinds, transforms, trees
from delayjax._src.ground.pickling import remembered


@remembered
def uniform(
    key: kinds.Key,
    low: ArrayLike,
    high: ArrayLike,
    *,
    axis_name: axes.AxisName | None = None,
) -> transforms.OfStep:
    """Draws each delay from `low` to `high` with the same probability.

        P(delay(t) = k) = 1 / (high - low + 1),  k = low, ..., high

    Args:
        key: a PRNG key; step t draws with `fold_in(key, t)`.
        low: the smallest delay, in steps. May be traced.
        high: the largest delay, in steps. May be traced.
        axis_name: the workers' axis, or several, if each worker draws its own delay.

    Example:
        >>> delay = uniform(jax.random.key(0), 2, 4)
        >>> sorted({int(delay(step)) for step in range(50)})
        [2, 3, 4]
    """
    low, high = _steps("low", low), _steps("high", high)
    known = checks.is_concrete(low) and checks.is_concrete(high)
    if known and np.asarray(low) > np.asarray(high):
        raise ValueError(f"`low` must not exceed `high`, got {low} and {high}.")
    return lambda step: jax.random.randint(
        _draw_key(key, step, axis_name), (), low, high + 1, jnp.int32
    )


@remembered
def geometric(
    key: kinds.Key, mean: kinds.NonNegative, *, axis_name: axes.AxisName | None = None
) -> transforms.OfStep:
    """Draws the staleness of many workers with memoryless service times.

        P(delay(t) = k) = (1 - q) q^k,  q = mean / (1 + mean),  k = 0, 1, 2, ...

    A mean of P - 1 is asynchronous SGD on P equal workers with exponential times.

    Args:
        key: a PRNG key; step t draws with `fold_in(key, t)`.
        mean: the mean delay, in steps. May be traced.
        axis_name: the workers' axis, or several, if each worker draws its own delay.

    Example:
        >>> draws = jax.vmap(geometric(jax.random.key(0), 4.0))(jnp.arange(10_000))
        >>> bool(abs(draws.mean() - 4.0) < 0.2)
        True

    References:
        Mitliagkas et al., Asynchrony begets momentum, 2016, arXiv:1605.09774.
    """

    def delay(step):
        success = 1.0 / (1.0 + jnp.asarray(mean, jnp.float32))
        draw = jax.random.geometric(_draw_key(key, step, axis_name), success)
        return draw.astype(jnp.int32) - 1  # jax counts trials, from 1

    return delay


@remembered
def poisson(
    key: kinds.Key, mean: kinds.NonNegative, *, axis_name: axes.AxisName | None = None
) -> transforms.OfStep:
    """Draws each delay from a Poisson distribution.

        P(delay(t) = k) = mean^k exp(-mean) / k!,  k = 0, 1, 2, ...

    Args:
        key: a PRNG key; step t draws with `fold_in(key, t)`.
        mean: the mean delay, in steps. May be traced.
        axis_name: the workers' axis, or several, if each worker draws its own delay.

    Example:
        >>> draws = jax.vmap(poisson(jax.random.key(0), 4.0))(jnp.arange(10_000))
        >>> bool(abs(draws.var() - 4.0) < 0.2)
        True
    """

    def delay(step):
        rate = jnp.asarray(mean, jnp.float32)
        if axis_name is not None:  # jax's sampler loops with its rate in the carry
            rate = axes.vary(rate, axis_name=axis_name)
        return jax.random.poisson(_draw_key(key, step, axis_name), rate, (), jnp.int32)

    return delay


@remembered
def from_trace(staleness: ArrayLike | Sequence[int]) -> transforms.OfStep:
    """Repeats a simulated or logged staleness: delay(t) = staleness[t mod T].

    Args:
        staleness: int [T] or [T, 1], in steps. Train along a trace with several
            gradients per update with `replay`.

    Example:
        >>> delay = from_trace([0, 2, 1])
        >>> [int(delay(step)) for step in range(5)]
        [0, 2, 1, 0, 2]
    """
    shape = np.shape(staleness)
    if shape not in ((math.prod(shape),), (math.prod(shape), 1)) or 0 in shape:
        raise ValueError(
            f"`staleness` must have shape [T] or [T, 1], got {shape}: with several"
            " gradients per update use `replay`."
        )
    row = jnp.ravel(_steps("staleness", staleness))
    return lambda step: row[step % row.size]


@remembered
def per_worker(
    delays: ArrayLike, *, axis_name: axes.AxisName = "workers"
) -> transforms.OfStep:
    """Takes a delay for each worker from a table: delay(t) = delays[t mod T, worker].

    Args:
        delays: int [P] for constant delays, or [T, P] with a row for each step, in
            steps. May be traced.
        axis_name: the axis of P workers, or several axes that number them together.

    Example:
        >>> delay = per_worker([[0, 3], [1, 2]])
        >>> jax.vmap(lambda _: delay(1), axis_name="workers")(jnp.arange(2))
        Array([1, 2], dtype=int32)
    """
    table = jnp.atleast_2d(_steps("delays", delays))

    def delay(step):
        row, worker = collectives.row_of("delays", table, step, axis_name)
        return row[worker]

    return delay


def max_delays(delay: Any, max_delay: Any) -> Any:
    """The largest staleness kept, checked: an int, or a prefix tree of ints."""
    for one in jax.tree.leaves(delay, is_leaf=trees.is_function):
        given = one if callable(one) else checks.check_number("delay", one)
        if max_delay is None and not isinstance(one, (int, np.integer)):
            raise ValueError(
                "`max_delay` must be given where `delay` is no Python int, got"
                f" {given!r} of {type(one)}: it fixes the number of gradients kept."
            )
    bounds = delay if max_delay is None else max_delay
    bounds = jax.tree.map(lambda one: checks.check_bound("max_delay", one), bounds)
    _check_within(delay, bounds)
    return bounds


def _check_within(delay: Any, max_delay: Any) -> None:
    """Checks that no known delay exceeds the largest staleness that is kept."""
    ones, delay_tree = jax.tree.flatten(delay, is_leaf=trees.is_function)
    bounds, bound_tree = jax.tree.flatten(max_delay)
    if trees.is_leaf(delay) or trees.is_leaf(max_delay):
        pairs = itertools.product(ones, bounds)
    else:  # different prefix trees cannot be compared here
        pairs = zip(ones, bounds, strict=True) if delay_tree == bound_tree else ()
    for one, bound in pairs:
        is_number = not callable(one) and checks.is_concrete(one)
        if is_number and checks.known(one) > bound:
            raise ValueError(
                f"`delay` must be at most `max_delay` = {bound}, got {one}."
            )


def ask(delay: Any, step: jax.Array, longest: int) -> Any:
    """The delay at `step`: int32 or a floored float32 [], or a tree of these.

    Args:
        delay: the argument of the user.
        step: int32 [].
        longest: the largest delay that is kept; a float must be exact up to it.
    """

    def ask_one(one):
        asked = one(step) if callable(one) else one
        dtype = checks.as_scalar("delay(step)", asked).dtype
        is_float = jnp.issubdtype(dtype, jnp.floating)
        if is_float and longest > 2 ** (jnp.finfo(dtype).nmant + 1):
            raise TypeError(
                f"`delay` is {dtype}, which cannot hold all integers up to `max_delay`"
                f" = {longest}: give inject_hyperparams hyperparam_dtype=jnp.float32."
            )
        steps = checks.as_steps(asked)
        return jnp.floor(steps) if is_float else jnp.asarray(steps)

    return jax.tree.map(ask_one, delay, is_leaf=trees.is_function)


def clip(asked: jax.Array, oldest: jax.Array) -> jax.Array:
    """The staleness, int32 []. A float is clipped before the cast to int32."""
    return jnp.clip(asked, 0, oldest).astype(jnp.int32)


def poisoned(gradient: Any, asked: Any) -> Any:
    """`gradient`, but NaN where the delay is NaN."""

    def poison(leaf, asked):
        if jnp.issubdtype(asked.dtype, jnp.integer):
            return leaf
        return jnp.where(jnp.isnan(asked), jnp.asarray(jnp.nan, leaf.dtype), leaf)

    return jax.tree.map(poison, gradient, trees.broadcast("delay", asked, gradient))


def _draw_key(key: jax.Array, step: Any, axis_name: axes.AxisName | None) -> jax.Array:
    key = jax.random.fold_in(key, step)
    if axis_name is None:
        return key
    return jax.random.fold_in(key, jax.lax.axis_index(axes.as_names(axis_name)))


def _steps(name: str, values: Any) -> jax.Array:
    """Numbers of steps as int32, of any shape."""
    # `uniform` adds one to its largest delay
    return jnp.asarray(checks.as_steps(checks.as_counts(name, values, most=2**31 - 2)))
