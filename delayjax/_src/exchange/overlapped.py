"""The mean gradient of the last step, sent while this step computes its gradient."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

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


@refusal.register_producer
class OutboxState(NamedTuple):
    """State of `overlapped_mean` and `late_reduce`, with one gradient in flight."""

    staleness: Any  # handed on by the last update, in steps, float32 []
    outbox: Any  # the gradient of the step before, of each worker or shard
    age: jax.Array  # staleness of that gradient when it came in, float32 []
    value: jax.Array  # the loss that came with it; 0 if there was none, float32 []
    stale_params: Any  # the parameters at which it was taken; () without `keep_params`
    full: jax.Array  # whether there was a step before, bool []
    inner_state: Any


class Held(NamedTuple):
    """A gradient in flight."""

    gradient: Any
    age: Any  # its staleness, in steps; None where staleness is not handed on
    value: Any  # its loss; None where no loss is handed on


Send = Callable[[Held, Any, Any], tuple[Held, Any]]
"""(in flight, fresh gradient, params) -> its mean, and the gradient to hold next"""


@kinds.checked
def overlapped_mean(
    inner: transforms.Transformation,
    *,
    axis_name: axes.AxisName = "workers",
    keep_params: bool = False,
    weight: extras.Law | None = None,
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the mean of the workers' gradients of the step before.

        update_t = inner( (1/P) sum_p g_p[t - 1] ),    update_0 = 0

    The sum needs no result of step t, so a compiler can hide it behind the gradient of
    step t. At step 0 `inner` does not change. For longer delays put a history before
    it: `delayed(overlapped_mean(inner), d)` is d + 1 steps late.

    Args:
        inner: the transformation behind the mean; optimizers that do not work with late
            gradients are refused. It receives `staleness=`, one more than the mean of
            the workers' staleness (float32; int32 1 if they received none), no
            `worker=`, and the mean loss of the step before as `value=`, if given.
        axis_name: the workers' axis, or several.
        keep_params: whether to keep the parameters of the step before and pass them to
            `inner` as `stale_params=`.
        weight: staleness -> weight in the mean, as in `mean`.
        bucket_bytes: smaller leaves are joined and sent together, as in `mean`.

    Returns:
        A transformation whose state holds one gradient tree for each worker, the state
        of `inner`, and with `keep_params` one parameter tree. Each step copies the
        state of `inner`: put a history outside, not inside.

    Example:
        >>> tx = overlapped_mean(optax.sgd(1.0))
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad))
        ...     return first, tx.update(grad, state)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([0., 0.], dtype=float32), Array([-2., -2.], dtype=float32))
    """

    def empty(params):
        return optax.tree.zeros_like(axes.vary(params, axis_name=axis_name))

    def send(held, fresh, params):
        collectives.check_fresh(name, fresh, axis_name)
        fresh = optax.tree.cast_like(fresh, held.gradient)
        sent = held.gradient, held.value
        (gradient, value), age, fresh = means.average(
            sent, held.age, axis_name, weight, bucket_bytes, fresh
        )
        return Held(gradient, age, value), fresh

    name = "exchange.overlapped_mean"
    return one_step_late(name, inner, empty, send, axis_name, keep_params)


def one_step_late(
    name: str,
    inner: transforms.Transformation,
    empty: Callable[[Any], Any],
    send: Send,
    axis_name: axes.AxisName,
    keep_params: bool,
) -> optax.GradientTransformationExtraArgs:
    """Feeds `inner` the gradient of the step before, at first `empty(params)`."""
    inner = transforms.as_transformation("inner", inner)

    def init_fn(params):
        inner_state = wrapped.init("inner", inner, params, wrapper=name)
        return OutboxState(
            staleness=jnp.zeros((), jnp.float32),
            outbox=empty(params),
            age=axes.vary(jnp.zeros((), jnp.float32), axis_name=axis_name),
            value=axes.vary(extras.as_loss(None), axis_name=axis_name),
            # not the parameters: then one buffer would be donated twice
            stale_params=optax.tree.zeros_like(params) if keep_params else (),
            full=jnp.zeros((), bool),
            inner_state=inner_state,
        )

    def update_fn(
        updates, state, params=None, *, staleness=None, value=None, **extra_args
    ):
        updates, age = extras.staleness_of(name, updates, staleness, None, one=True)
        held = Held(
            state.outbox,
            age=None if staleness is None else state.age,
            value=None if value is None else state.value,
        )
        mean, outbox = send(held, updates, params)
        handed = means.of_all_workers(extra_args) | {"staleness": mean.age + 1}
        if value is not None:
            handed["value"] = mean.value.astype(jnp.result_type(value))
        kept = ()
        if keep_params:
            kept = extra_args.get("stale_params")
            kept = params if kept is None else kept
            extras.require_params(kept, f"{name}(keep_params=True)")
            # outside of `jit` a copy, so that no buffer is donated twice
            kept = jax.tree.map(
                lambda x: jnp.copy(x) if checks.is_concrete(x) else x, kept
            )
            handed["stale_params"] = state.stale_params
        gradient = optax.tree.cast_like(mean.gradient, updates)
        moves, inner_state = inner.update(gradient, state.inner_state, params, **handed)
        still = optax.tree.zeros_like(moves), state.inner_state
        moves, inner_state = optax.tree.where(state.full, (moves, inner_state), still)
        handed_on = jnp.asarray(mean.age + 1, jnp.float32)
        return moves, OutboxState(
            staleness=jnp.where(state.full, handed_on, 0.0),
            outbox=outbox,
            age=axes.typed_like(age.astype(jnp.float32), state.age),
            value=axes.typed_like(extras.as_loss(value), state.value),
            stale_params=kept,
            full=jnp.ones((), bool),
            inner_state=inner_state,
        )

    return transforms.stateful(OutboxState, init_fn, update_fn)
