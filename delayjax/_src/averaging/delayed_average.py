"""Averages that arrive some steps after they started: DaSGD, LOSCAR."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.averaging import means, periods
from delayjax._src.averaging.step_then_mix import step_then_mix
from delayjax._src.ground import axes, checks, kinds, transforms

Merge = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(x^i, x^i_(k), xm_(k)) -> x^i, leaf by leaf: from a worker's model, its model when
the average started, and the average."""


class Begun(NamedTuple):
    """Memory of `delayed_average`."""

    begun: Any  # x^i_(k): the worker's model in the average in flight; () at delay 0


def overwriting(local: jax.Array, begun: jax.Array, mean: jax.Array) -> jax.Array:
    """x^i <- xm_(k): the steps since the average started are lost.

    Args:
        local: x^i, a leaf.
        begun: x^i_(k), the worker's model when the average started.
        mean: xm_(k), the average.

    Example:
        >>> overwriting(5.0, 3.0, 2.0)
        2.0
    """
    return mean


def corrected(local: jax.Array, begun: jax.Array, mean: jax.Array) -> jax.Array:
    """x^i <- xm_(k) + (x^i - x^i_(k)): no step is lost.

    Args:
        local: as in `overwriting`.
        begun: as in `overwriting`.
        mean: as in `overwriting`.

    Example:
        >>> corrected(5.0, 3.0, 2.0)
        4.0
    """
    return mean + (local - begun)


@kinds.checked
def blended(share: kinds.Share) -> Merge:
    """x^i <- xi x^i + (1 - xi) xm_(k).

    Args:
        share: xi, the worker's own share, in [0, 1). At 0 the average overwrites. May
            be traced.

    Example:
        >>> blended(0.5)(5.0, 3.0, 2.0)
        3.5
    """

    def merge(local, begun, mean):
        # the shares of a sum, rounded to bfloat16, would not sum to 1
        return mean + share * (local - mean)

    return merge


def leaf_merge(merge: Merge) -> Merge:
    """`merge`, whose result must have the shape of a leaf and is cast to its dtype."""

    def merge_leaf(local, begun, mean):
        # a result of another shape would silently change the model's shape
        mixed = jnp.broadcast_to(merge(local, begun, mean), local.shape)
        return mixed.astype(local.dtype)

    return merge_leaf


@kinds.checked
def delayed_average(
    inner: transforms.Transformation,
    delay: kinds.NonNegativeInt,
    *,
    period: kinds.PositiveInt,
    merge: Merge = corrected,
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DaSGD: an average that starts after step k is merged d local steps later.

        x^i <- x^i + U(g^i)                          at every step
        xm_(k) = (1/P) sum_j x^j_(k)                 started where `period` divides k
        x^i <- merge(x^i, x^i_(k), xm_(k))           after step k + d

    with x^i_(k) the model after k steps. DaSGD takes `blended(xi)`, LOSCAR `corrected`.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        delay: d, in steps, from 0 (no delay) to `period`. Static.
        period: H, steps from one average to the next. Static.
        merge: in each period `overwriting` loses d local steps, `blended(xi)` loses
            (1 - xi) d, `corrected` loses none.
        axis_name: the workers' axis, or several.

    Returns:
        A transformation whose state holds one model (none at delay 0) and `inner` for
        each worker. Every `period` steps there is an all-reduce of the models of d
        steps ago. At period 1 a compiler can hide it behind the gradient.

    Example:
        >>> tx = delayed_average(optax.sgd(1.0), 1, period=1)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad), 0 * grad)
        ...     return first, first + tx.update(grad, state, first)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-1., -3.], dtype=float32), Array([-3., -5.], dtype=float32))

    References:
        Zhou et al. (DaSGD), 2020, arXiv:2006.00441, its blend as commonly reported;
        LOSCAR, 2026, arXiv:2605.20866.
    """
    if delay > period:
        raise ValueError(f"`delay` must be at most {period}, got {delay}: use dga.")

    merge_leaf = leaf_merge(merge)

    def merged(due, model, begun):
        if period == 1 and delay > 0:  # without a branch, so the sum can be hidden
            mean, model = means.mean_beside(model, begun, axis_name)
        else:
            mean = means.mean_when(due, begun, axis_name)
        mixed = jax.tree.map(merge_leaf, model, begun, mean)
        return optax.tree.where(due.now, mixed, model)

    def begin(params):
        return Begun(axes.vary(params, axis_name=axis_name) if delay else ())

    def mix(step, memory, before, model):
        kept = memory.begun, (model if delay else ())
        checks.check_held("delay", delay, *map(jax.tree.structure, kept))
        starts = periods.due(step, period)
        if delay == 0:
            return merged(starts, model, model), memory
        arrives = periods.due(step, period, period + delay)
        mixed = merged(arrives, model, memory.begun)
        return mixed, Begun(optax.tree.where(starts.now, mixed, memory.begun))

    return step_then_mix("averaging.delayed_average", inner, mix, axis_name, begin)
