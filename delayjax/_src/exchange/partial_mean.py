"""Sums the gradients that arrive in time, and adds late gradients to a later sum."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src.exchange import mean as means
from delayjax._src.ground import (
    axes,
    checks,
    collectives,
    extras,
    kinds,
    refusal,
    transforms,
)
from delayjax._src.history import wrapped

Participation = Callable[[jax.Array], ArrayLike]
"""step (int32 []) -> whether this worker takes part, bool []."""


class Carried(NamedTuple):
    """A sum of gradients of one worker."""

    gradients: Any  # their sum
    held: jax.Array  # their number, int32 []
    ages: jax.Array  # the sum of their staleness, in steps, float32 []


@refusal.register_producer
class PartialMeanState(NamedTuple):
    """State of `partial_mean`."""

    staleness: jax.Array  # handed on by the last update, in steps, float32 []
    step: jax.Array  # updates done, int32 []
    carried: Carried  # each worker's gradients that were not sent yet
    inner_state: Any


@kinds.checked
def partial_mean(
    inner: transforms.Transformation,
    participates: Participation,
    *,
    carry_once: bool = False,
    axis_name: axes.AxisName = "workers",
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the gradients that arrive in time, and late gradients later.

    With c_p the sum that worker p carries, and A the workers that take part in step t,

        update_t = inner( (1/P) sum_{p in A} (c_p + g_p) )
        c_p     <- 0 for p in A,    c_p + g_p for the others

    Args:
        inner: the transformation behind the sum. It receives `staleness=`, the mean age
            of the gradients in the sum (float32, in steps), and zeros if no gradient
            arrives. `stale_params=` and `worker=` are not passed on.
        participates: step (int32 []) -> whether this worker's fresh gradient arrives
            in time, bool []: `solo`, `majority`, or your own function.
        carry_once: whether a carried gradient enters the next sum even if its worker is
            late again, as in eager-SGD. In both cases each gradient is used once.
        axis_name: the workers' axis, or several.
        bucket_bytes: smaller leaves are joined and sent together, as in `mean`.

    Returns:
        A transformation whose state holds one gradient tree for each worker and the
        state of `inner`. All workers enter each all-reduce, some with zeros.

    Example:
        >>> tx = partial_mean(
        ...     optax.sgd(1.0), lambda step: jax.lax.axis_index("workers") <= step)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad))
        ...     second, state = tx.update(grad, state)
        ...     return first, second, state.staleness
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-0.5, -0.5], dtype=float32), Array([-3.5, -3.5], dtype=float32),
        Array([0.33333334, 0.33333334], dtype=float32))

    References:
        Li et al. (eager-SGD, with `carry_once`), PPoPP 2020, arXiv:1908.04207.
    """
    inner = transforms.as_transformation("inner", inner)

    def init_fn(params):
        zeros = optax.tree.zeros_like(params)
        nothing = Carried(zeros, held=jnp.int32(0), ages=jnp.float32(0))
        return PartialMeanState(
            staleness=jnp.zeros((), jnp.float32),
            step=jnp.zeros((), jnp.int32),
            carried=axes.vary(nothing, axis_name=axis_name),
            inner_state=wrapped.init("inner", inner, params, late=False),
        )

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        collectives.check_fresh("exchange.partial_mean", updates, axis_name)
        workers = collectives.workers_of(axis_name)
        in_time = participates(state.step)
        in_time = checks.as_scalar("participates(step)", in_time, jnp.bool_)
        name = "exchange.partial_mean"
        updates, age = extras.staleness_of(name, updates, staleness, None, one=True)
        fresh = Carried(updates, jnp.int32(1), age.astype(jnp.float32))
        older = state.carried.ages + state.carried.held  # each is a step older
        carried = state.carried._replace(ages=older)
        nothing = optax.tree.zeros_like(carried)
        both = jax.tree.map(jnp.add, carried, fresh)

        sent = optax.tree.where(in_time, both, carried if carry_once else nothing)
        later = optax.tree.where(in_time, nothing, fresh if carry_once else both)
        sent = sent._replace(
            gradients=optax.tree.cast_like(sent.gradients, updates),
            held=sent.held.astype(jnp.float32),  # beside the ages in one bucket
        )
        total = collectives.sums(sent, axis_name, bucket_bytes)
        mean = jax.tree.map(lambda leaf: leaf / workers, total.gradients)
        handed = means.of_all_workers(extra_args)
        handed["staleness"] = total.ages / jnp.maximum(total.held, 1.0)
        moves, inner_state = inner.update(mean, state.inner_state, params, **handed)
        later = optax.tree.cast_like(later, state.carried)
        return moves, PartialMeanState(
            staleness=handed["staleness"],
            step=state.step + 1,
            carried=axes.typed_like(later, state.carried),
            inner_state=inner_state,
        )

    return transforms.stateful(PartialMeanState, init_fn, update_fn)


def solo(seconds: ArrayLike, *, axis_name: axes.AxisName = "workers") -> Participation:
    """The `participates` of `partial_mean` where the first worker triggers the sum.

        p takes part in step t  iff  seconds[t, p] = min_q seconds[t, q]

    Args:
        seconds: float [T, P], finite, the time at which each worker has its gradient.
            Only times of the same step are compared. Round them if workers that arrive
            almost together should take part together. After T steps the table starts
            again.
        axis_name: the axis of the P workers, or several.

    Example:
        >>> arrives = solo([[1.0, 2.0, 1.0], [3.0, 2.0, 2.5]])
        >>> jax.vmap(lambda step, _: arrives(step), in_axes=(None, 0),
        ...     axis_name="workers")(1, jnp.arange(3))
        Array([False,  True, False], dtype=bool)

    References:
        Li et al. (eager-SGD), PPoPP 2020, arXiv:1908.04207, solo allreduce.
    """
    after_first = _after_first(seconds, axis_name)

    def participates(step):
        row, worker = after_first(step)
        return row[worker] <= 0

    return participates


@kinds.checked
def majority(
    key: kinds.Key, seconds: ArrayLike, *, axis_name: axes.AxisName = "workers"
) -> Participation:
    """The `participates` of `partial_mean` where a random worker triggers the sum.

        q(t) uniform on 0, ..., P - 1, the same on all workers
        p takes part in step t  iff  seconds[t, p] <= seconds[t, q(t)]

    If no two times are equal, (P + 1) / 2 workers take part on average.

    Args:
        key: a PRNG key; the draw at step t uses `fold_in(key, t)`.
        seconds: float [T, P], as in `solo`.
        axis_name: the axis of the P workers, or several.

    Example:
        >>> arrives = majority(jax.random.key(0), [[0.0, 1.0, 2.0, 3.0]])
        >>> each = jax.vmap(lambda _, t: arrives(t), (0, None), axis_name="workers")
        >>> sorted({float(each(jnp.arange(4), step).mean()) for step in range(50)})
        [0.25, 0.5, 0.75, 1.0]

    References:
        Li et al. (eager-SGD), PPoPP 2020, arXiv:1908.04207, majority allreduce.
    """
    after_first = _after_first(seconds, axis_name)

    def participates(step):
        row, worker = after_first(step)
        trigger = jax.random.randint(jax.random.fold_in(key, step), (), 0, row.size)
        return row[worker] <= row[trigger]

    return participates


def _after_first(
    seconds: Any, axis_name: axes.AxisName
) -> Callable[[Any], tuple[jax.Array, jax.Array]]:
    """A function of the step: seconds after the first arrival, [P], and this rank."""
    seconds = collectives.check_table("seconds", seconds)
    if checks.is_concrete(seconds) and not np.isfinite(seconds).all():
        raise ValueError("`seconds` must be finite, got nan or inf.")
    # subtracted in float64: differences of large times are small
    table = jnp.asarray(seconds - seconds.min(axis=1, keepdims=True), jnp.float32)

    return lambda step: collectives.row_of("seconds", table, step, axis_name)
